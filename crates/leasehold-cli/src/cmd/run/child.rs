//! The command and what it has started: a process group of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::Shown;

/// What has become of the command since the last look.
pub(super) enum News {
    /// It has ended, and this is its exit.
    Ended(Exit),
    /// It has been stopped by this signal.
    Stopped(Signal),
}

/// The command's process group; the command is its leader.
///
/// All that signals it and all that reaps it runs in one task, so that no signal goes
/// to a stranger who has got the number of a process that is no more.
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    /// Starts the command.
    pub(super) fn spawn(name: &str, command: &[OsString]) -> Result<Self, Failure> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| Failure::usage("there is no command to run"))?;
        let child = Command::new(program)
            .args(arguments)
            .env("LEASEHOLD_NAME", name)
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let exit = match error.kind() {
                    io::ErrorKind::NotFound => Exit::NotFound,
                    _ => Exit::NotExecutable,
                };
                let program = program.to_string_lossy();
                Failure::io(format!("can't run `{}`", Shown(&program)), error).with_exit(exit)
            })?;
        let leader = i32::try_from(child.id())
            .map_err(|_| Failure::new(Exit::Failed, "the command's process id is no number"))?;
        // `child` goes: waiting is done here, because the standard library does not
        // tell when a process is stopped.
        Ok(Self {
            leader: Pid::from_raw(leader),
        })
    }

    /// Its number, for the terminal.
    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// What is new, without waiting for it.
    pub(super) fn news(&self) -> Result<Option<News>, Failure> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            return match waitpid(self.leader, Some(flags)) {
                Ok(WaitStatus::Exited(_, code)) => {
                    let code = u8::try_from(code & 0xff).unwrap_or(u8::MAX);
                    Ok(Some(News::Ended(Exit::Command(code))))
                }
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    Ok(Some(News::Ended(Exit::Signal(signal as i32))))
                }
                Ok(WaitStatus::Stopped(_, signal)) => Ok(Some(News::Stopped(signal))),
                Ok(_) => Ok(None),
                Err(Errno::EINTR) => continue,
                // A signal that has no name here, a real-time one, has ended it.
                Err(Errno::EINVAL) => Ok(Some(News::Ended(Exit::Failed))),
                Err(error) => Err(Failure::io("can't wait for the command", error.into())),
            };
        }
    }

    /// Sends `signal` to everybody in the group.
    pub(super) fn signal(&self, signal: Signal) {
        // Fails when nobody is left, or when the command has become another user:
        // there is nobody to tell who could do something about it.
        let _ = killpg(self.leader, signal);
    }

    /// Whether anybody is left.
    pub(super) fn is_gone(&self) -> bool {
        killpg(self.leader, None) == Err(Errno::ESRCH)
    }
}
