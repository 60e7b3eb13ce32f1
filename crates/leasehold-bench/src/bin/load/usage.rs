//! CPU time and memory of a process, from `/proc`.

use std::fs;
use std::process;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// User and system time of all threads of a process so far, also of those that ended.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field, the program's name, may have blanks; the others have none.
    let (_, rest) = stat.rsplit_once(')').ok_or("no name in /proc/PID/stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |field: usize| {
        fields
            .get(field)
            .and_then(|field| field.parse::<u64>().ok())
    };
    let [Some(user), Some(system)] = [ticks(11), ticks(12)] else {
        return Err("no times in /proc/PID/stat".into());
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_micros(
        (user + system) * 1_000_000 / per_second,
    ))
}

/// As [`cpu`], of this process.
pub(crate) fn cpu_here() -> Result<Duration> {
    cpu(process::id())
}

/// User and system time of the calling thread so far.
pub(crate) fn cpu_of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Bytes of this process that are in memory.
pub(crate) fn rss() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map(|kib| kib * 1024)
        .ok_or_else(|| "no VmRSS in /proc/self/status".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_work_adds_to_cpu_time() {
        let before = cpu_of_this_thread();
        while cpu_of_this_thread() - before < Duration::from_millis(50) {
            std::hint::black_box(0);
        }
        assert!(cpu_here().expect("readable") >= Duration::from_millis(30));
        assert!(cpu(process::id()).expect("readable") < Duration::from_secs(3600));
    }

    #[test]
    fn memory_grows_with_what_is_written_to_it() {
        const SIZE: usize = 64 << 20;
        let before = rss().expect("readable");
        let block = std::hint::black_box(vec![1_u8; SIZE]);
        let after = rss().expect("readable");
        assert!(after - before > SIZE as u64 / 2, "{before} to {after}");
        drop(block);
    }
}
