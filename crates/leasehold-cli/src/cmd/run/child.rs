//! The command and the processes that it has started: a process group of its own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, waitid, waitpid};

use super::copy::Streams;
use super::launch::{LAUNCHER, launcher, not_started};
use super::processes::{Process, ended_children, is_alive};
use crate::cmd::acquire::VARIABLES;
use crate::exit_code::Exit;
use crate::failure::Failure;

/// A change of the command since the last check.
pub(super) enum News {
    /// The command has ended, with this exit.
    Ended(Exit),
    /// A signal has stopped the command. `None` for a signal without a name.
    Stopped(Option<Signal>),
}

/// The command's process group. The command is its leader.
///
/// The leader is reaped last, with [`Group::reap`]. Until then, no other process can get its
/// number, so a signal to the group never reaches other processes.
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    /// Starts a process that executes the command when [`Group::begin`] is called. If
    /// [`since_boot`](super::deadman::since_boot) has reached `deadline_ms` by then, the process
    /// does not execute the command. The process writes to `streams`, or to our own output. The
    /// calling thread must outlive the command, because the command dies with this thread.
    pub(super) fn spawn(
        name: &str,
        variables: &[(&str, String)],
        deadline_ms: Option<u64>,
        command: &[OsString],
        streams: Option<Streams>,
    ) -> Result<Self, Failure> {
        let mut launcher = launcher(name, deadline_ms, command);
        if let Some(streams) = streams {
            launcher.stdout(streams.stdout).stderr(streams.stderr);
        }
        for of_another in VARIABLES {
            launcher.env_remove(of_another);
        }
        launcher.envs(variables.iter().map(|(name, value)| (name, value)));
        let child = launcher.process_group(0).spawn().map_err(not_started)?;
        let leader = i32::try_from(child.id())
            .map_err(|_| Failure::new(Exit::Failed, "the command's process id is not a number"))?;
        // `child` is dropped here. `Group` waits for the process itself, because the standard
        // library does not report that a process has stopped.
        let group = Self {
            leader: Pid::from_raw(leader),
        };
        group.until_ready()?;
        Ok(group)
    }

    /// Waits until the process has stopped itself, or has ended.
    fn until_ready(&self) -> Result<(), Failure> {
        if self
            .look(WaitIdOptions::empty())?
            .is_some_and(|status| status.stopped())
        {
            // Otherwise this stop would be reported as a stop of the command.
            self.take_stop();
        }
        Ok(())
    }

    /// Lets the command begin.
    pub(super) fn begin(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Returns the number of the group.
    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// Returns the news, if there is any, and does not wait. After the command has ended, each call
    /// reports the end again.
    pub(super) fn news(&self) -> Result<Option<News>, Failure> {
        let Some(status) = self.look(WaitIdOptions::NOHANG)? else {
            return Ok(None);
        };
        if status.stopped() {
            self.take_stop();
            // The signal is a number, because real-time signals have no name.
            let signal = status.stopping_signal();
            return Ok(signal.map(|signal| News::Stopped(Signal::try_from(signal).ok())));
        }
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Exit::Command(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
            (None, signal) => signal.map(Exit::Signal),
        };
        Ok(exit.map(News::Ended))
    }

    /// Checks whether the leader has ended or stopped. A later check finds the same event again.
    fn look(&self, how: WaitIdOptions) -> Result<Option<WaitIdStatus>, Failure> {
        let either = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        loop {
            match self.status(either | how) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("can't wait for the command", error.into())),
                Ok(status) => return Ok(status),
            }
        }
    }

    /// Consumes a stop that was found, so that it is not found again.
    fn take_stop(&self) {
        // This fails if the process has ended since then, and the next check finds that.
        let _ = self.status(WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
    }

    fn status(&self, options: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
        let leader = rustix::process::Pid::from_raw(self.leader.as_raw());
        leader.map_or(Ok(None), |leader| waitid(WaitId::Pid(leader), options))
    }

    /// Returns whether the command ended before its program ran. Returns `false` on systems that do
    /// not show this.
    pub(super) fn never_began(&self) -> bool {
        Process::look_at(self.leader)
            .is_some_and(|leader| leader.name.as_bytes() == LAUNCHER.to_bytes())
    }

    /// Sends `signal` to each process of the group.
    pub(super) fn signal(&self, signal: Signal) {
        // This fails if no process is left, or if the command now runs as another user. In both
        // cases, nothing can be done.
        let _ = killpg(self.leader, signal);
    }

    /// Sends TERM to each process of the group.
    pub(super) fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
        // A stopped process gets the signal when it is continued.
        self.signal(Signal::SIGCONT);
    }

    /// Reaps ended processes other than the command and `helper`: the first process of a container
    /// becomes the parent of all processes whose own parents have ended.
    pub(super) fn reap_orphans(&self, helper: u32) {
        let orphans = ended_children()
            .filter(|id| *id != self.leader && id.as_raw().unsigned_abs() != helper);
        for orphan in orphans {
            reap(orphan);
        }
    }

    /// Returns whether all processes of the group have ended.
    pub(super) fn is_gone(&self) -> bool {
        let is_alive = is_alive(self.leader).unwrap_or_else(|| {
            // If the system has no list of processes, an ended leader counts as existing until it
            // is reaped.
            self.reap();
            killpg(self.leader, None) != Err(Errno::ESRCH)
        });
        !is_alive
    }

    /// Reaps the leader if it has ended. After that, another process may get its number.
    pub(super) fn reap(&self) {
        reap(self.leader);
    }
}

fn reap(id: Pid) {
    // This fails only if the process no longer exists.
    let _ = waitpid(
        rustix::process::Pid::from_raw(id.as_raw()),
        WaitOptions::NOHANG,
    );
}

/// Returns whether orphans become children of this process. This is so in the first process of a
/// container, and in a process that has asked the system for its orphans.
pub(super) fn inherits_orphans() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let is_subreaper = matches!(rustix::process::child_subreaper(), Ok(Some(_)));
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let is_subreaper = false;
    is_subreaper || Pid::this().as_raw() == 1
}
