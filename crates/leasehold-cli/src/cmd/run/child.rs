//! The command and what it has started: a process group of its own.

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

/// What has become of the command since the last look.
pub(super) enum News {
    /// It has ended, and this is its exit.
    Ended(Exit),
    /// It has been stopped by a signal: this one, if it has a name.
    Stopped(Option<Signal>),
}

/// The command's process group; the command is its leader.
///
/// All that signals it here and all that reaps it runs in one task, so that no signal
/// goes to a stranger who has got the number of a process that is no more.
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    /// Starts the command. On a thread that stays: the command dies with it.
    pub(super) fn spawn(
        name: &str,
        token: Option<u64>,
        command: &[OsString],
    ) -> Result<Self, Failure> {
        let mut launcher = launcher(command);
        launcher.env("LEASEHOLD_NAME", name);
        match token {
            Some(token) => launcher.env("LEASEHOLD_TOKEN", token.to_string()),
            // A token of a leasehold around this one is none of this lock.
            None => launcher.env_remove("LEASEHOLD_TOKEN"),
        };
        let child = launcher.process_group(0).spawn().map_err(not_started)?;
        let leader = i32::try_from(child.id())
            .map_err(|_| Failure::new(Exit::Failed, "the command's process id is no number"))?;
        // `child` goes: waiting is done here, because the standard library does not
        // tell when a process is stopped.
        Ok(Self {
            leader: Pid::from_raw(leader),
        })
    }

    /// Its number.
    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// What is new, without waiting for it.
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
        // Numbers, not names: real-time signals have none.
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

    /// Sends `signal` to everybody in the group.
    pub(super) fn signal(&self, signal: Signal) {
        // Fails when nobody is left, or when the command has become another user:
        // there is nobody to tell who could do something about it.
        let _ = killpg(self.leader, signal);
    }

    /// Sends TERM to everybody in the group.
    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
        // One that is stopped would not hear of it.
        self.signal(Signal::SIGCONT);
    }

    /// Reaps what has ended and is neither the command nor `helper`: the first process of a container
    /// becomes the parent of all whose own parents have ended.
    pub(super) fn reap_orphans(&self, helper: u32) {
        let orphans = children_of(Pid::this()).filter(|(id, child)| {
            child.has_ended && *id != self.leader && id.as_raw().unsigned_abs() != helper
        });
        for (orphan, _) in orphans {
            // Fails only when it is not there any more.
            let _ = waitpid(
                rustix::process::Pid::from_raw(orphan.as_raw()),
                WaitOptions::NOHANG,
            );
        }
    }

    /// Whether anybody is left.
    pub(super) fn is_gone(&self) -> bool {
        killpg(self.leader, None) == Err(Errno::ESRCH)
    }
}

/// Whether orphans become children of this process: it is the first one of a container, or has
/// asked for them.
pub(super) fn inherits_orphans() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let is_subreaper = matches!(rustix::process::child_subreaper(), Ok(Some(_)));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let is_subreaper = false;
    is_subreaper || Pid::this().as_raw() == 1
}
