//! The turn that `--slot` and `--once` request: the right to run the command for a slot or an id.

use std::time::{Duration, SystemTime};

use leasehold::slot::{Begin, Turn, TurnInfo, TurnState, Turns};
use leasehold::{Client, Error, ErrorKind};
use serde_json::Value;
use tokio::time::Instant;

use super::holding::{Holding, as_ms, unix_ms, utc};
use super::in_the_way::InTheWay;
use super::wait::{Aborted, Waited, Waiting};
use super::wanted::{Wanted, acknowledgement, wait_for_next_try};
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
        let (asked, started, outage) = (args.clone(), self.begun, self.args.outage_timeout);
        let mut begin = Aborted::on_drop(async move {
            let begun = match wait {
                Some(wait) => {
                    let turns = turns.clone().requested_ago(started.elapsed());
                    turns.begin_for(wait).await
                }
                None => try_begin(&client, &turns, started, patience).await,
            };
            if let Ok(Begin::Run(turn)) = &begun {
                // A signal may arrive before the command starts.
                turn.set_begun(false);
            }
            match begun {
                Ok(Begin::Run(turn)) if fenced => drawn(turn, outage).await,
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
                // A grant that this run did not learn of has not died.
                let died = turn.died().filter(|died| !is_own(&clients[0], died));
                self.tell_times(&turn, died.as_ref(), args);
                let guard = Holding::Turn(Box::new(turn), args.once.clone());
                self.tell_held(&guard);
                return Ok(Waited::Held(clients, guard));
            }
            // No other run does the job of this one.
            Ok(Begin::Elsewhere(info))
                if info.state == TurnState::HeldBack || has_another_id(&info, args) =>
            {
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
    fn tell_times(&self, turn: &Turn, died: Option<&TurnInfo>, args: &Args) {
        let (name, waited) = (Shown(self.name), self.begun.elapsed());
        // The client of that turn could not report this itself: it died, or could not reach the
        // server.
        if let Some(died) = died {
            note(format_args!("`{name}` {}", told(died)));
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
        if distance > period / 4 && distance >= SHORTEST_DISTANCE && !args.again {
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
        let is_over = matches!(event, Event::DoneAlready);
        let is_running = info.state == TurnState::Running;
        // With --again, a person waits for the job. Otherwise print nothing about a job that its own
        // host reports, because cron mails each line.
        let is_asked_for = output::is_verbose() || again;
        if is_over && info.is_ahead {
            let first = match is_running {
                true => "end it with `leasehold release`, and then ",
                false => "",
            };
            note(format_args!(
                "`{name}` {}; the server's clock was ahead, so no slot before that one runs; to change \
                 this, {first}run one with --again",
                told(info)
            ));
        } else if info.state == TurnState::Died {
            note(format_args!("`{name}` {}", told(info)));
        } else if !is_over && info.began.is_none() {
            let InTheWay { text, .. } = lock.in_the_way().await.unwrap_or_default();
            note(format_args!("`{name}` is {text}; its holder has no turn"));
        } else if is_asked_for && is_over && is_running {
            note(format_args!(
                "`{name}`: the slot has ended, and the job of the next slot {}",
                told(info)
            ));
        } else if is_asked_for {
            note(format_args!("`{name}` {}", told(info)));
        }
    }
}

/// The shortest distance between a run and its slot that is reported.
const SHORTEST_DISTANCE: Duration = Duration::from_secs(2);

/// Requests the turn once, for the slot that was nearest at `started`. During an outage, repeats the
/// request for the time `patience`.
async fn try_begin(
    client: &Client,
    turns: &Turns,
    started: Instant,
    patience: Duration,
) -> leasehold::Result<Begin> {
    let limit = Instant::now() + patience;
    let mut may_have_begun = None;
    loop {
        let turns = turns.clone().requested_ago(started.elapsed());
        let error = match (turns.try_begin().await, may_have_begun.take()) {
            // The server granted the turn to an earlier request of this run, whose answer was lost.
            // The client gives it back in the background.
            (Ok(Begin::Elsewhere(info) | Begin::Done(info)), Some(error))
                if is_own(client, &info) =>
            {
                error
            }
            // The outcome of an earlier request stays unknown, whatever the next errors are.
            (Err(error), unknown) if error.is_transient() => unknown.unwrap_or(error),
            (begun, _) => return begun,
        };
        if !wait_for_next_try(limit).await {
            return Err(error);
        }
        may_have_begun = Some(error).filter(|it| it.kind() == ErrorKind::OutcomeUnknown);
    }
}

/// Returns whether a client has this turn.
fn is_own(client: &Client, info: &TurnInfo) -> bool {
    let hold = info.hold.strip_prefix(client.id());
    hold.is_some_and(|rest| rest.starts_with(':'))
}

/// Draws the fencing token of a turn. During an outage, repeats this for the time `patience`.
/// Without a token, the job does not begin.
async fn drawn(turn: Turn, patience: Duration) -> Result<Begin, Failure> {
    let limit = Instant::now() + patience;
    loop {
        let Err(error) = turn.fencing_token().await else {
            return Ok(Begin::Run(turn));
        };
        // A repeated draw skips at most one token.
        let is_repeatable = error.is_transient() && turn.is_held();
        if !is_repeatable || !wait_for_next_try(limit).await {
            // If this fails, the turn is open again when the lease has expired.
            let _ = turn.decline().await;
            return Err(error.into());
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
        duration::compact(Duration::from_millis(offset_ms))
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

/// Returns whether the turn that runs is not the requested one, because it has another id.
fn has_another_id(info: &TurnInfo, args: &Args) -> bool {
    info.began.is_some() && info.id != args.once
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
        ("is_ahead", info.is_ahead.into()),
    ]
}

#[cfg(test)]
mod tests {
    use leasehold::Embedded;
    use leasehold::testing::{Fate, Step};

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MINUTE: Duration = Duration::from_secs(60);

    /// Begins a turn while the reply to the grant is lost. Each request that gives the grant back
    /// takes ten seconds.
    async fn begin_after_a_lost_grant(
        lease: Duration,
        at_most_once: bool,
    ) -> leasehold::Result<Begin> {
        let server = Embedded::new();
        let builder = Client::builder().reply_timeout(400 * MS).presence(false);
        let (client, network) = server
            .client_over_network(&builder.lease(lease))
            .expect("the settings are valid");
        let start = Instant::now();
        let mut begun = 0;
        network.on_request(move |asked| {
            let fate = Fate::delivered(MS, MS);
            begun += u32::from(asked.step == Step::SlotBegin);
            match asked.step {
                Step::SlotBegin if begun == 1 => fate.reply_lost(),
                Step::SlotFinish => Fate::delivered(MINUTE / 6, MS),
                _ => fate,
            }
        });
        let turns = client.lock("x").once_per(MINUTE * 60);
        let turns = turns.at_most_once(at_most_once);
        try_begin(&client, &turns, start, MINUTE).await
    }

    #[tokio::test(start_paused = true)]
    async fn own_lost_grant_is_not_another_run() {
        let begun = begin_after_a_lost_grant(MINUTE / 2, false).await;
        assert!(matches!(begun, Ok(Begin::Run(_))), "{begun:?}");
    }

    /// The lease ends before the grant is given back.
    #[tokio::test(start_paused = true)]
    async fn own_lost_grant_is_not_a_run_that_died() {
        let begun = begin_after_a_lost_grant(MINUTE / 10, true).await;
        assert!(matches!(begun, Ok(Begin::Run(_))), "{begun:?}");
    }
}
