//! The lock or permit that the flags describe.

use std::time::Duration;

use leasehold::inspect::Found;
use leasehold::kind::OneKey;
use leasehold::{
    Acknowledgement, AnyLock, Client, Error, ExpirablePermit, ExpirableSemaphore, Lock, LockGuard,
    MultiLock, RedLock, Result,
};
use tokio::time::Instant;

use super::holding::Holding;
use super::in_the_way::InTheWay;
use crate::cli::Wanted as Args;
use crate::cmd::set_limit::limit_of;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{Shown, note};
use crate::usage::command_line;

/// The default longest lease of a `RedLock`. A restarted server has no vote for this time.
const LONGEST_LEASE: Duration = Duration::from_secs(30);

/// The pause between two tries while no server answers.
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Waits before a request is repeated. Returns `false` at once if the next try would be after the
/// limit.
pub(super) async fn wait_for_next_try(limit: Instant) -> bool {
    let in_time = Instant::now() + BETWEEN_TRIES < limit;
    if in_time {
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
    in_time
}

/// The limit of a wait.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    Now,
    Until(Instant),
    Never,
}

/// The limits of a hold, besides its lease.
#[derive(Clone, Copy, Default)]
pub(in crate::cmd) struct HoldLimits {
    /// The minimum time for which the lock stays locked.
    pub(in crate::cmd) min_hold: Option<Duration>,
    /// The time within which the work must report progress. Otherwise the hold is no longer
    /// renewed.
    pub(in crate::cmd) progress_within: Option<Duration>,
}

/// The lock or permit that the flags describe.
#[derive(Clone)]
pub(super) enum Wanted {
    /// A lock, and the client and the name of each single lock that it consists of.
    Lock(AnyLock, Vec<(Client, String)>),
    Permit(Limited),
}

impl Wanted {
    /// Creates a lock, several locks, a permit, or a `RedLock` on the clients' servers.
    pub(super) fn new(
        clients: &[Client],
        args: &Args,
        name: &str,
        limits: HoldLimits,
    ) -> Result<Self> {
        let settings = Settings {
            progress_within: limits.progress_within,
            outage_timeout: args.outage_timeout,
            poll_interval: args.poll_interval,
        };
        if let Some(most) = args.kind.limit {
            let permits = settings.permits(&clients[0], name, most);
            return Ok(Self::Permit(permits));
        }
        let parts = parts(clients, args, name).into_iter();
        let locks =
            parts.map(|(client, name)| settings.on(lock(client, args, name, limits.min_hold)));
        let lock = settings.as_one(args, locks.collect())?;
        // Set the time on the combined lock, so that each report of progress counts for all of its
        // parts.
        let lock = match limits.progress_within {
            Some(within) => lock.progress_within(within),
            None => lock,
        };
        Ok(Self::Lock(lock, owned(self::parts(clients, args, name))))
    }

    pub(super) async fn acquire(&self, limit: Limit) -> Result<Option<Holding>, Failure> {
        Ok(match self {
            Self::Lock(lock, _) => acquire(lock, limit).await?.map(Holding::Lock),
            Self::Permit(permits) => permits.acquire(limit).await?.map(Holding::Permit),
        })
    }

    /// Returns the holder that blocks the acquire.
    pub(super) async fn in_the_way(&self) -> Result<InTheWay> {
        match self {
            Self::Lock(_, parts) => InTheWay::of_any(parts).await,
            Self::Permit(permits) => permits.in_the_way().await,
        }
    }
}

/// Creates a lock of the kind that the flags name.
fn lock(client: &Client, args: &Args, name: &str, min_hold: Option<Duration>) -> AnyLock {
    let kind = &args.kind;
    let settings = (acknowledgement(args), min_hold);
    if kind.fair {
        of_kind(client.fair_lock(name), settings)
    } else if kind.read {
        of_kind(client.rw_lock(name).read_lock(), settings)
    } else if kind.write {
        of_kind(client.rw_lock(name).write_lock(), settings)
    } else if args.fenced {
        // The grant of a fenced lock includes the token.
        of_kind(client.fenced_lock(name), settings)
    } else {
        of_kind(client.lock(name), settings)
    }
}

fn of_kind<K: OneKey>(lock: Lock<K>, (by, min_hold): (Acknowledgement, Option<Duration>)) -> AnyLock
where
    Lock<K>: Into<AnyLock>,
{
    let lock = lock.acknowledged_by(by);
    match min_hold {
        Some(least) => lock.min_hold(least).into(),
        None => lock.into(),
    }
}

/// Returns the confirmations that the lock needs.
pub(super) fn acknowledgement(args: &Args) -> Acknowledgement {
    let replicas = Acknowledgement::replicas(args.replicas);
    match args.on_disk {
        // This is long enough for a server that writes to its disk once a second.
        true => replicas.on_disk().within(Duration::from_millis(1500)),
        false => replicas,
    }
}

async fn acquire(lock: &AnyLock, limit: Limit) -> Result<Option<LockGuard>> {
    match limit {
        Limit::Now => lock.try_acquire().await,
        Limit::Until(deadline) => lock.try_acquire_until(deadline).await,
        Limit::Never => lock.acquire().await.map(Some),
    }
}

/// A server's client, and the name of a lock on this server.
type Part<'a> = (&'a Client, &'a str);

fn parts<'a>(clients: &'a [Client], args: &'a Args, name: &'a str) -> Vec<Part<'a>> {
    let also = args.also.iter().map(String::as_str);
    let names: Vec<_> = std::iter::once(name).chain(also).collect();
    let on_each = |client| names.iter().map(move |name| (client, *name));
    clients.iter().flat_map(on_each).collect()
}

fn owned(parts: Vec<Part<'_>>) -> Vec<(Client, String)> {
    let parts = parts.into_iter();
    parts
        .map(|(client, name)| (client.clone(), name.to_owned()))
        .collect()
}

struct Settings {
    progress_within: Option<Duration>,
    outage_timeout: Duration,
    poll_interval: Option<Duration>,
}

impl Settings {
    fn on(&self, lock: impl Into<AnyLock>) -> AnyLock {
        let lock = lock.into().outage_timeout(self.outage_timeout);
        match self.poll_interval {
            Some(cap) => lock.poll_interval(cap),
            None => lock,
        }
    }

    /// Combines locks into one: into a `RedLock` with `--redlock`, otherwise into a lock that holds
    /// all of them. A single lock is returned unchanged.
    fn as_one(&self, args: &Args, locks: Vec<AnyLock>) -> Result<AnyLock> {
        if !args.redlock.is_empty() {
            // Other clients of this lock expect the default longest lease. If ours is longer, the
            // library stores it on the servers, where the others read it.
            let longest = args.lease.max(LONGEST_LEASE);
            return Ok(self.on(RedLock::new(locks)?.longest_lease(longest)));
        }
        match <[AnyLock; 1]>::try_from(locks) {
            Ok([only]) => Ok(only),
            Err(several) => Ok(self.on(MultiLock::new(several)?)),
        }
    }

    fn permits(&self, client: &Client, name: &str, most: u32) -> Limited {
        let permits = client.expirable_semaphore(name);
        let permits = permits.outage_timeout(self.outage_timeout);
        let permits = match self.poll_interval {
            Some(cap) => permits.poll_interval(cap),
            None => permits,
        };
        let permits = match self.progress_within {
            Some(within) => permits.progress_within(within),
            None => permits,
        };
        Limited {
            client: client.clone(),
            permits,
            most,
            outage_timeout: self.outage_timeout,
        }
    }
}

/// A limit on the number of commands that run at a time. Each command has a permit. If the
/// command's leasehold dies, the permit is free again after its lease.
#[derive(Clone)]
pub(super) struct Limited {
    client: Client,
    permits: ExpirableSemaphore,
    most: u32,
    outage_timeout: Duration,
}

impl Limited {
    async fn acquire(&self, limit: Limit) -> Result<Option<ExpirablePermit>, Failure> {
        self.agree(limit).await?;
        Ok(match limit {
            Limit::Now => self.permits.try_acquire().await?,
            Limit::Until(deadline) => self.permits.try_acquire_until(deadline).await?,
            Limit::Never => Some(self.permits.acquire().await?),
        })
    }

    async fn in_the_way(&self) -> Result<InTheWay> {
        // This query leaves out the clients: many processes may run it at once, and each would read
        // all clients.
        let found = self.client.peek(self.permits.name()).await?.found;
        let running = match found {
            Found::Leases { held, .. } => held,
            _ => 0,
        };
        let text = match found {
            Found::Nothing => "its limit was removed".to_owned(),
            _ => format!("{running} of {} are already running", self.most),
        };
        Ok(InTheWay {
            text,
            ..InTheWay::default()
        })
    }

    /// Agrees with all other clients on the limit. Repeats the request for as long as an acquire
    /// would, because the library gives up a single request after a few seconds.
    async fn agree(&self, limit: Limit) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut over = begun + self.outage_timeout;
        if let Limit::Until(deadline) = limit {
            over = over.min(deadline);
        }
        let mut last = None;
        while last.is_none() || Instant::now() < over {
            match tokio::time::timeout_at(over, self.agree_once()).await {
                Ok(Err(error)) if !matches!(limit, Limit::Now) && error.is_transient() => {
                    last = Some(error);
                    tokio::time::sleep(BETWEEN_TRIES).await;
                }
                Ok(result) => return result?,
                Err(_) => break,
            }
        }
        Err(self.unanswered(begun.elapsed(), last))
    }

    /// Compares the limit with the limit on the server, or sets it there if there is none. The step
    /// that sets a limit never changes an existing limit. So if two first runs try at the same
    /// time, only one of them sets it.
    async fn agree_once(&self) -> Result<Result<(), Failure>> {
        let (name, most) = (self.permits.name(), self.most);
        loop {
            let found = self.client.peek(name).await?.found;
            match limit_of(name, &found) {
                Ok(Some(there)) if there == i64::from(most) => return Ok(Ok(())),
                Ok(Some(there)) => return Ok(Err(self.refused(there))),
                Ok(None) if self.permits.try_set_permits(most).await? => {
                    let commands = match most {
                        1 => "1 command".to_owned(),
                        most => format!("{most} commands"),
                    };
                    note(format_args!(
                        "`{}` had no limit; from now on, {commands} can run at a time",
                        Shown(name)
                    ));
                    return Ok(Ok(()));
                }
                Ok(None) => {}
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }

    fn refused(&self, there: i64) -> Failure {
        let (name, most) = (self.permits.name(), self.most);
        Failure::new(
            Exit::Disagrees,
            format!(
                "the limit of `{}` is {there}, not {most}; write --limit {there}, or change it for \
                 all clients: leasehold set-limit {} {most}",
                Shown(name),
                command_line(&[name.into()])
            ),
        )
    }

    fn unanswered(&self, waited: Duration, last: Option<Error>) -> Failure {
        let last = match last {
            Some(error) => Failure::from(error).to_string(),
            None => format!(
                "no server answered at {} for `{}`; check the address and whether the server is running",
                self.client.address(),
                Shown(self.permits.name())
            ),
        };
        let waited = duration::shown(waited);
        Failure::new(Exit::Unavailable, format!("{last} (tried for {waited})"))
    }
}
