//! `leasehold latch`: sets a latch, counts it down, or waits for it.

use std::convert::Infallible;
use std::future::pending;

use leasehold::inspect::Found;
use leasehold::{Client, CountDownLatch};

use super::acquire::tidy;
use super::set_limit::is_not_foreign;
use super::{name_of_lock, until_signal};
use crate::cli::{Latch, LatchAction};
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, SILENT_FOR, Shown, is_watched, note};
use crate::server::Server;
use crate::usage::command_line;

pub(crate) async fn latch(args: Latch, server: &Server) -> Result<Exit, Failure> {
    until_signal(act(args, server)).await
}

async fn act(args: Latch, server: &Server) -> Result<Exit, Failure> {
    let Latch { action } = args;
    let client = match &action {
        LatchAction::Wait { .. } => server.connect_for_waits()?,
        LatchAction::Down { .. } | LatchAction::Set { .. } => server.connect(None).await?,
    };
    match action {
        LatchAction::Wait {
            name,
            wait,
            outage_timeout,
            must_exist,
        } => {
            let name = name_of_lock(name)?;
            if !is_known(&client, &name, must_exist).await? {
                return Ok(Exit::Success);
            }
            let latch = client
                .count_down_latch(&name)
                .outage_timeout(outage_timeout);
            let exit = tokio::select! {
                exit = open_in_time(&latch, wait) => exit,
                never = tell_waiting(&latch) => match never {},
            };
            // The client is closed, so that operators do not see a wait that has ended.
            tidy(std::slice::from_ref(&client)).await;
            exit
        }
        LatchAction::Down {
            name,
            by,
            must_exist,
        } => {
            let name = name_of_lock(name)?;
            is_known(&client, &name, must_exist).await?;
            let latch = client.count_down_latch(&name);
            output::result(latch.count_down_by(by).await?).await?;
            Ok(Exit::Success)
        }
        LatchAction::Set { name, count } => {
            let latch = client.count_down_latch(&name_of_lock(name)?);
            set(&latch, count).await
        }
    }
}

/// Returns whether the latch exists, open or not. Returns `false` for a latch that was never set or
/// was opened over an hour ago. Such a latch counts as open, but a note asks the user to check its
/// name. With `must_exist`, this is an error instead. If the query fails, returns `true`, or, with
/// `must_exist`, the error.
async fn is_known(client: &Client, name: &str, must_exist: bool) -> Result<bool, Failure> {
    match client.peek(name).await {
        Ok(seen) if seen.found == Found::Nothing => {}
        Ok(seen) => return is_not_foreign(name, &seen, "latch").map(|()| true),
        Err(error) if must_exist => return Err(error.into()),
        // The wait that follows survives an outage.
        Err(_) => return Ok(true),
    }
    let shown = Shown(name);
    if must_exist {
        return Err(Failure::new(
            Exit::Missing,
            format!(
                "the latch `{shown}` at {} was never set, or it was opened over an hour ago; \
                 check the name, or set it first: leasehold latch set {} N",
                client.address(),
                command_line(&[name.into()])
            ),
        ));
    }
    note(format_args!(
        "the latch `{shown}` is open because it was never set, or because it was opened over an \
         hour ago; check the name, or make this an error with --must-exist"
    ));
    Ok(false)
}

/// Tells a user at a terminal once what the command waits for.
async fn tell_waiting(latch: &CountDownLatch) -> Infallible {
    if is_watched() {
        tokio::time::sleep(SILENT_FOR).await;
        if let Ok(left) = latch.count().await {
            let name = Shown(latch.name());
            note(format_args!("waiting for `{name}`: its count is {left}"));
        }
    }
    pending().await
}

async fn open_in_time(
    latch: &CountDownLatch,
    limit: Option<std::time::Duration>,
) -> Result<Exit, Failure> {
    let Some(limit) = limit else {
        latch.wait().await?;
        return Ok(Exit::Success);
    };
    if latch.wait_for(limit).await? {
        return Ok(Exit::Success);
    }
    let name = Shown(latch.name());
    let left = match latch.count().await {
        Ok(0) => return Ok(Exit::Success),
        Ok(left) => format!(": its count is {left}"),
        // Report the timeout even if the count is unknown.
        Err(_) => String::new(),
    };
    note(format_args!(
        "`{name}` was not open within {}{left}; wait longer with --wait",
        duration::shown(limit)
    ));
    Ok(Exit::Busy(Exit::DEFAULT_BUSY))
}

async fn set(latch: &CountDownLatch, count: u64) -> Result<Exit, Failure> {
    if latch.try_set_count(count).await? {
        return Ok(Exit::Success);
    }
    let name = Shown(latch.name());
    let left = match latch.count().await {
        Ok(left) => format!(", and its count is {left}"),
        Err(_) => String::new(),
    };
    note(format_args!(
        "`{name}` is set already{left}; wait until it is open, or use another name"
    ));
    Ok(Exit::Busy(Exit::DEFAULT_BUSY))
}
