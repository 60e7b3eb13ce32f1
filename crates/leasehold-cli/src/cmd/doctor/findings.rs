//! The dangers for locks, found in the facts that servers report about themselves.

mod look;

use leasehold::inspect::ServerFacts;

use self::look::Look;
use super::promise;
use crate::output::Shown;

/// A danger for locks, or a fact that could not be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The subject in one word, for programs.
    pub(super) about: &'static str,
    /// The servers that the finding is about.
    pub(super) addresses: Vec<String>,
    pub(super) says: String,
    pub(super) advice: String,
    /// The sentence of `docs/guarantees.md` that does not hold because of the finding, or `None` if
    /// all sentences hold.
    pub(super) breaks: Option<&'static str>,
}

/// The severity of a finding. The worst severity is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// A fact that is good to know. All guarantees hold.
    Note,
    /// A fault of one server, or a long wait, can do more harm than the guarantees say.
    Warning,
    /// Two clients can hold one lock at the same time, even if nothing fails.
    Unsafe,
}

impl Severity {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Unsafe => "unsafe",
        }
    }
}

/// The kind of deployment that the URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Single,
    Sentinels,
    Cluster,
}

impl Place {
    pub(super) fn of(address: &str, servers: &[ServerFacts]) -> Self {
        let is_cluster = |server: &ServerFacts| info(server, "redis_mode") == "cluster";
        if address.contains("-sentinel://") {
            Self::Sentinels
        } else if address.contains("-cluster://") || servers.iter().any(is_cluster) {
            Self::Cluster
        } else {
            Self::Single
        }
    }

    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Single => "a single server",
            Self::Sentinels => "a master behind sentinels",
            Self::Cluster => "a master of a cluster",
        }
    }

    /// Returns the guarantee of this kind of deployment.
    pub(super) fn promise(self) -> &'static str {
        match self {
            Self::Single => {
                "one holder at a time, unless the server loses data or its clock is set ahead"
            }
            Self::Sentinels => {
                "one holder at a time, unless a failover loses a grant that no replica had; its holder learns of the loss when it reaches the new master"
            }
            Self::Cluster => {
                "one holder at a time, unless a failover loses a grant that no replica had; its holder learns of the loss at its next renewal"
            }
        }
    }
}

/// Returns all findings about these servers.
pub(super) fn of(place: Place, servers: &[ServerFacts]) -> Vec<Finding> {
    let mut all = Vec::new();
    for server in servers {
        all.extend(Look { place, server }.findings());
    }
    together(all)
}

/// Merges equal findings of several servers into one with all addresses.
fn together(findings: Vec<Finding>) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for finding in findings {
        let same = |one: &&mut Finding| {
            (one.severity, one.about, &one.says) == (finding.severity, finding.about, &finding.says)
        };
        match all.iter_mut().find(same) {
            Some(one) => one.addresses.extend(finding.addresses),
            None => all.push(finding),
        }
    }
    all
}

/// Returns a finding for the servers that have fewer connected replicas than must confirm a lock.
pub(super) fn too_few_replicas(wanted: u8, servers: &[ServerFacts]) -> Vec<Finding> {
    let connected = |server| info(server, "connected_slaves").parse::<u64>().ok();
    let mut all = Vec::new();
    for server in servers {
        let Some(there) = connected(server).filter(|there| *there < u64::from(wanted)) else {
            continue;
        };
        all.push(Finding {
            severity: Severity::Warning,
            about: "too-few-replicas",
            addresses: vec![server.address.clone()],
            says: format!(
                "{there} replicas are connected, and {wanted} must confirm a lock: no client can acquire one now"
            ),
            advice: "find out why replicas are missing, or require fewer".into(),
            breaks: Some(promise::CONFIRMED),
        });
    }
    together(all)
}

/// Returns the finding that this user can't use locks of these kinds.
pub(super) fn denied(kinds: &str, address: &str, said: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        about: "acl",
        addresses: vec![address.into()],
        says: format!("your user can't use {kinds}: {said}"),
        advice: "give the user the rule that this finding names (ACL SETUSER), with the names of your locks in place of leasehold-doctor, or set `--name` to a name that the user is allowed to use".into(),
        breaks: Some(promise::ACCESS),
    }
}

/// Returns the finding that the server does not grant a lock now, or loses the lock at once.
pub(super) fn fails(address: &str, said: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        about: "writes",
        addresses: vec![address.into()],
        says: format!("no lock can be acquired and released: {said}"),
        advice: "fix what the server reports".into(),
        breaks: Some(promise::KEPT),
    }
}

/// Formats addresses in one line.
pub(super) fn list_of(addresses: &[String]) -> String {
    let shown: Vec<_> = addresses
        .iter()
        .map(|address| Shown(address).to_string())
        .collect();
    shown.join(", ")
}

/// Returns the name and version of a server.
pub(super) fn version(server: &ServerFacts) -> String {
    match (
        info(server, "valkey_version"),
        info(server, "redis_version"),
    ) {
        ("", "") => "a server that does not report its version".into(),
        ("", redis) => format!("Redis {redis}"),
        (valkey, _) => format!("Valkey {valkey}"),
    }
}

fn info<'a>(server: &'a ServerFacts, field: &str) -> &'a str {
    server.info.get(field).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn server(change: impl FnOnce(&mut ServerFacts)) -> ServerFacts {
        let mut server = ServerFacts::default();
        server.address = "redis://h:6379".into();
        change(&mut server);
        server
    }

    fn found(server: ServerFacts) -> Vec<(&'static str, Severity)> {
        let findings = of(Place::Single, &[server]);
        findings
            .iter()
            .map(|one| (one.about, one.severity))
            .collect()
    }

    #[test]
    fn server_that_says_nothing_is_not_judged() {
        assert_eq!(found(server(|_| ())), []);
    }

    #[test]
    fn clock_that_was_set_is_unsafe() {
        let set = |moved, trip| {
            found(server(|facts| {
                facts.clock_moved_ms = Some(moved);
                facts.round_trip = Some(Duration::from_millis(trip));
            }))
        };
        assert_eq!(set(-3_600_000, 1), [("clock-step", Severity::Unsafe)]);
        assert_eq!(set(200, 1), []);
        // A slow network must not look like a clock that was set.
        assert_eq!(set(600, 500), []);
    }

    #[test]
    fn commands_that_are_missing_are_a_note_where_they_count() {
        let without = || {
            server(|facts| {
                for name in ["WAIT", "WAITAOF", "SPUBLISH"] {
                    facts.commands.insert(name.into(), false);
                }
            })
        };
        let found_in = |place| {
            let findings = of(place, &[without()]);
            let all = findings.iter().map(|one| (one.about, one.severity));
            all.collect::<Vec<_>>()
        };
        let acknowledgements = ("acknowledgements", Severity::Note);
        assert_eq!(found_in(Place::Single), []);
        assert_eq!(found_in(Place::Sentinels), [acknowledgements]);
        let sharded = ("sharded", Severity::Note);
        assert_eq!(found_in(Place::Cluster), [acknowledgements, sharded]);
    }

    #[test]
    fn nodes_of_a_cluster_with_the_same_finding_are_told_together() {
        let node = |port: u16| {
            server(|facts| {
                facts.address = format!("redis://h:{port}");
                facts.commands.insert("WAITAOF".into(), false);
                let replicas = if port == 3 { "0" } else { "1" };
                let replicas = ("connected_slaves".to_owned(), replicas.to_owned());
                facts.info.extend([replicas]);
            })
        };
        let findings = of(Place::Cluster, &[node(1), node(2), node(3)]);
        let told = findings.iter().map(|one| (one.about, one.addresses.len()));
        let told: Vec<_> = told.collect();
        assert_eq!(told, [("acknowledgements", 3), ("replicas", 1)]);
        // All guarantees hold in spite of a note.
        assert_eq!(findings[0].breaks, None);
        assert!(findings[1].breaks.is_some());
    }

    #[test]
    fn old_version_is_a_warning() {
        let of = |version: &str| {
            found(server(|facts| {
                drop(facts.info.insert("redis_version".into(), version.into()));
            }))
        };
        assert_eq!(of("6.0.16"), [("version", Severity::Warning)]);
        assert_eq!(of("6.2.1"), []);
        assert_eq!(of("10.0.0"), []);
    }
}
