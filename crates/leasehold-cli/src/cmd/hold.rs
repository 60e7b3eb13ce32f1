//! `leasehold hold`: holds a lock without a command, for scripts.

use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::time::Duration;

use leasehold::{Client, ErrorKind};
use nix::errno::Errno;
use serde_json::json;
use tokio::time::Instant;

use super::acquire::{
    HURRIED, Holding, Waited, Waiting, as_ms, not_released, tidy, unless_hurried,
};
use super::name_of_lock;
use crate::cli::Hold;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::input;
use crate::output::{self, Shown, tell};
use crate::server::Server;
use crate::signals::Signals;

pub(crate) async fn hold(args: Hold, servers: Vec<Server>) -> Result<Exit, Failure> {
    let name = name_of_lock(args.name.clone())?;
    if args.ticket && output::is_discarded() {
        return Err(Failure::usage(
            "stdout is closed or discarded, so no program would read the ticket",
        ));
    }
    // Listen before the first request is sent. So if a signal arrives from now on, the lock is
    // released before this process ends.
    let mut signals = Signals::listen()?;
    let waiting = Waiting::new(&args.wanted, &name, &servers);
    let (clients, held) = match waiting.until_held(&mut signals).await? {
        Waited::Held(clients, held) => (clients, held),
        Waited::Busy => return Ok(Exit::Busy(args.wanted.busy_exit_code())),
        Waited::NotOurs => return Ok(Exit::Success),
        Waited::Ended(signal) => return Ok(Exit::Signal(signal as i32)),
    };
    if args.ticket {
        let end = hand_out(&args, &clients[0], held, &mut signals).await;
        let _ = unless_hurried(tidy(&clients), &mut signals).await;
        return end;
    }
    let since = Instant::now();
    let exit = until_over(&args, &held, &mut signals).await;
    let valid_until = held.valid_until();
    let end = match unless_hurried(held.release(), &mut signals).await {
        Some(Ok(())) => {
            output::detail(format_args!(
                "released `{}`, held for {}",
                Shown(&name),
                duration::shown(since.elapsed())
            ));
            exit
        }
        // The loss was reported when it happened.
        Some(Err(_)) if matches!(exit, Ok(Exit::Lost)) => return exit,
        Some(Err(error)) if error.kind() == ErrorKind::Lost => Err(error.into()),
        Some(Err(error)) => {
            let failure = Failure::from(error);
            let what = not_released(&name, &failure.to_string(), None, valid_until);
            Err(Failure::new(failure.exit(), what))
        }
        None => {
            let what = not_released(&name, HURRIED, None, valid_until);
            match exit {
                // The exit code 0 would look like a confirmed release.
                Ok(Exit::Success) => Err(Failure::new(Exit::Unavailable, what)),
                exit => {
                    tell(what);
                    exit
                }
            }
        }
    };
    // The clients are closed, so that operators do not see a command that has ended.
    let _ = unless_hurried(tidy(&clients), &mut signals).await;
    end
}

/// The time after a signal for which a ticket that is being printed may still be printed.
const PRINTING_LIMIT: Duration = Duration::from_millis(100);

/// Turns the hold into a ticket and prints the ticket. The lock stays locked.
async fn hand_out(
    args: &Hold,
    client: &Client,
    held: Holding,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let name = args.name.to_string_lossy();
    let ticket = tokio::select! {
        ticket = held.into_ticket(args.wanted.lease) => ticket?,
        // The library then releases the hold in the background.
        signal = signals.next() => return Ok(Exit::Signal(signal as i32)),
    };
    let shown = match args.json {
        true => json!({
            "name": name,
            "ticket": ticket.to_string(),
            "id": ticket.holder_id(),
            "token": ticket.token(),
            "lease_ms": as_ms(ticket.lease()),
        })
        .to_string(),
        false => ticket.to_string(),
    };
    let mut printing = pin!(output::more(shown));
    let is_read = tokio::select! {
        biased;
        is_read = &mut printing => is_read,
        signal = signals.next() => match tokio::time::timeout(PRINTING_LIMIT, printing).await {
            // A program may have read the ticket, so the lock stays locked.
            Ok(is_read) => is_read,
            Err(_) => {
                let _ = unless_hurried(client.release_ticket(&ticket), signals).await;
                return Ok(Exit::Signal(signal as i32));
            }
        },
    };
    if matches!(is_read, Ok(true)) {
        return Ok(Exit::Success);
    }
    // No process has the ticket, so the hold would last until its lease ends.
    let _ = unless_hurried(client.release_ticket(&ticket), signals).await;
    let name = Shown(&name);
    is_read.and_then(|_| {
        Err(Failure::new(
            Exit::Failed,
            format!("no program reads the ticket of `{name}` on stdout, so the lock was released"),
        ))
    })
}

fn shown(args: &Hold, held: &Holding) -> String {
    match (args.json, held.token()) {
        (true, token) => {
            json!({ "name": held.name(), "id": held.id(), "token": token }).to_string()
        }
        (false, Some(token)) => token.to_string(),
        (false, None) => "held".to_owned(),
    }
}

async fn until_over(args: &Hold, held: &Holding, signals: &mut Signals) -> Result<Exit, Failure> {
    let end_of_input = async {
        output::result(shown(args, held)).await?;
        let ended = input::end().await;
        ended.map_err(|error| cant_read(held.name(), error))
    };
    tokio::select! {
        reason = held.lost() => {
            tell(format_args!("the lock `{}` is lost: {reason}", Shown(held.name())));
            Ok(Exit::Lost)
        }
        signal = signals.next() => Ok(Exit::Signal(signal as i32)),
        ended = end_of_input => ended.map(|()| Exit::Success),
    }
}

fn cant_read(name: &str, error: io::Error) -> Failure {
    let is_in_background =
        error.raw_os_error() == Some(Errno::EIO as i32) && io::stdin().is_terminal();
    let what = format!(
        "`{}` was released: standard input can't be read",
        Shown(name)
    );
    match is_in_background {
        false => Failure::io(what, error),
        true => Failure::new(
            Exit::Failed,
            format!(
                "{what} by a background job of a terminal; give hold an input that stays open, such as \
                 a pipe, or use leasehold run"
            ),
        ),
    }
}
