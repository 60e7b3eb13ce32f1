//! The topologies that a client's URL can name: one server, the nodes of a cluster, or a master
//! behind sentinels.

use super::parts::{Login, Query, UrlKind, UrlParts, decode};
use super::{Address, database, db_suffix, host_and_port, is_resp3, misuse, tcp_target};
use crate::error::Result;
use crate::text::Shown;

/// The servers that a URL names.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    Server(Address),
    /// Nodes of one cluster. Each of them knows the addresses of the others.
    Cluster(Vec<Address>),
    Master(SentinelTopology),
}

/// The name of a master, and the sentinels that know its address.
#[derive(Clone, Debug)]
pub(crate) struct SentinelTopology {
    pub(crate) name: String,
    /// The sentinels. Each is listed only once, because they are counted.
    pub(crate) sentinels: Vec<Address>,
    /// The settings for connecting to the master at the address that the sentinels report. Its own
    /// host is a placeholder.
    pub(crate) master: Address,
}

impl Topology {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let parts = &UrlParts::of(url)?;
        match parts.kind {
            UrlKind::Server => Address::tcp(parts, parts.host()?).map(Self::Server),
            UrlKind::Socket => Address::unix(parts).map(Self::Server),
            UrlKind::Cluster => nodes(parts).map(Self::Cluster),
            UrlKind::Master => master(parts).map(Self::Master),
        }
    }
}

/// Reads the hosts of `USER:PASSWORD@HOST:PORT,HOST:PORT/?QUERY`, each as one address.
fn nodes(parts: &UrlParts<'_>) -> Result<Vec<Address>> {
    let hosts = parts.hosts()?.into_iter();
    let addresses: Vec<_> = hosts
        .map(|host| Address::tcp(parts, host))
        .collect::<Result<_>>()?;
    if addresses.iter().any(|address| address.db != 0) {
        return Err(misuse(
            "a cluster has no database but 0; leave the number out of its URL",
        ));
    }
    Ok(addresses)
}

/// Reads the parts of `USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB?QUERY`. User and password are
/// for the master.
fn master(parts: &UrlParts<'_>) -> Result<SentinelTopology> {
    let query = parts.query(&["db", "protocol", "sentinel_user", "sentinel_pass"])?;
    let (name, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let (name, db) = (name_of(name)?, database(db, &query)?);
    let login = sentinel_login(&query)?;
    let mut sentinels: Vec<Address> = Vec::new();
    for host in parts.hosts()? {
        let place = host_and_port(&host);
        let address = Address {
            login: login.clone(),
            ..Address::new(parts, tcp_target(host, parts.tls)?, 0, false, &place)
        };
        // A sentinel that the URL names twice must not count as two sentinels.
        if (sentinels.iter()).all(|known| known.identity() != address.identity()) {
            sentinels.push(address);
        }
    }
    let scheme = parts.single_server_scheme();
    let prefix = format!("{scheme}://");
    let hosts = sentinels.iter().map(Address::identity);
    let mut hosts: Vec<_> = hosts.map(|host| host.replacen(&prefix, "", 1)).collect();
    let url_of = |hosts: &[String]| {
        format!(
            "{scheme}-sentinel://{}/{name}{}",
            hosts.join(","),
            db_suffix(db)
        )
    };
    let shown = Shown(&url_of(&hosts)).to_string().into();
    hosts.sort_unstable();
    // The client never connects to this host: the sentinels report the master's address.
    let nowhere = tcp_target(("localhost".into(), 6379), parts.tls)?;
    let master = Address {
        shown,
        identity: url_of(&hosts),
        ..Address::new(parts, nowhere, db, is_resp3(&query)?, "")
    };
    Ok(SentinelTopology {
        name,
        sentinels,
        master,
    })
}

fn name_of(text: &str) -> Result<String> {
    let name = decode(text)?;
    match name.is_empty() {
        true => Err(misuse(format!(
            "the URL names sentinels but no master; write it as {}",
            UrlKind::Master.form()
        ))),
        false => Ok(name),
    }
}

/// Returns the login for the sentinels.
fn sentinel_login(query: &Query) -> Result<Login> {
    let of = |name| query.value(name).map(str::to_owned);
    let login = Login {
        user: of("sentinel_user"),
        password: of("sentinel_pass"),
    };
    if login.user.is_some() && login.password.is_none() {
        return Err(misuse(
            "the URL has a `sentinel_user` without a `sentinel_pass`; add `sentinel_pass`",
        ));
    }
    Ok(login)
}

#[cfg(test)]
mod tests {
    use redis::ProtocolVersion;

    use super::*;

    #[test]
    fn each_host_of_a_cluster_is_an_address() {
        let url = "redis-cluster://app:p%40ss@a:7000,[::1],C:7002/?protocol=resp3";
        let Topology::Cluster(nodes) = Topology::parse(url).unwrap() else {
            panic!("a cluster");
        };
        let shown: Vec<_> = nodes.iter().map(|node| node.shown().to_string()).collect();
        assert_eq!(
            shown,
            ["redis://a:7000", "redis://[::1]:6379", "redis://c:7002"]
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
            assert!(Topology::parse(url).is_err(), "{url}");
        }
        assert!(Topology::parse("redis-cluster://a,b/0").is_ok());
        let error = Topology::parse("redis-cluster://u:s3cret@a,b/3").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
    }

    fn master_of(url: &str) -> SentinelTopology {
        match Topology::parse(url).unwrap() {
            Topology::Master(master) => master,
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
        let shown = "redis-sentinel://a:26379,[::1]:26379,c:7002/my db/3";
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
            ("redis-sentinel://a#m", "behind sentinels"),
            ("redis-sentinel://a/m/x", "database"),
            ("redis-sentinel://a/m/0/x", "database"),
            ("redis-sentinel://a/m/1?db=2", "two databases"),
            ("redis-sentinel://a/m?sentinel_user=u", "sentinel_pass"),
            ("redis-sentinel://u:s3cret@a/m?protocol=9", "protocol"),
        ] {
            let error = Topology::parse(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
    }
}
