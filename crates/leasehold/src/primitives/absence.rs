//! Handles the case that a semaphore does not exist: an acquire fails, or logs a warning that it
//! waits.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::failure::{Cause, Failure, Outcome};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::local::line::LineMode;
use crate::observe::log;
use crate::wait::Deadline;

/// The reaction of one acquire when the server finds no semaphore.
pub(super) struct Absence {
    must_exist: bool,
    waits: bool,
    warned: AtomicBool,
}

impl Absence {
    pub(super) fn new(must_exist: bool, deadline: Deadline) -> Self {
        Self {
            must_exist,
            // A try ends when the server finds no semaphore. Only a wait needs the warning, because
            // a wait may never end.
            waits: !matches!(deadline, Deadline::Now),
            warned: AtomicBool::new(false),
        }
    }

    /// Handles a server's answer that the semaphore does not exist.
    pub(super) fn report_missing(&self, context: &Context, key: &Key) -> Result<(), Failure> {
        if self.must_exist {
            return Err(missing(context));
        }
        if self.waits && !self.warned.swap(true, Ordering::Relaxed) {
            log(|| {
                tracing::warn!(
                    %key, address = context.backend.address(),
                    "there is no semaphore of this name, so its waiters wait until a client makes \
                     it: check the name, make it with try_set_permits, or set must_exist to get an \
                     error"
                )
            });
        }
        Ok(())
    }
}

/// Asks the server whether the semaphore exists, at most until `deadline`. An acquire that would
/// queue behind other waiters of this process needs this check, because those waiters may wait for
/// a semaphore that does not exist.
pub(super) async fn check_while_others_wait(
    context: &Context,
    key: &Key,
    deadline: Deadline,
    exists: impl Future<Output = Result<bool>>,
) -> Result<()> {
    if !context.locals.has_waiters(key, LineMode::HeadAsks) {
        return Ok(());
    }
    let asks_once = matches!(deadline, Deadline::Now);
    let too_late = async {
        match asks_once {
            // The deadline of a try has passed from the start, but a try still waits for its only
            // answer. It ends with the reply or the failure of the request.
            true => std::future::pending().await,
            false => deadline.passed(&context.timers).await,
        }
    };
    tokio::select! {
        // A reply that has arrived counts, even at the deadline.
        biased;
        exists = exists => match exists {
            Ok(true) => Ok(()),
            Ok(false) => Err(missing(context).into_error(key)),
            Err(error) if asks_once => Err(error),
            // The wait that follows continues while no server answers, and reports the error
            // itself.
            Err(_) => Ok(()),
        },
        // The wait that follows has the same deadline, and reports how it ended.
        () = too_late => Ok(()),
    }
}

fn missing(context: &Context) -> Failure {
    context.backend.failure(Outcome::DidNotRun, Cause::Missing)
}
