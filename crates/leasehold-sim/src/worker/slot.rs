//! Turns for slots and for ids. Checks that a slot that is done or closed never runs again, and
//! that no slot older than the newest one runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use leasehold::ErrorKind;
use leasehold::slot::{Begin, Turn, TurnInfo, TurnState};
use tokio::time::Instant;

use super::{Taking, drop_at_poll};
use crate::faults::Kind;
use crate::scenario::End;
use crate::stage::Stage;
use crate::subject::recipes::{Plan, id};
use crate::subject::{NAME, Subject};

/// A slot, or the number of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    At(SystemTime),
    Id(u64),
}

/// The turns that the tasks in a history have begun and ended.
#[derive(Default)]
pub(crate) struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    /// Each turn that began, by the id of its hold.
    runs: BTreeMap<String, Run>,
    /// The slots that must not run again.
    closed: BTreeSet<Slot>,
    /// The newest slot that has run.
    newest: Option<SystemTime>,
    /// The last time at which the server lost data.
    forgot: Option<Instant>,
}

struct Run {
    slot: Slot,
    end: Option<TurnState>,
    /// Whether the server has lost its data since the turn began.
    forgotten: bool,
}

impl Slots {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the server has lost data.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.closed.clear();
        state.newest = None;
        state.forgot = Some(Instant::now());
        state.runs.values_mut().for_each(|run| run.forgotten = true);
    }

    /// Returns whether the server has lost data since the turn with this hold began, or since
    /// `then`.
    fn has_forgotten(&self, hold: &str, then: Instant) -> bool {
        let state = self.state();
        let forgotten = |run: &Run| run.forgotten;
        state.runs.get(hold).is_some_and(forgotten) || state.forgot.is_some_and(|at| at >= then)
    }

    fn ends(&self, hold: &str, end: TurnState) {
        if let Some(run) = self.state().runs.get_mut(hold) {
            run.end = Some(end);
        }
    }

    /// Returns whether the server has lost data since `then`.
    fn forgot_since(&self, then: Instant) -> bool {
        self.state().forgot.is_some_and(|forgot| forgot >= then)
    }
}

impl Taking<'_> {
    fn plan(&self) -> Plan {
        Plan::of(self.stage.scenario.seed)
    }

    fn slot_of(&self, turn: &Turn) -> Slot {
        turn.slot().map_or(Slot::Id(self.place), Slot::At)
    }

    /// Checks that a turn that has begun was allowed to run.
    pub(super) fn check_begun(&self, turn: &Turn, asked: Instant) {
        let (slot, plan) = (self.slot_of(turn), self.plan());
        let forgotten = self.stage.slots.forgot_since(asked);
        let mut state = self.stage.slots.state();
        let is_closed = state.closed.contains(&slot);
        let is_before = matches!(slot, Slot::At(at) if Some(at) < state.newest);
        let run = Run {
            slot,
            end: None,
            forgotten,
        };
        state.runs.insert(turn.holder_id().into(), run);
        if !forgotten {
            if plan.at_most_once && !plan.retry_failed {
                state.closed.insert(slot);
            }
            if let Slot::At(at) = slot {
                state.newest = state.newest.max(Some(at));
            }
        }
        drop(state);
        // A reply from before a forced unlock may arrive when another turn has already run.
        if self.stage.broken().is_some_and(|(at, _)| at >= asked) {
            return;
        }
        if is_closed {
            self.violation(&format!("runs {slot:?} again, which was closed"));
        }
        if is_before {
            self.violation(&format!("runs {slot:?}, which is before one that has run"));
        }
    }

    /// Checks that a turn that is reported as ended has really ended in the reported way.
    pub(super) fn check_over(&self, info: &TurnInfo) {
        let state = self.stage.slots.state();
        let run = state.runs.get(&info.hold);
        let end = run.map(|run| run.end);
        drop(state);
        let right = match info.state {
            TurnState::Done => end == Some(Some(TurnState::Done)),
            // A turn that lost its lock has failed. A turn that no task has begun has not failed.
            TurnState::Failed => end.is_some(),
            TurnState::Died => self.plan().at_most_once || info.slot.is_some(),
            // The reported slot is later than the requested one.
            _ => info.slot.is_some(),
        };
        if !right {
            self.violation(&format!("told of an end that did not happen: {info:?}"));
        }
    }

    /// Ends a turn in the way that its number chooses.
    pub(super) async fn end_turn(&self, turn: Turn, was_lost: bool) {
        let (slot, asked) = (self.slot_of(&turn), Instant::now());
        let is_done = !self.turn.way.is_multiple_of(3);
        let end = match self.turn.end {
            End::Drop => TurnState::Failed,
            _ if is_done => TurnState::Done,
            _ => TurnState::Failed,
        };
        let hold = turn.holder_id().to_owned();
        self.stage.slots.ends(&hold, end);
        let ends = async {
            match is_done {
                true => turn.done().await,
                false if self.turn.way.is_multiple_of(2) => turn.failed().await,
                false => turn.exited(3).await,
            }
        };
        match self.turn.end {
            End::Drop => {
                drop(ends);
                self.stage.fired(Kind::GuardDropped);
            }
            End::ReleaseDropped(polls) => {
                let _ = drop_at_poll(polls, ends).await;
                self.stage.fired(Kind::ReleaseDropped);
            }
            _ => {
                let ended = ends.await;
                let closes = ended.is_ok() && (is_done || !self.plan().retry_failed);
                if closes && !self.stage.slots.has_forgotten(&hold, asked) {
                    self.stage.slots.state().closed.insert(slot);
                }
                let is_lost = ended
                    .as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::Lost);
                if is_lost && !self.stage.any(Kind::disturbs_calls) {
                    // The server has recorded nothing, or has recorded that the turn failed.
                    self.stage.slots.ends(&hold, TurnState::Failed);
                }
                self.check_released(ended, was_lost);
            }
        }
    }
}

/// Checks that an id whose holders have all died can run again, unless its turns run at most once.
pub(crate) async fn dead_turns_are_open(stage: &Stage) {
    if stage.scenario.subject != Subject::Slot {
        return;
    }
    let mut died = BTreeMap::new();
    for run in stage.slots.state().runs.values() {
        if let Slot::Id(number) = run.slot {
            *died.entry(number).or_insert(true) &= run.end.is_none() && !run.forgotten;
        }
    }
    let plan = Plan::of(stage.scenario.seed);
    let lock = stage.operators[0].lock(NAME);
    for (number, _) in died.into_iter().filter(|(_, died)| *died) {
        let begun = plan
            .turns(&lock, number)
            .begin_for(Duration::from_secs(1))
            .await;
        let right = match &begun {
            Ok(Begin::Run(_)) => !plan.at_most_once,
            // A maximum hold time ended the turn before its holder died.
            Ok(Begin::Done(info)) if info.state == TurnState::Failed => true,
            Ok(Begin::Done(info)) => plan.at_most_once && info.state == TurnState::Died,
            _ => false,
        };
        if !right {
            let id = id(number);
            stage.violation(format!("after the death of its holders, {id} is {begun:?}"));
        }
    }
}
