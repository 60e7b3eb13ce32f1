//! What the server says of itself.

use leasehold_testkit::{RedisServer, Reply};

use crate::Result;

/// A number of a section of `INFO`.
pub(crate) fn number(server: &RedisServer, section: &str, field: &str) -> Result<u64> {
    let info = info(server, section)?;
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("no number `{field}` in INFO {section}").into())
}

/// Bytes the server has allocated.
pub(crate) fn memory(server: &RedisServer) -> Result<u64> {
    number(server, "memory", "used_memory")
}

/// How often the server has run `command` so far.
pub(crate) fn calls(server: &RedisServer, command: &str) -> Result<u64> {
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
pub(crate) fn scripts(server: &RedisServer) -> Result<u64> {
    Ok(calls(server, "evalsha")? + calls(server, "eval")?)
}

/// The server's own distribution of what a script call takes it, as text.
pub(crate) fn script_times(server: &RedisServer) -> Result<String> {
    let info = info(server, "latencystats")?;
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix("latency_percentiles_usec_evalsha:"))
        .unwrap_or("unknown")
        .replace(',', ", "))
}

/// How many script calls took the server longer than about 1 ms, and a bound in us that
/// none exceeded. From its histogram: its log of slow calls would be memory that grows.
pub(crate) fn slow_scripts(server: &RedisServer) -> Result<(i64, i64)> {
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

fn info(server: &RedisServer, section: &str) -> Result<String> {
    let reply = server.command(&["INFO", section])?;
    Ok(reply.as_text().unwrap_or_default().replace('\r', ""))
}
