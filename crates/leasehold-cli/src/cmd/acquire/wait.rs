//! The wait for the lock.

use leasehold::Client;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::holding::Holding;
use super::in_the_way::InTheWay;
use super::wanted::{HoldLimits, Limit, Wanted};
use super::{in_a_hurry, tidy, unless_hurried};
use crate::cli::Wanted as Args;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, note};
use crate::server::{Server, Terms};
use crate::signals::Signals;

/// The outcome of a wait.
pub(in crate::cmd) enum Waited {
    Held(Vec<Client>, Holding),
    /// The lock was not free in time. This has been reported.
    Busy,
    /// The turn is over, or another client has it. This has been reported.
    NotOurs,
    /// A signal ended the wait, and the clean-up is done.
    Ended(Signal),
}

/// A wait that has not begun.
pub(in crate::cmd) struct Waiting<'a> {
    pub(super) args: &'a Args,
    pub(super) name: &'a str,
    servers: &'a [Server],
    pub(super) limits: HoldLimits,
    limit: Limit,
    pub(super) begun: Instant,
}

impl<'a> Waiting<'a> {
    /// Creates a wait. The time of `--wait` starts now, so it includes the time to connect.
    pub(in crate::cmd) fn new(args: &'a Args, name: &'a str, servers: &'a [Server]) -> Self {
        let begun = Instant::now();
        let limit = match args.wait {
            _ if args.no_wait => Limit::Now,
            Some(wait) => Limit::Until(begun + wait),
            None => Limit::Never,
        };
        Self {
            args,
            name,
            servers,
            limits: HoldLimits::default(),
            limit,
            begun,
        }
    }

    /// Sets the limits of the hold.
    pub(in crate::cmd) fn limits(mut self, limits: HoldLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the lock or permit that the flags describe.
    pub(super) fn wanted(&self, clients: &[Client]) -> leasehold::Result<Wanted> {
        Wanted::new(clients, self.args, self.name, self.limits)
    }

    /// Waits until the lock is held, the time is up, or a signal arrives.
    pub(in crate::cmd) async fn until_held(self, signals: &mut Signals) -> Result<Waited, Failure> {
        let clients = self.connect()?;
        let lock = self.wanted(&clients)?;
        let guard = tokio::select! {
            guard = self.acquire(&lock) => guard,
            signal = signals.next() => {
                // The wait was dropped. A lock that had just been granted is released in
                // the background.
                let _ = in_a_hurry(tidy(&clients), signals).await;
                return Ok(Waited::Ended(signal));
            }
        };
        let guard = match guard {
            Ok(guard) => guard,
            Err(failure) => {
                // The holds of an acquire that has failed may still be released in the background.
                let _ = unless_hurried(tidy(&clients), signals).await;
                return Err(failure);
            }
        };
        match guard {
            Some(guard) => {
                self.tell_held(&guard);
                Ok(Waited::Held(clients, guard))
            }
            None => {
                self.tell_busy(&lock).await;
                tidy(&clients).await;
                Ok(Waited::Busy)
            }
        }
    }

    pub(super) fn tell_held(&self, guard: &Holding) {
        let waited = self.begun.elapsed();
        if !output::event(Event::Held, self.name, || guard.told(waited)) {
            output::detail(format_args!(
                "acquired `{}`, {} after asking for it",
                Shown(self.name),
                duration::shown(waited)
            ));
        }
    }

    /// Connects in the background, because a server may be down now.
    pub(super) fn connect(&self) -> Result<Vec<Client>, Failure> {
        let terms = Terms {
            lease: self.args.lease,
            failover_guard: self.args.failover_guard,
            rust_only: self.args.rust_only,
        };
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
        self.told_while(&mut acquire, lock).await
    }

    /// Waits for the result, and reports after a while what it waits for.
    pub(super) async fn told_while<T>(
        &self,
        acquire: &mut Aborted<Result<T, Failure>>,
        lock: &Wanted,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
    {
        if output::is_watched() || self.is_nested() {
            tokio::select! {
                biased;
                result = acquire.result() => return result,
                () = tokio::time::sleep(output::silent_for()) => {}
            }
            // A slow or missing reply about the holder must not delay the acquire.
            tokio::select! {
                biased;
                result = acquire.result() => return result,
                () = self.tell_waiting(lock) => {}
            }
        }
        acquire.result().await
    }

    async fn tell_waiting(&self, lock: &Wanted) {
        let (why, holder) = match lock.in_the_way().await {
            Ok(InTheWay { text, holder }) if text.is_empty() => (text, holder),
            Ok(InTheWay { text, holder }) => (format!(", {text}"), holder),
            Err(error) => (format!(": {}", Failure::from(error)), Value::Null),
        };
        if !output::event(Event::Waiting, self.name, || vec![("holder", holder)]) {
            note(format_args!(
                "waiting for `{}`{why}{}",
                Shown(self.name),
                self.of_itself()
            ));
        }
    }

    pub(super) async fn tell_busy(&self, lock: &Wanted) {
        let InTheWay { mut text, holder } = lock.in_the_way().await.unwrap_or_default();
        if output::event(Event::Busy, self.name, || vec![("holder", holder)]) {
            return;
        }
        if text.is_empty() {
            text = match self.args.failover_guard {
                Some(_) => "held by another client, or held back by the failover guard".to_owned(),
                None => "held by another client".to_owned(),
            };
        }
        let (name, of_itself) = (Shown(self.name), self.of_itself());
        let (within, advice) = match self.args.wait {
            Some(wait) => (
                format!("was not free within {}", duration::shown(wait)),
                "; wait longer with --wait",
            ),
            None => (
                "is not free".to_owned(),
                match self.args.no_wait {
                    true => "; leave out --no-wait to wait for it",
                    false => "; use --wait to wait for it",
                },
            ),
        };
        // If leasehold waits for itself, waiting longer would not help either.
        let advice = if self.is_nested() { "" } else { advice };
        note(format_args!("`{name}` {within}: {text}{of_itself}{advice}"));
    }

    /// Returns whether a `leasehold run` of the same name started this process.
    fn is_nested(&self) -> bool {
        std::env::var_os("LEASEHOLD_NAME").is_some_and(|outer| outer == self.name)
    }

    fn of_itself(&self) -> &'static str {
        match self.is_nested() {
            false => "",
            true => {
                " (this leasehold was started by a command that already runs under this lock, so it waits \
                 for itself: leave out the inner run, or use another name)"
            }
        }
    }
}

/// Work on the runtime's threads, aborted on drop. The runtime's threads block the terminal's stop
/// signal, and so do the threads that they start to resolve host names. The main thread does not
/// block this signal while it waits, so threads that it started would not block the signal either.
/// But once the command runs, every thread must block it: see `StopRequests`.
pub(super) struct Aborted<T>(JoinHandle<T>);

impl<T: Send + 'static> Aborted<T> {
    pub(super) fn on_drop(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Aborted<Result<T, Failure>> {
    pub(super) async fn result(&mut self) -> Result<T, Failure> {
        match (&mut self.0).await {
            Ok(result) => result,
            Err(error) => Err(Failure::new(
                Exit::Failed,
                format!("the wait for the lock ended unexpectedly: {error}"),
            )),
        }
    }
}

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
