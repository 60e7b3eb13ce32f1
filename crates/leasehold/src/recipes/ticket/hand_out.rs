//! The end of a hold in this process: from now on, a ticket has the hold.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::misuse;
use super::text::{Ticket, TicketHold, TicketKind};
use crate::backend::failure::{Failure, accept_refusal};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::{Operation, Value};
use crate::config::check_lease;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::guard::Share;
use crate::hold::Hold;
use crate::hold::confirm::Confirmation;
use crate::hold::watchdog::why_lost;
use crate::owner::Role;
use crate::primitives::expirable::steps::PermitHold;

/// Turns the hold of `share` into a ticket.
pub(super) async fn hand_out(mut share: Share, lease: Duration) -> Result<Ticket> {
    let (context, hold) = (Arc::clone(share.context()), share.hold().clone());
    check_lease(lease, &hold.key)?;
    context.check_lease(lease, &hold.key)?;
    context.check_process(&hold.key)?;
    hold.check()?;
    let ticket = describe(&hold, lease)?;
    check_sides(&share)?;
    // Use the steps that set a lease exactly. Until the ticket is resumed, a renewal that is still
    // in flight can lengthen the lease of a reader or of permits once more.
    let kept_for = lease.max(hold.rest_of_min_hold().unwrap_or_default());
    let operation = hold.steps.keep_for(kept_for);
    let operation = operation.unwrap_or_else(|| hold.steps.renew(lease, Some(lease)));
    // The hold is ended before the request is sent, so that no renewal starts and no guard joins
    // after this point. If this future is dropped from now on, the share releases the hold.
    if !share.begin_conversion() {
        return Err(shared(&share));
    }
    let mark = hold.mark_end();
    let reply = send(&context, &hold, operation).await;
    match accept_refusal(reply, |reply| matches!(reply, Value::Int(1..))) {
        Ok(Value::Int(1..)) => {
            hold.deliver(mark, &Confirmation::Held);
            share.hand_out();
            Ok(ticket)
        }
        Ok(Value::Int(0)) => {
            let reason = why_lost(&context.backend, &hold, &context.timers).await;
            Err(hold.was_lost(mark, reason))
        }
        Ok(Value::Int(_)) => Err(misuse(
            &hold.key,
            "a ticket is for one hold, and a read hold is inside this write hold",
        )),
        Ok(_) => Err(context.backend.malformed().into_error(&hold.key)),
        Err(failure) => Err(failure.into_error(&hold.key)),
    }
}

/// Sends the request until it is answered, but not long after the reply timeout. A repeated request
/// only sets the lease again.
async fn send(context: &Context, hold: &Hold, operation: Operation) -> Result<Value, Failure> {
    let (clock, route) = (context.clock, hold.route());
    let mut end = None;
    let should_retry = |failed: FailedAttempt<'_>| {
        // Count from the first failure, because a lost reply takes the whole reply timeout.
        let end = *end.get_or_insert(clock.now() + context.backend.reply_timeout());
        failed.failure.may_heal() && clock.now() < end
    };
    let send = || context.backend.submit_by(operation.clone(), route);
    let first = (send(), clock.now());
    let pauses = RetryDelays::from(Duration::from_millis(10));
    until_answered(&context.timers, first, pauses, send, should_retry).await
}

/// Describes the hold.
fn describe(hold: &Hold, lease: Duration) -> Result<Ticket> {
    let token = hold.token();
    // Each kind has its own release step.
    let kind = match hold.steps.release().step.name {
        "lock.release" if token.is_some() => TicketKind::Fenced,
        "lock.release" => TicketKind::Plain,
        "fair.release" => TicketKind::Fair,
        "rw.release_read" => TicketKind::Read,
        "rw.release_write" => TicketKind::Write,
        "expirable.release" => TicketKind::Permits,
        _ => {
            return Err(misuse(
                &hold.key,
                "a hold of this kind can't pass to another process; use a plain, fenced, fair or \
                 read-write lock",
            ));
        }
    };
    let steps: &dyn Any = &*hold.steps;
    let described = match steps.downcast_ref::<PermitHold>() {
        Some(permits) => Some(TicketHold::Permits(permits.ids.to_vec())),
        None => TicketHold::of_lock(hold.steps.wire_id()),
    };
    Ok(Ticket {
        kind,
        name: hold.key.as_str().to_owned(),
        hold: described.ok_or_else(|| misuse(&hold.key, "its id was not made by this library"))?,
        lease,
        token,
    })
}

/// Checks that the owner has no hold on the other side of a read-write lock. One of its two holds
/// may be nested in the other.
fn check_sides(share: &Share) -> Result<()> {
    let key = &share.hold().key;
    let Some(owner) = share.owner() else {
        return Ok(());
    };
    let locals = &share.context().locals;
    let has = |role| locals.held_by(key, &owner.in_role(role)).is_some();
    match has(Role::Reader) && has(Role::Writer) {
        false => Ok(()),
        true => Err(misuse(
            key,
            "its owner holds both sides of the read-write lock, and a ticket is for one hold; \
             release one of them first",
        )),
    }
}

/// Returns the error for a hold that other guards share.
fn shared(share: &Share) -> Error {
    let what = match share.owner() {
        Some(_) => {
            "other guards of its owner share the hold, and a ticket is for the whole hold; release \
             or drop them first"
        }
        None => {
            "other readers of this process share the hold, and a ticket is for the whole hold; \
             acquire with `local_hand_over(Duration::ZERO)` to get a hold of your own"
        }
    };
    misuse(&share.hold().key, what)
}
