//! Requests that can't be repeated without harm: each leaves its reply under a marker of
//! its own, and looks for it first. Here is how they are sent; the Lua is `idempotency.lua`, and
//! its twin stands in `twin.rs`.

use std::time::Duration;

use crate::backend::Reply;
use crate::backend::step::{Failure, Operation, Outcome, Value};
use crate::cleanup::idempotency::{Marked, repeatable_for};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::key::Key;

/// The markers of a new request.
pub(super) fn mark(context: &Context, key: &Key) -> Marked {
    let id = context.fresh_wire_id();
    context.idempotency.mark(key, &id, context.clock.now())
}

/// Sends a request under a marker of its own, again and again until it is answered or the
/// time for that is over: it counts once.
pub(super) async fn idempotent(
    context: &Context,
    key: &Key,
    make: impl FnOnce(&Marked) -> Operation,
) -> Result<Value> {
    let marked = mark(context, key);
    let operation = make(&marked);
    let left_at = context.clock.now();
    let first = context.backend.submit(operation.clone());
    let reply = repeat(context, left_at, first, operation).await;
    let reply = reply.map_err(|failure| failure.into_error_of_change(key))?;
    if reply.is_only_copy {
        context
            .idempotency
            .answered(key, marked, context.clock.now());
    }
    Ok(reply.value)
}

/// The answer to a request.
pub(super) struct Answered {
    pub(super) value: Value,
    /// Whether no other copy of the request can still be under way. The network may hold one
    /// back on a connection that was given up, so its marker stays for as long as it lives.
    pub(super) is_only_copy: bool,
}

/// Sends `operation` until it is answered; it has been sent once, at `left_at` as `reply`.
pub(super) async fn repeat(
    context: &Context,
    left_at: Moment,
    mut reply: Reply,
    operation: Operation,
) -> Result<Answered, Failure> {
    let (backend, clock) = (&context.backend, context.clock);
    let marked_until = left_at + repeatable_for(backend.reply_timeout());
    let (mut limit, mut may_have_run) = (None, false);
    let mut pause = Duration::from_millis(10);
    loop {
        let failure = match reply.await {
            Ok(value) => {
                let is_only_copy = !may_have_run;
                return Ok(Answered {
                    value,
                    is_only_copy,
                });
            }
            Err(failure) => failure,
        };
        may_have_run |= failure.outcome == Outcome::MayHaveRun;
        // Two replies that don't come end a connection; the third request has a new one.
        let limit = *limit.get_or_insert(clock.now() + backend.reply_timeout() * 2);
        // Without its marker a request that has run would count twice.
        let unmarked = may_have_run && clock.now() + pause >= marked_until;
        if !failure.may_heal() || clock.now() >= limit || unmarked {
            return Err(match may_have_run {
                true => Failure {
                    outcome: Outcome::MayHaveRun,
                    ..failure
                },
                false => failure,
            });
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
        reply = backend.submit(operation.clone());
    }
}

/// A change that needs no marker: it is sent once.
pub(super) async fn change(context: &Context, key: &Key, operation: Operation) -> Result<Value> {
    let reply = context.backend.submit(operation).await;
    reply.map_err(|failure| failure.into_error_of_change(key))
}

/// A question.
pub(super) async fn query(context: &Context, key: &Key, operation: Operation) -> Result<Value> {
    let reply = context.backend.submit(operation).await;
    reply.map_err(|failure| failure.into_error_of_question(key))
}

/// The number that is the reply.
pub(super) fn integer(context: &Context, key: &Key, reply: &Value) -> Result<i64> {
    match reply {
        Value::Int(number) => Ok(*number),
        _ => Err(malformed(context, key)),
    }
}

pub(super) fn malformed(context: &Context, key: &Key) -> Error {
    context.backend.malformed().into_error(key)
}
