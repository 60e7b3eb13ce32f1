//! What is to be held: a lock of the kind that the flags ask for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::inspect::Found;
use leasehold::kind::{Kind, OneKey};
use leasehold::{Client, Error, ExpirableSemaphore, Lock, MultiLock, RedLock, Result};
use tokio::time::Instant;

use super::holding::Holding;
use crate::cli::Run;
use crate::cmd::set_limit::limit_of;
use crate::cmd::show::holder_of;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{Shown, note};
use crate::usage::command_line;

/// The default of a majority: so long a server that was started has no vote.
const LONGEST_LEASE: Duration = Duration::from_secs(30);

/// How long somebody waits.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    Now,
    Until(Instant),
    Never,
}

pub(super) type Doing<T, E = Error> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// A lock whose kind does not matter any more.
pub(super) trait Wanted: Send + Sync {
    fn acquire(&self, limit: Limit) -> Doing<Option<Holding>, Failure>;
    /// Who or what is in the way, in a few words.
    fn in_the_way(&self) -> Doing<Option<String>>;
}

/// What the flags ask for: a lock, several, a permit, or the lock of a majority of the
/// clients' servers.
pub(super) fn wanted(clients: &[Client], args: &Run, name: &str) -> Result<Arc<dyn Wanted>> {
    let settings = Settings {
        outage_timeout: args.outage_timeout,
        poll_interval: args.poll_interval,
    };
    let kind = &args.kind;
    let parts = parts(clients, args, name);
    if let Some(most) = kind.limit {
        return Ok(settings.permits(&clients[0], name, most));
    }
    if kind.fair {
        settings.locks(args, parts, Client::fair_lock)
    } else if kind.read {
        settings.locks(args, parts, |client, name| client.rw_lock(name).read_lock())
    } else if kind.write {
        settings.locks(args, parts, |client, name| {
            client.rw_lock(name).write_lock()
        })
    } else if args.fenced {
        // Its token comes with the grant.
        settings.locks(args, parts, Client::fenced_lock)
    } else {
        settings.locks(args, parts, Client::lock)
    }
}

/// A server's client, and the name of a lock there.
type Part<'a> = (&'a Client, &'a str);

fn parts<'a>(clients: &'a [Client], args: &'a Run, name: &'a str) -> Vec<Part<'a>> {
    let also = args.also.iter().map(String::as_str);
    let names: Vec<_> = std::iter::once(name).chain(also).collect();
    let on_each = |client| names.iter().map(move |name| (client, *name));
    clients.iter().flat_map(on_each).collect()
}

struct Settings {
    outage_timeout: Duration,
    poll_interval: Option<Duration>,
}

impl Settings {
    fn on<K: Kind>(&self, lock: Lock<K>) -> Lock<K> {
        let lock = lock.outage_timeout(self.outage_timeout);
        match self.poll_interval {
            Some(cap) => lock.poll_interval(cap),
            None => lock,
        }
    }

    fn locks<K: OneKey>(
        &self,
        args: &Run,
        parts: Vec<Part<'_>>,
        make: impl Fn(&Client, &str) -> Lock<K>,
    ) -> Result<Arc<dyn Wanted>> {
        let locks = parts
            .iter()
            .map(|(client, name)| self.on(make(client, name)));
        let locks: Vec<_> = locks.collect();
        if !args.redlock.is_empty() {
            // Others who share the lock expect the default, or are told of a longer one.
            let longest = args.lease.max(LONGEST_LEASE);
            let lock = self.on(RedLock::new(&locks)?).longest_lease(longest);
            return Ok(Arc::new(Whole { lock, locks }));
        }
        if let [lock] = &locks[..] {
            return Ok(Arc::new(lock.clone()));
        }
        let lock = self.on(MultiLock::new(&locks)?);
        Ok(Arc::new(Whole { lock, locks }))
    }

    fn permits(&self, client: &Client, name: &str, most: u32) -> Arc<dyn Wanted> {
        let permits = client.expirable_semaphore(name);
        let permits = permits.outage_timeout(self.outage_timeout);
        let permits = match self.poll_interval {
            Some(cap) => permits.poll_interval(cap),
            None => permits,
        };
        Arc::new(Limited {
            client: client.clone(),
            permits,
            most,
            outage_timeout: self.outage_timeout,
        })
    }
}

impl<K: OneKey> Wanted for Lock<K> {
    fn acquire(&self, limit: Limit) -> Doing<Option<Holding>, Failure> {
        let lock = self.clone();
        Box::pin(async move { acquire(&lock, limit).await })
    }

    fn in_the_way(&self) -> Doing<Option<String>> {
        let lock = self.clone();
        Box::pin(async move { Ok(holder_of(&lock.inspect().await?)) })
    }
}

async fn acquire<K: Kind>(lock: &Lock<K>, limit: Limit) -> Result<Option<Holding>, Failure> {
    let guard = match limit {
        Limit::Now => lock.try_acquire().await?,
        Limit::Until(deadline) => lock.try_acquire_until(deadline).await?,
        Limit::Never => Some(lock.acquire().await?),
    };
    Ok(guard.map(|guard| Holding::Lock(guard.into())))
}

/// A lock that is made of several.
struct Whole<W, K> {
    lock: Lock<W>,
    locks: Vec<Lock<K>>,
}

impl<W: Kind, K: OneKey> Wanted for Whole<W, K> {
    fn acquire(&self, limit: Limit) -> Doing<Option<Holding>, Failure> {
        let lock = self.lock.clone();
        Box::pin(async move { acquire(&lock, limit).await })
    }

    fn in_the_way(&self) -> Doing<Option<String>> {
        let locks = self.locks.clone();
        Box::pin(async move {
            for lock in locks {
                // One that can't be asked is no answer for the others.
                let Ok(info) = lock.inspect().await else {
                    continue;
                };
                if let Some(holder) = holder_of(&info) {
                    return Ok(Some(format!("`{}` is {holder}", Shown(lock.name()))));
                }
            }
            Ok(None)
        })
    }
}

/// So many commands at a time, each with a permit that comes back when it dies.
#[derive(Clone)]
struct Limited {
    client: Client,
    permits: ExpirableSemaphore,
    most: u32,
    outage_timeout: Duration,
}

impl Limited {
    /// Agrees with all others on how many may run, for as long as an acquire would try: the
    /// library gives up after a few seconds.
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

    /// The first one sets the limit. It is made in one step that leaves alone what is there,
    /// so of two who are first at the same time one is second.
    async fn agree_once(&self) -> Result<Result<(), Failure>> {
        let (name, most) = (self.permits.name(), self.most);
        loop {
            let found = self.client.inspect(name).await?.found;
            match limit_of(name, &found) {
                Ok(Some(there)) if there == i64::from(most) => return Ok(Ok(())),
                Ok(Some(there)) => return Ok(Err(self.refused(there))),
                Ok(None) if self.permits.try_set_permits(most).await? => {
                    note(format_args!(
                        "`{}` had no limit; it lets {most} run at a time from now on",
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
                "`{}` lets {there} run at a time, not {most}; write --limit {there}, or change it \
                 for all: leasehold set-limit {} {most}",
                Shown(name),
                command_line(&[name.into()])
            ),
        )
    }

    fn unanswered(&self, waited: Duration, last: Option<Error>) -> Failure {
        let last = match last {
            Some(error) => Failure::from(error).to_string(),
            None => format!(
                "no server answered at {} for `{}`; check the address and that the server runs",
                self.client.address(),
                Shown(self.permits.name())
            ),
        };
        let waited = duration::shown(waited);
        Failure::new(Exit::Unavailable, format!("{last} (tried for {waited})"))
    }
}

const BETWEEN_TRIES: Duration = Duration::from_millis(100);

impl Wanted for Limited {
    fn acquire(&self, limit: Limit) -> Doing<Option<Holding>, Failure> {
        let this = self.clone();
        Box::pin(async move {
            this.agree(limit).await?;
            let permits = &this.permits;
            let permit = match limit {
                Limit::Now => permits.try_acquire().await?,
                Limit::Until(deadline) => permits.try_acquire_until(deadline).await?,
                Limit::Never => Some(permits.acquire().await?),
            };
            Ok(permit.map(Holding::Permit))
        })
    }

    fn in_the_way(&self) -> Doing<Option<String>> {
        let this = self.clone();
        Box::pin(async move {
            let seen = this.client.inspect(this.permits.name()).await?;
            let running = match seen.found {
                Found::Leases { held, .. } => held,
                Found::Nothing => return Ok(Some("whose limit was removed".to_owned())),
                _ => 0,
            };
            Ok(Some(format!("{running} of {} run already", this.most)))
        })
    }
}
