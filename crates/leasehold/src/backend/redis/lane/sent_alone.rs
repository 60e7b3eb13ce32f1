//! An operation that is sent to a node of a cluster alone, with its keys declared, so that the
//! node's reply shows where the keys are.

use std::iter;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::round_trip::{answer, encode, read};
use super::wait_command::{self, transmit_and_wait};
use super::{Lane, LinkState};
use crate::acknowledgement::Acknowledgement;
use crate::backend::failure::Failure;
use crate::backend::redis::call::{self, Keys, Redirect, ScriptRef};
use crate::backend::redis::queue::QueuedOperation;
use crate::backend::redis::slots::tag_of;

/// The outcome of sending an operation alone.
pub(crate) enum SentAlone {
    Answered,
    /// Nothing waits for the operation any more.
    Abandoned,
    /// The operation did not run, and must be sent to the destination of the redirect.
    Redirected(QueuedOperation, Redirect),
    /// There is no connection. The failure is `None` while one is being opened.
    Unconnected(QueuedOperation, Option<Failure>),
}

impl Lane {
    /// Sends an operation alone, and answers it if the node runs it. With `asking`, the node also
    /// accepts keys of a slot that it is receiving.
    pub(crate) async fn send_alone(&self, waiting: QueuedOperation, asking: bool) -> SentAlone {
        let mut connection = match &self.state.lock().link {
            LinkState::Up(connection) => connection.clone(),
            LinkState::Opening => return SentAlone::Unconnected(waiting, None),
            LinkState::Down(failure) => {
                let failure = self.node.unreached(failure, &waiting.operation);
                return SentAlone::Unconnected(waiting, Some(failure));
            }
        };
        if !waiting.mark_sent() {
            return SentAlone::Abandoned;
        }
        let number = call::draw_number();
        let encode = |script| {
            let operations = iter::once(&waiting.operation);
            let keys = Keys::declared_alone(&waiting.operation);
            self.node.observed.count_call(1);
            encode(&self.node, operations, script, number, keys)
        };
        let wanted = waiting.route.wanted();
        if let Some(failure) = wanted.and_then(|wanted| self.refusal(wanted)) {
            answer(&self.node, waiting, Err(failure));
            return SentAlone::Answered;
        }
        let how = (asking, wanted);
        let (mut result, mut unconfirmed) =
            transmit(&mut connection, encode(ScriptRef::Sha), how).await;
        if matches!(&result, Err(error) if is_noscript(error)) {
            let source = encode(ScriptRef::Source);
            (result, unconfirmed) = transmit(&mut connection, source, how).await;
        }
        let replies = self.decode_reply(result, number, 1);
        let reply = match replies {
            Ok(mut replies) => replies.next().and_then(|reply| read(&self.node, reply)),
            Err(why) => {
                if let Some(redirect) = why.redirect() {
                    return self.redirected(waiting, redirect);
                }
                let node = &self.node;
                Some(Err(why.into_failure(&node.address(), || {
                    node.shown_reply_timeout()
                })))
            }
        };
        match reply {
            Some(reply) => {
                let why = unconfirmed.as_deref();
                let reply = (waiting.route).confirmed(reply, why, || self.node.address());
                answer(&self.node, waiting, reply);
                SentAlone::Answered
            }
            None => {
                let said = "TRYAGAIN its slot is moving to another node";
                self.redirected(waiting, Redirect::Later(said.into()))
            }
        }
    }

    /// Returns whether the node has the slot of this key, and all keys of the slot.
    pub(crate) async fn has_complete_slot_of(&self, key: &[u8]) -> bool {
        let Some(mut connection) = self.connection() else {
            return false;
        };
        // The same check as in `cluster.lua`.
        let never_there = [b"leasehold:{", tag_of(key), b"}:here"].concat();
        let mut exists = Cmd::new();
        exists.arg("EXISTS").arg(never_there);
        let reply = connection.send_packed_command(&exists).await;
        reply.is_ok_and(|reply| reply == redis::Value::Int(0))
    }

    fn redirected(&self, waiting: QueuedOperation, redirect: Redirect) -> SentAlone {
        self.node.count_redirect(&redirect);
        match waiting.requeue() {
            true => SentAlone::Redirected(waiting, redirect),
            false => SentAlone::Abandoned,
        }
    }
}

/// Sends a command. With `asking`, `ASKING` precedes it in the same write, because it applies only
/// to the next command. If confirmations are wanted, the wait for them follows the command.
async fn transmit(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    (asking, wanted): (bool, Option<Acknowledgement>),
) -> (Result<redis::Value, RedisError>, Option<String>) {
    if let Some(wanted) = wanted {
        return Box::pin(transmit_and_wait(connection, command, asking, wanted)).await;
    }
    if !asking {
        let result = connection.send_packed_command(&command).await;
        return (result.and_then(wait_command::reply_or_error), None);
    }
    let mut both = redis::Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command);
    let replies = connection.send_packed_commands(&both, 0, 2).await;
    let result = replies.and_then(|mut replies| match replies.pop() {
        Some(reply) if replies.len() == 1 => wait_command::reply_or_error(reply),
        _ => Err((redis::ErrorKind::Client, "not one reply for each command").into()),
    });
    (result, None)
}

fn is_noscript(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
