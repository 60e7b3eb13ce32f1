//! The command and the processes that it has started: a separate process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, waitpid};

use super::launch::{launcher, not_started};
use super::processes::children_of;
use crate::exit_code::Exit;
use crate::failure::Failure;

/// A change of the command since the last look.
pub(super) enum News {
    /// The command has ended with this exit.
    Ended(Exit),
    /// A signal has stopped the command. `None` if the signal has no name.
    Stopped(Option<Signal>),
}

/// The command's process group; the command is its leader.
///
/// One task sends all signals to the group and reaps its processes. So no signal reaches a stranger
/// that has the number of an ended process.
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    /// Starts the command. Must be called on a thread that stays: the command dies with this
    /// thread.
    pub(super) fn spawn(
        name: &str,
        token: Option<u64>,
        command: &[OsString],
    ) -> Result<Self, Failure> {
        let mut launcher = launcher(command);
        launcher.env("LEASEHOLD_NAME", name);
        match token {
            Some(token) => launcher.env("LEASEHOLD_TOKEN", token.to_string()),
            // The token of an outer leasehold does not belong to this lock.
            None => launcher.env_remove("LEASEHOLD_TOKEN"),
        };
        let child = launcher.process_group(0).spawn().map_err(not_started)?;
        let leader = i32::try_from(child.id())
            .map_err(|_| Failure::new(Exit::Failed, "the command's process id is no number"))?;
        // Drop `child` and wait for the process ourselves, because the standard library does not
        // report when a process is stopped.
        Ok(Self {
            leader: Pid::from_raw(leader),
        })
    }

    /// Returns the number of the group.
    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// Returns news about the command, without waiting.
    pub(super) fn news(&self) -> Result<Option<News>, Failure> {
        let flags = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let leader = rustix::process::Pid::from_raw(self.leader.as_raw());
        let status = loop {
            match waitpid(leader, flags) {
                Ok(None) => return Ok(None),
                Ok(Some((_, status))) => break status,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("can't wait for the command", error.into())),
            }
        };
        // Numbers, not names: real-time signals have no names.
        let ended = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Exit::Command(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
            (None, signal) => signal.map(Exit::Signal),
        };
        let stopped = || {
            let signal = status.stopping_signal()?;
            Some(News::Stopped(Signal::try_from(signal).ok()))
        };
        Ok(ended.map(News::Ended).or_else(stopped))
    }

    /// Sends `signal` to every process of the group.
    pub(super) fn signal(&self, signal: Signal) {
        // Fails when no process is left, or when the command runs as another user. No caller
        // could do anything about either.
        let _ = killpg(self.leader, signal);
    }

    /// Sends TERM to every process of the group.
    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
        // A stopped process gets the TERM only when it continues.
        self.signal(Signal::SIGCONT);
    }

    /// Reaps ended processes other than the command and `helper`. The first process of a container
    /// becomes the parent of every process whose own parent has ended.
    pub(super) fn reap_orphans(&self, helper: u32) {
        let orphans = children_of(Pid::this()).filter(|(id, child)| {
            child.has_ended && *id != self.leader && id.as_raw().unsigned_abs() != helper
        });
        for (orphan, _) in orphans {
            // Fails only when the orphan no longer exists.
            let _ = waitpid(
                rustix::process::Pid::from_raw(orphan.as_raw()),
                WaitOptions::NOHANG,
            );
        }
    }

    /// Returns whether no process of the group is left.
    pub(super) fn is_gone(&self) -> bool {
        killpg(self.leader, None) == Err(Errno::ESRCH)
    }
}

/// Returns whether orphans become children of this process: it is the first process of a container,
/// or has asked for orphans.
pub(super) fn inherits_orphans() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let is_subreaper = matches!(rustix::process::child_subreaper(), Ok(Some(_)));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let is_subreaper = false;
    is_subreaper || Pid::this().as_raw() == 1
}
