//! The thread that owns a client's runtime, and waiting for it from another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

use crate::error::{Error, ErrorKind, Result};
use crate::observe::log;
use crate::process::Process;

/// A runtime with one worker thread, and other runtimes that must not end before it. Clones share
/// them; each runtime ends with its last clone.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    inner: Arc<Inner>,
    _beside: Arc<[Runtime]>,
}

#[derive(Debug)]
struct Inner {
    /// There until the drop.
    runtime: Option<tokio::runtime::Runtime>,
    /// In another one its threads are missing.
    process: Process,
}

impl Runtime {
    pub(crate) fn start() -> Result<Self> {
        // Not a runtime of the calling thread: that one runs timers and sockets only while somebody
        // waits on it, and no lease would be renewed while the caller computes.
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
            inner: Arc::new(Inner {
                runtime: Some(runtime),
                process: Process::own(),
            }),
            _beside: Arc::default(),
        })
    }

    /// The first of several clients' runtimes, which keeps the others alive: a lock that uses all
    /// of those clients waits on one of them. `None` if there are no runtimes.
    pub(crate) fn first_of(runtimes: Vec<Self>) -> Option<Self> {
        let inner = Arc::clone(&runtimes.first()?.inner);
        Some(Self {
            inner,
            _beside: runtimes.into(),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.inner
            .runtime
            .as_ref()
            .expect("only drop takes the runtime")
            .handle()
    }

    /// Gives back what a thread drops, before the drop returns: the program may end right after
    /// that, and then nobody is left to send the release. Inside a task this must not wait; there
    /// the client's own thread sends the release.
    pub(crate) fn release_dropped<G, F>(&self, guard: G, release: impl FnOnce(G) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        // Not `may_block`, which asks by a panic: inside tasks the panic hook would print that at
        // each drop. So a drop inside `spawn_blocking` does not wait, although it could.
        if Handle::try_current().is_ok() || self.inner.process.is_gone() {
            return drop(guard);
        }
        if let Err(error) = self.finish("release", release(guard)) {
            // Not a panic: a drop may run while another panic unwinds the thread, and a second one
            // ends the process.
            log(|| tracing::warn!(%error, "releasing what was dropped"));
        }
    }

    /// As [`block_on`](Self::block_on), but also works on a thread that is just ending: a value in
    /// a `thread_local` may be dropped after tokio's own values, which waiting there would need.
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
        // A channel of std, because those of tokio wait with values of the thread that are gone.
        // With room for the result, so that the client's only worker never waits for this thread.
        let (sender, done) = mpsc::sync_channel(1);
        self.handle().spawn(async move {
            // Nothing to do about an error: then nobody is left who waits for the result.
            let _ = sender.send(work.await);
        });
        // The sender goes without a word when the runtime ends and drops the task.
        done.recv().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the client's thread has ended meanwhile; what is held ends with its lease",
            ))
        })
    }

    /// Runs `future` on the calling thread; the worker drives what it waits for. `twin` is the
    /// async method to use instead inside a task.
    #[track_caller]
    pub(crate) fn block_on<F: Future>(&self, twin: &str, future: F) -> F::Output {
        assert!(
            may_block(),
            "a blocking call inside an async task would block its executor; use the async \
             `leasehold::{twin}`, or wrap the call in `tokio::task::spawn_blocking`"
        );
        self.handle().block_on(future)
    }
}

/// Whether this thread may wait: a thread that is running async tasks may not.
///
/// A thread of `spawn_blocking` is inside a runtime and may wait. Tokio tells the two cases apart
/// only by panicking, so it is asked only inside a runtime.
fn may_block() -> bool {
    let Ok(here) = Handle::try_current() else {
        return true;
    };
    catch_unwind(AssertUnwindSafe(|| here.block_on(std::future::ready(())))).is_ok()
}

/// How long the last clone waits for the client's thread to end. That thread still sends what is
/// left to give back, so this is longer than the thread waits for the server
/// (`backend/redis/driver.rs`). The wait has a limit because the thread may be looking up a name.
const PATIENCE: Duration = Duration::from_millis(300);

impl Drop for Inner {
    fn drop(&mut self) {
        // Taken out, because only its owner can end a runtime. Its own drop would wait without a
        // limit, and would panic inside a task.
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if self.process.is_gone() {
            // Its end would wait for threads that only the parent has.
            return std::mem::forget(runtime);
        }
        match Handle::try_current() {
            Err(error) if error.is_missing_context() => runtime.shutdown_timeout(PATIENCE),
            // Waiting would panic inside a task, and on a thread that is just ending.
            _ => runtime.shutdown_background(),
        }
    }
}
