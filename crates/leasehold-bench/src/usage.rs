//! CPU time and memory of a process.

use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::Result;

/// Returns the user and system time of all threads of a process so far, including threads that have
/// ended.
///
/// # Errors
///
/// Fails if there is no such process.
pub fn cpu(pid: u32) -> Result<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid)?);
    Ok(ClockId::pid_cpu_clock_id(pid)?.now()?.into())
}

/// Like [`cpu`], for this process.
///
/// # Errors
///
/// Fails if the system has no such clock.
pub fn cpu_here() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Returns the user and system time of the calling thread so far.
#[must_use]
pub fn cpu_of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Returns how many bytes of memory this process uses (its resident set).
///
/// # Errors
///
/// Fails if the system has no `/proc`.
pub fn rss() -> Result<u64> {
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
        assert!(cpu_here().expect("readable") >= Duration::from_millis(50));
        assert!(cpu(std::process::id()).expect("readable") < Duration::from_secs(3600));
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
