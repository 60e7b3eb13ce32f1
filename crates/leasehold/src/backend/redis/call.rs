//! One call: building it, sending it, and sorting its result for each operation.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, ServerErrorKind};

use super::connect::reply_text;
use super::lane::{Batch, Lane, ScriptRef, Waiting};
use super::script::commands;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::step::{Operation, Value};
use crate::key::{Key, Shown};

/// The result of a call: one reply per operation, or why there is none.
type Replies = Result<Vec<redis::Value>, NoReplies>;

enum NoReplies {
    /// The driver says so: an error reply, a lost connection, no answer in time.
    Failed(RedisError),
    /// The reply is no answer to this call.
    Nonsense(&'static str),
}

/// Sends a batch and answers each of its operations, or hands them back to be sent again.
pub(crate) async fn send(lane: &Lane, mut connection: MultiplexedConnection, batch: Batch) {
    if lane.has_ended() {
        return send_unheard(lane, connection, batch).await;
    }
    let replies = transmit(lane, &mut connection, &batch).await;
    match &replies {
        // Nothing ran: the server does not know the script. (It can't refuse a call for that
        // which brings the source.)
        Err(NoReplies::Failed(error)) if batch.by == ScriptRef::Sha && is_noscript(error) => {
            return lane.retry_with_source(batch);
        }
        // Nothing ran either: the server checks the keys of a call before it runs the script.
        Err(NoReplies::Failed(error)) if is_refused_whole(error) => {
            // Each is sent again on its own, so that one bad name fails no other.
            if batch.operations.len() > 1 {
                return lane.retry_singly(batch);
            }
            // This name was it. It travels alone from here on, or the operations that it shares
            // a call with would be sent twice each time.
            let parts = &batch.operations[0].operation.parts;
            lane.remember_refused(&parts[0]);
        }
        _ => {}
    }
    finish(lane, batch.operations, replies);
}

/// Sends a batch whose reply nobody will hear: it is over when the driver has it.
async fn send_unheard(lane: &Lane, mut connection: MultiplexedConnection, mut batch: Batch) {
    // Another thread has taken these from the queue just before the end. Nobody would hear of a
    // grant, so they do not leave.
    let asks = batch
        .operations
        .extract_if(.., |waiting| waiting.operation.step.grants);
    let ended = lane.runtime_ended(Outcome::DidNotRun);
    fail(lane, asks.collect(), &ended);
    if batch.operations.is_empty() {
        return;
    }
    let mut command = build(lane, &batch, Lane::call_number());
    // Otherwise the future would wait for the reply, and nobody polls it again.
    command.set_no_response(true);
    let _ = connection.send_packed_command(&command).await;
    lane.ends_unheard();
    fail(
        lane,
        batch.operations,
        &lane.runtime_ended(Outcome::MayHaveRun),
    );
}

async fn transmit(lane: &Lane, connection: &mut MultiplexedConnection, batch: &Batch) -> Replies {
    let number = Lane::call_number();
    let command = build(lane, batch, number);
    let result = match connection.send_packed_command(&command).await {
        Ok(redis::Value::ServerError(error)) => Err(error.into()),
        result => result,
    };
    match &result {
        Err(error) if error.is_timeout() => lane.reply_timed_out(),
        _ => lane.heard(),
    }
    let replies = result.map_err(NoReplies::Failed)?;
    check(replies, number, batch.operations.len()).map_err(|what| {
        // The driver knows replies by their order alone. One that was lost, doubled or moved
        // shifts all behind it, so nothing on this connection can be trusted any more.
        lane.give_up();
        NoReplies::Nonsense(what)
    })
}

/// The replies of call `number`, if these are its.
fn check(
    value: redis::Value,
    number: i64,
    operations: usize,
) -> Result<Vec<redis::Value>, &'static str> {
    let mut replies = match value {
        redis::Value::Array(replies) => replies,
        redis::Value::Nil => return Err("nothing"),
        _ => return Err("not a list"),
    };
    if replies.len() != operations + 1 {
        return Err("a list of another length");
    }
    if replies.remove(0) != redis::Value::Int(number) {
        return Err("the reply to another call");
    }
    Ok(replies)
}

fn build(lane: &Lane, batch: &Batch, number: i64) -> Cmd {
    let mut command = match batch.by {
        ScriptRef::Sha => {
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(&lane.script.sha);
            command
        }
        ScriptRef::Source => {
            let mut command = Cmd::new();
            command.arg("EVAL").arg(&lane.script.text);
            command
        }
    };
    let operations = || batch.operations.iter().map(|waiting| &waiting.operation);
    command.arg(
        operations()
            .map(|operation| operation.step.keys)
            .sum::<usize>(),
    );
    for operation in operations() {
        for key in &operation.parts[..operation.step.keys] {
            command.arg(&key[..]);
        }
    }
    // Against requests that the network held back: a grant then would be a lock for nobody.
    // Safety does not depend on it, nor on the two clocks, because each hold has an id of its
    // own.
    let not_after = if operations().any(|operation| operation.step.grants) {
        lane.server_now_ms()
            .saturating_add(i64::try_from(lane.reply_timeout.as_millis()).unwrap_or(i64::MAX))
    } else {
        0
    };
    command.arg(number).arg(not_after);
    for operation in operations() {
        command.arg(operation.step.name);
        for argument in &operation.parts[operation.step.keys..] {
            command.arg(&argument[..]);
        }
    }
    command
}

fn finish(lane: &Lane, batch: Vec<Waiting>, replies: Replies) {
    match replies {
        Ok(replies) => {
            // Whatever the operations say: a server that is loading runs no call.
            lane.refusals.ran_a_call();
            for (waiting, reply) in batch.into_iter().zip(replies) {
                let reply = read(lane, reply);
                if let Err(failure) = &reply {
                    lane.refusals.refused(failure, lane.clock.now());
                }
                answer(lane, waiting, reply);
            }
        }
        Err(NoReplies::Nonsense(what)) => {
            let what = format!("the reply makes no sense ({what})");
            fail(lane, batch, &no_answer(lane, &what, Outcome::MayHaveRun));
        }
        Err(NoReplies::Failed(error)) => {
            let failure = failure(lane, error);
            lane.refusals.refused(&failure, lane.clock.now());
            fail(lane, batch, &failure);
        }
    }
}

fn fail(lane: &Lane, batch: Vec<Waiting>, failure: &Failure) {
    for waiting in batch {
        answer(lane, waiting, Err(failure.clone()));
    }
}

fn answer(lane: &Lane, waiting: Waiting, reply: Result<Value, Failure>) {
    let operation = &waiting.operation;
    let reply = reply.map_err(|failure| match failure.cause {
        Cause::Denied(said) if !said.starts_with("NOAUTH") => Failure {
            cause: Cause::Denied(format!("{said}; {}", what_is_needed(lane, operation))),
            ..failure
        },
        _ => failure.of(operation.step),
    });
    waiting.answer(reply);
}

/// No server says which key it denies, and some versions do not say which command.
fn what_is_needed(lane: &Lane, operation: &Operation) -> String {
    let step = operation.step;
    let name = String::from_utf8_lossy(&operation.parts[0]);
    // It was checked before it was sent.
    let rules = Key::parse(&name).map(|key| key.access_rules());
    format!(
        "{} runs {}; whoever uses this name needs ACL SETUSER USER {} {}",
        step.name,
        commands(step),
        rules.unwrap_or_default(),
        lane.script.command_rules,
    )
}

/// One operation's reply.
fn read(lane: &Lane, reply: redis::Value) -> Result<Value, Failure> {
    match convert(reply) {
        Some(Value::Text(error)) => Err(Failure::from_reply(
            &String::from_utf8_lossy(&error),
            &lane.address,
        )),
        Some(Value::List(items)) => match &items[..] {
            [Value::Text(word), Value::Int(now_ms)] if word == b"late" => {
                // A clock was set, or drifted: the next request has to be in time.
                lane.learn_time(*now_ms, lane.clock.now());
                Err(Failure {
                    outcome: Outcome::DidNotRun,
                    cause: Cause::Late,
                    address: Arc::clone(&lane.address),
                    source: None,
                })
            }
            _ => Ok(Value::List(items)),
        },
        Some(value) => Ok(value),
        None => Err(no_answer(
            lane,
            "the reply makes no sense",
            Outcome::MayHaveRun,
        )),
    }
}

fn convert(value: redis::Value) -> Option<Value> {
    Some(match value {
        redis::Value::Nil => Value::Nil,
        redis::Value::Int(number) if is_exact(number) => Value::Int(number),
        redis::Value::BulkString(text) => Value::Text(text),
        redis::Value::SimpleString(text) => Value::Text(text.into_bytes()),
        redis::Value::Array(items) => {
            Value::List(items.into_iter().map(convert).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// Beyond 2^53 a script can't have meant the number that it replied. With this bound the sum of
/// two replies, or of a reply and the time, overflows nowhere.
fn is_exact(number: i64) -> bool {
    number.unsigned_abs() <= 1 << 53
}

/// What the failure of a whole call means for each of its operations.
fn failure(lane: &Lane, error: RedisError) -> Failure {
    if let Some(text) = reply_text(&error) {
        let failure = Failure::from_reply(&text, &lane.address);
        return match failure.cause {
            // The script's own loop has failed, and nobody knows how far it came.
            Cause::Other(_) => Failure {
                outcome: Outcome::MayHaveRun,
                ..failure
            },
            _ => failure,
        };
    }
    let what = if error.is_timeout() {
        format!("no reply within {:?}", lane.reply_timeout)
    } else {
        format!("the connection was lost ({error})")
    };
    Failure {
        source: Some(Arc::new(error)),
        ..no_answer(lane, &what, Outcome::MayHaveRun)
    }
}

fn no_answer(lane: &Lane, what: &str, outcome: Outcome) -> Failure {
    let address = Arc::clone(&lane.address);
    Failure::no_answer(outcome, Shown(what).to_string(), address)
}

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Refused before anything ran, because of one of its keys.
fn is_refused_whole(error: &RedisError) -> bool {
    matches!(error.code(), Some("NOPERM" | "CROSSSLOT"))
}
