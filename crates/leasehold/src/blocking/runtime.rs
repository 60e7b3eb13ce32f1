//! The one thread that owns a client's runtime, and waiting for it from another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::{Builder, Handle};

use crate::error::{Error, ErrorKind, Result};

/// A runtime with one worker thread. Clones share it; it ends with the last one.
#[derive(Clone, Debug)]
pub(crate) struct Runtime(Arc<Inner>);

#[derive(Debug)]
struct Inner(Option<tokio::runtime::Runtime>);

impl Runtime {
    pub(crate) fn start() -> Result<Self> {
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
        Ok(Self(Arc::new(Inner(Some(runtime)))))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0
            .0
            .as_ref()
            .expect("only drop takes the runtime")
            .handle()
    }

    /// Gives back what a thread has dropped, before the drop returns: a program may end right
    /// after it, and then nobody is left to send it. Inside a task it must not wait; there
    /// the client's own thread sees to it.
    pub(crate) fn release_dropped<G, F>(&self, guard: G, release: impl FnOnce(G) -> F)
    where
        F: Future<Output = Result<()>>,
    {
        if Handle::try_current().is_ok() {
            return drop(guard);
        }
        if let Err(error) = self.handle().block_on(release(guard)) {
            tracing::warn!(%error, "releasing what was dropped");
        }
    }

    /// Runs `future` on the calling thread; what it waits for is driven by the
    /// worker. `twin` is the async method to use instead inside a task.
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

/// Whether this thread may wait: not one that runs async tasks just now.
///
/// A thread of `spawn_blocking` is inside a runtime and may. Tokio tells the two
/// apart only by panicking, and only there it is asked.
fn may_block() -> bool {
    let Ok(here) = Handle::try_current() else {
        return true;
    };
    catch_unwind(AssertUnwindSafe(|| here.block_on(std::future::ready(())))).is_ok()
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The other way of dropping it waits, and panics inside a task.
            runtime.shutdown_background();
        }
    }
}
