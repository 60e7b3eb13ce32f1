//! `leasehold watch`: prints a line for each change of a name.

use std::future::pending;
use std::time::SystemTime;

use leasehold::inspect::NameInfo;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::changes::{Change, Seen};
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
    let mut before: Option<NameInfo> = None;
    let mut is_away = false;
    // `--for` counts from the end of the first query, whose result is always shown.
    let mut end = None;
    let mut ticks = interval(args.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = async {
            ticks.tick().await;
            client.inspect(&name).await
        };
        let seen = tokio::select! {
            seen = look => seen,
            () = until(end) => return Ok(Exit::Success),
        };
        let now = match seen {
            Ok(now) => now,
            // An outage is reported once, and the watch continues.
            Err(error) if before.is_some() && error.is_transient() => {
                if !std::mem::replace(&mut is_away, true) {
                    tell(Failure::from(error));
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if std::mem::take(&mut is_away) {
            tell("the server answers again");
        }
        let before = before.replace(now.clone());
        for change in Seen::of(&now).since(before.as_ref().map(Seen::of).as_ref()) {
            if !output::more(line(args.json, &name, &change)).await? {
                return Ok(Exit::Success);
            }
        }
        end = end.or_else(|| args.limit.map(|limit| Instant::now() + limit));
    }
}

fn line(as_json: bool, name: &str, change: &Change) -> String {
    let at = humantime::format_rfc3339_millis(SystemTime::now());
    match as_json {
        false => format!("{at}  {}", change.text()),
        true => {
            let mut told = json!({ "at": at.to_string(), "name": name, "change": change.word() });
            for (key, value) in change.values() {
                told[key] = value;
            }
            told.to_string()
        }
    }
}
