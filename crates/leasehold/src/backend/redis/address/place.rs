//! What the URL of a client names: one server, the nodes of a cluster, or a master and the
//! sentinels that know where it is.

use super::{Address, decode, misuse, parse_db};
use crate::error::Result;
use crate::text::Shown;

/// What a URL names.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Server(Address),
    /// Nodes of one cluster, of which any can say where the others are.
    Cluster(Vec<Address>),
    Master(MasterPlace),
}

/// A master by its name, and the sentinels that say where it is.
#[derive(Clone, Debug)]
pub(crate) struct MasterPlace {
    pub(crate) name: String,
    /// Each of them once: they are counted.
    pub(crate) sentinels: Vec<Address>,
    /// How the master is reached, wherever it is: its host is none.
    pub(crate) master: Address,
}

/// Where a sentinel listens by default.
const SENTINEL_PORT: u16 = 26379;
const SENTINEL_FORM: &str = "write the URL as redis-sentinel://HOST:PORT,HOST:PORT/MASTER";

impl Place {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let url = url.trim();
        let (scheme, rest) = url.split_once("://").unwrap_or(("", ""));
        match scheme {
            "redis-cluster" | "valkey-cluster" => nodes("redis", rest).map(Self::Cluster),
            "rediss-cluster" | "valkeys-cluster" => nodes("rediss", rest).map(Self::Cluster),
            "redis-sentinel" | "valkey-sentinel" => master("redis", rest).map(Self::Master),
            "rediss-sentinel" | "valkeys-sentinel" => master("rediss", rest).map(Self::Master),
            _ => Address::parse(url).map(Self::Server),
        }
    }
}

/// The parts of `USER:PASSWORD@HOST:PORT,HOST:PORT/PATH?QUERY`.
struct Parts<'a> {
    /// With the `@`.
    login: &'a str,
    hosts: Vec<&'a str>,
    /// From the slash or the question mark on.
    tail: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str) -> Self {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let hosts = authority.rfind('@').map_or(0, |at| at + 1);
        let (login, hosts) = authority.split_at(hosts);
        Self {
            login,
            hosts: hosts.split(',').collect(),
            tail,
        }
    }
}

/// The hosts of `USER:PASSWORD@HOST:PORT,HOST:PORT/?QUERY`, each as an address of its own.
fn nodes(scheme: &str, rest: &str) -> Result<Vec<Address>> {
    let Parts { login, hosts, tail } = Parts::of(rest);
    let addresses: Vec<_> = hosts
        .into_iter()
        .map(|host| Address::parse(&format!("{scheme}://{login}{host}{tail}")))
        .collect::<Result<_>>()?;
    if addresses.iter().any(|address| address.db != 0) {
        return Err(misuse(
            "a cluster has no database but 0; leave the number out of its URL".into(),
        ));
    }
    Ok(addresses)
}

/// The parts of `USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB?QUERY`. User and password are the
/// master's.
fn master(scheme: &str, rest: &str) -> Result<MasterPlace> {
    let Parts { login, hosts, tail } = Parts::of(rest);
    let (path, query) = match tail.find(['?', '#']) {
        Some(at) => tail.split_at(at),
        None => (tail, ""),
    };
    let (name, db) = name_and_db(path)?;
    let wanted = SentinelLogin::of(query)?;
    let mut sentinels: Vec<Address> = Vec::new();
    for (number, host) in (1..).zip(hosts) {
        let address = sentinel(scheme, host, number, &wanted)?;
        // One that is named twice must not be two of a majority.
        if (sentinels.iter()).all(|known| known.identity() != address.identity()) {
            sentinels.push(address);
        }
    }
    // Its host is never connected to: the sentinels name another one.
    let master = Address::parse(&format!("{scheme}://{login}localhost/{db}{query}"))?;
    let prefix = format!("{scheme}://");
    let hosts = sentinels.iter().map(Address::identity);
    let mut hosts: Vec<_> = hosts.map(|host| host.replacen(&prefix, "", 1)).collect();
    let suffix = match db {
        0 => String::new(),
        db => format!("/{db}"),
    };
    let url_of =
        |hosts: &[String]| format!("{scheme}-sentinel://{}/{name}{suffix}", hosts.join(","));
    let shown = Shown(&url_of(&hosts)).to_string().into();
    hosts.sort_unstable();
    let master = Address {
        shown,
        identity: url_of(&hosts),
        ..master
    };
    Ok(MasterPlace {
        name,
        sentinels,
        master,
    })
}

fn name_and_db(path: &str) -> Result<(String, i64)> {
    let mut segments = path.trim_start_matches('/').split('/');
    let name = decode(segments.next().unwrap_or(""))?;
    if name.is_empty() {
        return Err(misuse(format!(
            "the URL names sentinels and no master; {SENTINEL_FORM}"
        )));
    }
    let db = match segments.next() {
        None | Some("") => 0,
        Some(db) => parse_db(db)?,
    };
    if segments.next().is_some() {
        return Err(misuse(format!(
            "the URL has more than a master's name and a database behind its sentinels; \
             {SENTINEL_FORM}/DB"
        )));
    }
    Ok((name, db))
}

/// With what the client logs in at the sentinels.
struct SentinelLogin {
    user: Option<String>,
    password: Option<String>,
}

impl SentinelLogin {
    fn of(query: &str) -> Result<Self> {
        let query = query.trim_start_matches('?');
        let value = |name: &str| {
            let mut pairs = url::form_urlencoded::parse(query.as_bytes());
            let found = pairs.find(|(key, _)| key == name);
            found.map(|(_, value)| value.into_owned())
        };
        let login = Self {
            user: value("sentinel_user"),
            password: value("sentinel_pass"),
        };
        if login.user.is_some() && login.password.is_none() {
            return Err(misuse(
                "the URL has a `sentinel_user` without a `sentinel_pass`; add that".into(),
            ));
        }
        Ok(login)
    }
}

/// The URL's sentinel with this number.
fn sentinel(scheme: &str, host: &str, number: usize, login: &SentinelLogin) -> Result<Address> {
    // The rest may be no host at all but half of a password, so no message repeats it.
    let bad = || {
        misuse(format!(
            "sentinel {number} of the URL is no HOST:PORT; {SENTINEL_FORM}"
        ))
    };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| {
        !port.is_empty() && port.bytes().all(|letter| letter.is_ascii_digit())
    });
    let host = match has_port {
        true => host.to_owned(),
        false => format!("{}:{SENTINEL_PORT}", host.trim_end_matches(':')),
    };
    if host.starts_with(':') {
        return Err(bad());
    }
    match Address::parse(&format!("{scheme}://{host}")) {
        Ok(address) => Ok(Address {
            user: login.user.clone(),
            password: login.password.clone(),
            ..address
        }),
        // A build without TLS says so.
        Err(error) if error.kind() == crate::error::ErrorKind::Unsupported => Err(error),
        Err(_) => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use redis::ProtocolVersion;

    use super::*;

    #[test]
    fn each_host_of_a_cluster_is_an_address() {
        let url = "redis-cluster://app:p%40ss@a:7000,[::1],C:7002/?protocol=resp3";
        let Place::Cluster(nodes) = Place::parse(url).unwrap() else {
            panic!("a cluster");
        };
        let shown: Vec<_> = nodes.iter().map(|node| node.shown().to_string()).collect();
        assert_eq!(
            shown,
            ["redis://a:7000", "redis://::1:6379", "redis://c:7002"]
        );
        for node in &nodes {
            let info = node.handshake(true);
            assert_eq!(
                (info.username(), info.password()),
                (Some("app"), Some("p@ss"))
            );
            assert_eq!(info.protocol(), ProtocolVersion::RESP3);
        }
        let other = nodes[0].of_node("B", 1);
        assert_eq!(other.identity(), "redis://b:1");
        assert_eq!(other.handshake(true).password(), Some("p@ss"));
    }

    #[test]
    fn bad_url_of_a_cluster_is_refused() {
        for url in [
            "redis-cluster://",
            "redis-cluster://a,,b",
            "redis-cluster://a:1,b:99999",
            "redis-cluster://a,b/3",
            "redis-cluster://a,b/x",
        ] {
            assert!(Place::parse(url).is_err(), "{url}");
        }
        assert!(Place::parse("redis-cluster://a,b/0").is_ok());
        let error = Place::parse("redis-cluster://u:s3cret@a,b/3").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }

    fn master_of(url: &str) -> MasterPlace {
        match Place::parse(url).unwrap() {
            Place::Master(master) => master,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn master_and_sentinels_have_credentials_of_their_own() {
        let master = master_of(
            "redis-sentinel://app:p%40ss@a,[::1],C:7002,a:26379/my%20db/3?sentinel_user=s%2Fu&sentinel_pass=s%26p&protocol=resp3",
        );
        assert_eq!(master.name, "my db");
        let hosts: Vec<_> = master.sentinels.iter().filter_map(Address::host).collect();
        assert_eq!(hosts, [("a", 26379), ("::1", 26379), ("C", 7002)]);
        for sentinel in &master.sentinels {
            let info = sentinel.handshake(true);
            assert_eq!(
                (info.username(), info.password(), info.db()),
                (Some("s/u"), Some("s&p"), 0)
            );
            assert_eq!(info.protocol(), ProtocolVersion::RESP2);
        }
        let at = master.master.of_node("10.0.0.1", 6380);
        assert_eq!(&**at.shown(), "redis://10.0.0.1:6380");
        let info = at.handshake(true);
        assert_eq!(
            (info.username(), info.password(), info.db()),
            (Some("app"), Some("p@ss"), 3)
        );
        assert_eq!(info.protocol(), ProtocolVersion::RESP3);
        let shown = "redis-sentinel://a:26379,::1:26379,c:7002/my db/3";
        assert_eq!(&**master.master.shown(), shown);
    }

    #[test]
    fn sentinels_in_another_order_name_the_same_master() {
        let of = |url: &str| master_of(url).master.identity().to_owned();
        let one = of("redis-sentinel://u:p@a,b:1/m");
        assert_eq!(of("valkey-sentinel://B:1,a/m/0"), one);
        for another in ["redis-sentinel://a,b:1/n", "redis-sentinel://a,b:1/m/1"] {
            assert_ne!(of(another), one, "{another}");
        }
    }

    #[test]
    fn bad_url_of_sentinels_names_the_bad_part() {
        for (url, part) in [
            ("redis-sentinel://", "no master"),
            ("redis-sentinel://a", "no master"),
            ("redis-sentinel://a,b/?sentinel_pass=x", "no master"),
            ("redis-sentinel:///m", "sentinel 1"),
            ("redis-sentinel://a,,b/m", "sentinel 2"),
            ("redis-sentinel://a,b:99999/m", "sentinel 2"),
            ("redis-sentinel://u:s3cret/m", "sentinel 1"),
            ("redis-sentinel://a/m/x", "database"),
            ("redis-sentinel://a/m/0/x", "more than"),
            ("redis-sentinel://a/m?sentinel_user=u", "sentinel_pass"),
            ("redis-sentinel://u:s3cret@a/m?protocol=9", "protocol"),
        ] {
            let error = Place::parse(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
    }
}
