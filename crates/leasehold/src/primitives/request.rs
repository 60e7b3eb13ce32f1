//! Requests that take effect once, even if they are sent several times. The step of such a request
//! stores its reply under the request's own marker, and first checks whether the marker exists.
//! This file sends the requests. Their Lua is `idempotency` in `common.lua`, and its twin is in
//! `twin.rs`.

use std::time::Duration;

use crate::backend::Reply;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::local::{Marked, RecordRef, repeatable_for};

/// Creates the markers of a new request.
pub(crate) fn new_marker(context: &Context, local: &RecordRef) -> Marked {
    let id = context.fresh_wire_id();
    local.markers.mark(local.key(), &id, context.clock.now())
}

/// Sends a request under its own marker, and repeats it until it is answered or its time limit has
/// passed. The request takes effect once.
pub(crate) async fn idempotent(
    context: &Context,
    key: &Key,
    make: impl FnOnce(&Marked) -> Operation,
) -> Result<Value> {
    let local = context.locals.of(key);
    let marked = new_marker(context, &local);
    let operation = make(&marked);
    let sent_at = context.clock.now();
    // All copies have the same operation and the same marker, which makes a repeated copy harmless.
    let first = context.backend.submit(operation.clone());
    let reply = repeat(context, sent_at, first, operation).await;
    let reply = reply.map_err(|failure| failure.into_error_of_change(key))?;
    if reply.is_only_copy {
        // Do this only here: from now on, a later request may remove the marker.
        local.markers.answered(marked, context.clock.now());
    }
    Ok(reply.value)
}

/// The answer to a request that may have been sent several times.
pub(crate) struct RepeatedReply {
    pub(crate) value: Value,
    /// Whether all other copies of the request are certainly done. The network may delay a copy on
    /// a connection that was given up. If there may be such a copy, the marker remains until it
    /// expires.
    pub(crate) is_only_copy: bool,
}

/// Resends `operation` until it is answered. The first copy was sent at `sent`, and `first` is the
/// pending reply to it.
pub(crate) async fn repeat(
    context: &Context,
    sent: Moment,
    first: Reply,
    operation: Operation,
) -> Result<RepeatedReply, Failure> {
    let (backend, clock) = (&context.backend, context.clock);
    let marked_until = sent + repeatable_for(backend.reply_timeout());
    let (mut limit, mut may_have_run) = (None, false);
    let should_retry = |failed: FailedAttempt<'_>| {
        may_have_run |= failed.failure.outcome == Outcome::MayHaveRun;
        // Two missing replies close a connection, so the third request uses a new one.
        let limit = *limit.get_or_insert(clock.now() + backend.reply_timeout() * 2);
        // Without its marker, a repeated request that has already run would count twice.
        let unmarked = may_have_run && clock.now() + failed.pause >= marked_until;
        failed.failure.may_heal() && clock.now() < limit && !unmarked
    };
    let send = || backend.submit(operation.clone());
    let pauses = RetryDelays::from(Duration::from_millis(10));
    match until_answered(&context.timers, (first, sent), pauses, send, should_retry).await {
        Ok(value) => Ok(RepeatedReply {
            value,
            is_only_copy: !may_have_run,
        }),
        // Even if the last copy did not run, an earlier one may have run, so the caller must not
        // conclude that nothing was changed.
        Err(failure) if may_have_run => Err(Failure {
            outcome: Outcome::MayHaveRun,
            ..failure
        }),
        Err(failure) => Err(failure),
    }
}

/// Sends a change that needs no marker, once.
pub(crate) async fn change(context: &Context, key: &Key, operation: Operation) -> Result<Value> {
    let reply = context.backend.submit(operation).await;
    reply.map_err(|failure| failure.into_error_of_change(key))
}

/// Sends a query, once.
pub(crate) async fn query(context: &Context, key: &Key, operation: Operation) -> Result<Value> {
    let reply = context.backend.submit(operation).await;
    reply.map_err(|failure| failure.into_error_of_query(key))
}

/// Returns the reply as a number.
pub(crate) fn integer(context: &Context, key: &Key, reply: &Value) -> Result<i64> {
    match reply {
        Value::Int(number) => Ok(*number),
        _ => Err(malformed(context, key)),
    }
}

pub(crate) fn malformed(context: &Context, key: &Key) -> Error {
    context.backend.malformed().into_error(key)
}
