//! The end of a hold: what happens to it when its last guard has left. Both the release and the
//! drop of that guard call [`leave`]. A hold that is left to expire does not end here.

pub(crate) mod keep_for;
mod permit_swap;
mod release;

use std::sync::Arc;

use tokio::sync::oneshot;

use self::permit_swap::{NotSwapped, PermitSwap};
use self::release::ReleaseRequest;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::hold::Grant;
use crate::hold::confirm::{Confirmation, PendingConfirmation};
use crate::hold::confirm_task::ask_for_confirmation;
use crate::local::RecordRef;
use crate::local::reentry::Held;
use crate::loss::LossReason;

/// The way in which the last guard has left.
pub(crate) enum LeftBy {
    /// By a release, which waits for the server's confirmation.
    Release {
        /// The reason if the hold was lost before.
        loss: Option<LossReason>,
    },
    /// By a drop, which does not wait.
    Drop {
        /// Whether a conversion of the hold was in progress. Its outcome is unknown.
        is_converting: bool,
    },
}

/// The end of a hold whose last guard has left, as decided by [`leave`].
#[must_use = "the end must be completed"]
pub(crate) struct Leaving<'a> {
    context: &'a Arc<Context>,
    held: &'a Arc<Held>,
    by: LeftBy,
    next: Next,
}

enum Next {
    /// The next waiter of the process has the hold. A release waits for the confirmation.
    HandedOver(Option<PendingConfirmation>),
    /// A request has been sent that replaces the permits with permits for the next waiter.
    Swapping(Box<PermitSwap>, RecordRef),
    /// The hold has ended here, and must be released on the server.
    Ended(Option<RecordRef>, Moment),
}

/// Decides what happens to a hold that no guard shares any longer. A hand-over is done when this
/// returns, and the request of a swap has been sent.
pub(crate) fn leave<'a>(context: &'a Arc<Context>, held: &'a Arc<Held>, by: LeftBy) -> Leaving<'a> {
    let next = decide(context, held, &by);
    Leaving {
        context,
        held,
        by,
        next,
    }
}

fn decide(context: &Arc<Context>, held: &Arc<Held>, by: &LeftBy) -> Next {
    let hold = held.hold();
    let local = held.local(&context.locals);
    let now = context.clock.now();
    let may_stay = match by {
        LeftBy::Release { loss } => loss.is_none(),
        LeftBy::Drop { is_converting } => !is_converting,
    };
    if may_stay
        && let Some(local) = &local
        && held.stays_local(local, now)
    {
        if hold.is_swapped() {
            if let Some(swap) = PermitSwap::send(context, held, local) {
                return Next::Swapping(Box::new(swap), local.clone());
            }
        } else {
            // Register before the hold is handed over: the next holder may release it at once, and
            // the server's reply to that release also applies to this guard.
            let confirmation =
                matches!(by, LeftBy::Release { .. }).then(|| hold.await_confirmation());
            if held.hand_over(local, now) {
                return Next::HandedOver(confirmation);
            }
        }
    }
    // End the hold before removing it: a renewal in progress does not put an ended hold back into
    // the watchdog's table.
    hold.end();
    context.watchdog.remove(hold);
    Next::Ended(local, now)
}

impl Leaving<'_> {
    /// Completes the end of the hold, and reports whether the lock was held until now.
    pub(crate) async fn confirmed(self) -> Result<()> {
        let Self {
            context,
            held,
            by,
            next,
        } = self;
        let hold = held.hold();
        let (local, now) = match next {
            Next::HandedOver(None) => return Ok(()),
            Next::HandedOver(Some(confirmation)) => {
                return confirmed(context, hold, confirmation).await;
            }
            Next::Swapping(swap, local) => {
                // The next waiter needs the reply, even if this future is no longer polled.
                let swapped = finish_swap(Arc::clone(context), Arc::clone(held), swap, local);
                return in_task(context, hold, swapped).await;
            }
            Next::Ended(local, now) => (local, now),
        };
        if let LeftBy::Release { loss: Some(reason) } = by {
            // The hold is lost for this process, but may still exist on the server.
            give_back(held, local, now);
            return Err(Error::lost(&hold.key, reason));
        }
        let (release, first) = ReleaseRequest::send(context, held, local, false);
        // Clear the owner only after the release was sent: the owner's next request must run after
        // the release.
        held.clear_owner();
        if !hold.has_confirmation_waiters() && !release.grants_next {
            return release.answered(first).await;
        }
        // Earlier holders or the next holder wait for this reply, too.
        in_task(context, hold, release.answered(first)).await
    }

    /// Completes the end of the hold without a caller that waits for it.
    pub(crate) fn in_background(self) {
        let Self {
            context,
            held,
            next,
            ..
        } = self;
        match next {
            Next::HandedOver(_) => {}
            Next::Swapping(swap, local) => {
                let swapped = finish_swap(Arc::clone(context), Arc::clone(held), swap, local);
                // The result is not needed: if the swap fails, the undo continues.
                context.cleanup.spawn(async move { drop(swapped.await) });
            }
            Next::Ended(local, now) => give_back(held, local, now),
        }
    }
}

/// Releases the hold in the background.
fn give_back(held: &Arc<Held>, local: Option<RecordRef>, now: Moment) {
    // Queue the release before clearing the owner's slot, so that the owner's next request runs
    // after the release.
    held.give_back_now();
    held.clear_owner();
    if let Some(local) = local {
        local.hold_returned(now);
    }
}

/// Completes a swap of permits. If the permits could not be swapped, releases them.
async fn finish_swap(
    context: Arc<Context>,
    held: Arc<Held>,
    swap: Box<PermitSwap>,
    local: RecordRef,
) -> Result<()> {
    let sent_before = match swap.answered().await {
        Ok(()) => return Ok(()),
        Err(NotSwapped::GiveBack { sent_before }) => sent_before,
        Err(NotSwapped::Unanswered(failure)) => {
            return Err(failure.into_error(&held.hold().key));
        }
    };
    let (release, first) = ReleaseRequest::send(&context, &held, Some(local), sent_before);
    release.answered(first).await
}

/// Completes the end of a hold in a task, because the future of the caller may be dropped or never
/// polled.
pub(crate) async fn in_task(
    context: &Context,
    hold: &Grant,
    ends: impl Future<Output = Result<()>> + Send + 'static,
) -> Result<()> {
    let (sender, ended) = oneshot::channel();
    context.cleanup.spawn(async move {
        // This fails if the future that waits for the result has been dropped.
        let _ = sender.send(ends.await);
    });
    ended.await.unwrap_or_else(|_| {
        let address = context.backend.address();
        let ended = Failure::runtime_ended(Outcome::MayHaveRun, address);
        Err(ended.into_error(&hold.key))
    })
}

/// Waits for the server's confirmation that the hold, which now belongs to other guards, was held
/// until it passed to them.
pub(crate) async fn confirmed(
    context: &Context,
    hold: &Arc<Grant>,
    (confirmation, starts_task): PendingConfirmation,
) -> Result<()> {
    let Context {
        backend,
        timers,
        cleanup,
        ..
    } = context;
    if starts_task {
        // A task sends the request on behalf of all waiting holders, because this future may be
        // dropped.
        cleanup.spawn_detached(ask_for_confirmation(
            backend.clone(),
            timers.clone(),
            Arc::clone(hold),
        ));
    }
    // The same limit as for a release that is not answered.
    let limit = backend.reply_timeout() * 2;
    let failure = match timers.timeout(limit, confirmation).await {
        Some(Ok(Confirmation::Held)) => return Ok(()),
        Some(Ok(Confirmation::Lost(reason))) => return Err(Error::lost(&hold.key, reason)),
        Some(Ok(Confirmation::Unknown)) => return Err(unknown_outcome(context, hold)),
        Some(Ok(Confirmation::Failed(failure))) => failure,
        Some(Err(_)) => Failure::runtime_ended(Outcome::MayHaveRun, backend.address()),
        None => {
            let what = format!("no answer within {limit:?}");
            backend.failure(Outcome::MayHaveRun, Cause::NoAnswer(what))
        }
    };
    Err(failure.into_error(&hold.key))
}

/// Returns the error to use when a hold no longer exists and the reason is unknown: a request
/// without a reply may have ended it, or its lease expired.
fn unknown_outcome(context: &Context, hold: &Grant) -> Error {
    let what =
        "the hold no longer exists, and an earlier request about it was not answered in time";
    let cause = Cause::NoAnswer(what.into());
    let failure = context.backend.failure(Outcome::MayHaveRun, cause);
    failure.into_error_with(
        &hold.key,
        "nothing is held now; if the request did not run, the hold had ended before it",
    )
}
