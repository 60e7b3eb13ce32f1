//! The examination of one server. Each method checks one aspect.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::inspect::ServerFacts;

use super::super::promise;
use super::{Finding, Place, Severity, info};

/// The oldest tested version of the server.
const OLDEST_TESTED: (u64, u64) = (6, 2);
/// The maximum lag of an up-to-date replica, in bytes.
const MOST_LAG_BYTES: i64 = 1024 * 1024;
/// The maximum number of seconds since the last report of an up-to-date replica. A replica reports
/// its position every second.
const MOST_LAG_S: i64 = 3;
/// The fraction of the memory limit that may be in use.
const MEMORY_IN_USE: f64 = 0.9;
/// The maximum offset between two clocks that a time server adjusts.
const MOST_OFFSET: Duration = Duration::from_secs(1);
/// The maximum move of a clock between two readings, in addition to the network delay. A clock that
/// moves further was set.
const MOST_MOVE: Duration = Duration::from_millis(250);
/// The time for which a connection must be allowed to be silent: by default, renewals are ten
/// seconds apart.
const SILENT_FOR_S: u64 = 10;

/// The examination of one server.
pub(super) struct Look<'a> {
    pub(super) place: Place,
    pub(super) server: &'a ServerFacts,
}

impl Look<'_> {
    /// Returns all findings about this server.
    pub(super) fn findings(&self) -> impl Iterator<Item = Finding> {
        [
            self.eviction(),
            self.memory(),
            self.persistence(),
            self.replicas(),
            self.lag(),
            self.min_replicas(),
            self.acknowledgements(),
            self.offset(),
            self.steps(),
            self.sharded(),
            self.silence(),
            self.version(),
            self.messages(),
            self.refused(),
        ]
        .into_iter()
        .flatten()
    }

    fn info(&self, field: &str) -> &str {
        info(self.server, field)
    }

    fn number(&self, field: &str) -> Option<i64> {
        self.info(field).parse().ok()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.server.settings.get(name).map(String::as_str)
    }

    fn finding(
        &self,
        severity: Severity,
        about: &'static str,
        (says, advice): (String, &str),
        breaks: impl Into<Option<&'static str>>,
    ) -> Option<Finding> {
        Some(Finding {
            severity,
            about,
            addresses: vec![self.server.address.clone()],
            says,
            advice: advice.into(),
            breaks: breaks.into(),
        })
    }

    fn eviction(&self) -> Option<Finding> {
        let limit = self.setting("maxmemory").unwrap_or(self.info("maxmemory"));
        let policy = (self.setting("maxmemory-policy")).unwrap_or(self.info("maxmemory_policy"));
        if matches!(limit, "" | "0") || matches!(policy, "" | "noeviction") {
            return None;
        }
        let says = format!(
            "maxmemory-policy is {policy}: when the memory is full, the server removes locks, and another client can acquire them while the holder works"
        );
        let advice = "CONFIG SET maxmemory-policy noeviction, or use a separate server for locks";
        self.finding(
            Severity::Unsafe,
            "eviction",
            (says, advice),
            promise::EXCLUSION,
        )
    }

    fn memory(&self) -> Option<Finding> {
        let (used, limit) = (self.number("used_memory")?, self.number("maxmemory")?);
        #[expect(clippy::cast_precision_loss, reason = "a fraction needs no more")]
        let part = used as f64 / limit as f64;
        if limit <= 0 || part < MEMORY_IN_USE {
            return None;
        }
        let says = format!(
            "{:.0} % of maxmemory is in use: when the memory is full, no new lock is granted",
            part * 100.0
        );
        let advice = "raise maxmemory, or find out what uses the memory (MEMORY STATS)";
        self.finding(Severity::Warning, "memory", (says, advice), promise::MEMORY)
    }

    fn persistence(&self) -> Option<Finding> {
        let appends = match self.setting("appendonly") {
            Some(set) => set == "yes",
            None => self.info("aof_enabled") == "1",
        };
        if self.server.settings.is_empty() && self.info("aof_enabled").is_empty() {
            return None;
        }
        if !appends {
            let says = "writes do not go to disk as they happen (appendonly no): after a restart every lock is free, and its holder keeps working until its next renewal";
            let advice = "CONFIG SET appendonly yes, and set it in the configuration file; or let holders use fencing tokens";
            return self.finding(
                Severity::Warning,
                "persistence",
                (says.into(), advice),
                promise::EXCLUSION,
            );
        }
        let (severity, loses) = match self.setting("appendfsync")? {
            "everysec" => (Severity::Note, "the locks of the last second or two"),
            "no" => (
                Severity::Warning,
                "the locks since the system last wrote to disk",
            ),
            _ => return None,
        };
        let says = format!(
            "appendfsync is {}: if the machine loses power, the server loses {loses}",
            self.setting("appendfsync").unwrap_or_default()
        );
        let advice = "CONFIG SET appendfsync always, if each lock is worth a write to disk; or use fencing tokens";
        self.finding(severity, "fsync", (says, advice), promise::EXCLUSION)
    }

    fn replicas(&self) -> Option<Finding> {
        let replicas = self.number("connected_slaves")?;
        let role = self.info("role");
        if role == "slave" {
            let says = "it is a replica, and refuses every lock".to_owned();
            let advice = "write the master's address into the URL, or use redis-sentinel://";
            return self.finding(Severity::Unsafe, "role", (says, advice), promise::FAILOVER);
        }
        match (self.place, replicas) {
            (Place::Single, 1..) => {
                let says = format!(
                    "it has {replicas} replicas, and this URL names one server: if sentinels promote a replica, this server can still grant locks for up to ten seconds"
                );
                let advice = "use redis-sentinel:// if sentinels monitor this server";
                self.finding(
                    Severity::Warning,
                    "topology",
                    (says, advice),
                    promise::FAILOVER,
                )
            }
            (Place::Sentinels, 0) => {
                let says = "no replica is connected: if the master fails, no server takes over";
                let advice = "start a replica, or find out why it is not connected";
                let breaks = promise::SENTINELS;
                self.finding(Severity::Warning, "replicas", (says.into(), advice), breaks)
            }
            (Place::Cluster, 0) => {
                let says = "no replica is connected: if this master fails, its locks are lost, and no server takes over";
                let advice = "add a replica to this master";
                let breaks = promise::CLUSTER;
                self.finding(Severity::Warning, "replicas", (says.into(), advice), breaks)
            }
            _ => None,
        }
    }

    fn lag(&self) -> Option<Finding> {
        let at = self.number("master_repl_offset")?;
        let replicas = (self.server.info.iter())
            .filter(|(field, value)| field.starts_with("slave") && value.contains("offset="));
        let behind = replicas.filter(|(_, value)| {
            let words: BTreeMap<_, _> = (value.split(','))
                .filter_map(|word| word.split_once('='))
                .collect();
            let number = |word: &str| words.get(word)?.parse::<i64>().ok();
            words.get("state") != Some(&"online")
                || number("offset").is_none_or(|offset| at - offset > MOST_LAG_BYTES)
                || number("lag").is_none_or(|lag| lag > MOST_LAG_S)
        });
        let behind = behind.count();
        if behind == 0 {
            return None;
        }
        let says = format!(
            "{behind} of its replicas are not up to date: after a failover to one of them, locks that clients hold are free"
        );
        let advice = "find out why the replica is behind: run INFO replication on the master and on the replica";
        let breaks = match self.place {
            Place::Single => promise::FAILOVER,
            Place::Sentinels => promise::SENTINELS,
            Place::Cluster => promise::CLUSTER,
        };
        self.finding(Severity::Warning, "lag", (says, advice), breaks)
    }

    fn min_replicas(&self) -> Option<Finding> {
        let wanted = self.setting("min-replicas-to-write")?.parse::<i64>().ok()?;
        let there = self.number("connected_slaves")?;
        if wanted == 0 {
            return None;
        }
        let (severity, now) = match there < wanted {
            true => (Severity::Warning, "the server refuses every write now"),
            false => (
                Severity::Note,
                "if too few are connected, the server refuses even releases and renewals",
            ),
        };
        let says =
            format!("min-replicas-to-write is {wanted}, {there} replicas are connected; {now}");
        let advice = "keep more replicas than this setting requires: it limits how long a master that is cut off grants locks, but holds are lost while replicas are missing";
        let breaks = (severity > Severity::Note).then_some(promise::KEPT);
        self.finding(severity, "min-replicas", (says, advice), breaks)
    }

    fn acknowledgements(&self) -> Option<Finding> {
        let missing = |name: &&str| self.server.commands.get(*name) == Some(&false);
        let missing: Vec<_> = ["WAIT", "WAITAOF"].into_iter().filter(missing).collect();
        if missing.is_empty() || self.place == Place::Single {
            return None;
        }
        let says = format!(
            "it does not support {}: it can't say whether a write is on the disks of its replicas",
            missing.join(" and ")
        );
        let advice = "use Redis 7.2 or later, or Valkey, if your locks need this";
        self.finding(Severity::Note, "acknowledgements", (says, advice), None)
    }

    fn offset(&self) -> Option<Finding> {
        let offset = self.server.clock_offset_ms?;
        let half = self.server.round_trip.unwrap_or_default() / 2;
        let offset_by = Duration::from_millis(offset.unsigned_abs());
        if offset_by <= MOST_OFFSET + half {
            return None;
        }
        let side = if offset > 0 { "ahead of" } else { "behind" };
        let says = format!(
            "its clock is {:.1} s {side} this machine's: after a failover to a server whose clock is right, fencing tokens can decrease",
            offset_by.as_secs_f64()
        );
        let advice = "let a time server (NTP) adjust both clocks gradually";
        self.finding(Severity::Warning, "clock", (says, advice), promise::TOKENS)
    }

    fn steps(&self) -> Option<Finding> {
        let moved = Duration::from_millis(self.server.clock_moved_ms?.unsigned_abs());
        let allowed = MOST_MOVE + self.server.round_trip.unwrap_or_default();
        if moved <= allowed {
            return None;
        }
        let says = format!(
            "its clock jumped by {:.1} s during the check: a jump forward ends leases while their holders still work",
            moved.as_secs_f64()
        );
        let advice = "let the time server slew the clock instead of setting it (chrony: makestep only at the start)";
        self.finding(
            Severity::Unsafe,
            "clock-step",
            (says, advice),
            promise::DRIFT,
        )
    }

    fn sharded(&self) -> Option<Finding> {
        if self.place != Place::Cluster || self.server.commands.get("SPUBLISH") != Some(&false) {
            return None;
        }
        let says = "it does not support sharded messages: each release is published to all nodes, and clients that listen only to sharded channels (Redisson 4, `Peers::RustOnly`) poll".to_owned();
        let advice = "use Redis 7.0 or Valkey, or `Peers::Redisson3`";
        self.finding(Severity::Note, "sharded", (says, advice), None)
    }

    fn silence(&self) -> Option<Finding> {
        let limit = self.setting("timeout")?.parse::<u64>().ok()?;
        if limit == 0 || limit > SILENT_FOR_S {
            return None;
        }
        let says = format!(
            "timeout is {limit} s: the server closes a connection that is silent for this time, and a renewal that is sent at that moment gets no answer"
        );
        let advice = "CONFIG SET timeout 0, or set more than 10 seconds";
        self.finding(Severity::Warning, "timeout", (says, advice), promise::KEPT)
    }

    fn version(&self) -> Option<Finding> {
        let said = self.info("redis_version");
        let mut parts = said.split('.').map(str::parse::<u64>);
        let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
        if (major, minor) >= OLDEST_TESTED {
            return None;
        }
        let says = format!("its version, {said}, is older than the oldest tested version");
        let advice = "upgrade it to Redis 6.2 or later, or Valkey";
        self.finding(
            Severity::Warning,
            "version",
            (says, advice),
            promise::SERVERS,
        )
    }

    fn messages(&self) -> Option<Finding> {
        let said = self.server.refused.get("SUBSCRIBE")?;
        let says = format!("waiters can't subscribe to messages, and poll once a second: {said}");
        let advice = "give the user access to the channels: ACL SETUSER NAME &redisson_*";
        self.finding(
            Severity::Warning,
            "channels",
            (says, advice),
            promise::WAKE_UPS,
        )
    }

    /// Returns a note about facts that could not be examined.
    fn refused(&self) -> Option<Finding> {
        let refused = (self.server.refused.iter()).filter(|(what, _)| *what != "SUBSCRIBE");
        let mut what: Vec<_> = refused.map(|(what, _)| what.as_str()).collect();
        what.sort_unstable();
        let said = self.server.refused.get(*what.first()?)?;
        let says = format!(
            "doctor could not read {}: the server denies this to your user ({said})",
            what.join(", ")
        );
        let advice = "run `leasehold doctor` as a user with +info +config|get +time";
        self.finding(Severity::Note, "not-looked-at", (says, advice), None)
    }
}
