//! The subject of a history: one kind of lock. Everything else in a history is the same for all
//! subjects.

mod belief;
mod held;
mod multi;
pub(crate) mod recipes;
mod rw;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use leasehold::kind::OneKey;
use leasehold::slot::Turns;
use leasehold::{Acknowledgement, AnyLock, Client, Election, Lock, Owner, RedLock, Result};

pub(crate) use self::belief::Belief;
pub(crate) use self::held::{Answer, Held};
use self::recipes::Resumed;
use self::rw::OneWay;
use crate::scenario::{Ask, Turn};

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Subject {
    /// `Lock`.
    Lock,
    /// `FencedLock`.
    Fenced,
    /// `FairLock`.
    Fair,
    /// `RwLock`.
    Rw,
    /// `GroupLock`, with some of three values.
    Group,
    /// `MultiLock`, with some of three locks.
    Multi,
    /// `RedLock`, on three or five servers.
    Red,
    /// `Turns`, for slots or for ids, together with holders of the plain lock.
    Slot,
    /// `Election`, with an observer on each machine, together with holders of the fenced lock.
    Election,
    /// `Lock` and `FencedLock`, whose holds are passed on as tickets.
    Ticket,
}

/// The name that all clients lock.
pub(crate) const NAME: &str = "x";

/// The values of the group `NAME`.
const VALUES: [&str; 3] = ["a", "b", "c"];

/// The time limit for confirmations by replicas.
const CONFIRMED_WITHIN: Duration = Duration::from_millis(100);

/// The settings of a turn's lock.
pub(crate) struct Wish<'a> {
    /// The seed of the history. The settings of all clients are drawn from it.
    pub(crate) seed: u64,
    /// The number of the machine.
    pub(crate) machine: usize,
    /// The number of the turn among its task's turns.
    pub(crate) place: u64,
    pub(crate) turn: &'a Turn,
    pub(crate) poll_interval: Duration,
    /// The longest lease, for a `RedLock` whose servers may forget their grants.
    pub(crate) longest_lease: Option<Duration>,
    /// Whether a replica must confirm the hold.
    pub(crate) acknowledged: bool,
    pub(crate) owner: Option<&'a Owner>,
}

impl Wish<'_> {
    fn acknowledgement(&self) -> Acknowledgement {
        Acknowledgement::replicas(self.acknowledged.into()).within(CONFIRMED_WITHIN)
    }

    fn of(&self, lock: impl Into<AnyLock>) -> Wanted {
        let mut lock = lock.into().poll_interval(self.poll_interval);
        if let Some(owner) = self.owner {
            lock = lock.owned_by(owner);
        }
        if let Some(limit_ms) = self.turn.max_hold_ms {
            lock = lock.max_hold(Duration::from_millis(limit_ms));
        }
        if let Some(lease_ms) = self.turn.fixed_lease_ms {
            lock = lock.fixed_lease(Duration::from_millis(lease_ms));
        }
        if let Some(progress) = self.turn.progress {
            lock = lock.progress_within(Duration::from_millis(progress.within_ms));
        }
        Wanted::Lock(lock)
    }

    /// Returns the lock with the turn's minimum hold time.
    fn least<K: OneKey>(&self, lock: Lock<K>) -> Lock<K> {
        match self.turn.least_ms {
            Some(least_ms) => lock.min_hold(Duration::from_millis(least_ms)),
            None => lock,
        }
    }

    /// Returns the lock with the turn's settings, except for the owner.
    fn set<K: OneKey>(&self, lock: Lock<K>) -> Lock<K> {
        let lock = lock.acknowledged_by(self.acknowledgement());
        let mut lock = lock.poll_interval(self.poll_interval);
        if let Some(limit_ms) = self.turn.max_hold_ms {
            lock = lock.max_hold(Duration::from_millis(limit_ms));
        }
        if let Some(lease_ms) = self.turn.fixed_lease_ms {
            lock = lock.fixed_lease(Duration::from_millis(lease_ms));
        }
        lock
    }
}

impl Subject {
    /// Returns the number of servers in a history.
    pub(crate) fn servers(self, seed: u64) -> usize {
        match self {
            Self::Red if seed.is_multiple_of(3) => 5,
            Self::Red => 3,
            _ => 1,
        }
    }

    /// Returns whether holds of this subject can be set to require confirmations by replicas.
    pub(crate) fn has_replicas(self) -> bool {
        !matches!(self, Self::Multi | Self::Red)
    }

    /// Returns the lock for a turn. `clients` has one client for each server.
    pub(crate) fn lock(self, clients: &[Client], wish: &Wish<'_>) -> Wanted {
        let (client, by) = (&clients[0], wish.acknowledgement());
        match self {
            Self::Lock => wish.of(wish.least(client.lock(NAME).acknowledged_by(by))),
            Self::Fenced => wish.of(wish.least(client.fenced_lock(NAME).acknowledged_by(by))),
            Self::Fair => wish.of(wish.least(client.fair_lock(NAME).acknowledged_by(by))),
            Self::Rw => rw::lock(client, wish, NAME),
            Self::Group => {
                let lock = client.group_lock(NAME, values(wish.turn));
                wish.of(lock.acknowledged_by(by))
            }
            Self::Multi => multi::lock(client, wish),
            Self::Slot => recipes::turns(client, wish),
            Self::Election => recipes::candidate(client, wish),
            Self::Ticket => recipes::ticketed(client, wish),
            Self::Red => {
                let members = clients.iter().map(|client| client.lock(NAME));
                let lock = RedLock::new(members).expect("three members or five");
                let lock = match wish.longest_lease {
                    Some(longest) => lock.longest_lease(longest),
                    // Servers do not forget holds in this history, and leases may have any length.
                    None => lock.distrust_restarted(false),
                };
                // For the shortest leases, the default time limit would be less than the time that
                // a reply takes.
                wish.of(lock.member_timeout(Duration::from_millis(100)))
            }
        }
    }

    /// Returns the names for which a turn's hold excludes other holds. The flag says whether the
    /// hold can be shared with other holds of its kind.
    pub(crate) fn names(self, turn: &Turn) -> Vec<(&'static str, bool)> {
        match self {
            Self::Rw => vec![(NAME, rw::way(turn).ends_as_reader())],
            Self::Group => values(turn).map(|value| (value, false)).collect(),
            Self::Multi => multi::names(turn),
            _ => vec![(NAME, false)],
        }
    }

    /// Returns whether `keep_for` or a minimum hold time can keep the lock after a turn.
    pub(crate) fn can_be_kept(self, turn: &Turn) -> bool {
        match self {
            Self::Lock | Self::Fenced | Self::Fair => true,
            Self::Rw => rw::way(turn) == rw::Way::Write,
            Self::Group | Self::Multi | Self::Red => false,
            // These recipes end their holds in their own ways.
            Self::Slot | Self::Election | Self::Ticket => false,
        }
    }

    /// Returns whether the work of this subject's holders may report progress, or fail to.
    pub(crate) fn reports_progress(self) -> bool {
        matches!(self, Self::Lock | Self::Fenced | Self::Fair)
    }

    /// Returns whether a key may remain after all holds have ended.
    pub(crate) fn leaves(self, key: &str) -> bool {
        match self {
            Self::Fenced | Self::Multi | Self::Election => is_counter(key),
            Self::Ticket => is_counter(key) || key.ends_with(":taken"),
            Self::Slot => key.ends_with(":slot") || key.contains(":once:"),
            Self::Red => key.ends_with(":longest"),
            _ => false,
        }
    }

    /// Returns prefixes of the names of this subject's steps, for faults that affect only some
    /// steps.
    pub(crate) fn steps(self) -> [&'static str; 4] {
        match self {
            Self::Lock => ["lock.acquire", "lock.release", "lock.renew", "lock"],
            Self::Fenced => ["fenced.acquire", "lock.release", "lock.renew", ""],
            Self::Fair => ["fair.acquire", "fair.release", "lock.renew", ""],
            Self::Rw => ["rw.acquire", "rw.release", "rw.renew", "rw"],
            Self::Group => ["group.acquire", "group.release", "group.renew", "group"],
            Self::Multi => ["lock", "fair", "rw", ""],
            Self::Red => ["lock.acquire", "lock.release", "lock.renew", ""],
            Self::Slot => ["slot.begin", "slot.finish", "lock.renew", "slot"],
            Self::Election => [
                "election.lead",
                "election.resign",
                "election.renew",
                "election",
            ],
            Self::Ticket => ["ticket.take", "lock.keep_for", "lock.release", "fenced"],
        }
    }

    /// Force-unlocks the lock, as an operator would.
    pub(crate) async fn force_unlock(self, operators: &[Client]) {
        for operator in operators {
            let _ = match self {
                Self::Lock
                | Self::Fenced
                | Self::Red
                | Self::Slot
                | Self::Election
                | Self::Ticket => operator.lock(NAME).force_unlock().await,
                Self::Fair => operator.fair_lock(NAME).force_unlock().await,
                Self::Group => operator.group_lock(NAME, VALUES).force_unlock().await,
                Self::Rw => return rw::force_unlock(operator, NAME).await,
                Self::Multi => return multi::force_unlock(operator).await,
            };
        }
    }

    /// Returns how long the remains of a dead process can delay other clients after its leases have
    /// ended.
    pub(crate) fn dead_waiters_last(self) -> Duration {
        match self {
            Self::Fenced | Self::Group | Self::Red => Duration::ZERO,
            // A dead process is still in the list of clients to notify.
            Self::Lock | Self::Rw | Self::Multi | Self::Slot | Self::Election | Self::Ticket => {
                Duration::from_secs(12)
            }
            Self::Fair => Duration::from_secs(6),
        }
    }

    /// Requests the lock once, because this removes dead waiters from the queue.
    pub(crate) async fn come_by(self, operators: &[Client]) {
        let name = match self {
            Self::Fair => NAME,
            Self::Multi => multi::NAMES[1],
            _ => return,
        };
        let _ = operators[0].fair_lock(name).try_acquire().await;
    }

    /// Returns the keys that a fault removes.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Multi => &multi::NAMES,
            _ => &[NAME],
        }
    }
}

/// Returns whether the key is the counter of fencing tokens.
fn is_counter(key: &str) -> bool {
    key.starts_with("redisson_lock_token:")
}

/// Returns the values that the turn locks, in any order.
fn values(turn: &Turn) -> impl Iterator<Item = &'static str> {
    let (subset, first) = (turn.way % 7 + 1, usize::from(turn.way / 7));
    let numbers = (0..VALUES.len()).map(move |number| (first + number) % VALUES.len());
    let chosen = numbers.filter(move |number| subset >> number & 1 == 1);
    chosen.map(|number| VALUES[number])
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The lock that a turn acquires.
#[allow(clippy::large_enum_variant, reason = "there is one per turn")]
pub(crate) enum Wanted {
    Lock(AnyLock),
    /// A read-write lock, which is possibly acquired in two steps.
    OneWay(OneWay),
    Turns(Turns),
    Candidate(Election),
    /// A ticket, which is resumed.
    Ticket(Resumed),
}

impl Wanted {
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Answer> {
        match self {
            Self::Lock(lock) => match ask {
                Ask::Acquire => lock.acquire().await.map(Some),
                Ask::Try => lock.try_acquire().await,
                Ask::For(ms) => lock.try_acquire_for(Duration::from_millis(ms)).await,
            }
            .map(Answer::from),
            Self::OneWay(lock) => lock.ask(ask).await.map(Answer::from),
            Self::Turns(turns) => recipes::begin(turns, ask).await,
            Self::Candidate(election) => recipes::stand(election, ask).await,
            Self::Ticket(ticket) => ticket.resume().await,
        }
    }
}
