//! `leasehold hold`: a lock without a command, for scripts.

use std::io::Read as _;

use serde_json::json;
use tokio::sync::oneshot;

use super::acquire::{Holding, Waited, Waiting, tidy};
use super::name_of_lock;
use crate::cli::Hold;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown, tell};
use crate::server::Server;
use crate::signals::Signals;

pub(crate) async fn hold(args: Hold, servers: Vec<Server>) -> Result<Exit, Failure> {
    let name = name_of_lock(args.name.clone())?;
    // Before the first request leaves: a signal from now on leaves nothing behind.
    let mut signals = Signals::listen()?;
    let waiting = Waiting::new(&args.wanted, &name, &servers);
    let (clients, held) = match waiting.until_held(&mut signals).await? {
        Waited::Held(clients, held) => (clients, held),
        Waited::Busy => return Ok(Exit::Busy(args.wanted.conflict_exit_code)),
        Waited::Ended(signal) => return Ok(Exit::Signal(signal as i32)),
    };
    let told = output::result(shown(&args, &held));
    let exit = match told {
        Ok(()) => until_over(&held, &mut signals).await,
        Err(failure) => Err(failure),
    };
    let end = match held.release().await {
        Ok(()) => exit,
        // It was told when it was lost.
        Err(_) if matches!(exit, Ok(Exit::Lost)) => return exit,
        Err(error) => Err(error.into()),
    };
    // Operators must not see a command that has ended.
    tidy(&clients).await;
    end
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

async fn until_over(held: &Holding, signals: &mut Signals) -> Result<Exit, Failure> {
    tokio::select! {
        reason = held.lost() => {
            tell(format_args!("the lock `{}` is lost: {reason}", Shown(held.name())));
            Ok(Exit::Lost)
        }
        signal = signals.next() => Ok(Exit::Signal(signal as i32)),
        _ = end_of_input() => Ok(Exit::Success),
    }
}

/// Resolves when nothing can be read any more.
fn end_of_input() -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    // A thread of its own, and not one of the runtime's: no read can be broken off, and the
    // runtime would wait for it.
    std::thread::spawn(move || {
        let mut unread = [0; 4096];
        while std::io::stdin()
            .read(&mut unread)
            .is_ok_and(|read| read > 0)
        {}
        let _ = ended.send(());
    });
    end
}
