//! What the server says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_testkit::{RedisServer, Reply};

use crate::{Result, usage};

/// A number of a section of `INFO`.
///
/// # Errors
///
/// When the server does not answer.
pub fn number(server: &RedisServer, section: &str, field: &str) -> Result<u64> {
    let info = info(server, section)?;
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("no number `{field}` in INFO {section}").into())
}

/// Bytes the server has allocated.
///
/// # Errors
///
/// When the server does not answer.
pub fn memory(server: &RedisServer) -> Result<u64> {
    number(server, "memory", "used_memory")
}

/// How often the server has run `command` so far.
///
/// # Errors
///
/// When the server does not answer.
pub fn calls(server: &RedisServer, command: &str) -> Result<u64> {
    let info = info(server, "commandstats")?;
    let prefix = format!("cmdstat_{command}:calls=");
    // A command that never ran has no line.
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix(&prefix))
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or(0))
}

/// Calls of our script so far, by whatever name.
///
/// # Errors
///
/// When the server does not answer.
pub fn scripts(server: &RedisServer) -> Result<u64> {
    Ok(calls(server, "evalsha")? + calls(server, "eval")?)
}

/// The server's own distribution of what a script call takes it, as text.
///
/// # Errors
///
/// When the server does not answer.
pub fn script_times(server: &RedisServer) -> Result<String> {
    let info = info(server, "latencystats")?;
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix("latency_percentiles_usec_evalsha:"))
        .unwrap_or("unknown")
        .replace(',', ", "))
}

/// How many script calls took the server longer than about 1 ms, and a bound in us that
/// none exceeded. From its histogram: its log of slow calls would be memory that grows.
///
/// # Errors
///
/// When the server does not answer.
pub fn slow_scripts(server: &RedisServer) -> Result<(i64, i64)> {
    let reply = server.command(&["LATENCY", "HISTOGRAM", "evalsha"])?;
    let buckets = reply
        .as_array()
        .and_then(|commands| commands.get(1)?.as_array()?.get(3)?.as_array())
        .ok_or("no histogram of evalsha")?;
    // Pairs of an upper bound and how many calls were within it.
    let numbers: Vec<i64> = buckets.iter().filter_map(Reply::as_int).collect();
    let within = |most: i64| {
        let counts = numbers.chunks_exact(2).filter(|pair| pair[0] <= most);
        counts.map(|pair| pair[1]).max().unwrap_or(0)
    };
    let bound = numbers.iter().rev().nth(1).copied().unwrap_or(0);
    Ok((within(i64::MAX) - within(1024), bound))
}

/// Its name and version.
pub(crate) fn version(server: &RedisServer) -> Result<String> {
    let info = info(server, "server")?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::to_owned)
    };
    // Valkey says its own version beside that of the Redis that it stands for.
    Ok(match field("valkey_version:") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", field("redis_version:").unwrap_or_default()),
    })
}

/// What servers have done so far.
#[derive(Debug)]
pub(crate) struct Work {
    calls: BTreeMap<String, u64>,
    cpu: Duration,
}

impl Work {
    /// Of all of these together.
    pub(crate) fn so_far(servers: &[RedisServer]) -> Result<Self> {
        let (mut calls, mut cpu) = (BTreeMap::new(), Duration::ZERO);
        for server in servers {
            for line in info(server, "commandstats")?.lines() {
                let of = line.strip_prefix("cmdstat_");
                let Some((name, rest)) = of.and_then(|line| line.split_once(":calls=")) else {
                    continue;
                };
                // The questions for these figures are no part of them.
                if name != "info" {
                    let count: u64 = rest.split(',').next().unwrap_or_default().parse()?;
                    *calls.entry(name.to_owned()).or_default() += count;
                }
            }
            cpu += usage::cpu(server.pid())?;
        }
        Ok(Self { calls, cpu })
    }

    /// Commands since then, those that scripts run included.
    pub(crate) fn commands_since(&self, then: &Self) -> u64 {
        self.calls.values().sum::<u64>() - then.calls.values().sum::<u64>()
    }

    /// Script calls since then.
    pub(crate) fn scripts_since(&self, then: &Self) -> u64 {
        let scripts = |work: &Self| {
            let calls = |name| work.calls.get(name).copied().unwrap_or(0);
            calls("evalsha") + calls("eval")
        };
        scripts(self) - scripts(then)
    }

    /// User and system time of all of the servers' threads since then.
    pub(crate) fn cpu_since(&self, then: &Self) -> Duration {
        self.cpu.saturating_sub(then.cpu)
    }
}

fn info(server: &RedisServer, section: &str) -> Result<String> {
    let reply = server.command(&["INFO", section])?;
    Ok(reply.as_text().unwrap_or_default().replace('\r', ""))
}
