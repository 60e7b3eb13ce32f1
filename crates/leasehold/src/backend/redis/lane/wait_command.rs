//! Calls whose replies count only once they are confirmed by replicas (`WAIT`) or from disks
//! (`WAITAOF`).
//!
//! Such a wait covers only the writes of its own connection, so a call and its wait are sent
//! together, on a separate lane. The server does not run anything else from that connection until
//! the wait has ended. So the lane has only one call on its way at a time, and the operations that
//! arrive meanwhile form the next one. Operations that undo them use the same lane, and don't wait
//! for confirmations.
//!
//! Each step that grants something writes even if its caller already has the hold. Without this
//! write, the wait on a new connection would end at once, whether or not the earlier write has been
//! confirmed.

use std::sync::{Arc, Weak};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError};
use tokio::runtime::Handle;

use super::{Lane, Redirects};
use crate::acknowledgement::Acknowledgement;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::backend::redis::node::Node;
use crate::backend::redis::queue::fail;
use crate::backend::redis::queue::{Batch, QueuedOperation};
use crate::backend::redis::reply_text;
use crate::backend::redis::server_info::AppendOnlyFile;
use crate::sync::Mutex;
use crate::text::Shown;

/// The confirmations that the server at the other end can give.
#[derive(Default)]
pub(super) struct WaitSupport(Mutex<WaitRefusals>);

/// The reasons why a server can't confirm a write on replicas, or on disk; `None` if it can.
#[derive(Clone, Default)]
pub(crate) struct WaitRefusals {
    pub(crate) replicas: Option<Failure>,
    pub(crate) disk: Option<Failure>,
}

impl Lane {
    /// Creates a lane for operations that are acknowledged.
    pub(crate) fn acknowledged(
        runtime: Handle,
        node: Arc<Node>,
        redirects: Option<Weak<dyn Redirects>>,
    ) -> Arc<Self> {
        Self::with(runtime, node, redirects, Some(WaitSupport::default()))
    }

    /// Notes which confirmations the server of a connection can give, before the connection is
    /// used.
    pub(crate) fn set_wait_support(&self, refusals: WaitRefusals) {
        if let Some(support) = &self.wait_support {
            *support.0.lock() = refusals;
        }
    }

    /// Returns why the server can't give the wanted confirmations.
    pub(super) fn refusal(&self, wanted: Acknowledgement) -> Option<Failure> {
        let refusals = self.wait_support.as_ref()?.0.lock();
        match wanted.needs_disk() {
            true => refusals.disk.clone(),
            false => refusals.replicas.clone(),
        }
    }

    /// Fails the operations that the server can't confirm, and returns whether others remain. The
    /// failed operations are not sent: the client would have to release at once what they were
    /// granted.
    pub(super) fn fail_unconfirmable(&self, batch: &mut Batch) -> bool {
        if let Some(failure) = batch.wanted.and_then(|wanted| self.refusal(wanted)) {
            batch.wanted = None;
            let needs_confirmation =
                |waiting: &mut QueuedOperation| waiting.route.wanted().is_some();
            fail(
                batch.operations.extract_if(.., needs_confirmation),
                &failure,
            );
        }
        !batch.operations.is_empty()
    }
}

/// Sends a call and the wait for its confirmations, in one write. Returns the reply, and the reason
/// if the reply is not confirmed.
pub(super) async fn send_and_wait(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    wanted: Acknowledgement,
) -> (Result<redis::Value, RedisError>, Option<String>) {
    transmit_and_wait(connection, command, false, wanted).await
}

/// Like [`send_and_wait`], but with `asking`, an `ASKING` precedes the call.
pub(super) async fn transmit_and_wait(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    asking: bool,
    wanted: Acknowledgement,
) -> (Result<redis::Value, RedisError>, Option<String>) {
    let count = if asking { 3 } else { 2 };
    let mut all = Pipeline::with_capacity(count);
    if asking {
        all.cmd("ASKING");
    }
    all.add_command(command).add_command(wait_command(wanted));
    let replies = match connection.send_packed_commands(&all, 0, count).await {
        Ok(replies) => replies,
        Err(error) => return (Err(error), None),
    };
    let mut replies = replies.into_iter().skip(usize::from(asking));
    match (replies.next(), replies.next()) {
        (Some(reply), Some(confirmations)) => (
            reply_or_error(reply),
            too_few(reply_or_error(confirmations), wanted),
        ),
        _ => {
            let what = "not one reply for each command";
            (Err((redis::ErrorKind::Client, what).into()), None)
        }
    }
}

/// Returns the command that waits for these confirmations.
fn wait_command(wanted: Acknowledgement) -> Cmd {
    let mut wait = Cmd::new();
    match wanted.needs_disk() {
        true => wait.arg("WAITAOF").arg(1),
        false => wait.arg("WAIT"),
    };
    wait.arg(u64::from(wanted.needed_replicas()))
        .arg(u64::from(wanted.limit_ms()));
    wait
}

/// Converts one reply of a pipeline, in which an error is a value.
pub(super) fn reply_or_error(reply: redis::Value) -> Result<redis::Value, RedisError> {
    match reply {
        redis::Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

/// Returns why these confirmations are not enough; `None` if they are.
fn too_few(
    confirmations: Result<redis::Value, RedisError>,
    wanted: Acknowledgement,
) -> Option<String> {
    match confirmations {
        Ok(redis::Value::Int(count)) if !wanted.needs_disk() => wanted.too_few(count, false),
        Ok(redis::Value::Array(counts)) if wanted.needs_disk() => match counts[..] {
            [redis::Value::Int(own), redis::Value::Int(count)] => wanted.too_few(count, own >= 1),
            _ => Some("the server's confirmation makes no sense".into()),
        },
        Ok(_) => Some("the server's confirmation makes no sense".into()),
        // A master that has become a replica replies `UNBLOCKED`.
        Err(error) => {
            let said = reply_text(&error).unwrap_or_else(|| error.to_string());
            Some(format!("it was not confirmed ({})", Shown(&said)))
        }
    }
}

/// Part of the message of a server that is a replica now, and may become a master later.
const OF_A_REPLICA: &str = "replica instances";

/// Asks a server which confirmations it can give.
pub(crate) async fn query_wait_support(
    node: &Node,
    connection: &MultiplexedConnection,
    info: AppendOnlyFile,
) -> WaitRefusals {
    let [mut one, mut other] = [0; 2].map(|_| connection.clone());
    let (mut wait, mut waitaof) = (redis::cmd("WAIT"), redis::cmd("WAITAOF"));
    wait.arg(0).arg(0);
    waitaof.arg(0).arg(0).arg(0);
    let (replicas, disk) = tokio::join!(
        one.send_packed_command(&wait),
        other.send_packed_command(&waitaof)
    );
    let why_not = |command, reply: Result<redis::Value, RedisError>| {
        let error = reply.and_then(reply_or_error).err()?;
        // The result applies for as long as the connection lives. If the server has not replied,
        // the first call will show whether it can confirm.
        let said = reply_text(&error)?;
        let failure = unsupported(node, command, &said);
        let passes = failure.may_heal() || said.contains(OF_A_REPLICA);
        (!passes).then_some(failure)
    };
    let no_file = (info == AppendOnlyFile::No).then(|| {
        let what =
            "it has no append-only file (appendonly no), so nothing is confirmed on its disk";
        Failure::new(
            Outcome::DidNotRun,
            Cause::Other(what.into()),
            node.address(),
        )
    });
    WaitRefusals {
        replicas: why_not("WAIT", replicas),
        disk: why_not("WAITAOF", disk).or(no_file),
    }
}

fn unsupported(node: &Node, command: &str, said: &str) -> Failure {
    let failure = Failure::from_reply(said, &node.address());
    let cause = match failure.cause {
        Cause::Denied(said) => {
            let rule = command.to_lowercase();
            Cause::Denied(format!(
                "{said}; for holds that replicas or disks must confirm, the user needs ACL SETUSER USER +{rule}"
            ))
        }
        Cause::Other(said) => {
            Cause::Other(format!("it can't confirm writes with {command} ({said})"))
        }
        other => other,
    };
    Failure { cause, ..failure }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::Value::{Array, Int, Nil, Okay};

    use super::*;

    fn says(error: &str) -> Result<redis::Value, RedisError> {
        let reply = redis::parse_redis_value(format!("-{error}\r\n").as_bytes());
        reply.and_then(reply_or_error)
    }

    #[test]
    fn every_answer_to_wait_but_enough_is_too_few() {
        let two = Acknowledgement::replicas(2).within(Duration::from_millis(100));
        for count in [2, 3] {
            assert_eq!(too_few(Ok(Int(count)), two), None);
        }
        for (answer, why) in [
            (
                Ok(Int(1)),
                "only 1 of 2 replicas confirmed it within 100 ms",
            ),
            (Ok(Int(0)), "only 0 of 2"),
            (Ok(Int(-1)), "only -1 of 2"),
            (Ok(Nil), "makes no sense"),
            (Ok(Okay), "makes no sense"),
            (Ok(Array(vec![Int(1), Int(2)])), "makes no sense"),
            (
                says("UNBLOCKED force unblock from blocking operation"),
                "UNBLOCKED",
            ),
            (
                says("NOPERM this user has no permissions to run 'wait'"),
                "NOPERM",
            ),
            (
                says("ERR WAIT cannot be used with replica instances."),
                "replica",
            ),
        ] {
            let said = too_few(answer, two).expect("it does not count");
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn every_answer_to_waitaof_but_enough_is_too_few() {
        let one = Acknowledgement::replicas(1).on_disk();
        let own = Acknowledgement::replicas(0).on_disk();
        let disks = |own, replicas| Ok(Array(vec![Int(own), Int(replicas)]));
        for (answer, wanted) in [(disks(1, 1), one), (disks(2, 2), one), (disks(1, 0), own)] {
            assert_eq!(too_few(answer, wanted), None);
        }
        for (answer, why) in [
            (disks(0, 1), "the server did not have it on its disk"),
            (disks(1, 0), "only 0 of 1 replicas had it on their disks"),
            (disks(-1, 1), "the server did not have it on its disk"),
            (Ok(Int(1)), "makes no sense"),
            (Ok(Array(vec![Int(1)])), "makes no sense"),
            (Ok(Array(vec![Int(1), Int(1), Int(1)])), "makes no sense"),
            (Ok(Array(vec![Nil, Int(1)])), "makes no sense"),
            (
                says("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."),
                "appendonly is disabled",
            ),
        ] {
            let said = too_few(answer, one).expect("it does not count");
            assert!(said.contains(why), "{said}");
        }
        assert!(too_few(disks(0, 0), own).is_some());
    }
}
