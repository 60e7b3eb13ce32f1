//! A semaphore that nobody has made: an acquire of it fails, or warns that it waits.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::failure::{Cause, Failure, Outcome};
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::local::line::Line;
use crate::observe::log;
use crate::wait::Deadline;

/// What one acquire does when it finds no semaphore.
pub(super) struct Absence {
    must_exist: bool,
    waits: bool,
    told: AtomicBool,
}

impl Absence {
    pub(super) fn new(must_exist: bool, deadline: Deadline) -> Self {
        Self {
            must_exist,
            // A try is over with this answer. The warning is about a wait that may never end.
            waits: !matches!(deadline, Deadline::Now),
            told: AtomicBool::new(false),
        }
    }

    /// The server has said that there is no semaphore.
    pub(super) fn found(&self, context: &Context, key: &Key) -> Result<(), Failure> {
        if self.must_exist {
            return Err(missing(context));
        }
        if self.waits && !self.told.swap(true, Ordering::Relaxed) {
            log(|| {
                tracing::warn!(
                    %key, address = context.backend.address(),
                    "there is no semaphore of this name, so its waiters wait until somebody makes \
                     it: check the name, make it with try_set_permits, or set must_exist to get an \
                     error"
                )
            });
        }
        Ok(())
    }
}

/// For an acquire that would wait behind others of this process, which may wait for a semaphore
/// that does not exist: asks the server by itself, while `deadline` allows it.
pub(super) async fn check_behind_others(
    context: &Context,
    key: &Key,
    deadline: Deadline,
    is_there: impl Future<Output = Result<bool>>,
) -> Result<()> {
    if !context.locals.anyone_waits(key, Line::OneAsks) {
        return Ok(());
    }
    let asks_once = matches!(deadline, Deadline::Now);
    let too_late = async {
        match asks_once {
            // A try has passed its deadline from the start, but it wants the one answer that it is
            // for. That comes, or the request fails.
            true => std::future::pending().await,
            false => deadline.passed(&context.timers).await,
        }
    };
    tokio::select! {
        // An answer that is there counts, even at the deadline.
        biased;
        is_there = is_there => match is_there {
            Ok(true) => Ok(()),
            Ok(false) => Err(missing(context).into_error(key)),
            Err(error) if asks_once => Err(error),
            // The wait goes on while no server answers, and reports the reason itself.
            Err(_) => Ok(()),
        },
        // The wait that follows has the same deadline, and says by itself how it ended.
        () = too_late => Ok(()),
    }
}

fn missing(context: &Context) -> Failure {
    context.backend.failure(Outcome::DidNotRun, Cause::Missing)
}
