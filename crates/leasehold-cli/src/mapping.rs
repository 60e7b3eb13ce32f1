//! Mappings from an announced address to a reachable one: `HOST:PORT=HOST:PORT`.

use std::fmt;
use std::net::Ipv6Addr;

/// A server that is announced at one address and reached at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    announced: Host,
    reached: Host,
}

type Host = (String, u16);

impl Mapping {
    /// Returns the reachable address of the server announced at `host:port`, if this mapping is for
    /// it.
    pub(crate) fn lead(&self, host: &str, port: u16) -> Option<Host> {
        let is_this = self.announced == (in_one_form(host), port);
        is_this.then(|| self.reached.clone())
    }
}

/// Formats a mapping in the form that [`parse`] accepts.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = |(host, port): &Host| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        write!(f, "{}={}", written(&self.announced), written(&self.reached))
    }
}

/// Parses `HOST:PORT=HOST:PORT`.
pub(crate) fn parse(text: &str) -> Result<Mapping, String> {
    let read = || {
        let (announced, reached) = text.split_once('=')?;
        Some(Mapping {
            announced: host(announced)?,
            reached: host(reached)?,
        })
    };
    read().ok_or_else(|| {
        "write it as HOST:PORT=HOST:PORT, and an IPv6 address in brackets".to_owned()
    })
}

/// Parses several mappings, separated by commas.
pub(crate) fn parse_all(text: &str) -> Result<Vec<Mapping>, String> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(parse).collect()
}

fn host(text: &str) -> Option<Host> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(host) => in_one_form(
            &host
                .strip_suffix(']')?
                .parse::<Ipv6Addr>()
                .ok()?
                .to_string(),
        ),
        None if host.is_empty() || host.contains(':') => return None,
        None => in_one_form(host),
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some((host, port))
}

/// Returns the same text for all spellings of a host.
fn in_one_form(host: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(host) => host.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_read_as_it_is_written() {
        for text in [
            "a.b:1=c:2",
            "[::1]:7000=localhost:7001",
            "a:1=[2001:db8::1]:2",
        ] {
            let mapping = parse(text).expect("it is one");
            assert_eq!(mapping.to_string(), text);
        }
    }

    #[test]
    fn announced_address_leads_to_the_reached_one() {
        let map = parse("Node-1:6379=[0::1]:7001").expect("it is one");
        assert_eq!(map.lead("node-1", 6379), Some(("::1".into(), 7001)));
        assert_eq!(map.lead("node-1", 6380), None);
        assert_eq!(map.lead("node-2", 6379), None);
        let map = parse("[fd00:0::7]:6379=gate.example:1").expect("it is one");
        assert_eq!(map.lead("fd00::7", 6379), Some(("gate.example".into(), 1)));
        let both = parse_all("a:1=b:2, c:3=d:4,").expect("they are two");
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn what_is_no_mapping_is_refused() {
        for text in [
            "",
            "a",
            "a:1",
            "a=b",
            "a:1=b",
            "a:1=:2",
            "a:0=b:2",
            "a:1=b:70000",
            "::1:1=b:2",
            "[::1:1=b:2",
            "[x]:1=b:2",
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains("HOST:PORT=HOST:PORT"), "{refused}");
        }
    }
}
