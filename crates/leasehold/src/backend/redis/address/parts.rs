//! The parts of a URL, as text. An unused part is refused.
//!
//! If a password is not percent-encoded, any part may be a piece of it, so messages never repeat a
//! part. The exception is the name of a parameter, unless it follows a password.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;

use super::{Host, misuse};
use crate::error::Result;

/// The kind of topology that a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UrlKind {
    Server,
    Socket,
    Cluster,
    Master,
}

const SCHEMES: &str =
    "redis://, rediss:// (TLS), redis-cluster://, redis-sentinel:// or redis+unix://";

impl UrlKind {
    /// Returns the kind that a scheme names, and whether the scheme requires TLS.
    fn of(scheme: &str) -> Option<(Self, bool)> {
        Some(match scheme {
            "redis" | "valkey" => (Self::Server, false),
            "rediss" | "valkeys" => (Self::Server, true),
            "redis+unix" | "valkey+unix" | "unix" => (Self::Socket, false),
            "redis-cluster" | "valkey-cluster" => (Self::Cluster, false),
            "rediss-cluster" | "valkeys-cluster" => (Self::Cluster, true),
            "redis-sentinel" | "valkey-sentinel" => (Self::Master, false),
            "rediss-sentinel" | "valkeys-sentinel" => (Self::Master, true),
            _ => return None,
        })
    }

    /// Returns the form in which such a URL is written.
    pub(super) fn form(self) -> &'static str {
        match self {
            Self::Server => "redis://USER:PASSWORD@HOST:PORT/DB",
            Self::Socket => "redis+unix:///PATH?user=U&pass=P&db=N",
            Self::Cluster => "redis-cluster://USER:PASSWORD@HOST:PORT,HOST:PORT",
            Self::Master => "redis-sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Master => 26379,
            _ => 6379,
        }
    }
}

/// A user and a password, decoded.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl Login {
    /// Reads `USER:PASSWORD`. Either may be missing.
    fn of(text: &str) -> Result<Self> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (text, None),
        };
        let user = (!user.is_empty()).then(|| decode(user)).transpose()?;
        // Without a user, an empty password counts as missing: a template may leave both empty.
        let password = password.filter(|password| user.is_some() || !password.is_empty());
        let password = password.map(decode).transpose()?;
        Ok(Self { user, password })
    }
}

/// The parts of `SCHEME://USER:PASSWORD@HOST:PORT,HOST:PORT/PATH?QUERY`.
pub(super) struct UrlParts<'a> {
    pub(super) kind: UrlKind,
    pub(super) tls: bool,
    /// The scheme in lower case.
    scheme: String,
    pub(super) login: Login,
    hosts: &'a str,
    /// The path, not decoded. It has no leading slash, except for a socket.
    pub(super) path: &'a str,
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    pub(super) fn of(url: &'a str) -> Result<Self> {
        let url = url.trim();
        if url.starts_with(['"', '\'']) {
            return Err(misuse(
                "the server's URL begins with a quotation mark, which some programs keep when \
                 they read an environment file; write it without quotes",
            ));
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(misuse(
                "the server's URL has no scheme; write it as redis://HOST:PORT",
            ));
        };
        let scheme = scheme.to_ascii_lowercase();
        let Some((kind, tls)) = UrlKind::of(&scheme) else {
            return Err(misuse(format!(
                "the scheme of the server's URL is unknown; use {SCHEMES}"
            )));
        };
        let (login, rest) = match rest.rsplit_once('@') {
            // The path of a socket and the parameters after it may contain any character.
            _ if kind == UrlKind::Socket => ("", rest),
            Some(parts) => parts,
            None => ("", rest),
        };
        if login.contains(['/', '?', '#']) {
            return Err(misuse(
                "the server's URL has a `/`, `?` or `#` before its last `@`; in a user or password \
                 write these percent-encoded (%2F, %3F, %23), and write an `@` after the host as `%40`",
            ));
        }
        if rest.contains('#') {
            return Err(misuse(
                "the server's URL has a `#`, which means nothing there; in a password write %23, \
                 and the name of a master behind sentinels as redis-sentinel://HOST:PORT/MASTER",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = match kind {
            UrlKind::Socket => ("", rest),
            _ => rest.split_once('/').unwrap_or((rest, "")),
        };
        if kind == UrlKind::Socket && !path.starts_with('/') {
            return Err(misuse(format!(
                "the URL of a socket needs three slashes and no host; write it as {}",
                kind.form()
            )));
        }
        Ok(Self {
            kind,
            tls,
            scheme,
            login: Login::of(login)?,
            hosts,
            path,
            query,
        })
    }

    /// Returns the scheme of a URL for one of the servers.
    pub(super) fn single_server_scheme(&self) -> &str {
        match (self.kind, self.tls) {
            (UrlKind::Server | UrlKind::Socket, _) => &self.scheme,
            (UrlKind::Cluster | UrlKind::Master, false) => "redis",
            (UrlKind::Cluster | UrlKind::Master, true) => "rediss",
        }
    }

    /// Returns the only host of a server.
    pub(super) fn host(&self) -> Result<Host> {
        let mut hosts = self.hosts()?;
        match (hosts.pop(), hosts.is_empty()) {
            (Some(host), true) => Ok(host),
            _ => Err(misuse(
                "the server's URL names several hosts; use redis-cluster://HOST:PORT,HOST:PORT for \
                 a cluster, or redis-sentinel://HOST:PORT,HOST:PORT/MASTER for sentinels",
            )),
        }
    }

    pub(super) fn hosts(&self) -> Result<Vec<Host>> {
        let (what, form) = match self.kind {
            UrlKind::Server | UrlKind::Socket => ("host", "redis://HOST:PORT"),
            UrlKind::Cluster => ("node", "redis-cluster://HOST:PORT,HOST:PORT"),
            UrlKind::Master => ("sentinel", "redis-sentinel://HOST:PORT,HOST:PORT/MASTER"),
        };
        let hosts = (1..).zip(self.hosts.split(','));
        let hosts = hosts.map(|(number, host)| {
            read_host(host, self.kind.default_port()).map_err(|why| {
                misuse(format!(
                    "{what} {number} of the server's URL {why}; write it as {form}"
                ))
            })
        });
        hosts.collect()
    }

    /// Reads the parameters. Each must be in `known`.
    pub(super) fn query(&self, known: &[&'static str]) -> Result<Query> {
        let mut query = Query(Vec::new());
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = known.iter().find(|known| **known == name) else {
                return Err(query.refusal(name, pair.contains('='), known));
            };
            if query.value(name).is_some() {
                return Err(misuse(format!(
                    "the server's URL has `{name}` twice; leave one out"
                )));
            }
            query.0.push((name, decode(value)?));
        }
        Ok(query)
    }
}

/// The parameters of a URL, decoded.
pub(super) struct Query(Vec<(&'static str, String)>);

impl Query {
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(known, _)| *known == name)?;
        Some(&found.1)
    }

    /// Returns the error for an unknown parameter. `self` has the parameters before it.
    fn refusal(&self, name: &str, has_value: bool, known: &[&str]) -> crate::error::Error {
        let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
        let known = known.join(", ");
        if let Some((pass, _)) = self.0.iter().find(|(name, _)| name.ends_with("pass")) {
            return misuse(format!(
                "a parameter that follows `{pass}` in the server's URL is none of {known}; leave it \
                 out, or write an `&` in a password as %26"
            ));
        }
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
        let name = match has_value && name.len() <= 40 && name.chars().all(is_word) {
            true => format!("`{name}`"),
            false => "a parameter".into(),
        };
        misuse(format!(
            "{name} in the server's URL is unknown: it is none of {known}; leave it out"
        ))
    }
}

/// Reads `HOST:PORT`. The error says what is wrong with the text.
fn read_host(text: &str, default_port: u16) -> std::result::Result<Host, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, rest) = text.split_once(']').ok_or("has a `[` without its `]`")?;
            let host: Ipv6Addr = host
                .parse()
                .map_err(|_| "has no IPv6 address in brackets")?;
            let port = match rest {
                "" => "",
                _ => rest.strip_prefix(':').ok_or("has no `:` before its port")?,
            };
            (host.to_string(), port)
        }
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, ""));
            if port.contains(':') {
                return Err("has several `:`, and an IPv6 address needs brackets");
            }
            (host.to_owned(), port)
        }
    };
    if host.is_empty() {
        return Err("has no host");
    }
    let is_fine = |letter: char| letter.is_ascii_alphanumeric() || "-._:".contains(letter);
    if !host.chars().all(is_fine) {
        return Err("has a character that no host name can have");
    }
    let port = match port {
        "" => Some(default_port),
        _ => number(port).filter(|port| *port > 0),
    };
    Ok((host, port.ok_or("has no port from 1 to 65535")?))
}

/// Reads a number that consists only of digits.
pub(super) fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    // `parse` would accept a sign, too.
    let are_digits = text.bytes().all(|letter| letter.is_ascii_digit());
    are_digits.then(|| text.parse().ok()).flatten()
}

pub(super) fn decode(text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| misuse("the server's URL has a part that is not UTF-8"))?;
    Ok(text.into_owned())
}
