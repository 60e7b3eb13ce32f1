//! The recipes in a history: turns for slots and ids, candidates of an election, and tickets.

use std::time::Duration;

use leasehold::slot::{Begin, Turns};
use leasehold::ticket::Ticket;
use leasehold::{Client, Election, FencedLock, Lock, Result};

use super::held::{Answer, Held};
use super::{NAME, Wanted, Wish};
use crate::scenario::{Ask, Turn, own_rng};

/// The settings for the recipe `Turns` in a history. All clients use the same settings.
pub(crate) struct Plan {
    /// The length of the slots; `None` if the turns have ids.
    period: Option<Duration>,
    pub(crate) retry_failed: bool,
    pub(crate) at_most_once: bool,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = own_rng(seed, 0x510);
        Self {
            period: rng.bool().then(|| Duration::from_millis(rng.u64(10..400))),
            retry_failed: rng.u32(0..3) == 0,
            at_most_once: rng.u32(0..3) == 0,
        }
    }

    /// Returns the lock's `Turns`. If the turns have ids, tasks with the same number compete for
    /// one id.
    pub(crate) fn turns(&self, lock: &Lock, number: u64) -> Turns {
        let turns = match self.period {
            Some(period) => lock.once_per(period),
            None => lock.once_for(id(number)),
        };
        turns
            .retry_failed(self.retry_failed)
            .at_most_once(self.at_most_once)
    }
}

/// Returns the id for the turns with this number.
pub(crate) fn id(number: u64) -> String {
    format!("run-{number}")
}

/// Returns the `Turns` for a task's turn, or the plain lock that excludes them.
pub(super) fn turns(client: &Client, wish: &Wish<'_>) -> Wanted {
    let lock = client.lock(NAME);
    if is_plain(wish.turn) {
        return wish.of(lock.acknowledged_by(wish.acknowledgement()));
    }
    Wanted::Turns(Plan::of(wish.seed).turns(&wish.set(lock), wish.place))
}

/// Returns whether a turn acquires the lock without the recipe, as a Java client would.
fn is_plain(turn: &Turn) -> bool {
    turn.way.is_multiple_of(8)
}

pub(super) async fn begin(turns: &Turns, ask: Ask) -> Result<Answer> {
    let begun = match ask {
        Ask::Acquire => turns.begin().await,
        Ask::Try => turns.try_begin().await,
        Ask::For(ms) => turns.begin_for(Duration::from_millis(ms)).await,
    };
    Ok(match begun? {
        Begin::Run(turn) => Answer::Held(Held::Turn(Box::new(turn))),
        Begin::Done(info) => Answer::Over(info),
        Begin::Elsewhere(_) => Answer::Busy,
    })
}

/// Returns the payload that a candidate on this machine sets.
pub(crate) fn payload(machine: usize) -> String {
    format!("machine {machine}")
}

/// Returns a candidate, or the fenced lock, which excludes candidates and has no payload.
pub(super) fn candidate(client: &Client, wish: &Wish<'_>) -> Wanted {
    if is_plain(wish.turn) {
        let lock = client.fenced_lock(NAME);
        return wish.of(lock.acknowledged_by(wish.acknowledgement()));
    }
    let election = client
        .election(NAME)
        .payload(payload(wish.machine))
        .poll_interval(wish.poll_interval)
        .acknowledged_by(wish.acknowledgement());
    Wanted::Candidate(election)
}

pub(super) async fn stand(election: &Election, ask: Ask) -> Result<Answer> {
    let term = match ask {
        Ask::Try => election.try_stand().await?,
        _ => Some(election.stand().await?),
    };
    Ok(term.map_or(Answer::Busy, |term| Answer::Held(Held::Term(term))))
}

/// Returns a plain or a fenced lock. The two exclude each other, and a ticket for one is also valid
/// for the other.
pub(super) fn ticketed(client: &Client, wish: &Wish<'_>) -> Wanted {
    match is_without_token(wish.turn) {
        true => wish.of(client.lock(NAME).acknowledged_by(wish.acknowledgement())),
        false => wish.of(client
            .fenced_lock(NAME)
            .acknowledged_by(wish.acknowledgement())),
    }
}

/// A ticket that a turn resumes, and a handle with the turn's settings.
pub(crate) struct Resumed {
    handle: Handle,
    ticket: Ticket,
}

enum Handle {
    Plain(Lock),
    Fenced(FencedLock),
}

impl Resumed {
    pub(crate) fn new(client: &Client, wish: &Wish<'_>, ticket: Ticket) -> Self {
        let handle = match is_without_token(wish.turn) {
            true => Handle::Plain(wish.set(client.lock(NAME))),
            false => Handle::Fenced(wish.set(client.fenced_lock(NAME))),
        };
        Self { handle, ticket }
    }

    pub(super) async fn resume(&self) -> Result<Answer> {
        let guard = match &self.handle {
            Handle::Plain(lock) => lock.resume(&self.ticket).await?,
            Handle::Fenced(lock) => lock.resume(&self.ticket).await?.into(),
        };
        Ok(Answer::Held(Held::Lock(guard)))
    }
}

fn is_without_token(turn: &Turn) -> bool {
    turn.way.is_multiple_of(4)
}
