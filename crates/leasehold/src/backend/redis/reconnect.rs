//! The task that keeps a lane connected for as long as the client lives. It opens the connection,
//! queries the server about itself and reopens a lost connection. If the server refuses to serve,
//! it looks for another server under the same name.

use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use futures_util::FutureExt;

use super::address::{Address, Host};
use super::connect::{CurrentServer, OpenConnection, password_required};
use super::driver::Driver;
use super::lane::{Lane, LaneDropGuard};
use super::node::{Hello, Node, ReachedServer};
use super::reconnect_delay::{ReconnectDelay, STABLE_AFTER};
use super::refusals::LOOKUP_EVERY;
use super::reply_text;
use super::server_info;
use super::slots::{Range, read_map};
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::Moment;
use crate::credentials::Credentials;
use crate::observe::log;
use crate::text::Shown;

/// A connection that is ready for use, and the facts that the server has reported on it.
pub(crate) struct PreparedConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) driver: Driver,
    /// The credentials with which the connection has logged in, if they can change.
    pub(super) credentials: Option<Credentials>,
    pub(crate) hello: Hello,
}

/// Opens a connection to the server's current address, learns the server's clock, age and version,
/// and loads the scripts.
pub(crate) async fn prepare(node: &Node) -> Result<PreparedConnection, Failure> {
    let mut address = node.connector.find().await?;
    loop {
        let host = address.to_host();
        let opened = tokio::select! {
            opened = prepare_at(node, &address) => opened?,
            // The server may hang, so `prepare_at` may take a long time.
            () = node.connector.master_moved_from(host.as_ref()) => {
                address = node.connector.find().await?;
                continue;
            }
        };
        // Ask again after connecting: the sentinels may have answered just before another server
        // became the master.
        let now = node.connector.find().await?;
        if now.identity() == address.identity() {
            return Ok(opened);
        }
        address = now;
    }
}

async fn prepare_at(node: &Node, address: &Arc<Address>) -> Result<PreparedConnection, Failure> {
    let OpenConnection {
        connection,
        mut driver,
        credentials,
    } = node.connector.open(address).await?;
    let hello = tokio::select! {
        hello = ask_hello(node, address, &connection) => hello?,
        // No task drives this connection yet: without this branch no request would be sent.
        () = &mut driver => return Err(node.connector.closed_early(address)),
    };
    Ok(PreparedConnection {
        connection,
        driver,
        credentials,
        hello,
    })
}

/// Asks the server for everything that the client must know before its first call.
async fn ask_hello(
    node: &Node,
    address: &Arc<Address>,
    connection: &MultiplexedConnection,
) -> Result<Hello, Failure> {
    let asked = node.clock.now();
    let time = ::redis::cmd("TIME");
    let info = ::redis::cmd("INFO");
    let mut ours = ::redis::cmd("CLIENT");
    ours.arg("INFO");
    let mut lines = [0; 4].map(|_| connection.clone());
    let [one, other, third, fourth] = &mut lines;
    if let Some(name) = server_info::connection_name(&node.label) {
        let mut set = ::redis::cmd("CLIENT");
        set.arg("SETNAME").arg(name);
        // A user may lack the permission for this.
        let _ = fourth.send_packed_command(&set).await;
    }
    // Failures of these requests are ignored. If the user lacks a permission, the first call
    // reports which one. A script that is not loaded is sent as source.
    let (time, info, ours) = tokio::join!(
        time.query_async::<(i64, i64)>(one),
        info.query_async::<String>(other),
        ours.query_async::<String>(fourth)
    );
    // Check here whether the server requires a login, and not at the first call: a server
    // disconnects a client that sends a long request without having logged in, and the script is
    // long.
    let said = time.as_ref().err().and_then(reply_text);
    if let Some(said) = said.filter(|said| said.starts_with("NOAUTH")) {
        return Err(password_required(&said, address));
    }
    let has_scripts = load_scripts(node, third).await;
    let time = time.ok();
    let info = info.unwrap_or_default();
    server_info::check(&info, address.shown())?;
    server_info::check_mode(&info, node.is_of_a_cluster(), address.shown())?;
    if node.connector.sentinels.is_some() {
        server_info::check_role(&info, address.shown())?;
    }
    // Read the clock after the answers have arrived: if the server's start were estimated too
    // early, a `RedLock` would trust the server too soon.
    let at = node.clock.now();
    Ok(Hello {
        address: Arc::clone(address),
        at,
        // The server may have read its clock before `at` by up to the duration of these requests,
        // so deadlines are too early at first. At worst one call is late, and its reply corrects
        // the clock.
        time_ms: time.map(|(s, us)| s.saturating_mul(1000).saturating_add(us / 1000)),
        has_scripts,
        uptime: server_info::uptime(&info, at.saturating_sub(asked)),
        run_id: server_info::run_id(&info).map(str::to_owned),
        append_only_file: server_info::append_only_file(&info),
        client_address: server_info::client_address(&ours.unwrap_or_default()).map(str::to_owned),
        slots: match node.is_of_a_cluster() {
            true => Some(query_slots(node, connection.clone()).await),
            false => None,
        },
    })
}

/// Returns whether the server has all scripts now. A user may lack the permission to load them.
async fn load_scripts(node: &Node, connection: &mut MultiplexedConnection) -> bool {
    let mut load = ::redis::Pipeline::new();
    for script in node.script.texts() {
        load.cmd("SCRIPT").arg("LOAD").arg(&script.text);
    }
    let count = node.script.texts().count();
    let replies = connection.send_packed_commands(&load, 0, count).await;
    let is_loaded = |reply: &::redis::Value| !matches!(reply, ::redis::Value::ServerError(_));
    replies.is_ok_and(|replies| replies.iter().all(is_loaded))
}

/// Asks a node of a cluster which node has which slot.
pub(crate) async fn query_slots(
    node: &Node,
    mut connection: MultiplexedConnection,
) -> Result<Vec<Range>, Failure> {
    let mut question = ::redis::Cmd::new();
    question.arg("CLUSTER").arg("SLOTS");
    let address = &node.address();
    let no_map = |said: &str| {
        let what = format!(
            "it does not say which node has which slot ({})",
            Shown(said)
        );
        Failure::new(Outcome::DidNotRun, Cause::Other(what), Arc::clone(address))
    };
    let reply = match connection.send_packed_command(&question).await {
        Ok(::redis::Value::ServerError(error)) => Err(::redis::RedisError::from(error)),
        reply => reply,
    };
    match reply {
        Ok(reply) => read_map(&reply).ok_or_else(|| no_map("the reply makes no sense")),
        Err(error) => Err(match reply_text(&error) {
            Some(said) if said.starts_with("ERR") => no_map(&said),
            Some(said) if said.starts_with("NOPERM") => slots_denied(node, &said),
            Some(said) => Failure::from_reply(&said, address),
            None => Failure::no_answer(Outcome::DidNotRun, error.to_string(), Arc::clone(address)),
        }),
    }
}

/// Returns the failure of a client whose user is not allowed to ask for slots.
fn slots_denied(node: &Node, said: &str) -> Failure {
    let (said, rules) = (Shown(said), &node.script.command_rules);
    let needs = format!("{said}; a user of a cluster needs ACL SETUSER USER {rules}");
    Failure::new(Outcome::DidNotRun, Cause::Denied(needs), node.address())
}

/// Keeps the lane connected for as long as the client lives.
pub(crate) async fn keep_connected(lane: LaneDropGuard, first: Option<PreparedConnection>) {
    let node = &*lane.node;
    let mut pause = ReconnectDelay::new();
    let mut connection = first;
    let mut down = false;
    let mut reached: Option<ReachedServer> = None;
    // This time is kept across connections: otherwise, if the new server refused to serve, too, the
    // next lookup would follow at once.
    let mut last_lookup = None;
    loop {
        let named = node.connector.named_master();
        let opened = match connection.take() {
            Some(connection) => Ok(connection),
            None => prepare(node).await,
        };
        match opened {
            Ok(opened) => {
                // Clears a pending notification, which is about an earlier connection.
                let _ = lane.given_up.notified().now_or_never();
                node.refusals.forget();
                let since = node.clock.now();
                if std::mem::take(&mut down) {
                    log(|| tracing::info!(address = %node.address(), "connected again"));
                }
                // Learn of the server before the first operation is sent: a grant from this server
                // must be checked against the start of this server, not of an earlier one.
                let now = node.learn(&opened.hello);
                doubt_holds(node, reached.as_ref(), &now);
                let reached = &*reached.insert(now);
                node.set_wants_declared_keys(false);
                let logs_in =
                    (node.connector).stay_logged_in(opened.connection.clone(), opened.credentials);
                lane.up(opened.connection, opened.driver);
                node.slots_may_have_moved();
                connection = tokio::select! {
                    another = until_ended(&lane, reached, &mut last_lookup) => another,
                    () = logs_in => None,
                };
                if connection.is_some() {
                    continue;
                }
                log(
                    || tracing::warn!(address = %node.address(), "the connection is lost; connecting again"),
                );
                connection_is_lost(&lane, since, &mut pause).await;
            }
            Err(failure) => {
                // This is logged only once per outage, because there is an attempt every second.
                if !std::mem::replace(&mut down, true) {
                    log(
                        || tracing::warn!(address = %node.address(), cause = %failure.cause, "no connection; trying again"),
                    );
                }
                attempt_has_failed(&lane, &failure, named.as_ref(), &mut pause).await;
            }
        }
    }
}

/// Notifies the watchdog if this connection leads to a different server from the connection before
/// it, because that server might not have the holds.
pub(super) fn doubt_holds(node: &Node, before: Option<&ReachedServer>, now: &ReachedServer) {
    if before.is_some_and(|before| before.number != now.number) {
        node.holds_in_doubt.notify_one();
    }
}

/// Prepares the lane for the next connection. Operations don't fail before the first attempt to
/// connect has failed, because after most cuts the next connection is open at once.
pub(super) async fn connection_is_lost(lane: &Lane, since: Moment, pause: &mut ReconnectDelay) {
    let node = &*lane.node;
    lane.opening();
    node.slots_may_have_moved();
    node.observed.count_reconnect();
    // A connection that did not last is followed by a delay: if a server ends each connection at
    // once, the client must not reconnect all the time.
    if node.clock.now().saturating_sub(since) > STABLE_AFTER {
        pause.reset();
    } else {
        tokio::time::sleep(pause.next()).await;
    }
}

/// Returns when it is time for the next attempt to connect. `named` is the server that sentinels
/// named before the failed attempt.
pub(super) async fn attempt_has_failed(
    lane: &Lane,
    failure: &Failure,
    named: Option<&Host>,
    pause: &mut ReconnectDelay,
) {
    let node = &*lane.node;
    if !failure.may_heal() {
        pause.use_longest();
    }
    // Report the failure before the delay, so that waiters learn of it now: each waiter decides by
    // itself how long it tolerates an outage.
    lane.down(failure);
    node.slots_may_have_moved();
    tokio::select! {
        () = tokio::time::sleep(pause.next()) => {}
        () = node.connector.master_moved_from(named) => {}
    }
}

/// Returns `None` when the connection is lost or given up. If its server refuses to serve, returns
/// a connection to another server, as soon as there is one.
async fn until_ended(
    lane: &Lane,
    reached: &ReachedServer,
    last_lookup: &mut Option<Moment>,
) -> Option<PreparedConnection> {
    let connector = &lane.node.connector;
    let another = tokio::select! {
        () = lane.driver.run() => return None,
        () = lane.given_up.notified() => return None,
        () = connector.master_moved_from(reached.host.as_ref()) => {
            log(|| tracing::warn!(
                address = %lane.node.address(),
                "the sentinels name another server as the master; the client leaves this one at once"
            ));
            return None;
        }
        another = find_other_server(&lane.node, reached, last_lookup) => another,
    };
    // The calls on their way are answered first, to keep the order of arrival. This server might
    // not answer any more, so the wait is limited to the reply timeout.
    lane.stop_sending();
    tokio::select! {
        () = lane.driver.run() => {}
        () = lane.drained() => {}
        () = tokio::time::sleep(lane.node.reply_timeout()) => {}
    }
    log(|| {
        tracing::warn!(
            address = %lane.node.address(),
            "the server's name was looked up again and leads to another server, which the client uses from now on"
        )
    });
    Some(another)
}

/// Resolves the server's name again when this server refuses to serve, or when another connection
/// has found another server. Returns a connection to another server. Lookups are so rare that they
/// don't overload a server even if all its clients do them.
async fn find_other_server(
    node: &Node,
    reached: &ReachedServer,
    last_lookup: &mut Option<Moment>,
) -> PreparedConnection {
    let mut number = reached.number;
    loop {
        // Each server that another connection has found causes only one lookup here, because a name
        // that resolves to several servers may lead back to this one. A server that reports no run
        // id causes no lookup: two connections would follow each other forever.
        let is_another = |current: &CurrentServer| {
            let is_known = current.run_id.is_some() && reached.run_id.is_some();
            current.number != number && is_known && current.run_id != reached.run_id
        };
        tokio::select! {
            () = node.refusals.should_leave() => {}
            () = node.connector.current_matches(is_another) => {}
        }
        number = node.connector.current_number();
        if let Some(last_lookup) = *last_lookup {
            let remaining = (last_lookup + LOOKUP_EVERY).saturating_sub(node.clock.now());
            tokio::time::sleep(remaining).await;
        }
        // Note the time before the attempt: an attempt that fails or finds the same server costs as
        // much as any other.
        *last_lookup = Some(node.clock.now());
        match prepare(node).await {
            // The same server would refuse to serve on this connection, too.
            Ok(opened) if reached.is_same_server(&opened.hello) => {
                log(
                    || tracing::debug!(address = %node.address(), "the server's name still points to the same server"),
                );
            }
            Ok(opened) => return opened,
            Err(failure) => log(|| {
                tracing::debug!(
                    address = %node.address(), cause = %failure.cause,
                    "no other server answers under this name"
                )
            }),
        }
    }
}
