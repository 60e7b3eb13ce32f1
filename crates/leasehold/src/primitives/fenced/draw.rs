//! The fencing token of a hold that was acquired without one. It is drawn from the server while the
//! hold lasts.
//!
//! Earlier holders drew their tokens from the same counter before this hold began, and later
//! holders draw after it has ended. So a token that is drawn late still has the right order. A
//! request that arrives twice, or whose answer is lost, only leaves a gap.

use super::steps;
use crate::backend::failure::accept_refusal;
use crate::backend::step::{Operation, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Share;
use crate::hold::Hold;
use crate::hold::watchdog::mark_gone;
use crate::loss::LossReason;

/// Checks that a hold of this kind can have a token.
pub(in crate::primitives) fn check_kind(hold: &Hold) -> Result<()> {
    match hold.steps.unfenced() {
        None => Ok(()),
        Some(why) => Err(Error::new(
            ErrorKind::Misuse,
            format!("this hold of `{}` has no fencing token: {why}", hold.key),
        )
        .with_key(&hold.key)),
    }
}

/// Returns the hold's token, and draws one if the hold has none yet.
pub(in crate::primitives) async fn token_of(share: &Share) -> Result<u64> {
    let hold = share.hold();
    check_kind(hold)?;
    hold.check()?;
    // Return the token only after the check: a holder that has lost the lock gets no token, not
    // even one that was drawn before. The holder asks for the token because it is about to write.
    if let Some(token) = hold.token() {
        return Ok(token);
    }
    let drawn = request_token(share, steps::draw(hold, share.context().peers)).await?;
    // Another guard of the same owner may have drawn a token during the request.
    let token = hold.set_token(drawn);
    // The lock may have been lost before the answer arrived, and only a holder may have a token.
    hold.check()?;
    Ok(token)
}

/// Makes the next holder's token greater than `token`, which is at least the token of this hold.
pub(in crate::primitives) async fn raise(share: &Share, token: u64) -> Result<()> {
    let hold = share.hold();
    // If the counter was already at `token` or above during this hold, every later token is
    // greater, and no request is needed.
    if hold.token().max(hold.raised_to()) < Some(token) {
        request_token(share, steps::raise(hold, token, share.context().peers)).await?;
    }
    hold.raised(token);
    hold.check()
}

async fn request_token(share: &Share, operation: Operation) -> Result<u64> {
    let (context, hold) = (share.context(), share.hold());
    let reply = context.backend.submit_by(operation, hold.route()).await;
    match accept_refusal(reply, |reply| matches!(reply, Value::Int(1..))) {
        Ok(Value::Int(number @ 1..)) => Ok(number.unsigned_abs()),
        Ok(Value::Int(_)) => {
            mark_gone(&context.backend, hold, &context.timers).await;
            let reason = hold.loss().unwrap_or(LossReason::Deleted);
            Err(Error::lost(&hold.key, reason))
        }
        Ok(_) => Err(context.backend.malformed().into_error(&hold.key)),
        Err(failure) => {
            Err(failure.into_error_with(&hold.key, "at most one token is skipped: try again"))
        }
    }
}
