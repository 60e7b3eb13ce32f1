//! Opening connections: TCP, unix socket or TLS, the handshake, and an error that says what to
//! do when one fails.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::address::{Address, Host, Target};
use super::driver::{Driver, Socket};
use super::messages::{Frame, Messages, write_command};
use super::sentinel::Sentinels;
use super::socket::Own;
use super::wire::Checked;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::credentials::{Credentials, Source};
use crate::sync::Mutex;
use crate::text::Shown;

/// Makes connections to one server.
pub(crate) struct Connector {
    /// What the URL names.
    pub(crate) address: Address,
    /// They say where the server is; without them it is at its address.
    pub(crate) sentinels: Option<Sentinels>,
    /// Where the connection for calls leads, or led; `None` until the sentinels have said it.
    pub(crate) present: Mutex<Option<Arc<Address>>>,
    /// Asked for user and password at each connection; without it the URL has them.
    pub(crate) credentials: Option<Source>,
    /// How often they are asked for beside that.
    pub(crate) credentials_every: Duration,
    /// Those with which the last connection for calls was opened.
    pub(crate) logged_in_with: Mutex<Option<Credentials>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<super::tls::Connector>,
}

pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl Connector {
    /// Where the server is now.
    pub(crate) async fn find(&self) -> Result<Arc<Address>, Failure> {
        match &self.sentinels {
            Some(sentinels) => sentinels.find().await,
            None => self.present(),
        }
    }

    fn present(&self) -> Result<Arc<Address>, Failure> {
        let present = self.present.lock().clone();
        present.ok_or_else(|| {
            let what = "the sentinels have not said yet where the master is".into();
            no_connection(&self.address, what, None)
        })
    }

    /// Where the connection for calls leads, or led.
    pub(crate) fn present_host(&self) -> Option<Host> {
        self.present.lock().as_ref()?.to_host()
    }

    /// The same for messages, and without credentials.
    pub(crate) fn shown(&self) -> Arc<str> {
        let present = self.present.lock();
        let address = present.as_deref().unwrap_or(&self.address);
        Arc::clone(address.shown())
    }

    /// Resolves when the sentinels name another server than this one.
    pub(crate) async fn named_another(&self, than: Option<Host>) {
        match &self.sentinels {
            Some(sentinels) => sentinels.named_another(than.as_ref()).await,
            None => std::future::pending().await,
        }
    }

    /// Resolves when it may be worth looking for the server again.
    pub(crate) async fn has_news(&self) {
        match &self.sentinels {
            Some(sentinels) => sentinels.told().await,
            None => std::future::pending().await,
        }
    }

    /// A connection for calls to this address.
    pub(crate) async fn open(
        &self,
        at: &Address,
    ) -> Result<(MultiplexedConnection, Driver), Failure> {
        // Without a limit of ours the driver would give up each request after 500 ms.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.reply_timeout));
        self.within_limit(at, async {
            // Within the limit: a credentials callback that never answers must not end
            // reconnecting.
            let info = self.handshake(at, true).await?;
            // Plain TCP, the common case, goes without a box around each read.
            if let Target::Tcp {
                host,
                port,
                tls: false,
            } = &at.target
            {
                let stream = tcp(at, host, *port).await?;
                let socket = Socket::of(&stream);
                let stream = Checked::calls(Own::new(stream));
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&info, stream, config)
                        .await
                        .map_err(|error| handshake_failed(at, &error))?;
                return Ok((connection, Driver::new(driver, socket)));
            }
            let (stream, socket) = self.stream(at).await?;
            let stream = Checked::calls(stream);
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&info, stream, config)
                    .await
                    .map_err(|error| handshake_failed(at, &error))?;
            Ok((connection, Driver::new(driver, socket)))
        })
        .await
    }

    /// A connection for messages, to where the one for calls leads, by this name.
    pub(crate) async fn open_messages(&self, name: Option<&str>) -> Result<Messages, Failure> {
        let at = &*self.present()?;
        self.within_limit(at, async {
            let info = self.handshake(at, false).await?;
            let (stream, _) = self.stream(at).await?;
            let mut messages = Messages::new(stream);
            let (user, password) = (info.username(), info.password());
            if let Some(password) = password {
                let login = user.into_iter().chain([password]);
                if let Some(refusal) = step(at, &mut messages, "AUTH", login).await? {
                    return Err(Failure {
                        cause: Cause::Denied(refusal),
                        ..Failure::from_reply("", at.shown())
                    });
                }
            }
            let db = info.db().to_string();
            if db != "0"
                && let Some(refusal) = step(at, &mut messages, "SELECT", [&*db]).await?
            {
                return Err(Failure::from_reply(&refusal, at.shown()));
            }
            // A courtesy to those who look at the list of clients. A user may lack the permission for
            // it, and older servers do not know the second.
            if let Some(name) = name {
                step(at, &mut messages, "CLIENT", ["SETNAME", name]).await?;
            }
            let library = ["SETINFO", "LIB-NAME", "leasehold"];
            step(at, &mut messages, "CLIENT", library).await?;
            Ok(messages)
        })
        .await
    }

    /// What the driver needs for its handshake, with the present credentials.
    async fn handshake(&self, at: &Address, resp3: bool) -> Result<RedisConnectionInfo, Failure> {
        let info = at.handshake(resp3);
        let Some(source) = &self.credentials else {
            return Ok(info);
        };
        let credentials = source.ask().await.map_err(|error| {
            let what = format!("the client's credentials could not be had ({error})");
            no_connection(at, Shown(&what).to_string(), Some(error.into()))
        })?;
        if resp3 {
            *self.logged_in_with.lock() = Some(credentials.clone());
        }
        let info = match credentials.user {
            Some(user) => info.set_username(user),
            None => info,
        };
        Ok(info.set_password(credentials.password))
    }

    /// Logs in again on a living connection whenever there are new credentials. Never returns.
    ///
    /// Some servers end a connection when the password or the user with which it has logged in is
    /// no more. With this it has logged in with the new ones by then.
    pub(crate) async fn stay_logged_in(&self, mut connection: MultiplexedConnection) {
        let Some(source) = &self.credentials else {
            return std::future::pending().await;
        };
        // Its own: the other connection for calls may log in at another time.
        let mut with = self.logged_in_with.lock().clone();
        loop {
            tokio::time::sleep(self.credentials_every).await;
            // A callback that fails or never answers is asked again.
            let asked = tokio::time::timeout(self.connect_timeout, source.ask()).await;
            let Ok(Ok(new)) = asked else { continue };
            if with.as_ref() == Some(&new) {
                continue;
            }
            let address = self.shown();
            match connection.send_packed_command(&self.login(&new)).await {
                Ok(_) => {
                    with = Some(new);
                    tracing::info!(%address, "logged in with new credentials");
                }
                // The connection stays logged in as it was, and this is tried again.
                Err(error) => tracing::warn!(
                    %address, cause = %Shown(&error.to_string()),
                    "the server refuses the new credentials; the old ones are still used"
                ),
            }
        }
    }

    fn login(&self, credentials: &Credentials) -> redis::Cmd {
        let mut login = redis::cmd("AUTH");
        let info = self.address.handshake(true);
        // As in the handshake: the user of the URL, if the credentials name none.
        if let Some(user) = credentials.user.as_deref().or_else(|| info.username()) {
            login.arg(user);
        }
        login.arg(&credentials.password);
        login
    }

    /// The connection did not outlive its first questions.
    pub(crate) fn lost_at_once(&self, at: &Address) -> Failure {
        no_connection(at, "the server closed the connection".into(), None)
    }

    async fn within_limit<T>(
        &self,
        at: &Address,
        open: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::time::timeout(self.connect_timeout, open)
            .await
            .unwrap_or_else(|_| {
                let limit = self.connect_timeout;
                let what = format!("no connection within {limit:?}{}", at.plain_hint());
                Err(no_connection(at, what, None))
            })
    }

    async fn stream(&self, at: &Address) -> Result<(Box<dyn Io>, Socket), Failure> {
        match &at.target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)
                    .await
                    .map_err(|error| io_failed(at, error))?;
                let socket = Socket::of(&stream);
                Ok((Box::new(Own::new(stream)), socket))
            }
            Target::Tcp { host, port, tls } => {
                let stream = tcp(at, host, *port).await?;
                let socket = Socket::of(&stream);
                if *tls {
                    let stream = self.encrypted(at, host, Own::new(stream)).await?;
                    Ok((stream, socket))
                } else {
                    Ok((Box::new(Own::new(stream)), socket))
                }
            }
        }
    }

    #[cfg(feature = "tls")]
    async fn encrypted(
        &self,
        at: &Address,
        host: &str,
        stream: Own<TcpStream>,
    ) -> Result<Box<dyn Io>, Failure> {
        // Never missing: `Common::new` sets TLS up for each address that wants it.
        let Some(tls) = &self.tls else {
            return Err(no_connection(at, "TLS is not set up".into(), None));
        };
        let stream = tls.connect(host, stream).await.map_err(|error| {
            let advice = super::tls::advice(&error, self.address.is_told);
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
        _: Own<TcpStream>,
    ) -> Result<Box<dyn Io>, Failure> {
        Err(no_connection(at, "this build has no TLS".into(), None))
    }
}

/// One step of the handshake. Returns what the server said if it refuses that.
async fn step<'a>(
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
        Ok(Frame::Fine) => Ok(None),
        Ok(Frame::Refused(said)) => Ok(Some(said)),
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
    // Small requests must not wait for each other's acknowledgement.
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
        // On RESP2 the driver keeps neither the code nor the text of a refused login, so there
        // is nothing that could be sorted.
        let said = error.detail().unwrap_or("the password is refused");
        return Failure {
            cause: Cause::Denied(Shown(said).to_string()),
            ..Failure::from_reply("", address)
        };
    }
    if let Some(text) = reply_text(error) {
        return Failure::from_reply(&text, address);
    }
    // A port for TLS takes the handshake for a broken greeting. It closes the connection, or
    // answers with an alert that is no reply.
    let what = if error.is_io_error() || error.kind() == redis::ErrorKind::Parse {
        let advice = match at.target {
            #[cfg(feature = "tls")]
            Target::Tcp { tls: true, .. } => super::tls::WANTS_A_CERTIFICATE,
            _ => "if the port expects TLS use rediss:// (rediss-cluster://, rediss-sentinel://)",
        };
        format!("the server ended the handshake ({error}); {advice}")
    } else {
        format!("the handshake failed ({error})")
    };
    no_connection(at, what, Some(Arc::new(error.clone())))
}

fn no_connection(
    at: &Address,
    what: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
) -> Failure {
    Failure {
        outcome: Outcome::DidNotRun,
        cause: Cause::NoAnswer(what),
        address: Arc::clone(at.shown()),
        source,
    }
}

/// The text of an error reply, if the error is one.
pub(crate) fn reply_text(error: &RedisError) -> Option<String> {
    let code = error.code()?;
    Some(match error.detail() {
        Some(detail) => format!("{code} {detail}"),
        None => code.to_owned(),
    })
}
