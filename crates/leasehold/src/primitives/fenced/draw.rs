//! The fencing token of a hold that came without one: drawn from the server while it is
//! held.
//!
//! Whoever held the lock before had drawn before, and whoever comes next draws later from
//! the same counter. So it is in order that it is drawn late, and that a request which comes
//! twice, or whose answer is lost, leaves a gap.

use super::steps;
use crate::backend::step::{Operation, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Share;
use crate::lease::Hold;
use crate::loss::LossReason;
use crate::renewal::is_gone;

/// Whether such a hold can have a token.
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

/// The hold's token, drawn if it has none yet.
pub(in crate::primitives) async fn token_of(share: &Share) -> Result<u64> {
    let hold = share.hold();
    check_kind(hold)?;
    hold.check()?;
    if let Some(token) = hold.token() {
        return Ok(token);
    }
    let drawn = ask(share, steps::draw(hold, share.context().peers)).await?;
    // Another guard of the same owner may have drawn one meanwhile.
    let token = hold.set_token(drawn);
    hold.check()?;
    Ok(token)
}

/// Makes whoever holds the lock next have a token greater than `token`, which is this
/// hold's, or greater.
pub(in crate::primitives) async fn raise(share: &Share, token: u64) -> Result<()> {
    let hold = share.hold();
    if hold.token().max(hold.raised_to()) < Some(token) {
        ask(share, steps::raise(hold, token, share.context().peers)).await?;
    }
    hold.raised(token);
    hold.check()
}

async fn ask(share: &Share, operation: Operation) -> Result<u64> {
    let (context, hold) = (share.context(), share.hold());
    match context.backend.submit(operation).await {
        Ok(Value::Int(number @ 1..)) => Ok(number.unsigned_abs()),
        Ok(Value::Int(_)) => {
            is_gone(&context.backend, hold, context.clock).await;
            let reason = hold.loss().unwrap_or(LossReason::Deleted);
            Err(Error::lost(&hold.key, reason))
        }
        Ok(_) => Err(context.backend.malformed().into_error(&hold.key)),
        Err(failure) => {
            Err(failure.into_error_with(&hold.key, "at most a number is skipped: ask again"))
        }
    }
}
