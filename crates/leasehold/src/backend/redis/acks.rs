//! Keeps the connection for acknowledged calls, from its first use for as long as the client lives.
//! It is the second connection for calls, besides the one of `keep_connected`. What it learns about
//! the server counts for both, and it follows the first connection to another server.

use futures_util::FutureExt;

use super::lane::Ending;
use super::lane::acks::{Can, ask};
use super::node::{Node, Reached};
use super::pause::Pause;
use super::reconnect::{Opened, attempt_has_failed, connection_is_lost, doubt_holds, prepare};
use crate::backend::failure::Failure;
use crate::observe::log;

/// Keeps a connection under the lane. Never returns.
pub(super) async fn keep_acknowledging(lane: Ending) {
    let node = &*lane.node;
    let mut pause = Pause::new();
    let mut reached = None;
    loop {
        let named = node.connector.named();
        match prepare_acknowledging(node).await {
            Ok((opened, can)) => {
                let since = node.clock.now();
                use_connection(&lane, opened, can, &mut reached).await;
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
async fn prepare_acknowledging(node: &Node) -> Result<(Opened, Can), Failure> {
    let mut opened = prepare(node).await?;
    let can = tokio::select! {
        can = ask(node, &opened.connection, opened.told.append) => can,
        // No task drives this connection yet.
        () = &mut opened.driver => return Err(node.connector.lost_at_once(&opened.told.address)),
    };
    Ok((opened, can))
}

/// Uses the connection. Returns when it is lost or must not be used any more.
async fn use_connection(lane: &Ending, opened: Opened, can: Can, reached: &mut Option<Reached>) {
    let node = &*lane.node;
    let Opened {
        connection,
        driver,
        credentials,
        told,
    } = opened;
    // A pending notice was about an earlier connection.
    let _ = lane.given_up.notified().now_or_never();
    // Done before the first operation leaves, as on the other connection. Either connection may be
    // the first to learn that the server was replaced.
    let now = node.learn_of_server(&told);
    doubt_holds(node, reached.as_ref(), &now);
    let reached = &*reached.insert(now);
    lane.confirms(can);
    let logs_in = node
        .connector
        .stay_logged_in(connection.clone(), credentials);
    lane.up(connection, driver);
    tokio::select! {
        () = lane.driver.run() => {}
        () = lane.given_up.notified() => {}
        () = node.connector.named_another(reached.host.as_ref()) => {}
        () = node.connector.leads_to_another(reached.number) => {}
        () = logs_in => {}
    }
}
