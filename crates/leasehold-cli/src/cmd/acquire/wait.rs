//! The wait for the lock.

use leasehold::Client;
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::holding::Holding;
use super::tidy;
use super::wanted::{Limit, Wanted};
use crate::cli::Wanted as Args;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, tell};
use crate::server::{Server, Terms};
use crate::signals::Signals;

/// How a wait ended.
pub(in crate::cmd) enum Waited {
    Held(Vec<Client>, Holding),
    /// Not free in time; this has been told.
    Busy,
    /// A signal has ended it, and nothing is left behind.
    Ended(Signal),
}

/// A wait that has not begun.
pub(in crate::cmd) struct Waiting<'a> {
    args: &'a Args,
    name: &'a str,
    servers: &'a [Server],
    limit: Limit,
}

impl<'a> Waiting<'a> {
    /// The time counts from here, connecting included.
    pub(in crate::cmd) fn new(args: &'a Args, name: &'a str, servers: &'a [Server]) -> Self {
        let limit = match args.wait {
            _ if args.no_wait => Limit::Now,
            Some(wait) => Limit::Until(Instant::now() + wait),
            None => Limit::Never,
        };
        Self {
            args,
            name,
            servers,
            limit,
        }
    }

    /// Waits until the lock is held, the time is over, or a signal comes.
    pub(in crate::cmd) async fn until_held(self, signals: &mut Signals) -> Result<Waited, Failure> {
        let clients = tokio::select! {
            clients = self.connect() => clients?,
            signal = signals.next() => return Ok(Waited::Ended(signal)),
        };
        let lock = Wanted::new(&clients, self.args, self.name)?;
        let guard = tokio::select! {
            guard = self.acquire(&lock) => guard?,
            signal = signals.next() => {
                // The wait was dropped: if it had just been granted, the lock goes
                // back in the background. A second signal ends that too.
                tokio::select! {
                    () = tidy(&clients) => {}
                    _ = signals.next() => {}
                }
                return Ok(Waited::Ended(signal));
            }
        };
        match guard {
            Some(guard) => Ok(Waited::Held(clients, guard)),
            None => {
                self.tell_busy(&lock).await;
                tidy(&clients).await;
                Ok(Waited::Busy)
            }
        }
    }

    /// A majority of servers is enough, so those may be down now.
    async fn connect(&self) -> Result<Vec<Client>, Failure> {
        let terms = Terms {
            lease: self.args.lease,
            failover_guard: self.args.failover_guard,
        };
        if let ([server], []) = (self.servers, &self.args.redlock[..]) {
            return Ok(vec![server.connect_for_holds(terms).await?]);
        }
        let servers = self.servers.iter();
        servers
            .map(|server| server.connect_in_background(terms))
            .collect()
    }

    async fn acquire(&self, lock: &Wanted) -> Result<Option<Holding>, Failure> {
        let (wanted, limit, fenced) = (lock.clone(), self.limit, self.args.fenced);
        let mut acquire = Aborted::on_drop(async move {
            match wanted.acquire(limit).await? {
                Some(guard) if fenced => Ok(Some(guard.with_token().await?)),
                guard => Ok(guard),
            }
        });
        if output::is_watched() {
            tokio::select! {
                biased;
                result = acquire.result() => return result,
                () = tokio::time::sleep(output::SILENT_FOR) => {}
            }
            // An answer that does not come must not hold up the lock.
            tokio::select! {
                biased;
                result = acquire.result() => return result,
                () = self.tell_waiting(lock) => {}
            }
        }
        acquire.result().await
    }

    async fn tell_waiting(&self, lock: &Wanted) {
        let name = Shown(self.name);
        let why = match lock.in_the_way().await {
            Ok(Some(holder)) => format!(", {holder}"),
            Ok(None) => String::new(),
            Err(error) => format!(": {}", Failure::from(error)),
        };
        output::note(format_args!("waiting for `{name}`{why}"));
        output::event(Event::Waiting, self.name, Vec::new);
    }

    async fn tell_busy(&self, lock: &Wanted) {
        let holder = lock.in_the_way().await.ok().flatten();
        let unknown = match self.args.failover_guard {
            Some(_) => "held by another, or kept back by the failover guard",
            None => "held by another",
        };
        let holder = holder.unwrap_or_else(|| unknown.to_owned());
        let name = Shown(self.name);
        match self.args.wait {
            Some(wait) => tell(format_args!(
                "`{name}` was not free within {}: {holder}; wait longer with --wait",
                duration::shown(wait)
            )),
            None => tell(format_args!(
                "`{name}` is not free: {holder}; leave out --no-wait to wait for it"
            )),
        }
    }
}

/// Work on the runtime's own threads, which ends when this is dropped. Those threads
/// have the terminal's stop signal held back, and so have the ones that they start
/// to look up host names; the main thread has not while it waits.
struct Aborted<T>(JoinHandle<T>);

impl<T: Send + 'static> Aborted<T> {
    fn on_drop(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Aborted<Result<T, Failure>> {
    async fn result(&mut self) -> Result<T, Failure> {
        match (&mut self.0).await {
            Ok(result) => result,
            Err(error) => Err(Failure::new(
                Exit::Failed,
                format!("waiting for the lock has broken off: {error}"),
            )),
        }
    }
}

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
