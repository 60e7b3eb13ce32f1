//! A server's address: the parts of a URL, and the form of it that may be shown.

mod place;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use redis::{ProtocolVersion, RedisConnectionInfo};
use url::Url;

pub(crate) use self::place::{MasterPlace, Place};

use crate::error::{Error, ErrorKind, Result};
use crate::text::Shown;

/// A server's address with the credentials for it.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) target: Target,
    user: Option<String>,
    password: Option<String>,
    db: i64,
    resp3: bool,
    identity: String,
    shown: Arc<str>,
    /// A node of the cluster has told it: it is in no URL.
    #[cfg_attr(not(feature = "tls"), expect(dead_code))]
    pub(crate) is_told: bool,
}

/// Where a server listens.
pub(crate) type Host = (String, u16);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

const SCHEMES: &str =
    "redis://, rediss:// (TLS), redis-cluster://, redis-sentinel:// or redis+unix://";

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        // The parser's error says what is wrong without repeating the text, which
        // may hold a password.
        let url = Url::parse(url.trim()).map_err(|error| {
            misuse(format!(
                "the server's URL can't be read: {error}; write it as redis://HOST:PORT"
            ))
        })?;
        match url.scheme() {
            "redis" | "valkey" => Self::tcp(&url, false),
            "rediss" | "valkeys" => Self::tcp(&url, true),
            "redis+unix" | "valkey+unix" | "unix" => Self::unix(&url),
            scheme => Err(misuse(format!(
                "`{}://` is not a scheme for a server; use {SCHEMES}",
                Shown(scheme)
            ))),
        }
    }

    fn tcp(url: &Url, tls: bool) -> Result<Self> {
        if tls && !cfg!(feature = "tls") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a rediss:// URL needs the feature `tls`; build leasehold with it",
            ));
        }
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| {
                misuse("the server's URL has no host; write it as redis://HOST:PORT".into())
            })?
            // The brackets of an IPv6 address belong to the URL. The resolver takes the address
            // without them.
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let port = url.port().unwrap_or(6379);
        let path = url.path().trim_start_matches('/');
        let db = if path.is_empty() { 0 } else { parse_db(path)? };
        // Capitals make no other host: the same server must not vote twice in a majority.
        let place = format!("://{}:{port}", host.to_ascii_lowercase());
        Self::finish(url, Target::Tcp { host, port, tls }, db, &place)
    }

    fn unix(url: &Url) -> Result<Self> {
        let path = decode(url.path())?;
        if path.is_empty() || path == "/" {
            return Err(misuse(
                "the server's URL has no socket path; write it as redis+unix:///PATH".into(),
            ));
        }
        let db = match query(url, "db") {
            Some(db) => parse_db(&db)?,
            None => 0,
        };
        let place = format!("://{path}");
        Self::finish(url, Target::Unix(path.into()), db, &place)
    }

    fn finish(url: &Url, target: Target, db: i64, place: &str) -> Result<Self> {
        let resp3 = match query(url, "protocol").as_deref() {
            None | Some("resp2" | "2") => false,
            Some("resp3" | "3") => true,
            Some(other) => {
                return Err(misuse(format!(
                    "`protocol={}` in the server's URL is neither resp2 nor resp3",
                    Shown(other)
                )));
            }
        };
        // The URL of a unix socket has no host, so no place for user and password before it: they
        // come as `user` and `pass`, as the driver's own URLs have them.
        let user = match url.username() {
            "" => query(url, "user"),
            user => Some(decode(user)?),
        };
        let password = match url.password() {
            None => query(url, "pass"),
            Some(password) => Some(decode(password)?),
        };
        // Valkey's schemes name the same server, and must give the same identity.
        let scheme = match &target {
            Target::Tcp { tls: false, .. } => "redis",
            Target::Tcp { tls: true, .. } => "rediss",
            Target::Unix(_) => "redis+unix",
        };
        let suffix = match db {
            0 => String::new(),
            db => format!("/{db}"),
        };
        let shown = format!("{}{place}", url.scheme());
        // The number of the database stays outside of what is shortened: a message about a long
        // path must tell two databases of one server apart.
        let shown = format!("{}{suffix}", Shown(&shown));
        Ok(Self {
            identity: format!("{scheme}{place}{suffix}"),
            target,
            user,
            password,
            db,
            resp3,
            shown: shown.into(),
            is_told: false,
        })
    }

    /// Another server that is reached in the same way: a node of the same cluster, or a master.
    pub(crate) fn of_node(&self, host: &str, port: u16) -> Self {
        let tls = matches!(self.target, Target::Tcp { tls: true, .. });
        let scheme = if tls { "rediss" } else { "redis" };
        let place = format!("{scheme}://{}:{port}", host.to_ascii_lowercase());
        Self {
            target: Target::Tcp {
                host: host.to_owned(),
                port,
                tls,
            },
            shown: Shown(&place).to_string().into(),
            identity: place,
            is_told: true,
            ..self.clone()
        }
    }

    /// Host and port, if it is reached by TCP.
    pub(crate) fn host(&self) -> Option<(&str, u16)> {
        match &self.target {
            Target::Tcp { host, port, .. } => Some((host, *port)),
            Target::Unix(_) => None,
        }
    }

    pub(crate) fn to_host(&self) -> Option<Host> {
        let (host, port) = self.host()?;
        Some((host.to_owned(), port))
    }

    /// What tells it from other addresses: not shortened, and without credentials.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    pub(crate) fn db(&self) -> i64 {
        self.db
    }

    /// What an error adds when nothing was answered. A plain server takes a TLS greeting for the
    /// start of a command, and waits for the rest of it.
    pub(crate) fn plain_hint(&self) -> &'static str {
        match self.target {
            Target::Tcp { tls: true, .. } => "; if the port is a plain one use redis://",
            _ => "",
        }
    }

    /// For messages: without credentials, and shortened if it is long.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    #[cfg(feature = "tls")]
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.target, Target::Tcp { tls: true, .. })
    }

    /// What the driver needs for its handshake.
    pub(crate) fn handshake(&self, resp3: bool) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default()
            .set_db(self.db)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"))
            .set_protocol(if resp3 && self.resp3 {
                ProtocolVersion::RESP3
            } else {
                ProtocolVersion::RESP2
            });
        if let Some(user) = &self.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password);
        }
        info
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: a derived one would show the password.
        write!(f, "Address({})", self.shown)
    }
}

fn query(url: &Url, name: &str) -> Option<String> {
    url.query_pairs()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

fn decode(text: &str) -> Result<String> {
    Ok(percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| misuse("the server's URL has a part that is not UTF-8".into()))?
        .into_owned())
}

fn parse_db(text: &str) -> Result<i64> {
    text.parse().ok().filter(|db| *db >= 0).ok_or_else(|| {
        misuse(format!(
            "`{}` in the server's URL is not a database number; write it as redis://HOST:PORT/0",
            Shown(text)
        ))
    })
}

fn misuse(message: String) -> Error {
    Error::new(ErrorKind::Misuse, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parts_are_taken_apart() {
        let address = Address::parse("redis://app:p%40ss@[::1]:7000/3?protocol=resp3").unwrap();
        assert_eq!(&**address.shown(), "redis://::1:7000/3");
        let info = address.handshake(true);
        assert_eq!(info.username(), Some("app"));
        assert_eq!(info.password(), Some("p@ss"));
        assert_eq!(info.db(), 3);
        assert_eq!(info.protocol(), ProtocolVersion::RESP3);

        let address = Address::parse("redis+unix:///run/redis.sock?db=2&pass=x").unwrap();
        assert_eq!(address.target, Target::Unix("/run/redis.sock".into()));
        assert_eq!(address.handshake(true).password(), Some("x"));
    }

    #[test]
    fn addresses_that_are_shown_alike_are_told_apart() {
        let path = "x".repeat(130);
        let of = |url: &str| Address::parse(url).unwrap();
        let one = of(&format!("redis+unix:///{path}/a.sock"));
        let other = of(&format!("redis+unix:///{path}/b.sock"));
        assert_eq!(one.shown(), other.shown());
        assert_ne!(one.identity(), other.identity());
        // Each of these names the same database. Told apart, one server would vote twice in a
        // majority.
        for same in [
            "valkey://h",
            "redis://u:p@h:6379/0",
            "redis://H/?protocol=3",
        ] {
            assert_eq!(of(same).identity(), of("redis://h").identity(), "{same}");
        }
        for another in ["redis://h/1", "redis://h:6380", "redis://g"] {
            assert_ne!(of(another).identity(), of("redis://h").identity());
        }
    }

    #[test]
    fn no_message_shows_the_password() {
        // Each is refused at another point of the parser, which writes a message of its own there.
        for url in [
            "redis://:s3cret@",
            "http://u:s3cret@h/",
            "redis://u:s3cret@h/x",
            "redis://u:s3cret@h:99999/",
            "u:s3cret@h",
            "redis://u:s3cret@h/?protocol=9",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        let good = Address::parse("redis://u:s3cret@h/").unwrap();
        assert!(!format!("{good:?} {}", good.shown()).contains("s3cret"));
    }
}
