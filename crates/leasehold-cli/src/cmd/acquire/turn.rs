//! The turn that `--slot` and `--once` request: the right to run the command for a slot or an id.

use std::time::{Duration, SystemTime};

use leasehold::slot::{Begin, Turn, TurnInfo, TurnState, Turns};
use leasehold::{Client, Error, ErrorKind};
use serde_json::Value;
use tokio::time::Instant;

use super::holding::{Holding, as_ms, unix_ms, utc};
use super::in_the_way::InTheWay;
use super::wait::{Aborted, Waited, Waiting};
use super::wanted::{BETWEEN_TRIES, Wanted, acknowledgement};
use super::{in_a_hurry, tidy, unless_hurried};
use crate::cli::Turns as Args;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, note};
use crate::server::named_label;
use crate::signals::Signals;

impl Waiting<'_> {
    /// Requests the turn, and waits for it as long as `--wait` allows.
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
        let asked = args.clone();
        let mut begin = Aborted::on_drop(async move {
            let begun = match wait {
                Some(wait) => turns.begin_for(wait).await,
                None => try_begin(&turns, patience).await,
            };
            match begun {
                Ok(Begin::Run(turn)) if fenced => drawn(turn).await,
                Ok(begun) => Ok(begun),
                Err(error) => Err(refused(&client, turns.name(), &asked, error).await),
            }
        });
        let lock = self.wanted(&clients)?;
        let begun = tokio::select! {
            begun = self.told_while(&mut begin, &lock) => begun,
            signal = signals.next() => {
                drop(begin);
                let _ = in_a_hurry(tidy(&clients), signals).await;
                return Ok(Waited::Ended(signal));
            }
        };
        let (event, info) = match begun {
            Ok(Begin::Run(turn)) => {
                self.tell_times(&turn, args, self.begun.elapsed());
                let guard = Holding::Turn(Box::new(turn), args.once.clone());
                self.tell_held(&guard);
                return Ok(Waited::Held(clients, guard));
            }
            Ok(Begin::Elsewhere(info)) if info.state == TurnState::HeldBack => {
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
        self.tell_not_ours(event, &info, &lock, args.again).await;
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
        let lock = match self.limits.progress_within {
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
            .again(args.again)
            .at_most_once(args.at_most_once)
            .by(named_label().unwrap_or_else(host))
    }

    /// Reports a turn that never ended, the slots that were missed, and a slot that is far away.
    fn tell_times(&self, turn: &Turn, args: &Args, waited: Duration) {
        let name = Shown(self.name);
        // No client has reported it.
        if let Some(died) = turn.died() {
            note(format_args!("`{name}` {}", told(&died)));
        }
        if turn.missed() > 0 {
            let missed = slots_missed(turn.missed());
            note(format_args!("`{name}`: {missed} before this one"));
        }
        let (Some(slot), Some(period)) = (turn.slot(), args.slot) else {
            return;
        };
        let asked = turn.began().checked_sub(waited).unwrap_or(turn.began());
        let (distance, which) = match slot.duration_since(asked) {
            Ok(left) => (left, "before"),
            Err(past) => (past.duration(), "after"),
        };
        // If two hosts start the job halfway between two slots, each host may get one of the two
        // slots.
        if distance > period / 4 && !args.again {
            let distance = duration::shown(Duration::from_secs(distance.as_secs()));
            note(format_args!(
                "`{name}` started {distance} {which} its slot of {}; if it always starts at this time, use \
                 {}",
                utc(slot),
                offset_of(asked, period)
            ));
        }
    }

    /// Reports why the command does not run here.
    async fn tell_not_ours(&self, event: Event, info: &TurnInfo, lock: &Wanted, again: bool) {
        if output::event(event, self.name, || as_json(info)) {
            return;
        }
        let name = Shown(self.name);
        let slot_is_ahead = info.period.zip(info.slot).is_some_and(|(period, slot)| {
            matches!(event, Event::DoneAlready) && slot > SystemTime::now() + period
        });
        // A job that died was reported by no client. With --again, a person waits for the job.
        let is_asked_for = output::is_verbose() || again;
        if info.state == TurnState::Died {
            note(format_args!("`{name}` {}", told(info)));
        } else if slot_is_ahead {
            note(format_args!(
                "`{name}` {}; the server's clock was ahead, so no slot before that one runs, unless you \
                 run one with --again",
                told(info)
            ));
        } else if !is_asked_for {
            // Print nothing, because cron mails each line.
        } else if matches!(event, Event::DoneAlready) && info.state == TurnState::Running {
            note(format_args!(
                "`{name}`: the slot has ended, and the job of the next slot {}",
                told(info)
            ));
        } else if info.began.is_none() && matches!(event, Event::RunningElsewhere) {
            let InTheWay { text, .. } = lock.in_the_way().await.unwrap_or_default();
            note(format_args!("`{name}` is {text}, which has no turn"));
        } else {
            note(format_args!("`{name}` {}", told(info)));
        }
    }
}

/// Requests the turn once. During an outage, repeats the request for the time `patience`.
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

/// Draws the fencing token of a turn. Without it, the job does not begin.
async fn drawn(turn: Turn) -> Result<Begin, Failure> {
    match turn.fencing_token().await {
        Ok(_) => Ok(Begin::Run(turn)),
        Err(error) => {
            // If this fails, the turn is open again when the lease has expired.
            let _ = turn.decline().await;
            Err(error.into())
        }
    }
}

/// Returns the option that puts a slot at this time.
fn offset_of(time: SystemTime, period: Duration) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let offset_ms = since.unwrap_or_default().as_millis() % period.as_millis().max(1);
    // A job is started some seconds late.
    let unit_ms = match period >= Duration::from_secs(3600) {
        true => 60_000,
        false => 1000,
    };
    let offset_ms = u64::try_from(offset_ms).unwrap_or(0) / unit_ms * unit_ms;
    format!(
        "--offset {}",
        duration::exact(Duration::from_millis(offset_ms))
    )
}

/// Returns the failure of a request for a turn. If the name has other slots, the failure says
/// which.
async fn refused(client: &Client, name: &str, args: &Args, error: Error) -> Failure {
    let is_other_kind = error.kind() == ErrorKind::WrongKind;
    let last = match is_other_kind {
        true => client.lock(name).last_turn().await.ok().flatten(),
        false => None,
    };
    let same_plan = |last: &TurnInfo| {
        last.period == args.slot && last.offset == args.offset.unwrap_or_default()
    };
    // The lock may have been taken as one of another kind.
    let Some(last) = last.filter(|last| !args.again && !same_plan(last)) else {
        return error.into();
    };
    let plan = match last.period {
        Some(period) => {
            let period = duration::exact(period);
            match last.offset {
                Duration::ZERO => format!("--slot {period}"),
                offset => format!("--slot {period} --offset {}", duration::exact(offset)),
            }
        }
        None => "--once".to_owned(),
    };
    let name = Shown(name);
    Failure::new(
        Exit::Disagrees,
        format!(
            "the runs of `{name}` have {plan}; use the same --slot and --offset, or --once, for all runs; to \
             change them, change all hosts, and run once with --again"
        ),
    )
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

/// Describes the last turn in words.
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
        // The command has succeeded, but by then the server no longer had the lock.
        TurnState::Failed if info.exit_code == Some(0) => {
            format!(
                "lost its lock on {by} {} ago, and its command ended with exit code 0",
                ago(info.ended)
            )
        }
        TurnState::Failed => format!("failed on {by} {} ago{code}", ago(info.ended)),
        TurnState::Died => format!("was begun by {by} {} ago and never ended", ago(info.began)),
        _ => format!("was granted to {by}, which did not begin"),
    };
    let which = match (&info.id, info.slot) {
        (Some(id), _) => format!(" (id {})", Shown(id)),
        (None, Some(slot)) => {
            let every = info
                .period
                .map(|period| format!(", every {}", duration::exact(period)));
            format!(" (slot of {}{})", utc(slot), every.unwrap_or_default())
        }
        (None, None) => String::new(),
    };
    match info.missed {
        0 => format!("{what}{which}"),
        missed => format!("{what}{which}; {} before it", slots_missed(missed)),
    }
}

/// Returns the facts of a turn, for JSON.
pub(in crate::cmd) fn as_json(info: &TurnInfo) -> Vec<(&'static str, Value)> {
    let ms = |span: Option<Duration>| span.map(as_ms);
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
        ("slot_ms", unix_ms(info.slot).into()),
        ("period_ms", ms(info.period).into()),
        ("offset_ms", ms(info.period.map(|_| info.offset)).into()),
        ("id", info.id.clone().into()),
        ("began_ms", unix_ms(info.began).into()),
        ("ended_ms", unix_ms(info.ended).into()),
        ("exit_code", info.exit_code.into()),
        ("missed", info.missed.into()),
    ]
}
