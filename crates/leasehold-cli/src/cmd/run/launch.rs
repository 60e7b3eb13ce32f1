//! The last step before the command: a process that dies with `leasehold` and becomes the command.
//!
//! Only a process itself can ask the system to kill it when its parent dies, and the standard
//! library can't run code in a new process without `unsafe`. So `leasehold` starts its own program
//! again, and this new process becomes the command. Before that, it stops itself, and `leasehold`
//! resumes it when the dead-man's switch knows its group.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, id};

use nix::sys::signal::{SigSet, Signal, raise};
use rustix::process::getppid;

use super::deadman::{as_ms, since_boot};
use crate::cli::RunLaunch;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown};

/// The name of the process until it becomes the command.
pub(super) const LAUNCHER: &CStr = c"leasehold:start";

/// Prepares to start this program again with a hidden sub-command, for a command under the lock
/// `name`.
pub(super) fn ourselves(sub_command: &str, name: &str) -> Command {
    // Start the running program itself. Its file may have been replaced during a long wait.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let program = std::path::PathBuf::from("/proc/self/exe");
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let program = std::env::current_exe().unwrap_or_else(|_| "leasehold".into());
    let mut command = Command::new(program);
    command.arg0("leasehold").arg(sub_command);
    if output::is_json() {
        command.arg("--json");
    }
    command.env("LEASEHOLD_NAME", name);
    command
}

/// Returns the failure of a helper process that did not start.
pub(super) fn not_started(error: io::Error) -> Failure {
    let what = "can't start the helper process";
    if cfg!(target_os = "linux") && !Path::new("/proc/self/exe").exists() {
        let what =
            format!("{what}: leasehold looks for its own program in /proc, which is not mounted");
        return Failure::new(
            Exit::Failed,
            format!("{what}; mount it: mount -t proc proc /proc"),
        );
    }
    Failure::io(what, error)
}

/// Makes this helper process write its messages in the format that `leasehold` uses.
pub(super) fn tell_as_parent(json: bool) {
    if json {
        let name = std::env::var("LEASEHOLD_NAME");
        output::tell_json(name.as_deref().ok());
    }
}

/// Sets the name that `ps` shows for this process, which was started as `/proc/self/exe`.
pub(super) fn take_name(name: &CStr) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // This never fails for a short name, and nothing depends on it.
    let _ = rustix::thread::set_name(name);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = name;
}

/// Prepares the process that becomes the command.
pub(super) fn launcher(name: &str, deadline_ms: Option<u64>, command: &[OsString]) -> Command {
    let mut launcher = ourselves("run-launch", name);
    launcher.args(["--parent", &id().to_string()]);
    if let Some(deadline_ms) = deadline_ms {
        launcher.args(["--before", &deadline_ms.to_string()]);
    }
    launcher.arg("--").args(command);
    launcher
}

/// Runs `leasehold run-launch`. Returns only if the command can't be run.
pub(crate) fn main(args: &RunLaunch) -> Result<Exit, Failure> {
    take_name(LAUNCHER);
    tell_as_parent(args.json);
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("there is no command to run"))?;
    die_with_parent().map_err(|error| {
        Failure::io(
            "can't arrange for the command to be killed when leasehold dies",
            error,
        )
    })?;
    // If the parent ended before the request above, this process gets no signal, so check.
    expect_parent(args.parent)?;
    // Stop. `leasehold` resumes this process when the dead-man's switch knows it.
    raise(Signal::SIGSTOP)
        .map_err(|error| Failure::io("can't wait for leasehold", error.into()))?;
    // On systems that can't kill a process when its parent ends, the end of the parent resumes this
    // process.
    expect_parent(args.parent)?;
    if args
        .before
        .is_some_and(|deadline| as_ms(since_boot()) >= deadline)
    {
        return Err(Failure::new(
            Exit::Lost,
            "the lock was lost before the command began; run it again",
        ));
    }
    let error = Command::new(program).args(arguments).exec();
    // The failed `exec` has enabled SIGPIPE again, and the message below may have no reader.
    let _ = SigSet::from(Signal::SIGPIPE).thread_block();
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    let program = program.to_string_lossy();
    Err(Failure::io(format!("can't run `{}`", Shown(&program)), error).with_exit(exit))
}

fn expect_parent(parent: i32) -> Result<(), Failure> {
    if getppid().map(|parent| parent.as_raw_nonzero().get()) == Some(parent) {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failed,
        "leasehold has ended before its command began; run it again",
    ))
}

/// Asks the system to send KILL to this process when the parent ends. A gentler signal would not be
/// enough, because no process would be left to send KILL later. The dead-man's switch sends KILL to
/// the rest of the group. The request to the system survives `exec`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with_parent() -> io::Result<()> {
    let kill = rustix::process::Signal::KILL;
    Ok(rustix::process::set_parent_process_death_signal(Some(
        kill,
    ))?)
}

/// Does nothing: on other systems, only the dead-man's switch ends the command.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with_parent() -> io::Result<()> {
    Ok(())
}
