//! A server as the backend: one connection for calls and one for messages. A task of its own
//! opens each of them again whenever it is lost. Only this folder names the driver.

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
use super::failure::Failure;
use super::step::{Operation, Step};
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
    /// Connects once, so that a wrong address or password is an error here, and from then on in
    /// the background.
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

/// A connection that is ready for use, and what the server has said on it.
struct Opened {
    connection: MultiplexedConnection,
    driver: Driver,
    told: Told,
}

/// What a server says of itself at first. It counts from when its connection is used.
struct Told {
    at: Moment,
    /// Its clock.
    time_ms: Option<i64>,
    uptime: Option<Duration>,
    run_id: Option<String>,
}

impl Told {
    /// The connection before this one was to the same server, and that was not started again
    /// since.
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
        // No failure of these counts. If the user lacks a permission, the first call says which;
        // a script that is not loaded is sent as text.
        let (time, info) = tokio::join!(
            time.query_async::<(i64, i64)>(one),
            info.query_async::<String>(other)
        );
        // A server closes the connection of a client that has not logged in and sends more than
        // a little, and the script is long.
        if time.as_ref().err().and_then(::redis::RedisError::code) != Some("NOAUTH") {
            let _ = third.send_packed_command(&load).await;
        }
        let time = time.ok();
        let info = info.unwrap_or_default();
        server_info::check(&info, &lane.address)?;
        Ok(Told {
            // Read behind the answers: the start of the server must not come out too early, or a
            // majority would trust it too soon.
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
                // A notice that nobody has taken was about an earlier connection.
                let _ = lane.given_up.notified().now_or_never();
                lane.refusals.forget();
                let since = lane.clock.now();
                if std::mem::take(&mut down) {
                    tracing::info!(address = %lane.address, "connected again");
                }
                // Another server, or this one started again: the connection for messages has to
                // follow. It may still be up, to a server where nobody publishes any more.
                if lane.about.started().is_some() && !opened.told.is_of_the_same_server(&lane) {
                    connector.moved.notify_one();
                }
                // Before the first operation leaves: a grant of this server is judged by this
                // server's start, not by an earlier one's.
                opened.told.count(&lane);
                lane.up(opened.connection, opened.driver);
                connection = until_over(&connector, &lane, &mut looked).await;
                if connection.is_some() {
                    continue;
                }
                // Operations wait until the first attempt has failed: after most cuts the next
                // connection is there at once.
                lane.opening();
                tracing::warn!(address = %lane.address, "the connection is lost; connecting again");
                // A connection that did not last is followed by a pause: a server that ends each
                // one at once must not be connected to all the time.
                if lane.clock.now().saturating_sub(since) > LASTING {
                    pause.reset();
                } else {
                    tokio::time::sleep(pause.next()).await;
                }
            }
            Err(failure) => {
                // Once per outage: there is an attempt every second.
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

/// Returns when a connection is lost or given up. If its server refuses to serve: when another
/// connection can take its place, and with that.
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
    // The calls on their way are answered first: the order of arrival is kept. At most for a
    // reply's time, as this server may not answer any more.
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

/// When the server refuses to serve, looks its name up again, and resolves with a connection
/// to another server. No more often than a server bears it from all its clients.
async fn look_elsewhere(connector: &Connector, lane: &Lane, looked: &mut Option<Moment>) -> Opened {
    loop {
        lane.refusals.leave().await;
        if let Some(looked) = *looked {
            lane.clock.sleep_until(looked + LOOK_EVERY).await;
        }
        *looked = Some(lane.clock.now());
        match prepare(connector, lane).await {
            // The same server again: it would refuse to serve here as well.
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
