//! The line of a name inside this process: one waiter asks the server for the lock, and the others
//! wait behind it. A hundred tasks that want one name cost the server as much as one task. Readers
//! wait together: once one of them gets the lock, all others ask the server at the same time.
//!
//! A future is polled by its caller, and a caller may stop polling: a loop around `select!` does.
//! So a waiter that was woken must be polled within a short time (`stalls.rs`). Otherwise it is
//! passed over (`order.rs`): the next waiter in line becomes the head, and the stalled waiter gets
//! its place back when it is polled again. Its request is not taken back: if the server has granted
//! the lock to it, the stalled waiter holds the lock.
//!
//! To find such a waiter, its future is polled with a waker of the line ([`WaiterWaker`]), which
//! notes that the waiter was woken. A poll clears the note. So a waiter in a line must not be woken
//! by another waker: that would leave no note.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::hand_over::{self, HoldWaiter};
use super::order::{LineRole, Number, Order};
use super::permits::PermitWaiter;
use super::server_view::ServerView;
use super::stalls::StallCheck;
use super::succession::Succession;
use super::{LocalRecords, Record, RecordRef};
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::Moment;
use crate::hold::Undo;
use crate::key::Key;
use crate::sync::{Mutex, MutexGuard};

/// The way in which the waiters of one process line up for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineMode {
    /// One waiter asks the server, and the others wait behind it.
    HeadAsks,
    /// Like [`HeadAsks`](LineMode::HeadAsks), but later readers wait behind the writer, too.
    Writer,
    /// Readers ask the server at once. If it refuses them, one of them waits for the server, and
    /// its grant lets the others ask again.
    Reader {
        /// The longest time for which a reader waits behind writers.
        yields_for: Duration,
    },
    /// The waiter does not wait behind other waiters of the process.
    Bypass,
    /// The waiters do not wait for each other: all ask, and share one request and its answer.
    SingleFlight,
    /// The line is on the server. Each waiter has a place there, and repeats its request at this
    /// interval to keep the place.
    OnServer { ask_every: Duration },
}

impl LineMode {
    /// Returns the waiter's role, or `None` if the waiter does not wait behind others of this
    /// process.
    fn role(self) -> Option<LineRole> {
        match self {
            Self::HeadAsks => Some(LineRole::Plain),
            Self::Writer => Some(LineRole::Writer),
            Self::Reader { .. } => Some(LineRole::Reader),
            Self::OnServer { .. } => Some(LineRole::Queued),
            Self::Bypass | Self::SingleFlight => None,
        }
    }
}

/// The line of a name, for as long as a waiter has a place in it.
#[derive(Default)]
pub(super) struct LineSlot(Mutex<Option<(Arc<WaitLine>, usize)>>);

impl LineSlot {
    pub(super) fn has_line(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(super) fn line(&self) -> Option<Arc<WaitLine>> {
        let slot = self.0.lock();
        slot.as_ref().map(|(line, _)| Arc::clone(line))
    }

    /// Takes one more place. If this creates the line, the waiter in `sole_waiter` gets the place
    /// before it.
    fn enter(&self, record: &Arc<Record>) -> Arc<WaitLine> {
        let mut slot = self.0.lock();
        let (line, places) = slot.get_or_insert_with(|| {
            let line = Arc::new(WaitLine {
                record: Arc::downgrade(record),
                ..WaitLine::default()
            });
            let mut places = 0;
            if let Some(waker) = record.sole_waiter.lock().take() {
                line.add_sole_waiter(waker);
                places = 1;
            }
            (line, places)
        });
        *places += 1;
        Arc::clone(line)
    }

    /// Gives up a place. The line is dropped with its last place, and so is its knowledge of the
    /// server, because the next waiter may arrive much later. A waiter that arrives before the
    /// waker of the last waiter has left may begin a new line: the old line has no other waiter.
    fn leave(&self) {
        let mut slot = self.0.lock();
        let is_last = slot.as_mut().is_some_and(|(_, places)| {
            *places -= 1;
            *places == 0
        });
        let removed = if is_last { slot.take() } else { None };
        // Drop the line after unlocking: what is dropped with the line may take this lock.
        drop(slot);
        drop(removed);
    }
}

/// One line.
#[derive(Default)]
pub(super) struct WaitLine {
    pub(super) state: Mutex<LineState>,
    /// The waiters' knowledge of the server.
    server: Mutex<ServerView>,
    /// Notified when a reader got the lock.
    reader_granted: Notify,
    /// Notified when the server stops answering.
    went_down: Notify,
    /// The record of the line's name.
    record: Weak<Record>,
}

#[derive(Default)]
pub(super) struct LineState {
    next: Number,
    pub(super) order: Order,
    /// The wakers of all waiters, including those that were passed over.
    pub(super) wakers: BTreeMap<Number, Arc<WaiterWaker>>,
    /// Whether the line is among the lines that are checked (`stalls.rs`).
    is_checked: bool,
    /// The waiters for permits that have not got any permits yet, by the numbers that they have in
    /// `order`: the same order decides which waiter asks the server and which waiter is served
    /// next.
    pub(super) permit_waiters: BTreeMap<Number, Arc<PermitWaiter>>,
    /// The waiters to which a hold can be handed over.
    pub(super) hold_waiters: BTreeMap<Number, Arc<HoldWaiter>>,
    /// The waiters to which a hold is handed one after the other, after the server has granted it
    /// to the first of them.
    pub(super) succession: Option<Succession>,
}

/// A waiter in a line, and the waker with which its future is polled. The waker notes that the
/// waiter was woken.
pub(super) struct WaiterWaker {
    stall_check: Arc<StallCheck>,
    /// The waiter's line. Not set while the waiter is the only one and asks without a line.
    line: OnceLock<Arc<WaitLine>>,
    /// Whether the waiter was woken while it had no line, and has not been polled since then.
    woken: AtomicBool,
    number: Number,
    role: LineRole,
    /// The waker of the task that polls the waiter; taken when that task is woken.
    task_waker: Mutex<Option<Waker>>,
}

impl LocalRecords {
    fn line(&self, key: &Key) -> Option<Arc<WaitLine>> {
        self.table.lock().records.get(key)?.line.line()
    }

    /// Returns whether a `try_acquire` must give way: a waiter that it must not overtake is in
    /// line, and the server answers the waiters of this line.
    pub(crate) fn has_waiters(&self, key: &Key, line_up: LineMode) -> bool {
        let Some(line) = self.line(key) else {
            return false;
        };
        let mut state = line.state.lock();
        let anyone = match line_up.role() {
            Some(LineRole::Plain | LineRole::Writer) => !state.order.is_empty(),
            Some(LineRole::Reader) => state.order.any_writer(),
            // The line is on the server.
            Some(LineRole::Queued) | None => false,
        };
        // Nothing else checks a waiter that is alone in line. If it were not polled, no
        // `try_acquire` could get the free lock.
        let needs_check = anyone && state.order.any_woken();
        let needs_check = needs_check && !std::mem::replace(&mut state.is_checked, true);
        drop(state);
        if needs_check {
            self.stall_check.add(&line);
        }
        // If no server answers the waiters in line, a `try_acquire` sends a request of its own: it
        // may report "held" only if a server has said so.
        let server = line.server.lock();
        anyone && server.has_answered() && server.outage().is_none()
    }

    /// Notes that the server has reported to a `try_acquire`, which takes no place in the line,
    /// that the name is held.
    pub(crate) fn note_held(&self, key: &Key, sent: Moment, now: Moment, ttl: Option<Duration>) {
        if let Some(line) = self.line(key) {
            line.server.lock().held(sent, now, ttl);
        }
    }
}

impl RecordRef {
    /// Takes a place in the line.
    pub(crate) fn line_up(self, line: LineMode) -> Place {
        self.take_place(line, None, None)
    }

    /// Takes a place for a waiter to which a hold can be handed over.
    pub(crate) fn line_up_for_hold(self, line: LineMode, hold_waiter: HoldWaiter) -> Place {
        self.take_place(line, None, Some(Arc::new(hold_waiter)))
    }

    /// Takes a place for a waiter that wants `permits` permits.
    pub(crate) fn line_up_for_permits(self, permits: u32) -> Place {
        self.take_place(
            LineMode::HeadAsks,
            Some(Arc::new(PermitWaiter::new(permits))),
            None,
        )
    }

    fn take_place(
        self,
        line_up: LineMode,
        permit_waiter: Option<Arc<PermitWaiter>>,
        hold_waiter: Option<Arc<HoldWaiter>>,
    ) -> Place {
        let line = self.line.enter(&self);
        let role = line_up.role();
        let wants = (permit_waiter.as_ref(), hold_waiter.as_ref());
        let waker = role.map(|role| self.join_line(&line, role, wants));
        Place {
            arrival: self.arrivals.arrive(self.locals.clock.now()),
            local: self,
            // A waiter outside the line gets an empty line of its own, because it may use only the
            // results of its own requests.
            line: if waker.is_some() {
                line
            } else {
                Arc::default()
            },
            waker,
            permit_waiter,
            hold_waiter,
            has_asked: AtomicBool::new(false),
            may_have_run: Mutex::default(),
        }
    }

    fn join_line(
        &self,
        line: &Arc<WaitLine>,
        role: LineRole,
        (permit_waiter, hold_waiter): (Option<&Arc<PermitWaiter>>, Option<&Arc<HoldWaiter>>),
    ) -> Arc<WaiterWaker> {
        let mut state = line.state.lock();
        let number = state.next;
        state.next += 1;
        let waker = Arc::new(WaiterWaker {
            line: Arc::clone(line).into(),
            ..WaiterWaker::new(&self.locals.stall_check, number, role)
        });
        state.wakers.insert(number, Arc::clone(&waker));
        if let Some(permit_waiter) = permit_waiter {
            state
                .permit_waiters
                .insert(number, Arc::clone(permit_waiter));
        }
        if let Some(hold_waiter) = hold_waiter {
            state.hold_waiters.insert(number, Arc::clone(hold_waiter));
        }
        let mut to_wake = state.order.polled(number, role);
        // The waiter before this one may have been woken long ago, when it was the last in line and
        // no check was needed.
        let needs_check = state.needs_check();
        if !line.server.lock().has_answered() {
            // The head may be pausing so that other processes ask first. This waiter's time limit
            // may be too short for that.
            to_wake.extend(state.order.head().filter(|head| *head != number));
        }
        let to_wake = state.wakers_of(&to_wake);
        drop(state);
        wake(to_wake);
        if needs_check {
            self.locals.stall_check.add(line);
        }
        waker
    }
}

impl WaitLine {
    /// Gives the first place to the first waiter, which has asked the server without a line until
    /// now.
    fn add_sole_waiter(self: &Arc<Self>, waker: Arc<WaiterWaker>) {
        let mut state = self.state.lock();
        state.next = FIRST + 1;
        state.order.polled(FIRST, waker.role);
        // The line is set before `woken` is read, so a simultaneous wake-up finds the line, or is
        // found here.
        let _ = waker.line.set(Arc::clone(self));
        if waker.woken.load(Ordering::SeqCst) {
            state.order.woken(FIRST);
        }
        state.wakers.insert(FIRST, waker);
    }

    /// Passes over the waiters that were woken but not polled. Returns whether the line must be
    /// checked again.
    pub(super) fn check_stalls(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        let stalls = state.order.pass_over_stalled();
        let stalled = stalls.stalled.iter();
        let stalled: Vec<_> = stalled
            .filter_map(|number| state.hold_waiters.get(number).cloned())
            .collect();
        // If one waiter is not polled, others might not be either. If all are woken at once, they
        // are passed over together. Otherwise each stalled waiter would delay the next one by two
        // checks.
        let to_wake = match stalls.head_stalled {
            true => state.wakers.values().cloned().collect(),
            false => state.wakers_of(&stalls.to_wake),
        };
        state.is_checked = state.order.any_woken();
        let again = state.is_checked;
        drop(state);
        // The holds in the slots of stalled waiters are taken back only after these waiters were
        // removed from the order, so that nothing more is given to them.
        if let Some(record) = self.record.upgrade() {
            (stalled.iter())
                .for_each(|hold_waiter| hand_over::waiter_stalled(&record, hold_waiter, now));
        }
        wake(to_wake);
        again
    }

    /// Returns the first waiter in line, if a hold can be handed over to it.
    pub(super) fn first_hold_waiter(&self) -> Option<(Arc<WaiterWaker>, Arc<HoldWaiter>)> {
        let state = self.state.lock();
        for number in state.order.exclusive() {
            let hold_waiter = state.hold_waiters.get(number)?;
            // A waiter that already has a hold and is about to leave is no longer the first.
            if hold_waiter.slot.is_empty() {
                let waker = state.wakers.get(number)?;
                return Some((Arc::clone(waker), Arc::clone(hold_waiter)));
            }
        }
        None
    }

    /// Gives a hold to a waiter and wakes it. Returns the hold if the waiter has left or was passed
    /// over, because no stall check would take the hold back from such a waiter.
    pub(super) fn give(
        &self,
        waker: &Arc<WaiterWaker>,
        hold_waiter: &HoldWaiter,
        hold: Undo,
    ) -> Result<(), Undo> {
        let state = self.state.lock();
        let given = match state.order.contains(waker.number) {
            true => hold_waiter.slot.give(hold),
            false => Err(hold),
        };
        drop(state);
        if given.is_ok() {
            waker.wake_by_ref();
        }
        given
    }

    /// Notes that the server has confirmed to a holder of this process that the name is held.
    pub(super) fn answered(&self, sent: Moment, now: Moment) {
        self.server.lock().held(sent, now, Some(Duration::ZERO));
    }

    /// Wakes the head of the line, because it need not wait for its own process any more.
    pub(super) fn wake_head(&self) {
        let state = self.state.lock();
        let head = state.order.head();
        let waker = head.and_then(|head| state.wakers.get(&head).cloned());
        drop(state);
        wake(waker.into_iter().collect());
    }
}

impl LineState {
    fn wakers_of(&self, numbers: &[Number]) -> Vec<Arc<WaiterWaker>> {
        let wakers = numbers.iter().filter_map(|number| self.wakers.get(number));
        wakers.cloned().collect()
    }

    /// Returns whether a hold was handed over to a waiter that has not claimed it yet.
    fn has_unclaimed_hold(&self) -> bool {
        let mut given = self.hold_waiters.values();
        given.any(|hold_waiter| hold_waiter.slot.is_full())
    }

    /// Returns whether stall checks of this line must begin. If so, notes that they have begun.
    fn needs_check(&mut self) -> bool {
        // A waiter that is alone can't delay another waiter, unless it has been given a hold.
        let wants =
            self.order.any_woken() && (self.order.has_several() || self.has_unclaimed_hold());
        wants && !std::mem::replace(&mut self.is_checked, true)
    }
}

/// Wakes these waiters. Call this while no line is locked: a waker locks its line to note the
/// wake-up, and the woken waiter may lock the line, too.
fn wake(wakers: Vec<Arc<WaiterWaker>>) {
    for waker in wakers {
        waker.wake();
    }
}

impl WaiterWaker {
    fn new(stall_check: &Arc<StallCheck>, number: Number, role: LineRole) -> Self {
        Self {
            stall_check: Arc::clone(stall_check),
            line: OnceLock::new(),
            woken: AtomicBool::new(false),
            number,
            role,
            task_waker: Mutex::default(),
        }
    }

    /// Notes that the waiter is polled.
    fn polled(&self, waker: &Waker) {
        // Set the waker first: a wake-up right after the note is cleared must not wake the task
        // that polled the waiter earlier.
        let before = self.task_waker.lock().replace(waker.clone());
        drop(before);
        self.woken.store(false, Ordering::SeqCst);
        let Some(line) = self.line.get() else { return };
        let mut state = line.state.lock();
        let to_wake = state.order.polled(self.number, self.role);
        let to_wake = state.wakers_of(&to_wake);
        drop(state);
        wake(to_wake);
    }

    fn leave(&self) {
        let waker = self.task_waker.lock().take();
        drop(waker);
        let Some(line) = self.line.get() else { return };
        let mut state = line.state.lock();
        // The caller keeps the waker and the waiter alive, so nothing is dropped under the lock.
        // Both are removed by their number, without a search, because thousands of waiters may
        // leave at the same time.
        state.wakers.remove(&self.number);
        state.permit_waiters.remove(&self.number);
        state.hold_waiters.remove(&self.number);
        let to_wake = state.order.leave(self.number);
        let to_wake = state.wakers_of(&to_wake);
        drop(state);
        wake(to_wake);
    }
}

impl Wake for WaiterWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Set the note before the task is woken, because another thread may poll the waiter at
        // once. If the note were set after that poll, the waiter would be passed over although it
        // was polled.
        if self.line.get().is_none() {
            self.woken.store(true, Ordering::SeqCst);
        }
        // Read the line after the note is set: a thread that creates the line at the same time
        // finds the note.
        if let Some(line) = self.line.get() {
            let mut state = line.state.lock();
            state.order.woken(self.number);
            let needs_check = state.needs_check();
            drop(state);
            if needs_check {
                self.stall_check.add(line);
            }
        }
        let waker = self.task_waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The number of the waiter that arrived first and asks without a line.
const FIRST: Number = 0;

/// The only waiter of its process for a name. It asks the server without a place in line. Waiters
/// that arrive later are placed behind it.
pub(crate) struct SoleWaiter {
    local: Option<RecordRef>,
    waker: Arc<WaiterWaker>,
}

impl RecordRef {
    /// Lets this waiter ask the server without a place in line. Returns the record if the waiter
    /// must line up: another waiter is present, the process has a slice or yields, or the mode
    /// needs a place.
    pub(crate) fn sole_waiter(self, line: LineMode) -> Result<SoleWaiter, Self> {
        let Some(role) = line.role().filter(|role| *role != LineRole::Queued) else {
            return Err(self);
        };
        // The line's slot is locked, so that no other thread creates a line at the same time.
        let slot = self.line.0.lock();
        let mut sole_waiter = self.sole_waiter.lock();
        if slot.is_some() || sole_waiter.is_some() || !self.slice.lock().is_idle() {
            drop(sole_waiter);
            drop(slot);
            return Err(self);
        }
        let waker = Arc::new(WaiterWaker::new(&self.locals.stall_check, FIRST, role));
        *sole_waiter = Some(Arc::clone(&waker));
        drop(sole_waiter);
        drop(slot);
        Ok(SoleWaiter {
            local: Some(self),
            waker,
        })
    }
}

impl SoleWaiter {
    /// Polls the waiter's request.
    pub(crate) fn poll_through<F: Future>(
        &self,
        context: &mut Context<'_>,
        request: Pin<&mut F>,
    ) -> Poll<F::Output> {
        self.waker.polled(context.waker());
        let waker = Waker::from(Arc::clone(&self.waker));
        request.poll(&mut Context::from_waker(&waker))
    }

    /// Ends the wait of a waiter that has got the lock. Returns the waiter if others are in line
    /// behind it.
    pub(crate) fn leave(mut self) -> Option<Self> {
        let alone = self.local.as_ref()?.sole_waiter.lock().take();
        if alone.is_some() {
            self.local = None;
            return None;
        }
        Some(self)
    }

    /// Gives the waiter a place in line, where it continues to wait.
    pub(crate) fn line_up(mut self, hold_waiter: Option<HoldWaiter>) -> Option<Place> {
        let local = self.local.take()?;
        // The thread that creates the line counts the place of the first waiter. This `enter`
        // counts the place a second time, which `leave` takes back.
        let line = local.line.enter(&local);
        local.line.leave();
        let hold_waiter = hold_waiter.map(Arc::new);
        if let Some(hold_waiter) = &hold_waiter {
            let mut state = line.state.lock();
            state.hold_waiters.insert(FIRST, Arc::clone(hold_waiter));
        }
        Some(Place {
            arrival: local.arrivals.arrive(local.locals.clock.now()),
            local,
            line,
            waker: Some(Arc::clone(&self.waker)),
            permit_waiter: None,
            hold_waiter,
            has_asked: AtomicBool::new(true),
            may_have_run: Mutex::default(),
        })
    }
}

impl Drop for SoleWaiter {
    fn drop(&mut self) {
        let Some(local) = self.local.take() else {
            return;
        };
        if local.locals.process.is_forked() {
            return;
        }
        let alone = local.sole_waiter.lock().take();
        if alone.is_none() {
            // Other waiters are behind this one.
            local.line.leave();
            self.waker.leave();
        }
    }
}

/// A waiter's place in a line. Dropping it leaves the line.
pub(crate) struct Place {
    local: RecordRef,
    /// The waiter's number among all waiters for the name.
    arrival: u64,
    line: Arc<WaitLine>,
    waker: Option<Arc<WaiterWaker>>,
    /// Set for a waiter that wants permits.
    permit_waiter: Option<Arc<PermitWaiter>>,
    /// Set for a waiter to which a hold can be handed over.
    hold_waiter: Option<Arc<HoldWaiter>>,
    has_asked: AtomicBool,
    /// The time at which this waiter sent the last of its requests that may have run without an
    /// answer.
    may_have_run: Mutex<Option<Moment>>,
}

impl Place {
    /// Ends the wait of a waiter for permits, which has got its permits or has given up. Returns
    /// `true` if it was granted permits that it has not claimed.
    pub(crate) fn give_up(&self) -> bool {
        let unclaimed = self
            .permit_waiter
            .as_ref()
            .is_some_and(|waiter| waiter.close());
        if let Some(waker) = self.waker.as_ref().filter(|_| unclaimed) {
            // Remove the waiter before the permits are given back. If it still counted as a waiter,
            // the permits would be kept back for a batch.
            self.line.state.lock().permit_waiters.remove(&waker.number);
        }
        unclaimed
    }

    /// Returns the other waiters for permits in this line, in order, and at most `limit` of them.
    pub(crate) fn other_permit_waiters(&self, limit: usize) -> Vec<Arc<PermitWaiter>> {
        let own = self.waker.as_ref().map(|waker| waker.number);
        let state = self.line.state.lock();
        let others = state.permit_waiters.iter();
        // Leave out waiters that no longer wait: the server would grant permits to them for
        // nothing.
        let others = others.filter(|(number, waiter)| Some(**number) != own && waiter.is_waiting());
        let others = others.take(limit).map(|(_, waiter)| Arc::clone(waiter));
        others.collect()
    }

    pub(crate) fn permit_waiter(&self) -> Option<&Arc<PermitWaiter>> {
        self.permit_waiter.as_ref()
    }

    pub(super) fn local(&self) -> &RecordRef {
        &self.local
    }

    /// Returns whether the line is on the server, and this waiter has a place there.
    pub(crate) fn is_on_server(&self) -> bool {
        let waker = self.waker.as_ref();
        waker.is_some_and(|waker| waker.role == LineRole::Queued)
    }

    /// Returns whether other waiters are in the line.
    pub(crate) fn has_others(&self) -> bool {
        self.line.state.lock().order.has_several()
    }

    pub(super) fn hold_waiter(&self) -> Option<&Arc<HoldWaiter>> {
        self.hold_waiter.as_ref()
    }
}

/// The order of the line. A wait to become the head must be polled by
/// [`poll_through`](Self::poll_through), which handles the wake-ups.
impl Place {
    /// Polls the wait to which this place belongs.
    pub(crate) fn poll_through<F: Future>(
        &self,
        context: &mut Context<'_>,
        wait: Pin<&mut F>,
    ) -> Poll<F::Output> {
        let Some(waker) = &self.waker else {
            return wait.poll(context);
        };
        // Call `polled` before polling the wait: a waiter that was passed over must be back in its
        // place when the wait checks whether the waiter is the head.
        waker.polled(context.waker());
        let waker = Waker::from(Arc::clone(waker));
        wait.poll(&mut Context::from_waker(&waker))
    }

    /// Returns whether this waiter is the one that asks the server. Among readers, it is the one
    /// that waits for the server.
    pub(crate) fn is_head(&self) -> bool {
        self.check_order(Order::is_head)
    }

    fn check_order(&self, condition: impl Fn(&Order, Number) -> bool) -> bool {
        let waker = self.waker.as_ref();
        waker.is_none_or(|waker| condition(&self.line.state.lock().order, waker.number))
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        // No waker is registered here. The entire wait is polled with the waiter's `WaiterWaker`,
        // and a thread that changes the order for this waiter wakes that waker.
        let poll = |_: &mut Context<'_>| match condition() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        std::future::poll_fn(poll).await;
    }

    /// Resolves when this waiter is the head of the line. A new head first asks the server, and
    /// only then sleeps.
    pub(crate) async fn until_head(&self) {
        self.until(|| self.is_head()).await;
    }

    /// Resolves when no writer keeps this reader back, so that it may ask the server together with
    /// other readers.
    pub(crate) async fn until_admitted(&self) {
        self.until(|| self.check_order(Order::admits)).await;
    }

    /// Lets this reader ask the server from now on, even if writers are before it.
    pub(crate) fn pass_writers(&self) {
        let Some(waker) = &self.waker else { return };
        let mut state = self.line.state.lock();
        let to_wake = state.order.pass_writers(waker.number);
        let to_wake = state.wakers_of(&to_wake);
        drop(state);
        wake(to_wake);
    }
}

/// The line's knowledge of the server.
impl Place {
    pub(crate) fn server_view(&self) -> MutexGuard<'_, ServerView> {
        self.line.server.lock()
    }

    /// Notes that this waiter sends a request.
    pub(crate) fn note_asked(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Returns whether a request of this waiter may have run without an answer, and no later request
    /// of the line was answered.
    pub(crate) fn is_in_doubt(&self, server: &ServerView) -> bool {
        let unanswered = *self.may_have_run.lock();
        unanswered.is_some_and(|sent| !server.has_answered_after(sent))
    }

    /// Notes that a request that was sent at `sent` was not answered.
    pub(crate) fn unanswered(&self, sent: Moment, now: Moment, gap: Duration, failure: &Failure) {
        // An unconfirmed grant was answered, and is given back.
        let is_answered = matches!(failure.cause, Cause::Unconfirmed(_));
        if failure.outcome == Outcome::MayHaveRun && !is_answered {
            *self.may_have_run.lock() = Some(sent);
        }
        let is_new_outage = self.line.server.lock().unanswered(sent, now, gap, failure);
        if is_new_outage {
            // The waiters behind the head do not send requests, and each must watch its own time
            // limit.
            self.line.went_down.notify_waiters();
        }
    }

    /// Returns the `Notify` for the beginning of an outage: a request was not answered, although
    /// the previous one was.
    pub(crate) fn went_down(&self) -> &Notify {
        &self.line.went_down
    }

    /// Notes that the server has granted a request that was sent at `sent`.
    pub(crate) fn granted(&self, sent: Moment) {
        self.line.server.lock().granted(sent);
        self.line.reader_granted.notify_waiters();
    }

    /// Returns the `Notify` for a grant to one of the readers that enter together.
    pub(crate) fn reader_granted(&self) -> &Notify {
        &self.line.reader_granted
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.local.locals.process.is_forked() {
            return;
        }
        let reported_over = &self.local.locals.reported_wait_over;
        self.local.arrivals.leave(self.arrival, reported_over);
        self.local.line.leave();
        if let Some(waker) = &self.waker {
            waker.leave();
        }
        // Call this after the waiter has left the order: the hold in its slot must not be handed
        // over to this waiter again.
        if let Some(hold_waiter) = &self.hold_waiter {
            hand_over::waiter_left(&self.local, hold_waiter, self.local.now());
        }
    }
}
