//! Opening connections by TCP, unix socket or TLS, with the handshake. A failure becomes an error
//! that says what to do.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::address::{Address, ConnectTarget, Host};
use super::driver::{Driver, Socket};
use super::messages::{Frame, Io, Messages, write_command};
use super::reply_text;
use super::sentinel::Sentinels;
use super::socket::ProcessBound;
use super::wire::Checked;
use crate::backend::failure::{Cause, Failure, Outcome, without_arguments};
use crate::clock::{ClockPair, Moment};
use crate::credentials::{Credentials, CredentialsSource};
use crate::observe::log;
use crate::text::Shown;

/// The state and settings for opening connections to one server.
pub(crate) struct Connector {
    /// The address in the URL.
    pub(crate) address: Address,
    /// The sentinels that know where the server is. If `None`, the server is at its address.
    pub(crate) sentinels: Option<Sentinels>,
    /// The server that calls use now.
    pub(crate) current: watch::Sender<CurrentServer>,
    /// The source of user and password, queried for each connection. If `None`, the URL has them.
    pub(crate) credentials: Option<CredentialsSource>,
    /// The time between two queries for new credentials while a connection is open.
    pub(crate) credentials_every: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    /// The time at which the connector was made.
    pub(crate) created: ClockPair,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<super::tls::TlsClient>,
}

/// The server to which the newest connection for calls leads, or led.
#[derive(Debug, Default)]
pub(crate) struct CurrentServer {
    /// The server's address; `None` until the sentinels have named it.
    pub(crate) address: Option<Arc<Address>>,
    /// The server's number. It changes when calls use another server, and when a server was
    /// restarted. A server that reports no run id gets a new number at each connection.
    pub(crate) number: u64,
    /// The server's run id, if it has reported one.
    pub(crate) run_id: Option<String>,
    /// The time at which the server reported its run id.
    pub(crate) reported_at: Option<Moment>,
}

impl CurrentServer {
    /// Returns the state for a server that is always at this address.
    pub(crate) fn at(address: &Address) -> Self {
        Self {
            address: Some(Arc::new(address.clone())),
            ..Self::default()
        }
    }
}

/// A connection for calls that has just been opened.
pub(crate) struct OpenConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Driver,
    /// The credentials with which this connection logged in. The other connection for calls may
    /// have logged in with others.
    pub(crate) credentials: Option<Credentials>,
}

impl Connector {
    /// Finds out where the server is now.
    pub(crate) async fn find(&self) -> Result<Arc<Address>, Failure> {
        match &self.sentinels {
            Some(sentinels) => sentinels.find().await,
            None => self.current_address(),
        }
    }

    fn current_address(&self) -> Result<Arc<Address>, Failure> {
        let current = self.current.borrow().address.clone();
        current.ok_or_else(|| {
            let what = "the sentinels have not said yet where the master is".into();
            no_connection(&self.address, what, None)
        })
    }

    /// Returns the address that calls use now, as errors and logs show it: without credentials.
    pub(crate) fn shown(&self) -> Arc<str> {
        let current = self.current.borrow();
        let address = current.address.as_deref().unwrap_or(&self.address);
        Arc::clone(address.shown())
    }

    /// Returns the server that the sentinels name.
    pub(crate) fn named_master(&self) -> Option<Host> {
        self.sentinels.as_ref()?.named_master()
    }

    /// Waits until the sentinels name a server other than this one.
    pub(crate) async fn master_moved_from(&self, from: Option<&Host>) {
        match &self.sentinels {
            Some(sentinels) => sentinels.master_moved_from(from).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the number of the server that calls use now.
    pub(crate) fn current_number(&self) -> u64 {
        self.current.borrow().number
    }

    /// Waits until calls use a server other than the one with this number.
    pub(crate) async fn moved_from(&self, from: u64) {
        self.current_matches(|current| current.number != from).await;
    }

    /// Waits until `condition` is true for the server that calls use.
    pub(crate) async fn current_matches(&self, condition: impl Fn(&CurrentServer) -> bool) {
        // This can't fail: `self` has the sender.
        let _ = self.current.subscribe().wait_for(condition).await;
    }

    /// Opens a connection for calls to this address.
    pub(crate) async fn open(&self, at: &Address) -> Result<OpenConnection, Failure> {
        // With the driver's own limit, each request would fail after 500 ms.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.reply_timeout));
        self.within_limit(at, async {
            // The time limit includes the credentials: a credentials callback that never answers
            // must not stop the client from reconnecting.
            let (info, credentials) = self.handshake(at, true).await?;
            // Plain TCP, the common case, does not need a boxed stream.
            if let ConnectTarget::Tcp {
                host,
                port,
                tls: false,
            } = &at.target
            {
                let stream = tcp(at, host, *port).await?;
                let socket = Socket::of(&stream);
                let stream = Checked::calls(ProcessBound::new(stream));
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&info, stream, config)
                        .await
                        .map_err(|error| handshake_failed(at, &error))?;
                return Ok(OpenConnection {
                    connection,
                    driver: Driver::new(driver, socket),
                    credentials,
                });
            }
            let (stream, socket) = self.stream(at).await?;
            let stream = Checked::calls(stream);
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&info, stream, config)
                    .await
                    .map_err(|error| handshake_failed(at, &error))?;
            Ok(OpenConnection {
                connection,
                driver: Driver::new(driver, socket),
                credentials,
            })
        })
        .await
    }

    /// Opens a connection for messages, with this name, to the server that calls use now.
    pub(crate) async fn open_messages(&self, name: Option<&str>) -> Result<Messages, Failure> {
        let at = &*self.current_address()?;
        self.within_limit(at, async {
            let (info, _) = self.handshake(at, false).await?;
            let (stream, _) = self.stream(at).await?;
            let mut messages = Messages::new(stream);
            let (user, password) = (info.username(), info.password());
            if let Some(password) = password {
                let login = user.into_iter().chain([password]);
                if let Some(refusal) = handshake_step(at, &mut messages, "AUTH", login).await? {
                    return Err(Failure {
                        cause: Cause::Denied(refusal),
                        ..Failure::from_reply("", at.shown())
                    });
                }
            }
            let db = info.db().to_string();
            if db != "0"
                && let Some(refusal) = handshake_step(at, &mut messages, "SELECT", [&*db]).await?
            {
                return Err(Failure::from_reply(&refusal, at.shown()));
            }
            // The name helps people who read the list of clients. A user may lack the permission to
            // set it, and older servers do not know `SETINFO`.
            if let Some(name) = name {
                handshake_step(at, &mut messages, "CLIENT", ["SETNAME", name]).await?;
            }
            let library = ["SETINFO", "LIB-NAME", "leasehold"];
            handshake_step(at, &mut messages, "CLIENT", library).await?;
            Ok(messages)
        })
        .await
    }

    /// Returns the settings of the driver's handshake, and the current credentials.
    async fn handshake(
        &self,
        at: &Address,
        resp3: bool,
    ) -> Result<(RedisConnectionInfo, Option<Credentials>), Failure> {
        let info = at.handshake(resp3);
        let Some(source) = &self.credentials else {
            return Ok((info, None));
        };
        let credentials = source.ask().await.map_err(|error| {
            let what = format!("its `credentials` failed: {}", Shown(&error.to_string()));
            no_credentials(at, what, error.into())
        })?;
        let info = match &credentials.user {
            Some(user) => info.set_username(user.as_str()),
            None => info,
        };
        let info = info.set_password(credentials.password.as_str());
        Ok((info, Some(credentials)))
    }

    /// Logs in again on an open connection whenever there are new credentials. `with` are the
    /// credentials that opened the connection. Never returns.
    ///
    /// Some servers end a connection when the password or the user with which it has logged in is
    /// removed. Logging in again prevents that.
    pub(crate) async fn stay_logged_in(
        &self,
        mut connection: MultiplexedConnection,
        mut with: Option<Credentials>,
    ) {
        let Some(source) = &self.credentials else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(self.credentials_every).await;
            // A callback that fails or never answers is called again.
            let asked = tokio::time::timeout(self.connect_timeout, source.ask()).await;
            let Ok(Ok(new)) = asked else { continue };
            if with.as_ref() == Some(&new) {
                continue;
            }
            let address = self.shown();
            let said = connection.send_packed_command(&self.login(&new)).await;
            // The server's refusal also arrives as a reply.
            match said.and_then(redis::Value::extract_error) {
                Ok(_) => {
                    with = Some(new);
                    log(|| tracing::info!(%address, "logged in with new credentials"));
                }
                // The connection stays logged in as before, and the login is retried.
                Err(error) => log(|| {
                    tracing::warn!(
                        %address, cause = %Shown(without_arguments(&error.to_string())),
                        "the server refuses the new credentials; the old ones are still used"
                    )
                }),
            }
        }
    }

    fn login(&self, credentials: &Credentials) -> redis::Cmd {
        let mut login = redis::cmd("AUTH");
        let info = self.address.handshake(true);
        // Like the handshake, this uses the user of the URL if the credentials name none.
        if let Some(user) = credentials.user.as_deref().or_else(|| info.username()) {
            login.arg(user);
        }
        login.arg(&credentials.password);
        login
    }

    /// Returns the failure of a connection that ended before its first requests were answered.
    pub(crate) fn closed_early(&self, at: &Address) -> Failure {
        no_connection(at, "the server closed the connection".into(), None)
    }

    async fn within_limit<T>(
        &self,
        at: &Address,
        open: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let begun = ClockPair::now();
        tokio::time::timeout(self.connect_timeout, open)
            .await
            .unwrap_or_else(|_| {
                let limit = self.connect_timeout;
                let hint = match begun.paused_hint(limit) {
                    "" => at.plain_hint(),
                    paused => paused,
                };
                let what = format!("no connection within {limit:?}{hint}");
                Err(no_connection(at, what, None))
            })
    }

    async fn stream(&self, at: &Address) -> Result<(Box<dyn Io>, Socket), Failure> {
        match &at.target {
            #[cfg(unix)]
            ConnectTarget::Unix(path) => {
                let stream = UnixStream::connect(path)
                    .await
                    .map_err(|error| io_failed(at, error))?;
                let socket = Socket::of(&stream);
                Ok((Box::new(ProcessBound::new(stream)), socket))
            }
            // Never reached: `NodeCommon::new` refuses the address.
            #[cfg(not(unix))]
            ConnectTarget::Unix(_) => Err(no_connection(
                at,
                super::address::NO_UNIX_SOCKETS.into(),
                None,
            )),
            ConnectTarget::Tcp { host, port, tls } => {
                let stream = tcp(at, host, *port).await?;
                let socket = Socket::of(&stream);
                if *tls {
                    let stream = self.encrypted(at, host, ProcessBound::new(stream)).await?;
                    Ok((stream, socket))
                } else {
                    Ok((Box::new(ProcessBound::new(stream)), socket))
                }
            }
        }
    }

    #[cfg(feature = "tls")]
    async fn encrypted(
        &self,
        at: &Address,
        host: &str,
        stream: ProcessBound<TcpStream>,
    ) -> Result<Box<dyn Io>, Failure> {
        // Never missing: `NodeCommon::new` sets up TLS for each address that needs it.
        let Some(tls) = &self.tls else {
            return Err(no_connection(at, "TLS is not set up".into(), None));
        };
        let config = tls.fresh_config().await.map_err(|error| {
            let what = Shown(&error.to_string()).to_string();
            no_credentials(at, what, Arc::new(error))
        })?;
        let stream = tls.connect(config, host, stream).await.map_err(|error| {
            let advice = super::tls::advice(&error, at.is_announced());
            let what = format!("the TLS handshake failed ({error}); {advice}");
            no_connection(at, what, Some(Arc::new(error)))
        })?;
        Ok(Box::new(stream))
    }

    #[cfg(not(feature = "tls"))]
    async fn encrypted(
        &self,
        at: &Address,
        _: &str,
        _: ProcessBound<TcpStream>,
    ) -> Result<Box<dyn Io>, Failure> {
        Err(no_connection(at, "this build has no TLS".into(), None))
    }
}

/// Does one step of the handshake. Returns the server's error text if it refused the step.
async fn handshake_step<'a>(
    at: &Address,
    messages: &mut Messages,
    command: &'a str,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Result<Option<String>, Failure> {
    let mut request = Vec::new();
    write_command(&mut request, command, arguments);
    let sent = messages.send(&request).await;
    sent.map_err(|error| io_failed(at, error))?;
    match messages.frame().await {
        Ok(Frame::Status) => Ok(None),
        Ok(Frame::Refused(said)) => Ok(Some(without_arguments(&said).to_owned())),
        Ok(_) => Err(no_connection(at, "the handshake failed".into(), None)),
        Err(error) => {
            let what = format!("the server ended the handshake ({error})");
            Err(no_connection(at, what, None))
        }
    }
}

async fn tcp(at: &Address, host: &str, port: u16) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| io_failed(at, error))?;
    // Without this, a small request would wait until the request before it is acknowledged.
    stream
        .set_nodelay(true)
        .map_err(|error| io_failed(at, error))?;
    Ok(stream)
}

fn io_failed(at: &Address, error: io::Error) -> Failure {
    no_connection(at, error.to_string(), Some(Arc::new(error)))
}

fn handshake_failed(at: &Address, error: &RedisError) -> Failure {
    let address = at.shown();
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        // On RESP2 the driver keeps neither the code nor the text of a refused login, so the error
        // can't be classified.
        let said = error.detail().unwrap_or("the password is refused");
        return Failure {
            cause: Cause::Denied(Shown(said).to_string()),
            ..Failure::from_reply("", address)
        };
    }
    if let Some(text) = reply_text(error) {
        return match text.starts_with("NOAUTH") {
            true => password_required(&text, at),
            false => Failure::from_reply(&text, address),
        };
    }
    // A TLS port cannot read a plain handshake. It closes the connection, or answers with an alert
    // that is not a reply.
    let what = if error.is_io_error() || error.kind() == redis::ErrorKind::Parse {
        let advice = match at.target {
            #[cfg(feature = "tls")]
            ConnectTarget::Tcp { tls: true, .. } => super::tls::WANTS_A_CERTIFICATE,
            _ => {
                "if the port expects TLS use rediss:// (rediss-cluster://, rediss-sentinel://); a proxy \
                 must pass on CLIENT, TIME, INFO, SCRIPT, EVALSHA and SUBSCRIBE"
            }
        };
        format!("the server ended the handshake ({error}); {advice}")
    } else {
        format!("the handshake failed ({error})")
    };
    no_connection(at, what, Some(Arc::new(error.clone())))
}

/// Returns the failure of a server that requires a login when the client has no credentials.
pub(crate) fn password_required(said: &str, at: &Address) -> Failure {
    let what = format!(
        "{}; the server wants a password, and none is given: write it into the URL \
         (redis://USER:PASSWORD@HOST), or set `credentials` (the command: --password-file)",
        Shown(said)
    );
    Failure::new(
        Outcome::DidNotRun,
        Cause::Denied(what),
        Arc::clone(at.shown()),
    )
}

fn no_credentials(
    at: &Address,
    what: String,
    source: Arc<dyn std::error::Error + Send + Sync>,
) -> Failure {
    let cause = Cause::NoCredentials(what);
    Failure {
        source: Some(source),
        ..Failure::new(Outcome::DidNotRun, cause, Arc::clone(at.shown()))
    }
}

fn no_connection(
    at: &Address,
    mut what: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
) -> Failure {
    if at.is_announced() {
        what.push_str(
            "; another server announced this address: if the server has a different address from here, \
             map it (map_address, --map)",
        );
    }
    Failure {
        outcome: Outcome::DidNotRun,
        cause: Cause::NoAnswer(what),
        address: Arc::clone(at.shown()),
        source,
    }
}
