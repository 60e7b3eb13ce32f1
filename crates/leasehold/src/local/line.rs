//! The line of a name inside this process: one waiter asks the server, and the others wait behind
//! it. A hundred tasks that want one name cost the server as much as one task. Readers wait
//! together: once one of them gets in, the others ask at the same time.
//!
//! A future is polled by its caller, and a caller may stop polling: a loop around `select!` does.
//! So a waiter that was woken must be polled within a short time (`looks.rs`). If it is not, it is
//! passed over (`order.rs`): the turn passes to the next in line, and the waiter keeps its place
//! for when it is polled again. Its request is not taken back: if the server has granted it the
//! lock, the waiter holds the lock.
//!
//! To find such a waiter, its future is polled with a waker of the line ([`Seat`]), which notes
//! that the waiter was called. A poll clears the note. So a waiter in a line must not be woken by
//! another waker: that would leave no note.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::hand_over::{self, Candidate};
use super::looks::Looks;
use super::order::{Number, Order, Side};
use super::outage::Outage;
use super::permits::Waiter;
use super::run::Run;
use super::{Local, Locals, Record};
use crate::backend::failure::Failure;
use crate::clock::Moment;
use crate::hold::Undo;
use crate::key::Key;
use crate::sync::{Mutex, MutexGuard};

/// The way in which the waiters of one process line up for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// One waiter asks, the others wait behind it.
    OneAsks,
    /// Like [`OneAsks`](Line::OneAsks), but readers that enter together wait behind it too.
    Exclusive,
    /// All ask at once. If that fails, one of them waits for the server, and its grant lets the
    /// others ask again.
    Together {
        /// The time for which a reader waits behind the writers that keep it back.
        patience: Duration,
    },
    /// The waiter waits behind no other.
    Alone,
    /// No waiter waits for another: all ask, and share the answer.
    AllAsk,
    /// The line is on the server. Each waiter has a place there, which it keeps by asking this
    /// often.
    OnServer { ask_every: Duration },
}

impl Line {
    /// Returns the waiter's side; `None` if it waits behind no waiter of this process.
    fn side(self) -> Option<Side> {
        match self {
            Self::OneAsks => Some(Side::Asks),
            Self::Exclusive => Some(Side::Writes),
            Self::Together { .. } => Some(Side::Reads),
            Self::OnServer { .. } => Some(Side::Queues),
            Self::Alone | Self::AllAsk => None,
        }
    }
}

/// The line of a name, for as long as a waiter has a place in it.
#[derive(Default)]
pub(super) struct Standing(Mutex<Option<(Arc<WaitLine>, usize)>>);

impl Standing {
    pub(super) fn is_there(&self) -> bool {
        self.0.lock().is_some()
    }

    pub(super) fn line(&self) -> Option<Arc<WaitLine>> {
        let standing = self.0.lock();
        standing.as_ref().map(|(line, _)| Arc::clone(line))
    }

    /// Takes one more place. If this creates the line, the waiter in `first` gets the place before
    /// it.
    fn enter(&self, record: &Arc<Record>) -> Arc<WaitLine> {
        let mut standing = self.0.lock();
        let (line, places) = standing.get_or_insert_with(|| {
            let line = Arc::new(WaitLine {
                record: Arc::downgrade(record),
                ..WaitLine::default()
            });
            let mut places = 0;
            if let Some(seat) = record.first.lock().take() {
                line.begins_with(seat);
                places = 1;
            }
            (line, places)
        });
        *places += 1;
        Arc::clone(line)
    }

    /// Gives up a place. The line is dropped with its last place, and so is all that its waiters
    /// have met: the next waiter may arrive much later. No other waiter is in the line then, so a
    /// waiter that arrives before this one's seat has left may begin a new line.
    fn leave(&self) {
        let mut standing = self.0.lock();
        let is_last = standing.as_mut().is_some_and(|(_, places)| {
            *places -= 1;
            *places == 0
        });
        let left = if is_last { standing.take() } else { None };
        // Dropped after unlocking: what is dropped with a line may take this lock.
        drop(standing);
        drop(left);
    }
}

/// One line.
#[derive(Default)]
pub(super) struct WaitLine {
    pub(super) state: Mutex<State>,
    /// The waiters' knowledge of the server.
    outage: Mutex<Outage>,
    /// Notified when a reader got in.
    opened: Notify,
    /// Notified when the server stops answering.
    went_down: Notify,
    /// The record of the line's name.
    record: Weak<Record>,
}

#[derive(Default)]
pub(super) struct State {
    next: Number,
    pub(super) order: Order,
    /// The seats of all waiters, including those that were passed over.
    pub(super) seats: BTreeMap<Number, Arc<Seat>>,
    /// Whether the line is among the lines that are checked (`looks.rs`).
    looked_at: bool,
    /// The waiters for permits that have been granted nothing yet, by the same numbers: one order
    /// decides which waiter asks and which is served next.
    pub(super) permits: BTreeMap<Number, Arc<Waiter>>,
    /// The waiters to which a hold can be handed over.
    pub(super) candidates: BTreeMap<Number, Arc<Candidate>>,
    /// The waiters that a hold is handed along, after the server has granted it to the first of
    /// them.
    pub(super) run: Option<Run>,
}

/// A waiter in a line, and the waker with which its future is polled. The waker notes that the
/// waiter was called.
pub(super) struct Seat {
    looks: Arc<Looks>,
    /// The waiter's line. Not set for the first waiter while it asks alone.
    line: OnceLock<Arc<WaitLine>>,
    /// Whether the waiter was called while it had no line, and has not been polled since.
    called: AtomicBool,
    number: Number,
    side: Side,
    /// The waker of the task that polls the waiter; taken when that task is woken.
    waker: Mutex<Option<Waker>>,
}

impl Locals {
    fn line(&self, key: &Key) -> Option<Arc<WaitLine>> {
        self.table.lock().records.get(key)?.line.line()
    }

    /// Returns whether there is a waiter that a try must not overtake, and that the server answers.
    pub(crate) fn anyone_waits(&self, key: &Key, line_up: Line) -> bool {
        let Some(line) = self.line(key) else {
            return false;
        };
        let mut state = line.state.lock();
        let anyone = match line_up.side() {
            Some(Side::Asks | Side::Writes) => !state.order.is_empty(),
            Some(Side::Reads) => state.order.any_writer(),
            // The server knows the waiters.
            Some(Side::Queues) | None => false,
        };
        // A waiter that is alone in line is not checked otherwise. If it is not polled, it would
        // keep a free lock from every try.
        let look = anyone && state.order.anyone_called();
        let look = look && !std::mem::replace(&mut state.looked_at, true);
        drop(state);
        if look {
            self.looks.add(&line);
        }
        // If no server answers the waiters in line, a try asks by itself: it may report "held" only
        // if a server has said so.
        let outage = line.outage.lock();
        anyone && outage.has_answered() && outage.down().is_none()
    }

    /// Notes that the server has reported to a try, which is in no line, that the name is held.
    pub(crate) fn held(&self, key: &Key, sent: Moment, now: Moment, ttl: Option<Duration>) {
        if let Some(line) = self.line(key) {
            line.outage.lock().held(sent, now, ttl);
        }
    }
}

impl Local {
    /// Takes a place in the line.
    pub(crate) fn line_up(self, line: Line) -> Place {
        self.take_place(line, None, None)
    }

    /// Takes a place for a waiter to which a hold can be handed over.
    pub(crate) fn line_up_as(self, line: Line, candidate: Candidate) -> Place {
        self.take_place(line, None, Some(Arc::new(candidate)))
    }

    /// Takes a place for a waiter that wants `permits` permits.
    pub(crate) fn line_up_for(self, permits: u32) -> Place {
        self.take_place(Line::OneAsks, Some(Arc::new(Waiter::new(permits))), None)
    }

    fn take_place(
        self,
        line_up: Line,
        waiter: Option<Arc<Waiter>>,
        candidate: Option<Arc<Candidate>>,
    ) -> Place {
        let line = self.line.enter(&self);
        let side = line_up.side();
        let wants = (waiter.as_ref(), candidate.as_ref());
        let seat = side.map(|side| self.take_seat(&line, side, wants));
        Place {
            arrival: self.arrivals.come(self.locals.clock.now()),
            local: self,
            // A waiter that waits behind no other knows only the results of its own requests.
            line: if seat.is_some() { line } else { Arc::default() },
            seat,
            waiter,
            candidate,
            has_asked: AtomicBool::new(false),
        }
    }

    fn take_seat(
        &self,
        line: &Arc<WaitLine>,
        side: Side,
        (waiter, candidate): (Option<&Arc<Waiter>>, Option<&Arc<Candidate>>),
    ) -> Arc<Seat> {
        let mut state = line.state.lock();
        let number = state.next;
        state.next += 1;
        let seat = Arc::new(Seat {
            line: Arc::clone(line).into(),
            ..Seat::new(&self.locals.looks, number, side)
        });
        state.seats.insert(number, Arc::clone(&seat));
        if let Some(waiter) = waiter {
            state.permits.insert(number, Arc::clone(waiter));
        }
        if let Some(candidate) = candidate {
            state.candidates.insert(number, Arc::clone(candidate));
        }
        let mut woken = state.order.come(number, side);
        // The waiter before this one may have been called long ago, when no waiter was behind it
        // and no check was needed.
        let look = state.wants_look();
        if !line.outage.lock().has_answered() {
            // The asker may be letting other processes ask first. This waiter may have no time for
            // that.
            woken.extend(state.order.asker().filter(|asker| *asker != number));
        }
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
        if look {
            self.locals.looks.add(line);
        }
        seat
    }
}

impl WaitLine {
    /// Gives the first place to the first waiter, which has asked alone until now.
    fn begins_with(self: &Arc<Self>, seat: Arc<Seat>) {
        let mut state = self.state.lock();
        state.next = FIRST + 1;
        state.order.come(FIRST, seat.side);
        // The line is set before the call is checked: a simultaneous call finds the line, or is
        // found here.
        let _ = seat.line.set(Arc::clone(self));
        if seat.called.load(Ordering::SeqCst) {
            state.order.call(FIRST);
        }
        state.seats.insert(FIRST, seat);
    }

    /// Passes over the waiters that were called and not polled. Returns whether the line must be
    /// checked again.
    pub(super) fn look(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        let look = state.order.look();
        let late = look.late.iter();
        let late: Vec<_> = late
            .filter_map(|number| state.candidates.get(number).cloned())
            .collect();
        // Where one waiter is not polled, many may not be. If all are called at once, they are
        // passed over together. Otherwise each would cost the next in line two checks.
        let woken = match look.turn_was_lost {
            true => state.seats.values().cloned().collect(),
            false => state.seats_of(&look.woken),
        };
        state.looked_at = state.order.anyone_called();
        let again = state.looked_at;
        drop(state);
        // After they have lost their places in line: nothing more is given to them.
        if let Some(record) = self.record.upgrade() {
            (late.iter()).for_each(|candidate| hand_over::pass_over(&record, candidate, now));
        }
        wake(woken);
        again
    }

    /// Returns the first waiter in line, if a hold can be handed over to it.
    pub(super) fn first_candidate(&self) -> Option<(Arc<Seat>, Arc<Candidate>)> {
        let state = self.state.lock();
        for number in state.order.exclusive() {
            let candidate = state.candidates.get(number)?;
            // A waiter that has what it wants and is just leaving is not the first any more.
            if candidate.slot.is_empty() {
                let seat = state.seats.get(number)?;
                return Some((Arc::clone(seat), Arc::clone(candidate)));
            }
        }
        None
    }

    /// Gives a hold to a waiter and wakes it. Returns the hold if the waiter has left, or was
    /// passed over: no check would then find that it is not polled.
    pub(super) fn give(
        &self,
        seat: &Arc<Seat>,
        candidate: &Candidate,
        hold: Undo,
    ) -> Result<(), Undo> {
        let state = self.state.lock();
        let given = match state.order.stands(seat.number) {
            true => candidate.slot.give(hold),
            false => Err(hold),
        };
        drop(state);
        if given.is_ok() {
            seat.wake_by_ref();
        }
        given
    }

    /// Notes that the server has confirmed to a holder of this process that the name is held.
    pub(super) fn answered(&self, sent: Moment, now: Moment) {
        self.outage.lock().held(sent, now, Some(Duration::ZERO));
    }

    /// Wakes the waiter that asks: it need not wait for its own process any more.
    pub(super) fn wake_asker(&self) {
        let state = self.state.lock();
        let asker = state.order.asker();
        let seat = asker.and_then(|asker| state.seats.get(&asker).cloned());
        drop(state);
        wake(seat.into_iter().collect());
    }
}

impl State {
    fn seats_of(&self, numbers: &[Number]) -> Vec<Arc<Seat>> {
        let seats = numbers.iter().filter_map(|number| self.seats.get(number));
        seats.cloned().collect()
    }

    /// Returns whether a hold was handed over that its waiter has not claimed.
    fn is_given(&self) -> bool {
        let mut given = self.candidates.values();
        given.any(|candidate| candidate.slot.is_full())
    }

    /// Returns whether checks of this line must begin.
    fn wants_look(&mut self) -> bool {
        // A waiter that is alone holds up no other waiter, unless it has been given a hold.
        let wants = self.order.anyone_called() && (self.order.has_several() || self.is_given());
        wants && !std::mem::replace(&mut self.looked_at, true)
    }
}

/// Wakes these seats. Must not run with a line locked: a seat locks the line to note the call, and
/// so may the waiter that is woken.
fn wake(seats: Vec<Arc<Seat>>) {
    for seat in seats {
        seat.wake();
    }
}

impl Seat {
    fn new(looks: &Arc<Looks>, number: Number, side: Side) -> Self {
        Self {
            looks: Arc::clone(looks),
            line: OnceLock::new(),
            called: AtomicBool::new(false),
            number,
            side,
            waker: Mutex::default(),
        }
    }

    /// Notes that the waiter is polled.
    fn come(&self, waker: &Waker) {
        // The waker is set first: a call right after the note is cleared must not wake the task
        // that polled the waiter before.
        let before = self.waker.lock().replace(waker.clone());
        drop(before);
        self.called.store(false, Ordering::SeqCst);
        let Some(line) = self.line.get() else { return };
        let mut state = line.state.lock();
        let woken = state.order.come(self.number, self.side);
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
    }

    fn leave(&self) {
        let waker = self.waker.lock().take();
        drop(waker);
        let Some(line) = self.line.get() else { return };
        let mut state = line.state.lock();
        // The caller keeps the seat and the waiter alive, so nothing is dropped under the lock.
        // Both are removed by their number, without a search: thousands may leave together.
        state.seats.remove(&self.number);
        state.permits.remove(&self.number);
        state.candidates.remove(&self.number);
        let woken = state.order.leave(self.number);
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
    }
}

impl Wake for Seat {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The note precedes the wake-up. Another thread may poll the waiter at once. With a note
        // set after that poll, the waiter would be passed over although it was polled.
        if self.line.get().is_none() {
            self.called.store(true, Ordering::SeqCst);
        }
        // After that note: a thread that creates the line at the same time finds it.
        if let Some(line) = self.line.get() {
            let mut state = line.state.lock();
            state.order.call(self.number);
            let look = state.wants_look();
            drop(state);
            if look {
                self.looks.add(line);
            }
        }
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The number of a waiter that arrived first and asks alone.
const FIRST: Number = 0;

/// The first waiter for a name. No other waiter of its process waits for the name, so it asks
/// without a place in line. Waiters that arrive meanwhile are placed behind it.
pub(crate) struct First {
    local: Option<Local>,
    seat: Arc<Seat>,
}

impl Local {
    /// Makes this waiter the first. Returns the record if there is another waiter before it.
    pub(crate) fn first(self, line: Line) -> Result<First, Self> {
        let Some(side) = line.side().filter(|side| *side != Side::Queues) else {
            return Err(self);
        };
        // With the line locked, so that no other thread creates a line meanwhile.
        let standing = self.line.0.lock();
        let mut first = self.first.lock();
        if standing.is_some() || first.is_some() || !self.turn.lock().is_idle() {
            drop(first);
            drop(standing);
            return Err(self);
        }
        let seat = Arc::new(Seat::new(&self.locals.looks, FIRST, side));
        *first = Some(Arc::clone(&seat));
        drop(first);
        drop(standing);
        Ok(First {
            local: Some(self),
            seat,
        })
    }
}

impl First {
    /// Polls the waiter's request.
    pub(crate) fn attend<F: Future>(
        &self,
        context: &mut Context<'_>,
        request: Pin<&mut F>,
    ) -> Poll<F::Output> {
        self.seat.come(context.waker());
        let waker = Waker::from(Arc::clone(&self.seat));
        request.poll(&mut Context::from_waker(&waker))
    }

    /// Ends the wait of a waiter that has what it wants. Returns the waiter if others are behind
    /// it.
    pub(crate) fn leave(mut self) -> Option<Self> {
        let alone = self.local.as_ref()?.first.lock().take();
        if alone.is_some() {
            self.local = None;
            return None;
        }
        Some(self)
    }

    /// Gives the waiter a place in line, where it waits on.
    pub(crate) fn line_up(mut self, candidate: Option<Candidate>) -> Option<Place> {
        let local = self.local.take()?;
        // The thread that creates the line counts the first waiter. `enter` counts it once more.
        let line = local.line.enter(&local);
        local.line.leave();
        let candidate = candidate.map(Arc::new);
        if let Some(candidate) = &candidate {
            let mut state = line.state.lock();
            state.candidates.insert(FIRST, Arc::clone(candidate));
        }
        Some(Place {
            arrival: local.arrivals.come(local.locals.clock.now()),
            local,
            line,
            seat: Some(Arc::clone(&self.seat)),
            waiter: None,
            candidate,
            has_asked: AtomicBool::new(true),
        })
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let Some(local) = self.local.take() else {
            return;
        };
        if local.locals.process.is_gone() {
            return;
        }
        let alone = local.first.lock().take();
        if alone.is_none() {
            // Other waiters are behind this one.
            local.line.leave();
            self.seat.leave();
        }
    }
}

/// A waiter's place in a line. Dropping it leaves the line.
pub(crate) struct Place {
    local: Local,
    /// The waiter's number among all waiters for the name.
    arrival: u64,
    line: Arc<WaitLine>,
    seat: Option<Arc<Seat>>,
    /// Set for a waiter that wants permits.
    waiter: Option<Arc<Waiter>>,
    /// Set for a waiter to which a hold can be handed over.
    candidate: Option<Arc<Candidate>>,
    has_asked: AtomicBool,
}

impl Place {
    /// Ends a waiter for permits, which has what it asked for, or has given up. Returns `true` if
    /// something was granted that it has not claimed.
    pub(crate) fn gives_up(&self) -> bool {
        let unclaimed = self.waiter.as_ref().is_some_and(|waiter| waiter.go());
        if let Some(seat) = self.seat.as_ref().filter(|_| unclaimed) {
            // Removed before the permits are given back: they must not wait for others on account
            // of a waiter that wants none any more.
            self.line.state.lock().permits.remove(&seat.number);
        }
        unclaimed
    }

    /// Returns the waiters for permits in this line besides this one, in order, and at most `most`
    /// of them.
    pub(crate) fn others(&self, most: usize) -> Vec<Arc<Waiter>> {
        let own = self.seat.as_ref().map(|seat| seat.number);
        let state = self.line.state.lock();
        let others = state.permits.iter();
        // Only waiters that still wait: permits for the rest would travel for nothing.
        let others = others.filter(|(number, waiter)| Some(**number) != own && waiter.waits());
        let others = others.take(most).map(|(_, waiter)| Arc::clone(waiter));
        others.collect()
    }

    pub(crate) fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.waiter.as_ref()
    }

    pub(super) fn local(&self) -> &Local {
        &self.local
    }

    /// Returns whether the line is on the server, and this waiter has a place there.
    pub(crate) fn is_on_server(&self) -> bool {
        let seat = self.seat.as_ref();
        seat.is_some_and(|seat| seat.side == Side::Queues)
    }

    /// Returns whether other waiters are in its line.
    pub(crate) fn has_others(&self) -> bool {
        self.line.state.lock().order.has_several()
    }

    pub(super) fn candidate(&self) -> Option<&Arc<Candidate>> {
        self.candidate.as_ref()
    }
}

/// The waiter's turn. A wait for the turn must be polled by [`attend`](Self::attend), which handles
/// the wake-ups.
impl Place {
    /// Polls the wait for which this place is taken.
    pub(crate) fn attend<F: Future>(
        &self,
        context: &mut Context<'_>,
        wait: Pin<&mut F>,
    ) -> Poll<F::Output> {
        let Some(seat) = &self.seat else {
            return wait.poll(context);
        };
        // Before the wait is polled: a waiter that was passed over is back in its place when the
        // wait checks whose turn it is.
        seat.come(context.waker());
        let waker = Waker::from(Arc::clone(seat));
        wait.poll(&mut Context::from_waker(&waker))
    }

    /// Returns whether this waiter is the one that asks; among readers, the one that waits for the
    /// server.
    pub(crate) fn has_turn(&self) -> bool {
        self.looks_so(Order::has_turn)
    }

    fn looks_so(&self, is_so: impl Fn(&Order, Number) -> bool) -> bool {
        let seat = self.seat.as_ref();
        seat.is_none_or(|seat| is_so(&self.line.state.lock().order, seat.number))
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        // No waker is registered here: a thread that changes the order wakes the seats concerned,
        // and a seat is the waker of the whole wait.
        let poll = |_: &mut Context<'_>| match is_so() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        std::future::poll_fn(poll).await;
    }

    /// Resolves when this waiter has the turn. A waiter that gets the turn asks first.
    pub(crate) async fn turn(&self) {
        self.until(|| self.has_turn()).await;
    }

    /// Resolves when this reader may ask beside others.
    pub(crate) async fn entered(&self) {
        self.until(|| self.looks_so(Order::entered)).await;
    }

    /// Lets this reader ask beside writers from here on.
    pub(crate) fn goes_before_writers(&self) {
        let Some(seat) = &self.seat else { return };
        let mut state = self.line.state.lock();
        let woken = state.order.goes_before_writers(seat.number);
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
    }
}

/// The line's knowledge of the server.
impl Place {
    pub(crate) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.line.outage.lock()
    }

    /// Notes that a request of this waiter leaves.
    pub(crate) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Notes that a request that left at `sent` was not answered.
    pub(crate) fn unanswered(&self, sent: Moment, now: Moment, gap: Duration, failure: &Failure) {
        let is_news = self.line.outage.lock().unanswered(sent, now, gap, failure);
        if is_news {
            // The waiters behind the asker do not ask, and each has its own limit to watch.
            self.line.went_down.notify_waiters();
        }
    }

    /// Notified when a request was not answered, and the one before it was.
    pub(crate) fn went_down(&self) -> &Notify {
        &self.line.went_down
    }

    /// Notes that the server has granted something to a request that left at `sent`.
    pub(crate) fn granted(&self, sent: Moment) {
        self.line.outage.lock().over(sent);
        self.line.opened.notify_waiters();
    }

    /// Notified when one of the readers that enter together got in.
    pub(crate) fn opened(&self) -> &Notify {
        &self.line.opened
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.local.locals.process.is_gone() {
            return;
        }
        let told_over = &self.local.locals.told_wait_over;
        self.local.arrivals.leave(self.arrival, told_over);
        self.local.line.leave();
        if let Some(seat) = &self.seat {
            seat.leave();
        }
        // After the seat has left: the hold in its slot must not be handed back to this waiter.
        if let Some(candidate) = &self.candidate {
            hand_over::leave(&self.local, candidate, self.local.now());
        }
    }
}
