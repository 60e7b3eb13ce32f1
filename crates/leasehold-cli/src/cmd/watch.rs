//! `leasehold watch`: prints a line for each change of a name, and runs a command for it.

use std::ffi::OsString;
use std::future::pending;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use leasehold::watch::Change;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{Instant, sleep_until};

use super::changes::Told;
use super::{name_to_look_at, until_signal};
use crate::cli::Watch;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, tell};
use crate::server::Server;

pub(crate) async fn watch(args: Watch, server: Server) -> Result<Exit, Failure> {
    until_signal(follow(args, server)).await
}

/// Waits until this time, or forever if there is none.
async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => pending().await,
    }
}

async fn follow(args: Watch, server: Server) -> Result<Exit, Failure> {
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
                if !report(&args, &name, &told).await? {
                    return Ok(Exit::Success);
                }
            }
        }
        end = end.or_else(|| args.limit.map(|limit| Instant::now() + limit));
    }
}

/// Prints a change, and runs the command of `--exec` for it. Returns whether the reader still reads.
async fn report(args: &Watch, name: &str, told: &Told) -> Result<bool, Failure> {
    let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let json = told.json(&at, name);
    let reads = match args.json {
        false => output::more(format!("{at}  {}", told.text)).await?,
        true => output::more(&json).await?,
    };
    if let Some(command) = args.exec.as_ref().filter(|_| reads) {
        execute(command, name, told, &json).await;
    }
    Ok(reads)
}

/// Runs the command for a change, and waits for its end. Its failure is reported, and does not end
/// the watch.
async fn execute(command: &OsString, name: &str, told: &Told, json: &str) {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null());
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
    match shell.status().await {
        Ok(status) if status.success() => {}
        Ok(status) => tell(format!(
            "the command of --exec failed for the change `{}`: {status}",
            told.word
        )),
        Err(error) => tell(Failure::io("can't start /bin/sh for --exec", error)),
    }
}
