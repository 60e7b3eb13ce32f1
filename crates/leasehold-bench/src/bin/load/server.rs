//! What the server says of itself.

use leasehold_testkit::RedisServer;

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

/// From now on the server notes what takes it longer than 1 ms.
pub(crate) fn note_slow_calls(server: &RedisServer) -> Result<()> {
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"])?;
    server.command(&["CONFIG", "SET", "slowlog-max-len", "1000000"])?;
    server.command(&["SLOWLOG", "RESET"])?;
    Ok(())
}

/// How many script calls took it longer than 1 ms, and the longest in us.
pub(crate) fn slow_scripts(server: &RedisServer) -> Result<(usize, i64)> {
    let log = server.command(&["SLOWLOG", "GET", "-1"])?;
    let times: Vec<i64> = log
        .as_array()
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| {
            let [_, _, micros, command, ..] = entry.as_array()? else {
                return None;
            };
            let name = command.as_array()?.first()?.as_text()?;
            (name.starts_with("EVAL")).then(|| micros.as_int())?
        })
        .collect();
    Ok((times.len(), times.into_iter().max().unwrap_or(0)))
}

fn info(server: &RedisServer, section: &str) -> Result<String> {
    let reply = server.command(&["INFO", section])?;
    Ok(reply.as_text().unwrap_or_default().replace('\r', ""))
}
