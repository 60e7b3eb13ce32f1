//! The facts about a turn.

use std::time::{Duration, SystemTime};

use super::kind::Wanted;
use super::steps::nearest_slot;
use crate::backend::step::Value;

/// A turn that another client has, or that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnInfo {
    /// The time of the slot; `None` for a turn per id, or if the lock is held without a turn.
    pub slot: Option<SystemTime>,
    /// The id of the turn; `None` with slots.
    pub id: Option<String>,
    /// The length of the slots; `None` for a turn per id.
    pub period: Option<Duration>,
    /// The offset of the slots.
    pub offset: Duration,
    /// The state of the turn.
    pub state: TurnState,
    /// The name that the client of the turn has set. If the lock is held without a turn, the id of
    /// its holder.
    pub by: String,
    /// The id of the turn's hold on the server.
    pub hold: String,
    /// The time at which the turn began, on the server's clock.
    pub began: Option<SystemTime>,
    /// The time at which the turn ended, on the server's clock.
    pub ended: Option<SystemTime>,
    /// The exit code, if one was recorded.
    pub exit_code: Option<i32>,
    /// The number of slots that were skipped between the turn before and this one.
    pub missed: u64,
    /// Whether the slot is later than the slot that is nearest to the present: the turn was
    /// recorded while the server's clock was ahead. No earlier slot runs, unless
    /// [`Turns::again`](super::Turns::again) is set.
    pub is_ahead: bool,
}

/// The state of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnState {
    /// A client has the lock for the turn.
    Running,
    /// The turn is done.
    Done,
    /// The turn has failed, or its lock was lost.
    Failed,
    /// The turn never ended properly, and its lock is free: its client died or could not reach the
    /// server.
    Died,
    /// The lock was granted for the turn, but the client had already given up, so the job did not
    /// begin.
    Open,
    /// The lock is free, but was not granted: a failover guard grants nothing yet, or the lock
    /// became free after the request.
    HeldBack,
}

/// A reply that grants nothing.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) code: i64,
    /// The time of the reply, on the server's clock.
    pub(super) now_ms: u64,
    pub(super) ttl_ms: i64,
    holder: String,
    pub(super) record: Record,
}

/// The stored facts about a turn.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// The number of the slot; `None` if nothing is stored.
    pub(super) slot: Option<u64>,
    state: String,
    hold: String,
    by: String,
    times: [Option<SystemTime>; 2],
    exit_code: Option<i32>,
    missed: u64,
    id: String,
    plan: Option<(u64, u64)>,
}

impl Record {
    fn read(fields: &[Value]) -> Self {
        let text = |at: usize| match fields.get(at) {
            Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        };
        let number = |at| text(at).parse().ok();
        let time = |at| number(at).map(since_epoch);
        Self {
            slot: number(0),
            state: text(1),
            hold: text(2),
            by: text(3),
            times: [time(4), time(5)],
            exit_code: text(6).parse().ok(),
            missed: number(7).unwrap_or(0),
            id: text(8),
            plan: number(9).zip(number(10)),
        }
    }

    /// Reads the record of a turn that never ended; `None` if there is none.
    pub(super) fn that_died(fields: &[Value]) -> Option<Self> {
        (!fields.is_empty()).then(|| Self::read(fields))
    }

    /// Returns the recorded period and offset of the slots in ms. If none are recorded, returns the
    /// period and offset of the request.
    fn plan(&self, wanted: &Wanted) -> (u64, u64) {
        self.plan.unwrap_or_else(|| wanted.plan())
    }

    /// Returns the facts about the turn, which is in this state.
    pub(super) fn info(&self, state: TurnState, wanted: &Wanted) -> TurnInfo {
        let (period_ms, offset_ms) = self.plan(wanted);
        let has_slots = period_ms > 0;
        TurnInfo {
            slot: self
                .slot
                .and_then(|slot| beginning_of(slot, (period_ms, offset_ms))),
            id: (!has_slots).then(|| self.id.clone()),
            period: has_slots.then(|| Duration::from_millis(period_ms)),
            offset: Duration::from_millis(offset_ms),
            state,
            by: self.by.clone(),
            hold: self.hold.clone(),
            began: self.times[0],
            ended: self.times[1],
            exit_code: self.exit_code,
            missed: self.missed,
            is_ahead: false,
        }
    }
}

impl Seen {
    pub(super) fn read(items: &[Value]) -> Option<Self> {
        let [
            Value::Int(code),
            Value::Int(now_ms),
            Value::Int(ttl_ms),
            holder,
            record @ ..,
        ] = items
        else {
            return None;
        };
        let holder = match holder {
            Value::Text(holder) => String::from_utf8_lossy(holder).into_owned(),
            _ => String::new(),
        };
        Some(Self {
            code: *code,
            now_ms: u64::try_from(*now_ms).ok()?,
            ttl_ms: *ttl_ms,
            holder,
            record: Record::read(record),
        })
    }

    /// Returns the state of the recorded turn; `None` if there is no record.
    pub(super) fn state(&self) -> Option<TurnState> {
        self.record.slot?;
        Some(match self.record.state.as_str() {
            "done" => TurnState::Done,
            "failed" => TurnState::Failed,
            "open" => TurnState::Open,
            _ if self.holder == self.record.hold => TurnState::Running,
            _ => TurnState::Died,
        })
    }

    pub(super) fn info(&self, wanted: &Wanted) -> TurnInfo {
        let held_otherwise = !self.is_free() && self.holder != self.record.hold;
        match self.state().filter(|_| self.code != 2 || !held_otherwise) {
            Some(state) => {
                let info = self.record.info(state, wanted);
                let (period_ms, offset_ms) = self.record.plan(wanted);
                let nearest = nearest_slot(self.now_ms, period_ms, offset_ms);
                TurnInfo {
                    is_ahead: self.record.slot > Some(nearest),
                    ..info
                }
            }
            None => self.of_the_holder(),
        }
    }

    /// Returns the hold that has the lock, or else the hold of the recorded turn.
    pub(super) fn hold(&self) -> &str {
        match self.is_free() {
            true => &self.record.hold,
            false => &self.holder,
        }
    }

    /// Returns whether no hold has the lock.
    pub(super) fn is_free(&self) -> bool {
        self.holder.is_empty()
    }

    /// Describes a lock that is free, but was not granted.
    pub(super) fn held_back(&self) -> TurnInfo {
        TurnInfo {
            state: TurnState::HeldBack,
            ..self.of_the_holder()
        }
    }

    /// Describes a holder that has the lock without a turn.
    fn of_the_holder(&self) -> TurnInfo {
        TurnInfo {
            slot: None,
            id: None,
            period: None,
            offset: Duration::ZERO,
            state: TurnState::Running,
            by: self.holder.clone(),
            hold: self.holder.clone(),
            began: None,
            ended: None,
            exit_code: None,
            missed: 0,
            is_ahead: false,
        }
    }
}

pub(super) fn since_epoch(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

/// Returns the time at which a slot begins; `None` without slots.
pub(super) fn beginning_of(slot: u64, (period_ms, offset_ms): (u64, u64)) -> Option<SystemTime> {
    let at_ms = slot.saturating_mul(period_ms).saturating_add(offset_ms);
    (period_ms > 0).then(|| since_epoch(at_ms))
}
