//! The kind of lock that a turn acquires: a plain lock. Its acquire also checks the earlier turns,
//! and its release records how this turn ended.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::info::{Record, Seen, TurnInfo};
use super::steps::{self, Begin, Finish, Look, Mark};
use crate::backend::step::{Operation, Value};
use crate::config::wire_ms;
use crate::error::Result;
use crate::hold::{AcquireReply, BatchRenewal, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::lock::kind::{Acquire, Named};
use crate::primitives::lock::steps::{self as lock_steps, LockHold};
use crate::primitives::lock::{Lock, LockGuard, acquire};
use crate::sync::Mutex;
use crate::wait::Deadline;

/// The requested turn.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The key of the turn that began last under the name.
    pub(super) newest: String,
    /// The key of this turn: the same key, unless the turn has an id.
    pub(super) record: String,
    /// The length of a slot; zero for a turn per id.
    pub(super) period: Duration,
    pub(super) offset: Duration,
    pub(super) id: String,
    pub(super) retry_failed: bool,
    pub(super) again: bool,
    pub(super) at_most_once: bool,
    pub(super) by: String,
    pub(super) keep: Duration,
    /// The time of the caller's first request, on the server's clock. Each quicker answer of the
    /// server corrects it. A turn per id does not use it.
    pub(super) requested_ms: AtomicU64,
}

impl Wanted {
    fn repeats(&self) -> u64 {
        match (self.again, self.retry_failed) {
            (true, _) => steps::ANY,
            (false, retry) => u64::from(retry) * steps::FAILED,
        }
    }

    /// Requests the recorded facts about this turn.
    pub(super) fn look(&self, key: &Key) -> Operation {
        Look {
            lock: key.as_str().as_bytes(),
            newest: self.newest.as_bytes(),
            record: self.record.as_bytes(),
        }
        .operation()
    }

    /// Returns the period and the offset of the slots in ms; a period of 0 for a turn per id.
    pub(super) fn plan(&self) -> (u64, u64) {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        (millis(self.period), millis(self.offset))
    }

    /// Returns the number of the requested slot; 0 for a turn per id.
    pub(super) fn slot(&self) -> u64 {
        self.slot_at(self.requested_ms.load(Ordering::SeqCst))
    }

    /// Returns the number of the slot that is nearest to this time on the server's clock.
    pub(super) fn slot_at(&self, ms: u64) -> u64 {
        let (period_ms, offset_ms) = self.plan();
        steps::nearest_slot(ms, period_ms, offset_ms)
    }

    /// Records how the turn of `hold` ended, and releases the lock.
    fn finish(
        &self,
        lock: &[u8],
        channel: &str,
        hold: &str,
        (state, rc): (&str, &str),
        (slot, began_ms): (u64, u64),
    ) -> Operation {
        let (period_ms, offset_ms) = self.plan();
        Finish {
            lock,
            newest: self.newest.as_bytes(),
            record: self.record.as_bytes(),
            hold: hold.as_bytes(),
            channel: channel.as_bytes(),
            state: state.as_bytes(),
            rc: rc.as_bytes(),
            keep_ms: wire_ms(self.keep),
            slot,
            period_ms,
            offset_ms,
            id: self.id.as_bytes(),
            by: self.by.as_bytes(),
            began_ms,
        }
        .operation()
    }

    /// Gives back the turn of `hold`, which no client began.
    pub(super) fn give_back(&self, key: &Key, channel: &str, hold: &str) -> Operation {
        let turn = (self.slot(), 0);
        self.finish(key.as_str().as_bytes(), channel, hold, ("open", ""), turn)
    }

    /// Records how the turn of `hold` ended, before the lock is released.
    pub(super) fn mark(
        &self,
        key: &Key,
        hold: &str,
        ending: &Ending,
        (slot, began_ms): (u64, u64),
    ) -> Operation {
        let (state, rc) = ending.on_wire();
        let (period_ms, offset_ms) = self.plan();
        Mark {
            lock: key.as_str().as_bytes(),
            newest: self.newest.as_bytes(),
            record: self.record.as_bytes(),
            hold: hold.as_bytes(),
            state: state.as_bytes(),
            rc: rc.as_bytes(),
            keep_ms: wire_ms(self.keep),
            slot,
            period_ms,
            offset_ms,
            id: self.id.as_bytes(),
            by: self.by.as_bytes(),
            began_ms,
        }
        .operation()
    }
}

/// The end of the turn of one hold. The release sends it.
#[derive(Debug, Default)]
pub(super) struct Ending {
    state: AtomicU8,
    code: Mutex<Option<i32>>,
}

const OPEN: u8 = 0;
const FAILED: u8 = 1;
const DONE: u8 = 2;

impl Ending {
    /// Notes that the caller gives the turn back, so that no client counts as having begun it.
    pub(super) fn declined(&self) {
        self.state.store(OPEN, Ordering::SeqCst);
    }

    /// Notes that the job has begun. If the turn is dropped from now on, it has failed. Until this
    /// call, it counts as not begun.
    pub(super) fn begun(&self) {
        self.state.store(FAILED, Ordering::SeqCst);
    }

    pub(super) fn ends(&self, is_done: bool, code: Option<i32>) {
        *self.code.lock() = code;
        let state = if is_done { DONE } else { FAILED };
        self.state.store(state, Ordering::SeqCst);
    }

    fn on_wire(&self) -> (&'static str, String) {
        let state = match self.state.load(Ordering::SeqCst) {
            DONE => "done",
            OPEN => "open",
            _ => "failed",
        };
        let code = *self.code.lock();
        (
            state,
            code.map_or_else(String::new, |code| code.to_string()),
        )
    }
}

/// A grant of a turn.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) slot: u64,
    pub(super) missed: u64,
    pub(super) began_ms: u64,
    /// The turn before, if it never ended.
    pub(super) died: Option<Record>,
    pub(super) ending: Arc<Ending>,
}

/// The answers of the server to one `begin`.
#[derive(Debug, Default)]
pub(super) struct Answers {
    state: Mutex<AnswerState>,
    /// Notified when `is_over` or `unclaimed` is set.
    changed: Notify,
}

#[derive(Debug, Default)]
struct AnswerState {
    granted: Option<Granted>,
    seen: Option<Seen>,
    looked: Option<Seen>,
    is_over: bool,
    /// The last holds that were requested, unless the request was refused or did not run. The server
    /// may have granted one of them without the client learning of it. The client then gives it back
    /// in the background.
    requested: VecDeque<String>,
    /// One of these holds whose lease has ended, so that its turn counts as begun and is closed.
    unclaimed: Option<String>,
}

impl AnswerState {
    fn forget_requested(&mut self, hold: &str) {
        self.requested.retain(|requested| requested != hold);
    }

    /// Returns whether the last answer is about a hold that was granted to this call.
    fn is_about_own_grant(&self) -> bool {
        let of = |seen: &Seen| {
            let hold = seen.hold();
            self.requested.iter().any(|requested| requested == hold)
        };
        self.seen.as_ref().is_some_and(of)
    }
}

/// The number of holds that are remembered. With the default reply timeout, this is enough for half
/// an hour in which the server is silent.
const MOST_REQUESTED: usize = 1024;
/// The time until a wait asks again for a turn that it gives back.
const ASK_AGAIN_AFTER_MS: i64 = 100;

impl Answers {
    /// Notes the answer to a request that only looked, and did not ask for a grant.
    pub(super) fn looked(&self, seen: &Seen) {
        self.state.lock().looked = Some(seen.clone());
    }

    /// Returns the last answer of any kind.
    pub(super) fn last(&self) -> Option<Seen> {
        let state = self.state.lock();
        state.seen.clone().or_else(|| state.looked.clone())
    }

    pub(super) fn granted(&self) -> Option<Granted> {
        self.state.lock().granted.clone()
    }

    /// Returns what the last answer said about the holder.
    pub(super) fn busy(&self) -> Option<Seen> {
        self.state.lock().seen.clone()
    }

    /// Returns the turn if it is over.
    pub(super) fn over(&self, wanted: &Wanted) -> Option<TurnInfo> {
        let state = self.state.lock();
        let seen = state.seen.as_ref().filter(|_| state.is_over);
        seen.map(|seen| seen.info(wanted))
    }

    /// Waits until the turn is over.
    pub(super) async fn until_over(&self, wanted: &Wanted) -> TurnInfo {
        loop {
            let notified = self.changed.notified();
            if let Some(info) = self.over(wanted) {
                return info;
            }
            notified.await;
        }
    }

    /// Waits until a grant that the client did not learn of has expired. Returns its hold.
    pub(super) async fn unclaimed(&self) -> String {
        loop {
            let notified = self.changed.notified();
            if let Some(hold) = self.state.lock().unclaimed.take() {
                return hold;
            }
            notified.await;
        }
    }

    /// Returns whether the last answer is about a grant that the client did not learn of in time.
    pub(super) fn is_about_own_grant(&self) -> bool {
        self.state.lock().is_about_own_grant()
    }

    fn note_requested(&self, hold: String) {
        let requested = &mut self.state.lock().requested;
        requested.truncate(MOST_REQUESTED - 1);
        requested.push_front(hold);
    }

    fn read(&self, hold: &str, reply: &Value, ending: &Arc<Ending>) -> Option<AcquireReply> {
        let Value::List(items) = reply else {
            return None;
        };
        let mut state = self.state.lock();
        if let [
            Value::Int(1),
            Value::Int(slot),
            Value::Int(missed),
            Value::Int(began_ms),
            died @ ..,
        ] = &items[..]
        {
            state.granted = Some(Granted {
                slot: u64::try_from(*slot).ok()?,
                missed: u64::try_from(*missed).ok()?,
                began_ms: u64::try_from(*began_ms).ok()?,
                died: Record::that_died(died),
                ending: Arc::clone(ending),
            });
            return Some(AcquireReply::Granted { token: None });
        }
        let seen = Seen::read(items)?;
        let (ttl_ms, is_closed) = (seen.ttl_ms, seen.code == 3);
        state.forget_requested(hold);
        state.seen = Some(seen);
        if is_closed && state.is_about_own_grant() {
            state.unclaimed = state.seen.as_ref().map(|seen| seen.hold().to_owned());
            drop(state);
            self.changed.notify_waiters();
            return Some(AcquireReply::Busy {
                ttl_ms: ASK_AGAIN_AFTER_MS,
                before: None,
            });
        }
        state.is_over = is_closed;
        if state.is_over {
            drop(state);
            self.changed.notify_waiters();
        }
        Some(AcquireReply::Busy {
            ttl_ms: ttl_ms.max(0),
            before: None,
        })
    }
}

/// The kind of lock that one call of `begin` acquires.
#[derive(Clone)]
pub(super) struct TurnKind {
    pub(super) wanted: Arc<Wanted>,
    pub(super) answers: Arc<Answers>,
}

impl fmt::Debug for TurnKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wanted.fmt(f)
    }
}

impl Acquire for TurnKind {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        acquire::acquire_by(lock, deadline).await
    }
}

// This kind has no slice: a hold that is handed over inside the process would ignore the turns.
impl Named for TurnKind {
    fn is_exclusive(&self) -> bool {
        true
    }

    fn was_held(&self) -> bool {
        self.answers.last().is_some_and(|seen| !seen.is_free())
    }

    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        lock.kind().answers.note_requested(id.clone());
        Box::new(TurnHold {
            hold: LockHold::new(key.clone(), lock.channel(), id),
            channel: lock.channel(),
            kind: lock.kind().clone(),
            ending: Arc::default(),
            was_undone: AtomicBool::new(false),
        })
    }

    fn inspect(&self, key: &Key) -> Operation {
        lock_steps::inspect(key)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        lock_steps::force_unlock(key, channel, by)
    }
}

/// The operations on the hold of one turn.
struct TurnHold {
    hold: LockHold,
    channel: Arc<str>,
    kind: TurnKind,
    ending: Arc<Ending>,
    /// Whether a release of the hold was requested.
    was_undone: AtomicBool,
}

impl Drop for TurnHold {
    fn drop(&mut self) {
        // Without a release, the request did not run, or the server refused it.
        if !*self.was_undone.get_mut() {
            let answers = &self.kind.answers;
            answers.state.lock().forget_requested(self.hold.wire_id());
        }
    }
}

impl HoldSteps for TurnHold {
    fn acquire(&self, lease: Duration) -> Operation {
        let wanted = &self.kind.wanted;
        Begin {
            lock: self.hold.lock(),
            newest: wanted.newest.as_bytes(),
            record: wanted.record.as_bytes(),
            hold: self.hold.wire_id().as_bytes(),
            lease_ms: wire_ms(lease),
            period_ms: wire_ms(wanted.period),
            offset_ms: wire_ms(wanted.offset),
            requested_ms: wanted.requested_ms.load(Ordering::SeqCst),
            id: wanted.id.as_bytes(),
            repeats: wanted.repeats(),
            most_once: wanted.at_most_once,
            by: wanted.by.as_bytes(),
            keep_ms: wire_ms(wanted.keep),
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        let hold = self.hold.wire_id();
        self.kind.answers.read(hold, &reply, &self.ending)
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        self.hold.renew(lease, most)
    }

    fn batch_renewal(&self) -> Option<BatchRenewal<'_>> {
        self.hold.batch_renewal()
    }

    fn release(&self) -> Operation {
        let (wanted, (state, rc)) = (&self.kind.wanted, self.ending.on_wire());
        let granted = self.kind.answers.granted();
        self.was_undone.store(true, Ordering::SeqCst);
        wanted.finish(
            self.hold.lock(),
            &self.channel,
            self.hold.wire_id(),
            (state, &rc),
            granted.map_or((wanted.slot(), 0), |granted| {
                (granted.slot, granted.began_ms)
            }),
        )
    }

    fn why_lost(&self) -> Operation {
        self.hold.why_lost()
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        self.hold.read_why_lost(reply)
    }

    fn wire_id(&self) -> &str {
        self.hold.wire_id()
    }
}
