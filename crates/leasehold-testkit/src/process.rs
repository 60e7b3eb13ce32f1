//! Signals for child processes.

use std::{fs, io, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::wait::eventually;

/// Stops a process. Returns when none of its threads runs any longer.
///
/// # Errors
///
/// Fails if the signal cannot be sent.
pub fn pause(pid: u32) -> io::Result<()> {
    signal(pid, Signal::SIGSTOP)?;
    // The signal only starts the stop: a thread on another core may still answer a request.
    eventually("all threads stopped", Duration::from_secs(5), || {
        all_stopped(pid)
    });
    Ok(())
}

/// Lets a paused process continue.
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

/// Returns whether the process is stopped.
pub(crate) fn is_paused(pid: u32) -> bool {
    is_stopped(Path::new(&format!("/proc/{pid}")))
}

fn all_stopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        // There is no procfs or no such process, so there is nothing to wait for.
        return true;
    };
    threads.flatten().all(|thread| is_stopped(&thread.path()))
}

fn is_stopped(thread: &Path) -> bool {
    // The process name in parentheses may hold any character. The state follows the last
    // parenthesis.
    fs::read_to_string(thread.join("stat")).map_or(true, |stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z']))
    })
}
