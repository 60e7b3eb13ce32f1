//! Requests that can't be repeated without harm: each leaves its reply under a marker of
//! its own, and looks for it first. Here is how they are sent, and what their twins have in
//! common; the Lua is `once.lua`.

use std::time::Duration;

use crate::backend::Reply;
use crate::backend::memory::Keyspace;
use crate::backend::step::{Cause, Failure, Operation, Outcome, Refusal, Value};
use crate::cleanup::markers::{Marked, repeatable_for};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::key::Key;

/// The markers of a new request.
pub(super) fn mark(context: &Context, key: &Key) -> Marked {
    let id = context.fresh_wire_id();
    context.markers.mark(key, &id, context.clock.now())
}

/// Sends a request under a marker of its own, again and again until it is answered or the
/// time for that is over: it counts once.
pub(super) async fn send(
    context: &Context,
    key: &Key,
    make: impl FnOnce(&Marked) -> Operation,
) -> Result<Value> {
    let marked = mark(context, key);
    let operation = make(&marked);
    let first = context.backend.submit(operation.clone());
    let reply = repeat(context, first, operation).await;
    let reply = reply.map_err(|failure| failure.into_error(key))?;
    context.markers.answered(key, marked, context.clock.now());
    Ok(reply)
}

/// Sends `operation` until it is answered; it has been sent once, as `reply`.
pub(super) async fn repeat(
    context: &Context,
    mut reply: Reply,
    operation: Operation,
) -> Result<Value, Failure> {
    let (backend, clock) = (&context.backend, context.clock);
    let marked_until = clock.now() + repeatable_for(backend.reply_limit());
    let (mut limit, mut may_have_run) = (None, false);
    let mut pause = Duration::from_millis(10);
    loop {
        let failure = match reply.await {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        may_have_run |= failure.outcome == Outcome::MayHaveRun;
        // Two replies that don't come end a connection; the third request has a new one.
        let limit = *limit.get_or_insert(clock.now() + backend.reply_limit() * 2);
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

/// A question.
pub(super) async fn ask(context: &Context, key: &Key, operation: Operation) -> Result<Value> {
    let reply = context.backend.submit(operation).await;
    reply.map_err(|failure| failure.into_error(key))
}

pub(super) fn makes_no_sense(context: &Context) -> Failure {
    let what = "the reply makes no sense";
    let cause = Cause::Other(what.into());
    context.backend.failure(Outcome::MayHaveRun, cause)
}

/// The number that is the reply.
pub(super) fn whole(context: &Context, key: &Key, reply: &Value) -> Result<i64> {
    match reply {
        Value::Int(number) => Ok(*number),
        _ => Err(senseless(context, key)),
    }
}

pub(super) fn senseless(context: &Context, key: &Key) -> Error {
    makes_no_sense(context).into_error(key)
}

/// How long a marker stays.
const MARKER_MS: u64 = 60_000;

/// The number that is known to stand at a marker.
pub(super) fn replied(keyspace: &mut Keyspace, marker: &[u8]) -> Result<Option<i64>, Refusal> {
    keyspace.get(marker)?.map(|text| number(&text)).transpose()
}

pub(super) fn note(keyspace: &mut Keyspace, marker: &[u8], reply: &str) {
    keyspace.set(marker, reply.as_bytes());
    keyspace.pexpire(marker, MARKER_MS);
}

/// The number at `key`; `None` when there is none, and what stands in the way when it is
/// something else.
pub(super) fn number_at(keyspace: &mut Keyspace, key: &[u8]) -> Result<Option<i64>, Refusal> {
    let Ok(text) = keyspace.get(key) else {
        return Err(Refusal(format!("WRONGKIND a {}", keyspace.kind(key))));
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let digits = text.strip_prefix(b"-").unwrap_or(&text);
    let counts = text.len() <= 14 && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !counts {
        return Err(Refusal("WRONGKIND a text that is not a count".into()));
    }
    number(&text).map(Some)
}

pub(super) fn number(text: &[u8]) -> Result<i64, Refusal> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Refusal("ERR value is not an integer or out of range".into()))
}

pub(super) fn arity() -> Refusal {
    Refusal("ERR wrong number of arguments for a step".into())
}

/// Tells those who wait how many permits are free.
pub(super) fn tell(keyspace: &mut Keyspace, channel: &[u8], free: i64) {
    if free > 0 {
        keyspace.publish(channel, free.to_string().as_bytes());
    }
}

pub(super) fn list(numbers: &[i64]) -> Value {
    Value::List(numbers.iter().copied().map(Value::Int).collect())
}
