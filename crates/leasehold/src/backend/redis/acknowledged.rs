//! The task that runs the connection for acknowledged calls. This connection exists from the first
//! such call to the end of the client. It is the second connection for calls, besides the one of
//! `keep_connected`. Facts that it learns about the server apply to both. When the first connection
//! leads to another server, this connection moves there, too.

use futures_util::FutureExt;

use super::lane::LaneDropGuard;
use super::lane::wait_command::{WaitRefusals, query_wait_support};
use super::node::{Node, ReachedServer};
use super::reconnect::{
    PreparedConnection, attempt_has_failed, connection_is_lost, doubt_holds, prepare,
};
use super::reconnect_delay::ReconnectDelay;
use crate::backend::failure::Failure;
use crate::observe::log;

/// Keeps the lane connected. Never returns.
pub(super) async fn keep_acknowledged_connection(lane: LaneDropGuard) {
    let node = &*lane.node;
    let mut pause = ReconnectDelay::new();
    let mut reached = None;
    loop {
        let named = node.connector.named_master();
        match prepare_acknowledged(node).await {
            Ok((opened, refusals)) => {
                let since = node.clock.now();
                use_connection(&lane, opened, refusals, &mut reached).await;
                log(|| {
                    tracing::warn!(
                        address = %node.address(),
                        "the connection for acknowledged holds is lost; connecting again"
                    )
                });
                connection_is_lost(&lane, since, &mut pause).await;
            }
            Err(failure) => {
                attempt_has_failed(&lane, &failure, named.as_ref(), &mut pause).await;
            }
        }
    }
}

/// Opens a connection, and asks which confirmations the server can give.
async fn prepare_acknowledged(node: &Node) -> Result<(PreparedConnection, WaitRefusals), Failure> {
    let mut opened = prepare(node).await?;
    let refusals = tokio::select! {
        refusals = query_wait_support(node, &opened.connection, opened.hello.append_only_file) => refusals,
        // No task drives this connection yet.
        () = &mut opened.driver => return Err(node.connector.closed_early(&opened.hello.address)),
    };
    Ok((opened, refusals))
}

/// Uses the connection. Returns when it is lost or must not be used any more.
async fn use_connection(
    lane: &LaneDropGuard,
    opened: PreparedConnection,
    refusals: WaitRefusals,
    reached: &mut Option<ReachedServer>,
) {
    let node = &*lane.node;
    let PreparedConnection {
        connection,
        driver,
        credentials,
        hello,
    } = opened;
    // Clears a pending notification, which is about an earlier connection.
    let _ = lane.given_up.notified().now_or_never();
    // Learn of the server before the first operation is sent, as on the other connection. Either
    // connection may be the first to learn that the server was replaced.
    let now = node.learn_of_server(&hello);
    doubt_holds(node, reached.as_ref(), &now);
    let reached = &*reached.insert(now);
    lane.set_wait_support(refusals);
    let logs_in = node
        .connector
        .stay_logged_in(connection.clone(), credentials);
    lane.up(connection, driver);
    tokio::select! {
        () = lane.driver.run() => {}
        () = lane.given_up.notified() => {}
        () = node.connector.master_moved_from(reached.host.as_ref()) => {}
        () = node.connector.moved_from(reached.number) => {}
        () = logs_in => {}
    }
}
