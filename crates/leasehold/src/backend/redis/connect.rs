//! Opening connections: TCP, unix socket or TLS, the handshake, and an error that says what to
//! do when one fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::address::{Address, Target};
use super::driver::{Driver, Socket};
use super::wire::Checked;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::credentials::Source;
use crate::text::Shown;

/// Makes connections to one server.
pub(crate) struct Connector {
    pub(crate) address: Address,
    /// Asked for user and password at each connection; without it the URL has them.
    pub(crate) credentials: Option<Source>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<super::tls::Connector>,
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

impl Connector {
    /// A connection for calls.
    pub(crate) async fn open(&self) -> Result<(MultiplexedConnection, Driver), Failure> {
        // Without a limit of ours the driver would give up each request after 500 ms.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.reply_timeout));
        self.within_limit(async {
            // Within the limit: a credentials callback that never answers must not end
            // reconnecting.
            let info = self.handshake(true).await?;
            // Plain TCP, the common case, goes without a box around each read.
            if let Target::Tcp {
                host,
                port,
                tls: false,
            } = &self.address.target
            {
                let stream = self.tcp(host, *port).await?;
                let socket = Socket::of(&stream);
                let stream = Checked::calls(stream);
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&info, stream, config)
                        .await
                        .map_err(|error| self.handshake_failed(&error))?;
                return Ok((connection, Driver::new(driver, socket)));
            }
            let (stream, socket) = self.stream().await?;
            let stream = Checked::calls(stream);
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&info, stream, config)
                    .await
                    .map_err(|error| self.handshake_failed(&error))?;
            Ok((connection, Driver::new(driver, socket)))
        })
        .await
    }

    /// A connection for messages. Always RESP2: the driver gives messages the same form in both,
    /// and one form is one thing less to go wrong. `asked` counts the confirmations that may
    /// come on it.
    pub(crate) async fn open_pubsub(&self, asked: Arc<AtomicUsize>) -> Result<PubSub, Failure> {
        self.within_limit(async {
            let info = self.handshake(false).await?;
            let (stream, _) = self.stream().await?;
            let stream = Checked::messages(stream, asked);
            PubSub::new(&info, stream)
                .await
                .map_err(|error| self.handshake_failed(&error))
        })
        .await
    }

    /// What the driver needs for its handshake, with the present credentials.
    async fn handshake(&self, resp3: bool) -> Result<RedisConnectionInfo, Failure> {
        let info = self.address.handshake(resp3);
        let Some(source) = &self.credentials else {
            return Ok(info);
        };
        let credentials = source.ask().await.map_err(|error| {
            let what = format!("the client's credentials could not be had ({error})");
            self.no_connection(Shown(&what).to_string(), Some(error.into()))
        })?;
        let info = match credentials.user {
            Some(user) => info.set_username(user),
            None => info,
        };
        Ok(info.set_password(credentials.password))
    }

    /// The connection did not outlive its first questions.
    pub(crate) fn lost_at_once(&self) -> Failure {
        self.no_connection("the server closed the connection".into(), None)
    }

    async fn within_limit<T>(
        &self,
        open: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::time::timeout(self.connect_timeout, open)
            .await
            .unwrap_or_else(|_| {
                // A plain server takes a TLS greeting for the start of a command, and
                // waits for the rest of it.
                let hint = match self.address.target {
                    Target::Tcp { tls: true, .. } => "; if the port is a plain one use redis://",
                    _ => "",
                };
                Err(self.no_connection(
                    format!("no connection within {:?}{hint}", self.connect_timeout),
                    None,
                ))
            })
    }

    async fn stream(&self) -> Result<(Box<dyn Io>, Socket), Failure> {
        match &self.address.target {
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)
                    .await
                    .map_err(|error| self.io_failed(error))?;
                let socket = Socket::of(&stream);
                Ok((Box::new(stream), socket))
            }
            Target::Tcp { host, port, tls } => {
                let stream = self.tcp(host, *port).await?;
                let socket = Socket::of(&stream);
                if *tls {
                    Ok((self.encrypted(host, stream).await?, socket))
                } else {
                    Ok((Box::new(stream), socket))
                }
            }
        }
    }

    async fn tcp(&self, host: &str, port: u16) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect((host, port))
            .await
            .map_err(|error| self.io_failed(error))?;
        // Small requests must not wait for each other's acknowledgement.
        stream
            .set_nodelay(true)
            .map_err(|error| self.io_failed(error))?;
        Ok(stream)
    }

    #[cfg(feature = "tls")]
    async fn encrypted(&self, host: &str, stream: TcpStream) -> Result<Box<dyn Io>, Failure> {
        // Never missing: `Node::new` sets TLS up for each address that wants it.
        let Some(tls) = &self.tls else {
            return Err(self.no_connection("TLS is not set up".into(), None));
        };
        let stream = tls.connect(host, stream).await.map_err(|error| {
            self.no_connection(
                format!(
                    "the TLS handshake failed ({error}); if the port is a plain one use redis://, \
                     if the certificate is of your own authority add that to the client"
                ),
                Some(Arc::new(error)),
            )
        })?;
        Ok(Box::new(stream))
    }

    #[cfg(not(feature = "tls"))]
    async fn encrypted(&self, _: &str, _: TcpStream) -> Result<Box<dyn Io>, Failure> {
        Err(self.no_connection("this build has no TLS".into(), None))
    }

    fn io_failed(&self, error: io::Error) -> Failure {
        self.no_connection(error.to_string(), Some(Arc::new(error)))
    }

    fn handshake_failed(&self, error: &RedisError) -> Failure {
        let address = self.address.shown();
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
            format!(
                "the server ended the handshake ({error}); if the port expects TLS use rediss://"
            )
        } else {
            format!("the handshake failed ({error})")
        };
        self.no_connection(what, Some(Arc::new(error.clone())))
    }

    fn no_connection(
        &self,
        what: String,
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    ) -> Failure {
        Failure {
            outcome: Outcome::DidNotRun,
            cause: Cause::NoAnswer(what),
            address: Arc::clone(self.address.shown()),
            source,
        }
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
