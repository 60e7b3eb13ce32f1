//! [`Interrupt`], with which one thread ends the waits of others.

use std::cell::RefCell;
use std::pin::pin;

use futures_util::future::{Either, select, select_all};
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};

thread_local! {
    /// The interrupts whose scopes the thread is in, the outermost first.
    static SCOPES: RefCell<Vec<Interrupt>> = const { RefCell::new(Vec::new()) };
}

/// A handle with which any thread can end the waits of other threads, as `Thread.interrupt` does
/// for `lockInterruptibly` in Java.
///
/// A thread calls [`scope`](Self::scope). Within it, [`interrupt`](Self::interrupt) ends each wait
/// with an error of the kind [`ErrorKind::Interrupted`]. This works at any point of the wait, for
/// locks of every kind, permits and latches, and for [`Client::connect`](super::Client::connect).
/// An interrupted wait leaves nothing behind, like the dropped future of an async acquire: neither
/// a hold, nor a place in a queue, nor a subscription. If the server grants the lock at that
/// moment, the client's own thread releases it in the background.
///
/// Only waits and tries to acquire are interrupted. A release, a count-down, a change of a count
/// and an inspection of a name are never interrupted, so their outcome is known. Guards that the
/// thread already has are not affected either.
///
/// An interrupt is permanent: after it, each acquire in a scope of this handle fails at once, and
/// sends nothing. So a thread that is not waiting yet can't miss it. Use a new handle for each job.
/// Clones are the same handle.
///
/// # Examples
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// use std::thread;
///
/// use leasehold::ErrorKind;
/// use leasehold::blocking::{Client, Interrupt};
///
/// let client = Client::embedded();
/// let lock = client.lock("orders:42");
/// let guard = lock.acquire()?;
///
/// let shutdown = Interrupt::new();
/// thread::scope(|threads| {
///     let waiter = threads.spawn(|| shutdown.scope(|| lock.acquire().map(drop)));
///     shutdown.interrupt();
///     let error = waiter.join().expect("it doesn't panic").unwrap_err();
///     assert_eq!(error.kind(), ErrorKind::Interrupted);
/// });
/// guard.release()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Interrupt {
    interrupted: watch::Sender<bool>,
}

impl Interrupt {
    /// Returns a handle that has not been interrupted.
    #[must_use]
    pub fn new() -> Self {
        Self {
            interrupted: watch::Sender::new(false),
        }
    }

    /// Ends the waits of all threads that are in a [`scope`](Self::scope) of this handle, and each
    /// later acquire in such a scope. It does not wait for these threads. It can be called from any
    /// thread, from a task and from a signal handler's thread. Further calls have no effect.
    #[doc(alias = "Thread.interrupt")]
    pub fn interrupt(&self) {
        self.interrupted.send_replace(true);
    }

    /// Returns whether [`interrupt`](Self::interrupt) has been called.
    #[doc(alias = "isInterrupted")]
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        *self.interrupted.borrow()
    }

    /// Runs `work` on the calling thread, and returns its result. Meanwhile this handle can
    /// interrupt the thread's waits. Threads that `work` starts are not in the scope; they can call
    /// `scope` on a clone themselves. Scopes may be nested: then each of their handles can
    /// interrupt the thread.
    #[doc(alias = "lockInterruptibly")]
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let _scope = Scope::enter(self.clone());
        work()
    }

    /// Waits for the interrupt.
    async fn interrupted(self) {
        // This can't fail, because `self` has a sender of the channel.
        let _ = self.interrupted.subscribe().wait_for(|is| *is).await;
    }
}

impl Default for Interrupt {
    fn default() -> Self {
        Self::new()
    }
}

/// A thread's presence in a scope. Dropping this value leaves the scope, also if the work panics.
struct Scope;

impl Scope {
    fn enter(interrupt: Interrupt) -> Self {
        SCOPES.with_borrow_mut(|scopes| scopes.push(interrupt));
        Self
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.pop());
    }
}

/// Runs `wait` until it is done or interrupted. Each handle whose scope encloses the call can
/// interrupt it.
pub(super) async fn interruptible<T>(wait: impl Future<Output = Result<T>>) -> Result<T> {
    // A thread that is just ending is not in any scope, and its list may no longer exist.
    let scopes = SCOPES.try_with(|scopes| scopes.borrow().clone());
    let scopes = scopes.unwrap_or_default();
    if scopes.is_empty() {
        return wait.await;
    }
    // Check this before the wait is polled, so that it sends nothing.
    if scopes.iter().any(Interrupt::is_interrupted) {
        return Err(interrupted());
    }
    let interrupts = scopes
        .into_iter()
        .map(|scope| Box::pin(scope.interrupted()));
    // Poll the wait first, so that a grant that has arrived is not given back.
    match select(pin!(wait), select_all(interrupts)).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(interrupted()),
    }
}

fn interrupted() -> Error {
    Error::new(
        ErrorKind::Interrupted,
        "another thread interrupted the wait; it got nothing, end the work or acquire with a new `Interrupt`",
    )
}
