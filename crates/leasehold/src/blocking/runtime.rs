//! The thread that owns a client's runtime, and the ways to wait for that runtime from other
//! threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

use super::interrupt::interruptible;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::log;
use crate::process::Process;

/// A runtime with one worker thread, and other runtimes that must not end before it. Clones share
/// the runtimes. Each runtime ends with its last clone.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    inner: Arc<RuntimeInner>,
    _other_runtimes: Arc<[Runtime]>,
}

#[derive(Debug)]
struct RuntimeInner {
    /// `Some` until the drop.
    runtime: Option<tokio::runtime::Runtime>,
    /// The process that made the runtime. In a forked child the threads of the runtime are missing.
    process: Process,
}

impl Runtime {
    pub(crate) fn start() -> Result<Self> {
        // A current-thread runtime would be wrong: it runs timers and sockets only while a thread
        // waits on it, so no lease would be renewed while the caller computes.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("leasehold")
            .enable_all()
            .build()
            .map_err(|error| {
                Error::new(
                    ErrorKind::Unavailable,
                    "the client's thread can't be started; check the limits of the process",
                )
                .with_source(error)
            })?;
        Ok(Self {
            inner: Arc::new(RuntimeInner {
                runtime: Some(runtime),
                process: Process::own(),
            }),
            _other_runtimes: Arc::default(),
        })
    }

    /// Returns the first of several clients' runtimes, which keeps the others alive. A lock over
    /// several clients waits on one runtime and needs all of them. `None` if there are no runtimes.
    pub(crate) fn first_of(runtimes: Vec<Self>) -> Option<Self> {
        let inner = Arc::clone(&runtimes.first()?.inner);
        Some(Self {
            inner,
            _other_runtimes: runtimes.into(),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.inner
            .runtime
            .as_ref()
            .expect("only drop takes the runtime")
            .handle()
    }

    /// Releases a guard that a thread drops, before the drop returns. The program may end right
    /// after the drop, and then no thread would be left to send the release. Inside a task this
    /// method must not wait: there the client's own thread sends the release.
    pub(crate) fn release_dropped<G, F>(&self, guard: G, release: impl FnOnce(G) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        // Don't use `may_block`, which relies on a panic: inside tasks the panic hook would print
        // that panic at each drop. So a drop inside `spawn_blocking` does not wait, although it
        // could.
        if Handle::try_current().is_ok() || self.inner.process.is_forked() {
            return drop(guard);
        }
        if let Err(error) = self.finish("release", release(guard)) {
            // Don't panic: a drop may run while another panic unwinds the thread, and a second
            // panic aborts the process.
            log(|| tracing::warn!(%error, "can't release a dropped guard"));
        }
    }

    /// Runs `work` like [`block_on`](Self::block_on), but also on a thread that is just ending. A
    /// value in a `thread_local` may be dropped after tokio's own thread-locals, which `block_on`
    /// needs.
    #[track_caller]
    pub(crate) fn finish<T, F>(&self, twin: &str, work: F) -> F::Output
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        match Handle::try_current() {
            Err(error) if error.is_thread_local_destroyed() => self.on_own_thread(work),
            _ => self.block_on(twin, work),
        }
    }

    fn on_own_thread<T, F>(&self, work: F) -> F::Output
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        // Use a channel of `std`: to wait, tokio's channels need thread-locals that no longer
        // exist. The channel has room for the result, so the client's only worker never waits for
        // this thread.
        let (sender, done) = mpsc::sync_channel(1);
        self.handle().spawn(async move {
            // If this fails, no thread waits for the result any longer.
            let _ = sender.send(work.await);
        });
        // The sender is dropped without a result when the runtime ends and drops the task.
        done.recv().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the client's thread has ended during the call; every hold of the client ends with its lease",
            ))
        })
    }

    /// Runs `future` on the calling thread. The worker drives the timers and sockets that the
    /// future needs. `twin` is the async method to use instead inside a task.
    #[track_caller]
    pub(crate) fn block_on<F: Future>(&self, twin: &str, future: F) -> F::Output {
        assert!(
            may_block(),
            "a blocking call inside an async task would block its executor; use the async \
             `leasehold::{twin}`, or wrap the call in `tokio::task::spawn_blocking`"
        );
        self.handle().block_on(future)
    }

    /// Runs a wait like [`block_on`](Self::block_on), until another thread interrupts it.
    #[track_caller]
    pub(crate) fn wait_on<T>(
        &self,
        twin: &str,
        wait: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.block_on(twin, interruptible(wait))
    }
}

/// Returns whether this thread may wait. A thread that is running async tasks must not.
///
/// A thread of `spawn_blocking` is inside a runtime and may wait. Tokio shows the difference only
/// by a panic, so this function risks the panic only inside a runtime.
fn may_block() -> bool {
    let Ok(here) = Handle::try_current() else {
        return true;
    };
    catch_unwind(AssertUnwindSafe(|| here.block_on(std::future::ready(())))).is_ok()
}

/// The time for which the last clone waits for the client's thread to end. That thread still sends
/// the remaining releases, so this is longer than the thread waits for the server
/// (`backend/redis/driver.rs`). The wait has a limit because the thread may be resolving a host
/// name.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(300);

impl Drop for RuntimeInner {
    fn drop(&mut self) {
        // Take the runtime out, because only its owner can shut it down. Its own drop would wait
        // without a limit, and would panic inside a task.
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if self.process.is_forked() {
            // Shutting down would wait for threads that only the parent process has.
            return std::mem::forget(runtime);
        }
        match Handle::try_current() {
            Err(error) if error.is_missing_context() => runtime.shutdown_timeout(SHUTDOWN_TIMEOUT),
            // Waiting would panic inside a task, and on a thread that is just ending.
            _ => runtime.shutdown_background(),
        }
    }
}
