//! What happens on the wire with one call: it is sent, and each of its operations gets its reply
//! or goes back to the queue.

use std::sync::Arc;

use redis::Cmd;
use redis::aio::MultiplexedConnection;

use super::Lane;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::redis::call::{self, Answer, Header, NoReplies, Replies, ScriptRef};
use crate::backend::redis::node::Node;
use crate::backend::redis::queue::{Batch, Waiting};
use crate::backend::step::Value;

/// Sends a batch and answers each of its operations, or hands them back to be sent again.
pub(super) async fn exchange(
    lane: &Lane,
    mut connection: MultiplexedConnection,
    batch: Batch,
    script: ScriptRef,
) {
    if lane.has_ended() {
        return send_unheard(lane, connection, batch, script).await;
    }
    let replies = transmit(lane, &mut connection, &batch, script).await;
    match &replies {
        // The server can't refuse a call for that which brings the source.
        Err(why) if script == ScriptRef::Sha && why.script_is_missing() => {
            return lane.retry_with_source(batch);
        }
        Err(why) if why.is_refused_whole() => {
            // Each is sent again on its own, so that one bad name fails no other.
            if batch.operations.len() > 1 {
                return lane.retry_singly(batch);
            }
            // This name was it.
            // All keys of an operation are derived from one name, so the first one stands for them.
            // No server says which it denies.
            // But one for many names says nothing of each.
            let operation = &batch.operations[0].operation;
            if !operation.step.many {
                lane.remember_refused(&operation.parts[0]);
            }
        }
        _ => {}
    }
    finish(&lane.node, batch.operations, replies);
}

/// Sends a batch whose reply nobody will hear: it is over when the driver has it.
async fn send_unheard(
    lane: &Lane,
    mut connection: MultiplexedConnection,
    mut batch: Batch,
    script: ScriptRef,
) {
    // Another thread has taken these from the queue just before the end. Nobody would hear of a
    // grant, so they do not leave.
    let asks = batch
        .operations
        .extract_if(.., |waiting| waiting.operation.step.grants);
    fail(asks, &lane.runtime_ended(Outcome::DidNotRun));
    if batch.operations.is_empty() {
        return;
    }
    let mut command = command(&lane.node, &batch, script, call::draw_number());
    // Otherwise the future would wait for the reply, and nobody polls it again.
    command.set_no_response(true);
    let _ = connection.send_packed_command(&command).await;
    lane.ends_unheard();
    fail(batch.operations, &lane.runtime_ended(Outcome::MayHaveRun));
}

async fn transmit(
    lane: &Lane,
    connection: &mut MultiplexedConnection,
    batch: &Batch,
    script: ScriptRef,
) -> Result<Replies, NoReplies> {
    let number = call::draw_number();
    let command = command(&lane.node, batch, script, number);
    let result = connection.send_packed_command(&command).await;
    let replies = call::decode(result, number, batch.operations.len());
    match &replies {
        Err(why) if why.is_timeout() => lane.reply_timed_out(),
        // A lost connection, too, is no silence: the task that drives it sees its end.
        _ => lane.heard(),
    }
    if let Err(NoReplies::Nonsense(_)) = &replies {
        // The driver knows replies by their order alone. One that was lost, doubled or moved
        // shifts all behind it, so nothing on this connection can be trusted any more.
        lane.give_up();
    }
    replies
}

fn command(node: &Node, batch: &Batch, script: ScriptRef, number: i64) -> Cmd {
    let operations = batch.operations.iter().map(|waiting| &waiting.operation);
    // Against requests that the network held back: a grant then would be a lock for nobody.
    // Safety does not depend on it, nor on the two clocks, because each hold has an id of its
    // own.
    let grants = operations.clone().any(|operation| operation.step.grants);
    let not_after_ms = if grants { node.not_after_ms() } else { 0 };
    let header = Header {
        script,
        number,
        not_after_ms,
    };
    call::encode(&node.script, header, operations)
}

fn finish(node: &Node, operations: Vec<Waiting>, replies: Result<Replies, NoReplies>) {
    match replies {
        Ok(replies) => {
            // Whatever the operations say: a server that is loading runs no call.
            node.refusals.ran_a_call();
            // None is left over: `decode` has refused a list of any other length.
            for (waiting, reply) in operations.into_iter().zip(replies) {
                let reply = read(node, reply);
                // A server that was demoted runs the call, and refuses the first write in it.
                if let Err(failure) = &reply {
                    node.refusals.refused(failure, node.clock.now());
                }
                answer(node, waiting, reply);
            }
        }
        Err(why) => {
            // Of a connection that is lost nobody knows what still ran on it.
            let failure = why.into_failure(node.address(), node.reply_timeout());
            node.refusals.refused(&failure, node.clock.now());
            for waiting in operations {
                answer(node, waiting, Err(failure.clone()));
            }
        }
    }
}

/// One operation's reply.
fn read(node: &Node, reply: redis::Value) -> Result<Value, Failure> {
    match call::read(reply, node.address()) {
        Answer::Value(value) => Ok(value),
        Answer::Failed(failure) => Err(failure),
        Answer::Late { server_ms } => {
            // A clock was set, or drifted: the next request has to be in time.
            node.learn_time(server_ms, node.clock.now());
            let address = Arc::clone(node.address());
            Err(Failure::new(Outcome::DidNotRun, Cause::Late, address))
        }
    }
}

fn answer(node: &Node, waiting: Waiting, reply: Result<Value, Failure>) {
    let reply =
        reply.map_err(|failure| call::failure_of(&waiting.operation, failure, &node.script));
    waiting.answer(reply);
}

/// Answers all with this failure.
pub(super) fn fail(operations: impl IntoIterator<Item = Waiting>, failure: &Failure) {
    for waiting in operations {
        waiting.answer(Err(failure.clone()));
    }
}
