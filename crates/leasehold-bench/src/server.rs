//! The figures that a server reports about itself.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_testkit::{RedisServer, Reply};

use crate::{Result, usage};

/// Returns a number from a section of `INFO`.
///
/// # Errors
///
/// Fails if the server does not answer.
pub fn number(server: &RedisServer, section: &str, field: &str) -> Result<u64> {
    let info = info(server, section)?;
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("no number `{field}` in INFO {section}").into())
}

/// Returns how many bytes the server has allocated.
///
/// # Errors
///
/// Fails if the server does not answer.
pub fn memory(server: &RedisServer) -> Result<u64> {
    number(server, "memory", "used_memory")
}

/// Returns how often the server has run `command` so far.
///
/// # Errors
///
/// Fails if the server does not answer.
pub fn calls(server: &RedisServer, command: &str) -> Result<u64> {
    let info = info(server, "commandstats")?;
    let prefix = format!("cmdstat_{command}:calls=");
    // A command that has never run has no line in the report.
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix(&prefix))
        .and_then(|rest| rest.split(',').next()?.parse().ok())
        .unwrap_or(0))
}

/// Returns how often scripts were called so far, with `EVALSHA` or `EVAL`.
///
/// # Errors
///
/// Fails if the server does not answer.
pub fn scripts(server: &RedisServer) -> Result<u64> {
    Ok(calls(server, "evalsha")? + calls(server, "eval")?)
}

/// Returns the server's own histogram of the durations of script calls, as a string.
///
/// # Errors
///
/// Fails if the server does not answer.
pub fn script_times(server: &RedisServer) -> Result<String> {
    let info = info(server, "latencystats")?;
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix("latency_percentiles_usec_evalsha:"))
        .unwrap_or("unknown")
        .replace(',', ", "))
}

/// Returns how many script calls took longer than about 1 ms on the server, and a bound in us that
/// no call exceeded. Both are read from the server's histogram, because the server's log of slow
/// calls would use more and more memory.
///
/// # Errors
///
/// Fails if the server does not answer.
pub fn slow_scripts(server: &RedisServer) -> Result<(i64, i64)> {
    let reply = server.command(&["LATENCY", "HISTOGRAM", "evalsha"])?;
    let buckets = reply
        .as_array()
        .and_then(|commands| commands.get(1)?.as_array()?.get(3)?.as_array())
        .ok_or("no histogram of evalsha")?;
    // The list has pairs of an upper bound and the number of calls up to this bound.
    let numbers: Vec<i64> = buckets.iter().filter_map(Reply::as_int).collect();
    let within = |most: i64| {
        let counts = numbers.chunks_exact(2).filter(|pair| pair[0] <= most);
        counts.map(|pair| pair[1]).max().unwrap_or(0)
    };
    let bound = numbers.iter().rev().nth(1).copied().unwrap_or(0);
    Ok((within(i64::MAX) - within(1024), bound))
}

/// Returns the server's name and version.
pub(crate) fn version(server: &RedisServer) -> Result<String> {
    let info = info(server, "server")?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::to_owned)
    };
    // Valkey reports its own version and the version of the Redis that it replaces.
    Ok(match field("valkey_version:") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", field("redis_version:").unwrap_or_default()),
    })
}

/// The work that servers have done up to a point in time.
#[derive(Debug)]
pub(crate) struct Work {
    calls: BTreeMap<String, u64>,
    cpu: Duration,
}

impl Work {
    /// Returns the total work of all these servers up to now.
    pub(crate) fn so_far(servers: &[RedisServer]) -> Result<Self> {
        let (mut calls, mut cpu) = (BTreeMap::new(), Duration::ZERO);
        for server in servers {
            for line in info(server, "commandstats")?.lines() {
                let of = line.strip_prefix("cmdstat_");
                let Some((name, rest)) = of.and_then(|line| line.split_once(":calls=")) else {
                    continue;
                };
                // The `INFO` commands that read these figures are not counted.
                if name != "info" {
                    let count: u64 = rest.split(',').next().unwrap_or_default().parse()?;
                    *calls.entry(name.to_owned()).or_default() += count;
                }
            }
            cpu += usage::cpu(server.pid())?;
        }
        Ok(Self { calls, cpu })
    }

    /// Returns how many commands have run since `then`, including commands in scripts.
    pub(crate) fn commands_since(&self, then: &Self) -> u64 {
        self.calls.values().sum::<u64>() - then.calls.values().sum::<u64>()
    }

    /// Returns how many scripts were called since `then`.
    pub(crate) fn scripts_since(&self, then: &Self) -> u64 {
        let scripts = |work: &Self| {
            let calls = |name| work.calls.get(name).copied().unwrap_or(0);
            calls("evalsha") + calls("eval")
        };
        scripts(self) - scripts(then)
    }

    /// Returns the user and system time that all threads of the servers have used since `then`.
    pub(crate) fn cpu_since(&self, then: &Self) -> Duration {
        self.cpu.saturating_sub(then.cpu)
    }
}

fn info(server: &RedisServer, section: &str) -> Result<String> {
    let reply = server.command(&["INFO", section])?;
    Ok(reply.as_text().unwrap_or_default().replace('\r', ""))
}
