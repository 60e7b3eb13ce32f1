//! CPU time of a process, from `/proc`.

use std::time::Duration;

/// User and system time of a process so far.
pub(crate) fn used(pid: u32) -> std::io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    // The main thread's only; the server works in that one.
    let ns = stat
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok());
    Ok(Duration::from_nanos(ns.unwrap_or(0)))
}

/// User and system time of all threads of this process so far.
pub(crate) fn used_here() -> std::io::Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ns = stat
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse().ok());
        total += Duration::from_nanos(ns.unwrap_or(0));
    }
    Ok(total)
}
