//! The address of a server, read from a URL, and the form in which errors and logs show it.

mod parts;
mod topology;

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use redis::{ProtocolVersion, RedisConnectionInfo};

use self::parts::{Login, Query, UrlParts, decode, number};
pub(crate) use self::topology::{SentinelTopology, Topology};

use crate::error::{Error, ErrorKind, Result};
use crate::text::Shown;

/// The address of a server, with the credentials for it.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) target: ConnectTarget,
    login: Login,
    db: i64,
    resp3: bool,
    identity: String,
    shown: Arc<str>,
    /// The host that another server announced for this address, before the address map was applied;
    /// `None` for an address in the URL.
    announced_as: Option<String>,
}

/// The host and port where a server listens.
pub(crate) type Host = (String, u16);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConnectTarget {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

#[cfg(not(unix))]
pub(crate) const NO_UNIX_SOCKETS: &str =
    "a redis+unix:// URL works on Unix systems only; write redis://HOST:PORT";

impl Address {
    #[cfg(test)]
    pub(crate) fn parse(url: &str) -> Result<Self> {
        match Topology::parse(url)? {
            Topology::Server(address) => Ok(address),
            other => panic!("{other:?}"),
        }
    }

    /// Makes the address of a server that is reached by TCP or TLS.
    fn tcp(parts: &UrlParts<'_>, host: Host) -> Result<Self> {
        let query = parts.query(&["db", "protocol"])?;
        let db = database(parts.path, &query)?;
        let place = host_and_port(&host);
        let target = tcp_target(host, parts.tls)?;
        Ok(Self::new(parts, target, db, is_resp3(&query)?, &place))
    }

    fn unix(parts: &UrlParts<'_>) -> Result<Self> {
        let path = decode(parts.path)?;
        if path.is_empty() || path == "/" {
            return Err(misuse(format!(
                "the server's URL has no path of a socket; write it as {}",
                parts.kind.form()
            )));
        }
        // The URL of a unix socket has no host, so user and password are parameters.
        let query = parts.query(&["db", "protocol", "user", "pass"])?;
        let login = Login {
            user: query.value("user").map(str::to_owned),
            password: query.value("pass").map(str::to_owned),
        };
        let (db, resp3) = (database("", &query)?, is_resp3(&query)?);
        let target = ConnectTarget::Unix(PathBuf::from(&path));
        Ok(Self {
            login,
            ..Self::new(parts, target, db, resp3, &path)
        })
    }

    fn new(parts: &UrlParts<'_>, target: ConnectTarget, db: i64, resp3: bool, place: &str) -> Self {
        // A URL with Valkey's scheme names the same server, so it must give the same identity.
        let scheme = match &target {
            ConnectTarget::Tcp { tls: false, .. } => "redis",
            ConnectTarget::Tcp { tls: true, .. } => "rediss",
            ConnectTarget::Unix(_) => "redis+unix",
        };
        let suffix = db_suffix(db);
        let shown = format!("{}://{place}", parts.single_server_scheme());
        // The number of the database is outside of the shortened part: a message about a long path
        // must distinguish two databases of one server.
        let shown = format!("{}{suffix}", Shown(&shown));
        Self {
            identity: format!("{scheme}://{place}{suffix}"),
            target,
            login: parts.login.clone(),
            db,
            resp3,
            shown: shown.into(),
            announced_as: None,
        }
    }

    /// Returns the address of another server that is reached in the same way: a node of the same
    /// cluster, or a master.
    pub(crate) fn of_node(&self, host: &str, port: u16) -> Self {
        let tls = matches!(self.target, ConnectTarget::Tcp { tls: true, .. });
        let scheme = if tls { "rediss" } else { "redis" };
        let place = format!("{scheme}://{}", host_and_port(&(host.to_owned(), port)));
        Self {
            target: ConnectTarget::Tcp {
                host: host.to_owned(),
                port,
                tls,
            },
            shown: Shown(&place).to_string().into(),
            identity: place,
            announced_as: Some(host.to_owned()),
            ..self.clone()
        }
    }

    /// Returns host and port, if the server is reached by TCP.
    pub(crate) fn host(&self) -> Option<(&str, u16)> {
        match &self.target {
            ConnectTarget::Tcp { host, port, .. } => Some((host, *port)),
            ConnectTarget::Unix(_) => None,
        }
    }

    /// Notes the host under which a server announced this address, before the address map was
    /// applied.
    pub(crate) fn announced_as(self, host: &str) -> Self {
        let announced_as = Some(host.to_owned());
        Self {
            announced_as,
            ..self
        }
    }

    /// Returns whether another server announced the address. Otherwise it is an address in the URL.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced_as.is_some()
    }

    /// Returns the host as a server announced it or as the URL has it, before the address map is
    /// applied.
    pub(crate) fn unmapped_host(&self) -> Option<&str> {
        self.announced_as
            .as_deref()
            .or_else(|| Some(self.host()?.0))
    }

    pub(crate) fn to_host(&self) -> Option<Host> {
        let (host, port) = self.host()?;
        Some((host.to_owned(), port))
    }

    /// Returns the identity, which distinguishes the address from all others. It is not shortened
    /// and has no credentials.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    pub(crate) fn db(&self) -> i64 {
        self.db
    }

    /// Returns the hint for an error about a missing answer. A server without TLS takes a TLS
    /// greeting for the start of a command, and waits for the rest of it.
    pub(crate) fn plain_hint(&self) -> &'static str {
        match self.target {
            ConnectTarget::Tcp { tls: true, .. } => "; if the port has no TLS, use redis://",
            _ => "",
        }
    }

    /// Returns the address as errors and logs show it: without credentials, and shortened if it is
    /// long.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    /// Refuses an address that this system can't reach.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.target {
            #[cfg(not(unix))]
            ConnectTarget::Unix(_) => Err(Error::new(ErrorKind::Unsupported, NO_UNIX_SOCKETS)),
            _ => Ok(()),
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.target, ConnectTarget::Tcp { tls: true, .. })
    }

    /// Returns the settings of the driver's handshake.
    pub(crate) fn handshake(&self, resp3: bool) -> RedisConnectionInfo {
        let mut info = RedisConnectionInfo::default()
            .set_db(self.db)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"))
            .set_protocol(if resp3 && self.resp3 {
                ProtocolVersion::RESP3
            } else {
                ProtocolVersion::RESP2
            });
        let Login { user, password } = &self.login;
        if let Some(user) = user {
            // The user logs in even without a password: some users have none (`nopass`). Without
            // the login, the server would take the client for its default user.
            info = info.set_username(user).set_password("");
        }
        if let Some(password) = password {
            info = info.set_password(password);
        }
        info
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: a derived implementation would show the password.
        write!(f, "Address({})", self.shown)
    }
}

fn tcp_target((host, port): Host, tls: bool) -> Result<ConnectTarget> {
    if tls && !cfg!(feature = "tls") {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a rediss:// URL needs the feature `tls`; build leasehold with it",
        ));
    }
    Ok(ConnectTarget::Tcp { host, port, tls })
}

/// Writes `HOST:PORT` in the same form for every spelling of a host, so that a server can't vote
/// twice in a `RedLock`.
fn host_and_port((host, port): &Host) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(host) => format!("[{host}]:{port}"),
        Err(_) => format!("{}:{port}", host.to_ascii_lowercase()),
    }
}

fn db_suffix(db: i64) -> String {
    match db {
        0 => String::new(),
        db => format!("/{db}"),
    }
}

/// Returns the database at the end of the path, or in the parameter `db`.
fn database(path: &str, query: &Query) -> Result<i64> {
    let path = (!path.is_empty()).then_some(path);
    let read = |text: &str| {
        number(text).ok_or_else(|| {
            misuse(
                "the database in the server's URL is not a number; write it as \
                 redis://HOST:PORT/0, or as ?db=0",
            )
        })
    };
    match (
        path.map(read).transpose()?,
        query.value("db").map(read).transpose()?,
    ) {
        (Some(path), Some(query)) if path != query => Err(misuse(
            "the server's URL names two databases, after the host and as `db`; leave one out",
        )),
        (path, query) => Ok(path.or(query).unwrap_or(0)),
    }
}

fn is_resp3(query: &Query) -> Result<bool> {
    match query.value("protocol") {
        None | Some("resp2" | "2") => Ok(false),
        Some("resp3" | "3") => Ok(true),
        Some(_) => Err(misuse(
            "`protocol` in the server's URL is neither resp2 nor resp3; write one of them",
        )),
    }
}

fn misuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Misuse, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Address {
        Address::parse(url).unwrap()
    }

    #[test]
    fn url_parts_are_taken_apart() {
        let address = of("redis://app:p%40ss@[0::1]:7000/3?protocol=resp3");
        assert_eq!(&**address.shown(), "redis://[::1]:7000/3");
        let info = address.handshake(true);
        assert_eq!(info.username(), Some("app"));
        assert_eq!(info.password(), Some("p@ss"));
        assert_eq!(info.db(), 3);
        assert_eq!(info.protocol(), ProtocolVersion::RESP3);

        let address = of("redis+unix:///run/redis.sock?db=2&pass=a+b%26@/?");
        assert_eq!(
            address.target,
            ConnectTarget::Unix("/run/redis.sock".into())
        );
        let info = address.handshake(true);
        assert_eq!((info.db(), info.password()), (2, Some("a+b&@/?")));
    }

    #[test]
    fn database_is_that_of_the_path_or_of_the_parameter() {
        for (url, db) in [
            ("redis://h?db=3", 3),
            ("redis://h/?db=3", 3),
            ("redis://h/3?db=3", 3),
            ("REDIS://h/3", 3),
            ("redis://h", 0),
            ("redis+unix:///s?db=3", 3),
        ] {
            assert_eq!(of(url).db(), db, "{url}");
        }
        let of_cluster = |url| {
            Topology::parse(url)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let refused = of_cluster("redis-cluster://h?db=3").unwrap_err();
        assert!(refused.contains("no database but 0"), "{refused}");
        let Topology::Master(place) = Topology::parse("redis-sentinel://h/m?db=3").unwrap() else {
            panic!("a master");
        };
        assert_eq!(place.master.db(), 3);
    }

    #[test]
    fn part_that_nothing_would_use_is_refused_by_name() {
        for (url, says) in [
            ("redis://h/2?db=3", "two databases"),
            ("redis://h?db=1&db=8", "`db` twice"),
            ("redis://h?database=3", "`database`"),
            ("redis+unix:///s?database=3", "`database`"),
            ("redis+unix:///s?password=x", "`password`"),
            ("redis://h?pass=x", "`pass`"),
            ("redis-cluster://h?sentinel_pass=x", "`sentinel_pass`"),
            ("redis://h?timeout=5s&ssl=true", "`timeout`"),
            ("redis://h?ssl", "a parameter"),
            ("redis://h/0#three", "`#`"),
            (
                "redis-sentinel://h:1/0?sentinel_pass=p#mymaster",
                "HOST:PORT/MASTER",
            ),
            ("redis+unix://tmp/x.sock", "three slashes"),
            ("redis+unix://u:p@/x.sock", "three slashes"),
            ("redis://h/0/x", "database"),
            ("redis://h/-1", "database"),
            ("redis://h/+1", "database"),
            ("redis://h?db", "database"),
            ("redis://h?protocol=9", "`protocol`"),
            ("redis://a:1,b:2", "redis-cluster://"),
            ("redis://a:1,b:2", "redis-sentinel://"),
            ("redis://h:0", "port"),
            ("redis://h:+1", "port"),
            ("redis://::1", "brackets"),
            ("redis://[::1", "`]`"),
            ("redis://h%20", "character"),
            ("localhost:6379", "no scheme"),
            ("localhost", "redis://HOST:PORT"),
            ("\"redis://h\"", "quotation mark"),
            ("'redis://h'", "without quotes"),
            ("http://h", "redis-sentinel://"),
        ] {
            let refused = Topology::parse(url).expect_err(url);
            assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
            assert!(refused.to_string().contains(says), "{url}: {refused}");
        }
    }

    #[test]
    fn user_without_a_password_logs_in() {
        for (url, user, password) in [
            ("redis://app@h", Some("app"), Some("")),
            ("redis://app:@h", Some("app"), Some("")),
            ("redis+unix:///s?user=app", Some("app"), Some("")),
            ("redis://:pw@h", None, Some("pw")),
            ("redis://:@h", None, None),
            ("redis://@h", None, None),
        ] {
            let info = of(url).handshake(true);
            assert_eq!(
                (info.username(), info.password()),
                (user, password),
                "{url}"
            );
        }
    }

    #[test]
    fn addresses_that_are_shown_alike_are_told_apart() {
        let path = "x".repeat(130);
        let one = of(&format!("redis+unix:///{path}/a.sock"));
        let other = of(&format!("redis+unix:///{path}/b.sock"));
        assert_eq!(one.shown(), other.shown());
        assert_ne!(one.identity(), other.identity());
        // Each of these names the same database. With different identities, one server would vote
        // twice in a `RedLock`.
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
        let told = of("redis://h").of_node("::1", 7);
        assert_eq!(told.identity(), of("redis://[0:0::1]:7").identity());
    }

    /// Makes a password of letters that appear in no message, digits that appear in no port here,
    /// and all characters with a meaning in a URL.
    fn password() -> String {
        const LETTERS: &[char] = &['q', 'x', 'z', 'Q', 'X', 'Z', '0', '4', '8'];
        const SIGNS: &[char] = &[
            '/', '?', '#', '@', ':', '%', '&', '=', '+', ',', '[', ']', ';', '"', '\\', ' ', '!',
        ];
        let signs_first = fastrand::usize(..3);
        let letters = (0..12).map(|n| {
            // Characters with a meaning never follow each other, because messages contain `://`.
            let alphabet = if n % 3 == signs_first { SIGNS } else { LETTERS };
            alphabet[fastrand::usize(..alphabet.len())]
        });
        letters.collect()
    }

    fn encoded(text: &str) -> String {
        let set = percent_encoding::NON_ALPHANUMERIC;
        percent_encoding::utf8_percent_encode(text, set).to_string()
    }

    #[track_caller]
    fn shows_none_of(said: &str, secret: &str) {
        let secret: Vec<_> = secret.chars().collect();
        for piece in secret.windows(4) {
            let piece: String = piece.iter().collect();
            assert!(!said.contains(&piece), "`{piece}` is in `{said}`");
        }
    }

    #[test]
    fn no_message_shows_a_part_of_a_password() {
        // A password that begins with digits is read as a port up to its first special character.
        let awkward = [
            "12/q4x8",
            "12?qx4z",
            "12#q4x8z",
            "12?q4=qxz4",
            "q0&qxz4Q=8",
            "4/X8Z0",
        ];
        let random = (0..1000).map(|_| password());
        for secret in random.chain(awkward.map(str::to_owned)) {
            let whole = encoded(&secret);
            for written in [&secret, &whole] {
                for url in [
                    format!("redis://u:{written}@h"),
                    format!("rediss://:{written}@h:1/2"),
                    format!("valkey://{written}@h"),
                    format!("redis://u:{written}@h/x"),
                    format!("redis://u:{written}@h:99999"),
                    format!("redis://u:{written}@"),
                    format!("redis://u:{written}@h?protocol=9"),
                    format!("redis://u:{written}@h?timeout=5"),
                    format!("redis-cluster://u:{written}@a:1,b:2"),
                    format!("redis-cluster://u:{written}@a:1,b:2/3"),
                    format!("redis-sentinel://u:{written}@a:1,b:2/m"),
                    format!("redis-sentinel://a:1,b:2/m?sentinel_pass={written}"),
                    format!("redis-sentinel://a/m?sentinel_pass={written}&other=1"),
                    format!("redis+unix:///s?pass={written}"),
                    format!("redis+unix:///s?user=u&pass={written}&db=2"),
                    format!("redis+unix://u:{written}@/s"),
                    format!("u:{written}@h"),
                    format!("http://u:{written}@h"),
                    format!("\"redis://u:{written}@h\""),
                ] {
                    let said = match Topology::parse(&url) {
                        Err(refused) => format!("{refused} {refused:?}"),
                        Ok(Topology::Server(one)) => format!("{one:?} {}", one.shown()),
                        Ok(place) => format!("{place:?}"),
                    };
                    shows_none_of(&said, &secret);
                    shows_none_of(&said, &whole);
                }
            }
        }
    }

    #[test]
    fn password_that_is_not_encoded_is_explained() {
        for sign in ["/", "?", "#"] {
            for url in [
                format!("redis://u:12{sign}s3cret@h"),
                format!("rediss://u:s3c{sign}ret@h"),
                format!("redis-cluster://u:12{sign}s3cret@a,b"),
                format!("redis-sentinel://u:12{sign}s3cret@a,b/m"),
            ] {
                let refused = Topology::parse(&url).unwrap_err().to_string();
                assert!(refused.contains("percent-encoded"), "{refused}");
            }
            let whole = format!("redis://u:12{}s3cret@h", encoded(sign));
            let password = format!("12{sign}s3cret");
            assert_eq!(of(&whole).handshake(true).password(), Some(&*password));
        }
    }
}
