//! A server as the backend: one connection for calls, one for messages, both
//! opened again whenever they are lost. Only this folder names the driver.

mod address;
mod call;
mod connect;
mod driver;
pub(crate) mod lane;
mod pause;
mod pubsub;
mod refusals;
pub(crate) mod script;
mod server_info;
#[cfg(feature = "tls")]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::address::Address;
use self::connect::Connector;
use self::driver::Driver;
use self::lane::{Ending, Lane, Queued};
use self::pause::{LASTING, Pause};
use self::pubsub::WakesAll;
use self::refusals::LOOK_EVERY;
use self::script::Script;
use super::channels::Channels;
use super::step::{Failure, Operation, Step};
use crate::clock::{Clock, Moment};
use crate::credentials::Source;
use crate::error::Result;

/// How a server is reached.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) credentials: Option<Source>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) authorities: Vec<Vec<u8>>,
}

/// The backend itself.
pub(crate) struct Redis {
    lane: Arc<Lane>,
    connector: Arc<Connector>,
    channels: Arc<Channels>,
    tasks: [JoinHandle<()>; 2],
}

impl Redis {
    /// Connects once, so that a wrong address or password is told at once, and
    /// from then on by itself.
    pub(crate) async fn connect(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Self> {
        let (connector, lane) = Self::prepared(endpoint, steps, clock)?;
        let first = prepare(&connector, &lane)
            .await
            .map_err(|failure| failure.into_connect_error())?;
        first.told.count(&lane);
        Ok(Self::run(connector, lane, Some(first)))
    }

    /// Connects in the background. Until the first attempt has ended, operations wait.
    pub(crate) fn start(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Self> {
        let (connector, lane) = Self::prepared(endpoint, steps, clock)?;
        Ok(Self::run(connector, lane, None))
    }

    fn prepared(
        endpoint: Endpoint,
        steps: &[&Step],
        clock: Clock,
    ) -> Result<(Arc<Connector>, Arc<Lane>)> {
        let address = Address::parse(&endpoint.url)?;
        let connector = Arc::new(Connector {
            credentials: endpoint.credentials,
            connect_timeout: endpoint.connect_timeout,
            reply_timeout: endpoint.reply_timeout,
            #[cfg(feature = "tls")]
            tls: address
                .is_tls()
                .then(|| tls::Connector::new(&endpoint.authorities))
                .transpose()?,
            address,
            moved: Notify::new(),
        });
        let lane = Lane::new(
            Handle::current(),
            clock,
            Script::of(steps),
            Arc::clone(connector.address.shown()),
            endpoint.reply_timeout,
            endpoint.connect_timeout,
        );
        Ok((connector, lane))
    }

    fn run(connector: Arc<Connector>, lane: Arc<Lane>, first: Option<Opened>) -> Self {
        let (runtime, channels) = (Handle::current(), Channels::new(false));
        let tasks = [
            runtime.spawn(keep_connected(Arc::clone(&connector), lane.ending(), first)),
            runtime.spawn(pubsub::run(
                Arc::clone(&connector),
                WakesAll(Arc::clone(&channels)),
            )),
        ];
        Self {
            lane,
            connector,
            channels,
            tasks,
        }
    }

    pub(crate) fn submit(&self, operation: Operation) -> Queued {
        self.lane.submit(operation)
    }

    pub(crate) fn channels(&self) -> &Arc<Channels> {
        &self.channels
    }

    pub(crate) fn address(&self) -> &str {
        &self.lane.address
    }

    pub(crate) fn identity(&self) -> &str {
        self.connector.address.identity()
    }

    pub(crate) fn started(&self) -> Option<Moment> {
        self.lane.about.started()
    }

    /// Of the server, and the database.
    pub(crate) fn run_id(&self) -> Option<(Arc<str>, i64)> {
        let run_id = self.lane.about.run_id()?;
        Some((run_id, self.connector.address.db()))
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        self.lane.reply_timeout
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A connection that can be used, and what the server has said on it.
struct Opened {
    connection: MultiplexedConnection,
    driver: Driver,
    told: Told,
}

/// What a server says of itself at the beginning. It counts once its connection is used.
struct Told {
    at: Moment,
    /// Its clock.
    time_ms: Option<i64>,
    uptime: Option<Duration>,
    run_id: Option<String>,
}

impl Told {
    /// The connection before was to this server, and it has not been started again since.
    fn is_of_the_same_server(&self, lane: &Lane) -> bool {
        self.run_id.is_some() && self.run_id.as_deref() == lane.about.run_id().as_deref()
    }

    fn count(&self, lane: &Lane) {
        if let Some(ms) = self.time_ms {
            lane.learn_time(ms, self.at);
        }
        lane.about
            .connected(self.at, self.uptime, self.run_id.as_deref());
    }
}

/// Opens a connection, learns the server's clock, age and version, and loads the script.
async fn prepare(connector: &Connector, lane: &Lane) -> Result<Opened, Failure> {
    let (connection, mut driver) = connector.open().await?;
    let questions = async {
        let mut load = ::redis::Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(&lane.script.text);
        let time = ::redis::cmd("TIME");
        let info = ::redis::cmd("INFO");
        let mut lines = [0; 3].map(|_| connection.clone());
        let [one, other, third] = &mut lines;
        // A server that denies them is found out by the first call, which says
        // what is missing; a script that is not loaded is sent as text.
        let (time, info) = tokio::join!(
            time.query_async::<(i64, i64)>(one),
            info.query_async::<String>(other)
        );
        // A server closes the connection of a stranger who sends more than a little.
        if time.as_ref().err().and_then(::redis::RedisError::code) != Some("NOAUTH") {
            let _ = third.send_packed_command(&load).await;
        }
        let time = time.ok();
        let info = info.unwrap_or_default();
        server_info::check(&info, &lane.address)?;
        Ok(Told {
            at: lane.clock.now(),
            time_ms: time.map(|(s, us)| s.saturating_mul(1000).saturating_add(us / 1000)),
            uptime: server_info::uptime(&info),
            run_id: server_info::run_id(&info).map(str::to_owned),
        })
    };
    let told = tokio::select! {
        told = questions => told?,
        () = &mut driver => return Err(connector.lost_at_once()),
    };
    Ok(Opened {
        connection,
        driver,
        told,
    })
}

/// Keeps a connection under the lane for as long as the client lives.
async fn keep_connected(connector: Arc<Connector>, lane: Ending, first: Option<Opened>) {
    let mut pause = Pause::new();
    let mut connection = first;
    let mut down = false;
    let mut looked = None;
    loop {
        let opened = match connection.take() {
            Some(connection) => Ok(connection),
            None => prepare(&connector, &lane).await,
        };
        match opened {
            Ok(opened) => {
                // Told about an earlier connection, if at all.
                let _ = lane.given_up.notified().now_or_never();
                lane.refusals.forget();
                let since = lane.clock.now();
                if std::mem::take(&mut down) {
                    tracing::info!(address = %lane.address, "connected again");
                }
                if lane.about.started().is_some() && !opened.told.is_of_the_same_server(&lane) {
                    connector.moved.notify_one();
                }
                opened.told.count(&lane);
                lane.up(opened.connection, opened.driver);
                connection = until_over(&connector, &lane, &mut looked).await;
                if connection.is_some() {
                    continue;
                }
                // Until the first attempt has failed, operations wait: most cuts
                // are healed by connecting again.
                lane.opening();
                tracing::warn!(address = %lane.address, "the connection is lost; connecting again");
                // One that did not last is not followed by the next without a pause.
                if lane.clock.now().saturating_sub(since) > LASTING {
                    pause.reset();
                } else {
                    tokio::time::sleep(pause.next()).await;
                }
            }
            Err(failure) => {
                // Once per outage: it is tried again every second.
                if !std::mem::replace(&mut down, true) {
                    tracing::warn!(address = %lane.address, cause = %failure.cause, "no connection; trying again");
                }
                if !failure.may_heal() {
                    pause.longest();
                }
                lane.down(&failure);
                tokio::time::sleep(pause.next()).await;
            }
        }
    }
}

/// Until a connection is lost or given up. If its server refuses to serve, until another one
/// can take its place.
async fn until_over(
    connector: &Connector,
    lane: &Lane,
    looked: &mut Option<Moment>,
) -> Option<Opened> {
    let another = tokio::select! {
        () = lane.driver.run() => return None,
        () = lane.given_up.notified() => return None,
        another = look_elsewhere(connector, lane, looked) => another,
    };
    // What was sent is answered first: the order of arrival is kept.
    lane.hold_back();
    tokio::select! {
        () = lane.driver.run() => {}
        () = lane.drained() => {}
        () = tokio::time::sleep(lane.reply_timeout) => {}
    }
    tracing::warn!(
        address = %lane.address,
        "the server refuses to serve; its name was looked up again, and what it stands for is asked from now on"
    );
    Some(another)
}

/// Resolves with a new connection when the server refuses to serve, so that its name was
/// looked up again. Not more often than a server can bear from all its clients.
async fn look_elsewhere(connector: &Connector, lane: &Lane, looked: &mut Option<Moment>) -> Opened {
    loop {
        lane.refusals.leave().await;
        if let Some(looked) = *looked {
            lane.clock.sleep_until(looked + LOOK_EVERY).await;
        }
        *looked = Some(lane.clock.now());
        match prepare(connector, lane).await {
            // The same server again: nothing is better there.
            Ok(opened) if opened.told.is_of_the_same_server(lane) => {
                tracing::debug!(address = %lane.address, "the name stands for the server that refuses to serve");
            }
            Ok(opened) => return opened,
            Err(failure) => tracing::debug!(
                address = %lane.address, cause = %failure.cause,
                "the server refuses to serve, and no other answers under its name"
            ),
        }
    }
}
