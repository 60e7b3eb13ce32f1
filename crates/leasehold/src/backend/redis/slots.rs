//! The slots of a cluster: the slot of a key, the names whose keys all have one slot, and the map
//! from slots to nodes as a server reports it.

use redis::Value;

use crate::backend::NameKind;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// The number of slots, the same in every cluster.
pub(crate) const SLOTS: u16 = 16384;

/// Returns the slot of a key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

/// Returns the part of a key that determines its slot: its hash tag, or the entire key if it has
/// none.
pub(crate) fn tag_of(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        // An empty tag does not count.
        (length > 0).then(|| &rest[..length])
    });
    tag.unwrap_or(key)
}

/// Computes CRC-16/XMODEM, as the servers do.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ CRC[usize::from((crc >> 8) ^ u16::from(*byte))]
    })
}

static CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = match crc & 0x8000 {
                0 => crc << 1,
                _ => (crc << 1) ^ 0x1021,
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns why the keys of this name are not all in one slot; `None` if they are. When Redisson
/// derives the names of its keys, its rule for braces differs from a server's rule for hash tags.
pub(crate) fn why_split(name: &str) -> Option<&'static str> {
    let Some(open) = name.find('{') else {
        return name.contains('}').then_some("it has a `}` and no `{`");
    };
    if name[..open].contains('}') {
        return Some("it has a `}` before its first `{`");
    }
    match name[open + 1..].find('}') {
        None => Some("it has a `{` and no `}` after that"),
        Some(0) => Some("it has `{}`, which is not a hash tag"),
        Some(_) => None,
    }
}

/// Refuses a name whose keys would be on several nodes of a cluster.
pub(crate) fn check_name(key: &Key, kind: NameKind) -> Result<()> {
    let name = key.as_str();
    let why = match kind {
        NameKind::Latch => name
            .contains(['{', '}'])
            .then_some("it has a brace, and the channel of a latch adds braces of its own"),
        NameKind::Other => why_split(name),
    };
    let Some(why) = why else {
        return Ok(());
    };
    let message = format!(
        "the name `{key}` can't be used in a cluster: {why}, so Redisson and the server would put its keys on two nodes; use another name"
    );
    Err(Error::new(ErrorKind::Misuse, message).with_key(key))
}

/// A range of slots that one node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// The node's host; `None` for the node that sent the reply, whatever its name.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

/// Reads the reply to `CLUSTER SLOTS`; `None` if it makes no sense.
pub(crate) fn read_map(reply: &Value) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    ranges.iter().map(read_range).collect()
}

fn read_range(range: &Value) -> Option<Range> {
    let Value::Array(range) = range else {
        return None;
    };
    // The replicas follow the master.
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = &range[..]
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else {
        return None;
    };
    let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
    let host = match host {
        Value::Nil => None,
        Value::BulkString(host) => Some(String::from_utf8(host.clone()).ok()?),
        Value::SimpleString(host) => Some(host.clone()),
        _ => return None,
    };
    let (first, last) = (slot(*first)?, slot(*last)?);
    let port = u16::try_from(*port).ok().filter(|port| *port > 0)?;
    (first <= last).then(|| Range {
        first,
        last,
        host: known_host(host),
        port,
    })
}

/// Returns the host, if the reply has one. A node leaves out a host that it does not know, its own
/// or another node's.
fn known_host(host: Option<String>) -> Option<String> {
    host.filter(|host| !host.is_empty() && host != "?")
}

/// Reads the destination of `MOVED 3999 HOST:PORT` and `ASK 3999 HOST:PORT`.
pub(crate) fn read_redirect(node: &str) -> Option<(Option<String>, u16)> {
    // Split from the right: the host may be an IPv6 address.
    let (host, port) = node.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some((known_host(Some(host.to_owned())), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        // The values are from the specification, and from `CLUSTER KEYSLOT`.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [
            ("foo", 12182),
            ("{foo}", 12182),
            ("a{foo}b{c}", 12182),
            ("", 0),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        for key in ["{}x", "{x", "x}"] {
            assert_eq!(
                slot_of(key.as_bytes()),
                crc16(key.as_bytes()) % SLOTS,
                "{key}"
            );
        }
    }

    #[test]
    fn names_whose_keys_would_be_split_are_found() {
        for name in ["x", "a{b}", "{x}", "a{b}c{d}", "a{b}}", "{{x}", "a{b{c}"] {
            assert_eq!(why_split(name), None, "{name}");
        }
        for name in ["}", "a}b", "}{a}", "{", "a{b", "{}", "a{}b{c}", "a}b{c}"] {
            assert!(why_split(name).is_some(), "{name}");
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), text("id")]);
        let replica = Value::Array(vec![text("h"), Value::Int(1), text("other")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node, replica])
    }

    #[test]
    fn map_is_read_as_a_server_tells_it() {
        let reply = Value::Array(vec![
            range(0, 5460, text("10.0.0.1"), 7000),
            range(5461, 16383, text(""), 7001),
        ]);
        let map = read_map(&reply).expect("a map");
        assert_eq!((map[0].first, map[0].last, map[0].port), (0, 5460, 7000));
        assert_eq!(map[0].host.as_deref(), Some("10.0.0.1"));
        assert_eq!(map[1].host, None, "the node that was asked");
        for host in [Value::Nil, text("?")] {
            let map = read_map(&Value::Array(vec![range(1, 1, host, 1)]));
            assert_eq!(map.expect("a map")[0].host, None);
        }
    }

    #[test]
    fn senseless_map_is_none() {
        let one = |range: Value| read_map(&Value::Array(vec![range]));
        assert_eq!(one(range(0, 16384, text("h"), 1)), None, "no such slot");
        assert_eq!(one(range(5, 4, text("h"), 1)), None);
        assert_eq!(one(range(-1, 4, text("h"), 1)), None);
        assert_eq!(one(range(0, 1, text("h"), 0)), None);
        assert_eq!(one(range(0, 1, text("h"), 65536)), None);
        assert_eq!(one(range(0, 1, Value::Int(1), 1)), None);
        assert_eq!(one(Value::Array(vec![])), None);
        assert_eq!(read_map(&Value::Okay), None);
    }

    #[test]
    fn redirects_name_host_and_port() {
        assert_eq!(read_redirect("h:1"), Some((Some("h".into()), 1)));
        assert_eq!(read_redirect("::1:7000"), Some((Some("::1".into()), 7000)));
        assert_eq!(read_redirect(":7000"), Some((None, 7000)));
        for senseless in ["h", "h:", "h:0", "h:99999", ""] {
            assert_eq!(read_redirect(senseless), None, "{senseless}");
        }
    }
}
