//! `leasehold watch`: prints a line for each change of a name, and runs a command for it.

use std::ffi::OsString;
use std::future::pending;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use leasehold::watch::Change;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::changes::Told;
use super::{name_to_look_at, until_signal};
use crate::cli::Watch;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, tell};
use crate::server::Server;
use crate::signals::Signals;

/// The command of `--exec`, while it runs. It outlives the future that has started it.
type Running = Mutex<Option<Child>>;

pub(crate) async fn watch(args: Watch, server: Server) -> Result<Exit, Failure> {
    let running = Running::default();
    let exit = until_signal(follow(args, server, &running)).await?;
    if let (Exit::Signal(signal), Some(child)) = (exit, running.into_inner()) {
        end(child, signal).await?;
    }
    Ok(exit)
}

/// Passes the signal on to a command of `--exec` that still runs, and waits for its end. Another
/// signal kills the command.
async fn end(mut child: Child, signal: i32) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let tell_group = |signal| {
        if let Some(id) = id {
            // This fails only if the command has ended.
            let _ = killpg(Pid::from_raw(id), signal);
        }
    };
    tell_group(Signal::try_from(signal).unwrap_or(Signal::SIGTERM));
    let waited = tokio::select! {
        biased;
        ended = child.wait() => ended,
        _ = signals.next() => {
            tell_group(Signal::SIGKILL);
            child.wait().await
        }
    };
    waited
        .map(drop)
        .map_err(|error| Failure::io("can't wait for the command of --exec", error))
}

/// Waits until this time, or forever if there is none.
async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => pending().await,
    }
}

async fn follow(args: Watch, server: Server, running: &Running) -> Result<Exit, Failure> {
    let name = name_to_look_at(args.name.clone())?;
    let client = server.connect(None).await?;
    // The library accepts no shorter interval.
    let every = args.every.max(Duration::from_millis(1));
    let watch = client.watch(&name).poll_interval(every);
    let mut watch = watch.with_clients();
    // The time of `--for` begins with the first reply, so the facts in this reply are always shown.
    let mut end = None;
    loop {
        let change = tokio::select! {
            // Check the limit first, because a busy name always has a change.
            biased;
            () = until(end) => return Ok(Exit::Success),
            change = watch.next() => change,
        };
        let Some(change) = change.transpose()? else {
            return Ok(Exit::Success);
        };
        match &change {
            // An outage is reported once, and the watch continues.
            Change::Away(error) if watch.state().is_some() => tell(Failure::from(error.clone())),
            Change::Away(error) => return Err(error.clone().into()),
            Change::Back => tell("the server answers again"),
            change => {
                let Some(told) = Told::of(change) else {
                    continue;
                };
                if !report(&args, &name, &told, running).await? {
                    return Ok(Exit::Success);
                }
            }
        }
        end = end.or_else(|| args.limit.map(|limit| Instant::now() + limit));
    }
}

/// Prints a change, and runs the command of `--exec` for it. Returns whether the reader still reads.
async fn report(args: &Watch, name: &str, told: &Told, running: &Running) -> Result<bool, Failure> {
    let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let json = told.json(&at, name);
    let reads = match args.json {
        false => output::more(format!("{at}  {}", told.text)).await?,
        true => output::more(&json).await?,
    };
    if let Some(command) = args.exec.as_ref().filter(|_| reads) {
        let shell = shell(command, name, told, &json);
        match execute(shell, running).await {
            Ok(status) if status.success() => {}
            Ok(status) => tell(format!(
                "the command of --exec failed for the change `{}`: {status}",
                told.word
            )),
            Err(error) => tell(Failure::io("can't start /bin/sh for --exec", error)),
        }
    }
    Ok(reads)
}

/// Returns the command for a change.
fn shell(command: &OsString, name: &str, told: &Told, json: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
    // Start a new group, so that a signal reaches each process of the command, and reaches it only
    // once.
    shell.process_group(0);
    shell.env("LEASEHOLD_NAME", name);
    shell.env("LEASEHOLD_CHANGE", told.word);
    shell.env("LEASEHOLD_CHANGE_JSON", json);
    // Only some changes have these values. A variable from this process's own environment would
    // mislead the command, so it is removed.
    for (variable, key) in [
        ("LEASEHOLD_ID", "id"),
        ("LEASEHOLD_KIND", "kind"),
        ("LEASEHOLD_COUNT", "count"),
        ("LEASEHOLD_LISTENING", "listening"),
    ] {
        let value = told.values.iter().find(|(one, _)| *one == key);
        match value {
            Some((_, Value::String(text))) => shell.env(variable, text),
            Some((_, value)) => shell.env(variable, value.to_string()),
            None => shell.env_remove(variable),
        };
    }
    shell
}

/// Runs the command, and waits for its end. Its failure does not end the watch.
async fn execute(mut shell: Command, running: &Running) -> io::Result<ExitStatus> {
    let mut running = running.lock().await;
    let status = running.insert(shell.spawn()?).wait().await;
    *running = None;
    status
}
