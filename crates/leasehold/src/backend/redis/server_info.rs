//! The server's replies to `INFO` and `CLIENT INFO`: for example whether the server is new enough,
//! and whether it removes locks when its memory is full.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::about::Uptime;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::observe::log;
use crate::text::Shown;

/// The oldest version that works. Older servers refuse a script that reads the clock and then
/// writes.
const OLDEST: (u64, u64) = (5, 0);

/// Refuses a server whose `INFO` says that it is too old. A server that does not say so is
/// accepted: the user may lack the permission to query it.
pub(crate) fn check(info: &str, address: &Arc<str>) -> Result<(), Failure> {
    if let Some(policy) = evicts(info) {
        log(|| {
            tracing::warn!(
                %address, policy = %Shown(policy),
                "this server removes keys when its memory is full, and locks are among them: \
                 a holder learns of the loss, but until then it may overlap with the next holder; \
                 set maxmemory-policy noeviction"
            )
        });
    }
    // Valkey has this field, too: the version of Redis that it is compatible with.
    let said = field(info, "redis_version:");
    match said.and_then(|said| Some((said, parse(said)?))) {
        Some((said, version)) if version < OLDEST => Err(Failure {
            outcome: Outcome::DidNotRun,
            cause: Cause::TooOld {
                found: Shown(said).to_string(),
                needed: format!("{}.{}", OLDEST.0, OLDEST.1),
            },
            address: Arc::clone(address),
            source: None,
        }),
        _ => Ok(()),
    }
}

/// Whether a server says that it has an append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOnlyFile {
    Yes,
    No,
    /// The server does not say.
    Unknown,
}

/// Returns whether the server says that it has an append-only file.
pub(crate) fn append_only_file(info: &str) -> AppendOnlyFile {
    match field(info, "aof_enabled:") {
        Some("1") => AppendOnlyFile::Yes,
        Some("0") => AppendOnlyFile::No,
        _ => AppendOnlyFile::Unknown,
    }
}

/// Returns our own address from the reply to `CLIENT INFO`.
pub(crate) fn client_address(ours: &str) -> Option<&str> {
    let address = ours
        .split(' ')
        .find_map(|word| word.strip_prefix("addr="))?;
    // 100 bytes are enough for an address and a port. There is a limit because other programs show
    // the address on a terminal.
    (address.len() <= 100 && address.chars().all(|letter| letter.is_ascii_graphic()))
        .then_some(address)
}

/// Returns the name that the server may use for the connection of a client with this label. The
/// server does not accept spaces in names.
pub(crate) fn connection_name(label: &str) -> Option<String> {
    let letter = |letter: char| match letter.is_ascii_graphic() {
        true => letter,
        false => '_',
    };
    let name: String = label.chars().map(letter).collect();
    (!name.is_empty()).then(|| format!("leasehold:{name}"))
}

/// Refuses a node of a cluster if the URL names a single server, and the other way round. A server
/// that does not report its mode is accepted.
pub(crate) fn check_mode(
    info: &str,
    wants_cluster: bool,
    address: &Arc<str>,
) -> Result<(), Failure> {
    // Valkey has another name for this field.
    let mode = field(info, "redis_mode:").or_else(|| field(info, "server_mode:"));
    let Some(mode) = mode else {
        return Ok(());
    };
    let what = match (mode == "cluster", wants_cluster) {
        _ if mode == "sentinel" => {
            "it is a sentinel: use redis-sentinel://HOST:PORT,HOST:PORT/MASTER"
        }
        (true, false) => "it is a node of a cluster: use redis-cluster://",
        (false, true) => "it is not a node of a cluster: use redis://",
        _ => return Ok(()),
    };
    Err(Failure::new(
        Outcome::DidNotRun,
        Cause::Other(what.into()),
        Arc::clone(address),
    ))
}

/// Refuses a replica that sentinels name as the master. A server that does not report its role is
/// accepted.
pub(crate) fn check_role(info: &str, address: &Arc<str>) -> Result<(), Failure> {
    match field(info, "role:") {
        None | Some("master") => Ok(()),
        Some(role) => Err(Failure::new(
            Outcome::DidNotRun,
            Cause::NotNow(format!(
                "the sentinels name it as the master, but it says that it is a {}",
                Shown(role)
            )),
            Arc::clone(address),
        )),
    }
}

/// Returns how long the server has been up. The query took `took`.
pub(crate) fn uptime(info: &str, took: Duration) -> Option<Uptime> {
    let seconds: u64 = field(info, "uptime_in_seconds:")?.parse().ok()?;
    // The server reports whole seconds, up to one too many or too few. With an uptime that is too
    // long, a server that has just lost its locks could vote in a `RedLock`.
    Some(Uptime {
        least: Duration::from_secs(seconds.saturating_sub(1)),
        most: Duration::from_secs(seconds.saturating_add(1)).saturating_add(took),
    })
}

/// Returns the id that the server drew at random when it started.
pub(crate) fn run_id(info: &str) -> Option<&str> {
    field(info, "run_id:").filter(|id| !id.is_empty())
}

/// Returns the policy of a server that would remove a lock to free memory. Each policy but
/// `noeviction` does so, because every lock has an expiry.
fn evicts(info: &str) -> Option<&str> {
    let limited = field(info, "maxmemory:").is_some_and(|bytes| bytes != "0");
    field(info, "maxmemory_policy:").filter(|policy| limited && *policy != "noeviction")
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

fn parse(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outdated_server_version_is_refused() {
        let address = Arc::from("redis://h");
        for (info, good) in [
            ("# Server\r\nredis_version:4.0.14\r\n", false),
            ("redis_version:2.8.19", false),
            ("redis_version:5.0.0\r\n", true),
            // Compared as text, this version would be older than 5.
            ("redis_version:10.2.1\r\n", true),
            ("redis_version:7.2.4\r\nserver_name:valkey\r\n", true),
            ("redis_version:unknown\r\n", true),
            ("", true),
        ] {
            assert_eq!(check(info, &address).is_ok(), good, "{info}");
        }
    }

    #[test]
    fn url_has_to_fit_the_kind_of_server() {
        let address = Arc::from("redis://h");
        let fits = |mode: &str, wants| {
            let info = format!("redis_version:7.0.0\r\n{mode}\r\n");
            check_mode(&info, wants, &address).is_ok()
        };
        assert!(fits("redis_mode:cluster", true) && fits("redis_mode:standalone", false));
        assert!(!fits("redis_mode:cluster", false) && !fits("redis_mode:standalone", true));
        assert!(fits("server_mode:cluster", true) && !fits("server_mode:standalone", true));
        assert!(fits("", true) && fits("", false), "it may not say");
        assert!(!fits("redis_mode:sentinel", true) && !fits("redis_mode:sentinel", false));
    }

    #[test]
    fn told_uptime_is_a_bracket_around_the_true_one() {
        let took = Duration::from_millis(30);
        for true_ms in (0..5000).step_by(50) {
            let truth = Duration::from_millis(true_ms);
            // The server rounds its start time and the current time down to whole seconds before it
            // subtracts them.
            for said in [true_ms / 1000, true_ms / 1000 + 1] {
                let told = uptime(&format!("uptime_in_seconds:{said}\r\n"), took).unwrap();
                assert!(told.least <= truth, "{said} s after {truth:?}: {told:?}");
                assert!(truth <= told.most, "{said} s after {truth:?}: {told:?}");
            }
        }
    }

    #[test]
    fn replica_is_no_master() {
        let address = Arc::from("redis://h");
        let is_master = |info: &str| check_role(info, &address).is_ok();
        assert!(is_master("role:master\r\n") && is_master(""));
        let refused = check_role("role:slave\r\n", &address).unwrap_err();
        assert!(refused.may_heal(), "it may be promoted");
    }

    #[test]
    fn eviction_needs_memory_limit_and_policy() {
        let info = |limit: &str, policy: &str| {
            format!("# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n")
        };
        assert_eq!(evicts(&info("100", "volatile-ttl")), Some("volatile-ttl"));
        assert_eq!(evicts(&info("0", "allkeys-lru")), None);
        assert_eq!(evicts(&info("100", "noeviction")), None);
        assert_eq!(evicts(""), None);
    }
}
