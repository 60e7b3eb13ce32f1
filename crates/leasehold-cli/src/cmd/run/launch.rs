//! The last step before the command: a process that dies with us, and that becomes the command.
//!
//! Only a process itself can ask to die with its parent, and the standard library runs no code in a
//! new process without `unsafe`. So we start our own program again, and that process becomes the
//! command.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, id};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::getppid;

use crate::cli::RunLaunch;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::Shown;

/// Returns our own program with a hidden sub-command.
pub(super) fn ourselves(sub_command: &str) -> Command {
    // The running program itself, because its file may have been replaced during a long wait.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let program = std::path::PathBuf::from("/proc/self/exe");
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let program = std::env::current_exe().unwrap_or_else(|_| "leasehold".into());
    let mut command = Command::new(program);
    command.arg0("leasehold").arg(sub_command);
    command
}

/// Returns the failure of a helper process that did not start.
pub(super) fn not_started(error: io::Error) -> Failure {
    let what = "can't start the helper process";
    if cfg!(target_os = "linux") && !Path::new("/proc/self/exe").exists() {
        let what =
            format!("{what}: leasehold finds its own program in /proc, which is not mounted");
        return Failure::new(
            Exit::Failed,
            format!("{what}; mount it: mount -t proc proc /proc"),
        );
    }
    Failure::io(what, error)
}

/// Sets what `ps` shows of this process, which was started as `/proc/self/exe`.
pub(super) fn take_name(name: &CStr) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // Never fails for a short name, and nothing depends on it.
    let _ = rustix::thread::set_name(name);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = name;
}

/// Returns the launcher, which becomes the command in the same process.
pub(super) fn launcher(command: &[OsString]) -> Command {
    let mut launcher = ourselves("run-launch");
    launcher
        .args(["--parent", &id().to_string(), "--"])
        .args(command);
    launcher
}

/// Runs `leasehold run-launch`. Returns only if the command can't be run.
pub(crate) fn main(args: &RunLaunch) -> Result<Exit, Failure> {
    take_name(c"run-launch");
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("there is no command to run"))?;
    die_with_parent().map_err(|error| Failure::io("can't bind the command to leasehold", error))?;
    // Checked after binding: the system does not report a parent that ended before.
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(args.parent) {
        return Err(Failure::new(
            Exit::Failed,
            "leasehold has ended before its command began; run it again",
        ));
    }
    let error = Command::new(program).args(arguments).exec();
    // The attempt has switched SIGPIPE on, and the reader of our message may have ended.
    let _ = SigSet::from(Signal::SIGPIPE).thread_block();
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    let program = program.to_string_lossy();
    Err(Failure::io(format!("can't run `{}`", Shown(&program)), error).with_exit(exit))
}

/// Asks the system to send KILL to this process when its parent ends. The dead-man's switch does
/// the same to the rest of the group. No process would be left to follow up on a gentler signal.
/// The setting survives `exec`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with_parent() -> io::Result<()> {
    let kill = rustix::process::Signal::KILL;
    Ok(rustix::process::set_parent_process_death_signal(Some(
        kill,
    ))?)
}

/// Does nothing: on other systems, only the dead-man's switch kills the command.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with_parent() -> io::Result<()> {
    Ok(())
}
