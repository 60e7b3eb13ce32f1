//! The round trip of one call. The call is sent, and each of its operations gets its reply or
//! returns to the queue.

use std::sync::{Arc, Weak};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::Lane;
use super::wait_command::send_and_wait;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::redis::call::{
    self, Header, Keys, NoReplies, OperationReply, Replies, ScriptRef,
};
use crate::backend::redis::node::Node;
use crate::backend::redis::queue::{Batch, QueuedOperation, fail};
use crate::backend::step::{Operation, Value};

/// Sends a batch. Answers each of its operations, or puts them back to be sent again.
pub(super) async fn round_trip(
    lane: &Arc<Lane>,
    mut connection: MultiplexedConnection,
    mut batch: Batch,
    (script, keys): (ScriptRef, Keys),
) {
    if lane.has_ended() {
        return send_without_reply(lane, connection, batch, (script, keys)).await;
    }
    if batch.wanted.is_some() && !lane.fail_unconfirmable(&mut batch) {
        return;
    }
    let number = call::draw_number();
    lane.node.observed.count_call(batch.operations.len());
    let command = command(&lane.node, &batch, script, number, keys);
    let (result, unconfirmed) = match batch.wanted {
        None => (connection.send_packed_command(&command).await, None),
        // Boxed, so that calls without confirmations do not carry the state of this wait.
        Some(wanted) => Box::pin(send_and_wait(&mut connection, command, wanted)).await,
    };
    let replies = lane.decode_reply(result, number, batch.operations.len());
    match &replies {
        Err(why) if lane.redirects.is_some() && is_redirected(&batch, why) => {
            if let Some(redirect) = why.redirect() {
                lane.node.count_redirect(&redirect);
            }
            return lane.redirect(batch.operations);
        }
        // A call that contains the source can't be refused for a missing script.
        Err(why) if script == ScriptRef::Sha && why.script_is_missing() => {
            return lane.retry_with_source(batch);
        }
        Err(why) if why.keys_are_refused() => {
            // Each operation is sent again on its own, so that a refused name does not make other
            // operations fail.
            if batch.operations.len() > 1 {
                return lane.retry_singly(batch);
            }
            // The server refused this name. No server says which key it denies, so the name
            // represents all keys that are derived from it. If the operation has many names, the
            // refusal does not show which of them is denied.
            if let Some(name) = batch.operations[0].operation.name() {
                lane.remember_refused(name);
            }
        }
        _ => {}
    }
    finish(lane, batch.operations, replies, unconfirmed.as_deref());
}

/// Returns whether a call did not run at this node of a cluster, and must be sent elsewhere.
fn is_redirected(batch: &Batch, why: &NoReplies) -> bool {
    // The declared keys of an operation on many keys may be in several slots.
    let many = batch.operations.iter().any(|w| w.operation.step.many);
    why.redirect().is_some() || many && why.keys_are_refused()
}

/// Sends a batch whose reply will never be read. The call is over when the driver has the request.
async fn send_without_reply(
    lane: &Lane,
    mut connection: MultiplexedConnection,
    mut batch: Batch,
    (script, keys): (ScriptRef, Keys),
) {
    // Another thread has taken these operations from the queue just before the runtime ended. They
    // are not sent, because a grant would never be received.
    let unwanted = batch
        .operations
        .extract_if(.., |waiting| waiting.operation.step.grants);
    fail(unwanted, &lane.runtime_ended(Outcome::DidNotRun));
    if batch.operations.is_empty() {
        return;
    }
    let mut command = command(&lane.node, &batch, script, call::draw_number(), keys);
    // Without this, the future would wait for the reply, but nothing polls it again.
    command.set_no_response(true);
    let _ = connection.send_packed_command(&command).await;
    lane.flush_unanswered();
    fail(batch.operations, &lane.runtime_ended(Outcome::MayHaveRun));
}

impl Lane {
    /// Decodes the result of a call, and notes what the result says about the connection.
    pub(super) fn decode_reply(
        &self,
        result: Result<redis::Value, RedisError>,
        number: i64,
        operations: usize,
    ) -> Result<Replies, NoReplies> {
        let replies = call::decode(result, number, operations);
        match &replies {
            Err(why) if why.is_timeout() => self.reply_timed_out(),
            // A lost connection does not count as a missing reply: the task that drives the
            // connection notices its end.
            _ => self.note_reply(),
        }
        if let Err(NoReplies::Malformed(_)) = &replies {
            // The driver matches replies to requests only by their order. A reply that was lost,
            // duplicated or moved shifts all later ones, so nothing on this connection can be
            // trusted any more.
            self.give_up();
        }
        replies
    }

    /// Passes operations that the node did not run to the cluster.
    fn redirect(self: &Arc<Self>, operations: Vec<QueuedOperation>) {
        match self.redirects.as_ref().and_then(Weak::upgrade) {
            Some(redirects) => redirects.handle(self, operations),
            // The client has been dropped, and its tasks end.
            None => fail(operations, &self.runtime_ended(Outcome::DidNotRun)),
        }
    }
}

fn command(node: &Node, batch: &Batch, script: ScriptRef, number: i64, keys: Keys) -> Cmd {
    if let [only] = &batch.operations[..]
        && (script, keys) == (ScriptRef::Sha, Keys::Declared)
        && let Some(own) = node.own_script(only.operation.step)
    {
        let operation = &only.operation;
        let not_after_ms = not_after_ms(node, operation.step.grants);
        return call::encode_own(own, number, not_after_ms, operation);
    }
    let operations = batch.operations.iter().map(|waiting| &waiting.operation);
    encode(node, operations, script, number, keys)
}

pub(super) fn encode<'a>(
    node: &Node,
    operations: impl Iterator<Item = &'a Operation> + Clone,
    script: ScriptRef,
    number: i64,
    keys: Keys,
) -> Cmd {
    let grants = operations.clone().any(|operation| operation.step.grants);
    let header = Header {
        script,
        number,
        not_after_ms: not_after_ms(node, grants),
        keys,
    };
    call::encode(&node.script, header, operations)
}

/// Returns the deadline of a call that grants something; 0 for any other call. A request that the
/// network held back must not take a lock that no client waits for. Safety depends neither on this
/// deadline nor on the two clocks, because each hold has its own id.
fn not_after_ms(node: &Node, grants: bool) -> i64 {
    if grants { node.not_after_ms() } else { 0 }
}

fn finish(
    lane: &Arc<Lane>,
    operations: Vec<QueuedOperation>,
    replies: Result<Replies, NoReplies>,
    unconfirmed: Option<&str>,
) {
    let node = &*lane.node;
    let mut redirects = Vec::new();
    match replies {
        Ok(replies) => {
            // The results of the operations do not matter: a server that is still loading its data
            // does not run calls at all.
            node.refusals.ran_a_call();
            // Each operation gets a reply, because `decode` refuses a list of any other length.
            for (waiting, reply) in operations.into_iter().zip(replies) {
                let Some(reply) = read(node, reply) else {
                    redirects.push(waiting);
                    continue;
                };
                node.ran_undeclared();
                // A demoted server runs the call, and refuses the first write in it.
                if let Err(failure) = &reply {
                    node.refusals.refused(failure, node.clock.now());
                }
                let reply = (waiting.route).confirmed(reply, unconfirmed, || node.address());
                answer(node, waiting, reply);
            }
        }
        Err(why) => {
            // After a connection is lost, the client can't know which operations still ran on it.
            let failure = why.into_failure(&node.address(), || node.shown_reply_timeout());
            node.refusals.refused(&failure, node.clock.now());
            for waiting in operations {
                answer(node, waiting, Err(failure.clone()));
            }
        }
    }
    if !redirects.is_empty() {
        lane.redirect(redirects);
    }
}

/// Reads the reply to one operation; `None` if it did not run because its slot is not on this node.
pub(super) fn read(node: &Node, reply: redis::Value) -> Option<Result<Value, Failure>> {
    Some(match call::read(reply, &node.address()) {
        OperationReply::Value(value) => Ok(value),
        OperationReply::Failed(failure) => Err(failure),
        OperationReply::Moving => return None,
        OperationReply::Late { server_ms } => {
            // A clock was set, or has drifted: the next request must be in time.
            node.learn_time(server_ms, node.clock.now());
            Err(Failure::new(
                Outcome::DidNotRun,
                Cause::Late,
                node.address(),
            ))
        }
        OperationReply::Guarded { remaining } => Err(Failure::new(
            Outcome::DidNotRun,
            Cause::Guarded { remaining },
            node.address(),
        )),
    })
}

pub(super) fn answer(node: &Node, waiting: QueuedOperation, reply: Result<Value, Failure>) {
    let reply = reply
        .map_err(|failure| call::failure_with_advice(&waiting.operation, failure, &node.script));
    waiting.answer(reply);
}

/// Answers all operations with this failure of the connection.
pub(super) fn fail_unreached(
    node: &Node,
    operations: impl IntoIterator<Item = QueuedOperation>,
    failure: &Failure,
) {
    for waiting in operations {
        let failure = node.unreached(failure, &waiting.operation);
        waiting.answer(Err(failure));
    }
}
