//! The turn that `--slot` and `--once` ask for.

use std::time::{Duration, SystemTime};

use leasehold::slot::{Begin, Turn, TurnInfo, TurnState, Turns};
use leasehold::{Client, Error, ErrorKind};
use serde_json::Value;
use tokio::time::Instant;

use super::holding::Holding;
use super::wait::{Aborted, Waited, Waiting};
use super::wanted::{BETWEEN_TRIES, Wanted, acknowledgement};
use super::{in_a_hurry, tidy, unless_hurried};
use crate::cli::Turns as Args;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown};
use crate::signals::Signals;

impl Waiting<'_> {
    /// Asks for the turn, and waits for it as long as `--wait` allows.
    pub(in crate::cmd) async fn until_begun(
        self,
        args: &Args,
        signals: &mut Signals,
    ) -> Result<Waited, Failure> {
        let clients = self.connect()?;
        let turns = self.turns(&clients[0], args);
        let (client, wait) = (clients[0].clone(), self.args.wait);
        let fenced = self.args.fenced;
        let patience = match self.args.no_wait {
            true => Duration::ZERO,
            false => self.args.outage_timeout,
        };
        let mut begin = Aborted::on_drop(async move {
            let begun = match wait {
                Some(wait) => turns.begin_for(wait).await,
                None => try_begin(&turns, patience).await,
            };
            match begun {
                Ok(begun) if fenced => drawn(begun).await,
                Ok(begun) => Ok(begun),
                Err(error) => Err(refused(&client, turns.name(), error).await),
            }
        });
        let begun = tokio::select! {
            begun = begin.result() => begun,
            signal = signals.next() => {
                drop(begin);
                let _ = in_a_hurry(tidy(&clients), signals).await;
                return Ok(Waited::Ended(signal));
            }
        };
        let (event, info) = match begun {
            Ok(Begin::Run(turn)) => {
                self.tell_missed(&turn);
                let guard = Holding::Turn(Box::new(turn));
                self.tell_held(&guard);
                return Ok(Waited::Held(clients, guard));
            }
            Ok(Begin::Elsewhere(info)) if info.state == TurnState::HeldBack => {
                let lock = Wanted::new(&clients, self.args, self.name, None)?;
                self.tell_busy(&lock).await;
                tidy(&clients).await;
                return Ok(Waited::Busy);
            }
            Ok(Begin::Done(info)) => (Event::DoneAlready, info),
            Ok(Begin::Elsewhere(info)) => (Event::RunningElsewhere, info),
            Err(failure) => {
                let _ = unless_hurried(tidy(&clients), signals).await;
                return Err(failure);
            }
        };
        if !output::event(event, self.name, || as_json(&info)) {
            output::detail(format_args!("`{}` {}", Shown(self.name), told(&info)));
        }
        tidy(&clients).await;
        Ok(Waited::NotOurs)
    }

    fn turns(&self, client: &Client, args: &Args) -> Turns {
        let wanted = self.args;
        let lock = client
            .lock(self.name)
            .outage_timeout(wanted.outage_timeout)
            .acknowledged_by(acknowledgement(wanted));
        let lock = match wanted.poll_interval {
            Some(cap) => lock.poll_interval(cap),
            None => lock,
        };
        let lock = match self.progress_within {
            Some(within) => lock.progress_within(within),
            None => lock,
        };
        let turns = match (&args.once, args.slot) {
            (Some(id), _) => lock.once_for(id),
            (None, period) => lock.once_per(period.unwrap_or_default()),
        };
        let turns = match args.keep {
            Some(keep) => turns.keep(keep),
            None => turns,
        };
        turns
            .offset(args.offset.unwrap_or_default())
            .retry_failed(args.retry_failed)
            .at_most_once(args.at_most_once)
            .by(host())
    }

    fn tell_missed(&self, turn: &Turn) {
        if turn.missed() > 0 {
            let missed = slots_missed(turn.missed());
            output::detail(format_args!("`{}`: {missed}", Shown(self.name)));
        }
    }
}

/// Asks for the turn once. During an outage, asks again for this long.
async fn try_begin(turns: &Turns, patience: Duration) -> leasehold::Result<Begin> {
    let limit = Instant::now() + patience;
    loop {
        match turns.try_begin().await {
            Err(error) if error.is_transient() && Instant::now() + BETWEEN_TRIES < limit => {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            begun => return begun,
        }
    }
}

/// Draws the fencing token of a turn.
async fn drawn(begun: Begin) -> Result<Begin, Failure> {
    if let Begin::Run(turn) = &begun {
        turn.fencing_token().await?;
    }
    Ok(begun)
}

/// Returns the failure of a turn whose name has other slots as such.
async fn refused(client: &Client, name: &str, error: Error) -> Failure {
    let has_others = error.kind() == ErrorKind::WrongKind
        && matches!(client.lock(name).last_turn().await, Ok(Some(_)));
    let failure = Failure::from(error);
    match has_others {
        true => Failure::new(
            Exit::Disagrees,
            format!("{failure}; use the same --slot and --offset, or --once, for all runs"),
        ),
        false => failure,
    }
}

/// Returns the name of this machine.
fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn slots_missed(missed: u64) -> String {
    match missed {
        1 => "1 slot was missed".to_owned(),
        missed => format!("{missed} slots were missed"),
    }
}

/// Describes the last turn, for people.
pub(in crate::cmd) fn told(info: &TurnInfo) -> String {
    let by = Shown(&info.by);
    let ago = |time: Option<SystemTime>| {
        let since = time
            .and_then(|time| time.elapsed().ok())
            .unwrap_or_default();
        duration::shown(Duration::from_secs(since.as_secs()))
    };
    let code = match info.exit_code {
        Some(code) => format!(" with exit code {code}"),
        None => String::new(),
    };
    let what = match info.state {
        TurnState::Running => format!("runs on {by}"),
        TurnState::Done => format!("was done by {by} {} ago{code}", ago(info.ended)),
        // The command has ended well, but the server had the lock no longer.
        TurnState::Failed if info.exit_code == Some(0) => {
            format!(
                "lost its lock on {by} {} ago, and its command ended with exit code 0",
                ago(info.ended)
            )
        }
        TurnState::Failed => format!("failed on {by} {} ago{code}", ago(info.ended)),
        TurnState::Died => format!("was begun by {by} {} ago and never ended", ago(info.began)),
        _ => format!("was given to {by}, which did not begin"),
    };
    let which = match (&info.id, info.slot) {
        (Some(id), _) => format!(" (id {})", Shown(id)),
        (None, Some(slot)) => match slot.duration_since(SystemTime::now()) {
            Ok(left) if left.as_secs() > 0 => {
                let left = duration::shown(Duration::from_secs(left.as_secs()));
                format!(" (slot in {left})")
            }
            _ => format!(" (slot of {} ago)", ago(Some(slot))),
        },
        (None, None) => String::new(),
    };
    match info.missed {
        0 => format!("{what}{which}"),
        missed => format!("{what}{which}; {} before it", slots_missed(missed)),
    }
}

/// Returns the facts of a turn, for JSON.
pub(in crate::cmd) fn as_json(info: &TurnInfo) -> Vec<(&'static str, Value)> {
    let ms = |time: Option<SystemTime>| {
        let since = time?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    };
    let state = match info.state {
        TurnState::Running => "running",
        TurnState::Done => "done",
        TurnState::Failed => "failed",
        TurnState::Died => "died",
        TurnState::HeldBack => "held_back",
        _ => "open",
    };
    vec![
        ("state", state.into()),
        ("by", info.by.clone().into()),
        ("slot_ms", ms(info.slot).into()),
        ("id", info.id.clone().into()),
        ("began_ms", ms(info.began).into()),
        ("ended_ms", ms(info.ended).into()),
        ("exit_code", info.exit_code.into()),
        ("missed", info.missed.into()),
    ]
}
