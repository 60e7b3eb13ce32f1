//! Signals for child processes.

use std::{fs, io, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::wait::eventually;

/// Suspends a process. Returns when all its threads are suspended.
///
/// # Errors
///
/// Fails if the signal cannot be sent.
pub fn pause(pid: u32) -> io::Result<()> {
    signal(pid, Signal::SIGSTOP)?;
    // The signal does not take effect at once: a thread on another core may still answer a request.
    eventually("all threads stopped", Duration::from_secs(5), || {
        all_stopped(pid)
    });
    Ok(())
}

/// Resumes a suspended process.
///
/// # Errors
///
/// Fails if the signal cannot be sent.
pub fn resume(pid: u32) -> io::Result<()> {
    signal(pid, Signal::SIGCONT)
}

fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    kill(Pid::from_raw(pid), signal).map_err(io::Error::from)
}

/// Returns whether the process is suspended.
pub(crate) fn is_paused(pid: u32) -> bool {
    is_stopped(Path::new(&format!("/proc/{pid}")))
}

fn all_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        // If there is no procfs or no such process, there is nothing to wait for.
        return true;
    };
    threads.flatten().all(|thread| is_stopped(&thread.path()))
}

fn is_stopped(thread: &Path) -> bool {
    // The process name in parentheses may contain any character. The state follows the last
    // parenthesis.
    fs::read_to_string(thread.join("stat")).map_or(true, |stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z']))
    })
}
