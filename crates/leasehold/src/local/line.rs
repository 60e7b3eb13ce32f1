//! The line of a name inside this process: one waiter asks the server, the others wait behind
//! it. A hundred tasks that want one name cost the server as much as one task. Readers wait
//! together: once one of them got in, the others ask at the same time.
//!
//! A future is polled by its caller, and a caller may stop: a loop around `select!` does. So a
//! waiter that was woken has to be polled within a short time (`looks.rs`). If it is not, it is
//! passed over (`order.rs`): the turn goes to the next in line, and the waiter keeps its place for when it is polled
//! again. Its request is not taken back: if the server has granted it the lock, it holds it.
//!
//! To find such a waiter, its future is polled with a waker of the line's own ([`Seat`]), which
//! notes that the waiter was called; a poll takes the note away. So nobody in a line may be
//! woken by another waker: that would leave no note.

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

/// How the waiters of one process line up for one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// One asks, the others wait behind it.
    OneAsks,
    /// The same, and those that enter together wait behind it as well.
    Exclusive,
    /// All ask at once. When that was in vain, one of them waits for the server, and its grant
    /// lets the others ask again.
    Together {
        /// How long it waits behind those that keep it back.
        patience: Duration,
    },
    /// It waits behind nobody.
    Alone,
    /// No waiter waits for another: all ask, and share the answer.
    AllAsk,
    /// The line is on the server: each waiter has a place there, which it keeps by asking this
    /// often.
    OnServer { ask_every: Duration },
}

impl Line {
    /// The side that a waiter is on; `None` if it waits behind nobody of this process.
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

/// The line of a name, as long as somebody has a place in it.
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

    /// One more takes a place. If it makes the line, `first` comes before it.
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

    /// With the last place goes the line, and what its waiters have met: the next waiter may come
    /// much later. Nobody else is in it, so a waiter that comes before this one's seat has left may
    /// begin a new one.
    fn leave(&self) {
        let mut standing = self.0.lock();
        let is_last = standing.as_mut().is_some_and(|(_, places)| {
            *places -= 1;
            *places == 0
        });
        let left = if is_last { standing.take() } else { None };
        // Dropped behind the lock: what goes with a line may come back for it.
        drop(standing);
        drop(left);
    }
}

/// One line.
#[derive(Default)]
pub(super) struct WaitLine {
    pub(super) state: Mutex<State>,
    /// What its waiters know of the server.
    outage: Mutex<Outage>,
    /// Notified when a reader got in.
    opened: Notify,
    /// Notified when the server stops answering.
    went_down: Notify,
    /// What the process knows of its name.
    record: Weak<Record>,
}

#[derive(Default)]
pub(super) struct State {
    next: Number,
    pub(super) order: Order,
    /// Of all waiters, those included that were passed over.
    pub(super) seats: BTreeMap<Number, Arc<Seat>>,
    /// The line is among those that are looked at.
    looked_at: bool,
    /// The waiters for permits that nothing was granted for yet, by the same numbers: who asks,
    /// and who is served next, follow from one order.
    pub(super) permits: BTreeMap<Number, Arc<Waiter>>,
    /// The waiters to which a hold can be handed over.
    pub(super) candidates: BTreeMap<Number, Arc<Candidate>>,
    /// Those to which a hold goes that the server has granted to the first of them.
    pub(super) run: Option<Run>,
}

/// A waiter in a line, and the waker that its future is polled with: it notes that the waiter
/// was called.
pub(super) struct Seat {
    looks: Arc<Looks>,
    /// That of the first waiter has none while it asks alone.
    line: OnceLock<Arc<WaitLine>>,
    /// It was called while it had no line, and has not come since.
    called: AtomicBool,
    number: Number,
    side: Side,
    /// Of the task that polls the waiter; taken when that task is woken.
    waker: Mutex<Option<Waker>>,
}

impl Locals {
    fn line(&self, key: &Key) -> Option<Arc<WaitLine>> {
        self.table.lock().records.get(key)?.line.line()
    }

    /// Whether a waiter is there that a try must not overtake, and that the server answers.
    pub(crate) fn anyone_waits(&self, key: &Key, line_up: Line) -> bool {
        let Some(line) = self.line(key) else {
            return false;
        };
        let mut state = line.state.lock();
        let anyone = match line_up.side() {
            Some(Side::Asks | Side::Writes) => !state.order.is_empty(),
            Some(Side::Reads) => state.order.any_writer(),
            // The server knows who waits.
            Some(Side::Queues) | None => false,
        };
        // A waiter that is alone in line is not looked at otherwise. If nobody polled it, it
        // would keep a free lock from everybody who tries.
        let look = anyone && state.order.anyone_called();
        let look = look && !std::mem::replace(&mut state.looked_at, true);
        drop(state);
        if look {
            self.looks.add(&line);
        }
        // Behind waiters that no server answers, a try asks by itself: "held" may only be said
        // of a lock of which a server has said it.
        let outage = line.outage.lock();
        anyone && outage.has_answered() && outage.down().is_none()
    }

    /// The server has told a try, which is in no line, that the name is held.
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

    /// Takes a place for a waiter that wants so many permits.
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
            // A waiter that waits behind nobody knows only what its own requests have found.
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
        // The waiter before it may have been called long ago, when nobody was behind it and no
        // look was needed.
        let look = state.wants_look();
        if !line.outage.lock().has_answered() {
            // It may be letting other processes ask first. This one may have no time for that.
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
    /// The first waiter, which has asked alone until now, has the first place.
    fn begins_with(self: &Arc<Self>, seat: Arc<Seat>) {
        let mut state = self.state.lock();
        state.next = FIRST + 1;
        state.order.come(FIRST, seat.side);
        // The line before the look at the call: a call at the same time finds the line, or is found
        // here.
        let _ = seat.line.set(Arc::clone(self));
        if seat.called.load(Ordering::SeqCst) {
            state.order.call(FIRST);
        }
        state.seats.insert(FIRST, seat);
    }

    /// Whether it has to be looked at again.
    pub(super) fn look(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        let look = state.order.look();
        let late = look.late.iter();
        let late: Vec<_> = late
            .filter_map(|number| state.candidates.get(number).cloned())
            .collect();
        // Where one waiter is not polled, many may not be. Called all at once, they are passed
        // over together; else each would cost the next in line two looks.
        let woken = match look.turn_was_lost {
            true => state.seats.values().cloned().collect(),
            false => state.seats_of(&look.woken),
        };
        state.looked_at = state.order.anyone_called();
        let again = state.looked_at;
        drop(state);
        // Behind their places in line: nothing more is given to them.
        if let Some(record) = self.record.upgrade() {
            (late.iter()).for_each(|candidate| hand_over::pass_over(&record, candidate, now));
        }
        wake(woken);
        again
    }

    /// The first waiter in line, if a hold can be handed over to it.
    pub(super) fn first_candidate(&self) -> Option<(Arc<Seat>, Arc<Candidate>)> {
        let state = self.state.lock();
        for number in state.order.exclusive() {
            let candidate = state.candidates.get(number)?;
            // One that has what it wants and leaves just now is not the first any more.
            if candidate.slot.is_empty() {
                let seat = state.seats.get(number)?;
                return Some((Arc::clone(seat), Arc::clone(candidate)));
            }
        }
        None
    }

    /// Gives a hold to a waiter and wakes it. Returned if the waiter has gone, or was passed over:
    /// then no look would find that it is not polled.
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

    /// The server has confirmed to a holder of this process that the name is held.
    pub(super) fn answered(&self, sent: Moment, now: Moment) {
        self.outage.lock().held(sent, now, Some(Duration::ZERO));
    }

    /// Wakes whoever asks: it need not wait for its own process any more.
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

    /// Whether a hold was handed over that its waiter has not claimed.
    fn is_given(&self) -> bool {
        let mut given = self.candidates.values();
        given.any(|candidate| candidate.slot.is_full())
    }

    /// Whether looks at this line have to begin.
    fn wants_look(&mut self) -> bool {
        // A waiter that is alone keeps nobody behind it, unless it has been given a hold.
        let wants = self.order.anyone_called() && (self.order.has_several() || self.is_given());
        wants && !std::mem::replace(&mut self.looked_at, true)
    }
}

/// Not with a line locked: a seat locks it to note the call, and so may whoever is woken.
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

    /// The waiter is polled.
    fn come(&self, waker: &Waker) {
        // The waker first: a call right behind the note's removal must not go to the task that
        // polled the waiter before.
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
        // The caller keeps seat and waiter alive: nothing is dropped under the lock. Both go by
        // their number, without a look at the others: thousands may leave together.
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
        // The note before the wake-up: another thread may poll the waiter at once, and a note
        // behind that poll would have it passed over although it came.
        if self.line.get().is_none() {
            self.called.store(true, Ordering::SeqCst);
        }
        // Behind that note: whoever makes the line at the same time finds it.
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

/// The number of a waiter that came first, and asks alone.
const FIRST: Number = 0;

/// The first waiter for a name. Nobody else of its process waits for it, so it asks without a place
/// in line. Whoever comes meanwhile stands behind it.
pub(crate) struct First {
    local: Option<Local>,
    seat: Arc<Seat>,
}

impl Local {
    /// A place for the first waiter. Returned if there is another one before it.
    pub(crate) fn first(self, line: Line) -> Result<First, Self> {
        let Some(side) = line.side().filter(|side| *side != Side::Queues) else {
            return Err(self);
        };
        // With the line locked: nobody makes one meanwhile.
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
    /// Polls its request.
    pub(crate) fn attend<F: Future>(
        &self,
        context: &mut Context<'_>,
        request: Pin<&mut F>,
    ) -> Poll<F::Output> {
        self.seat.come(context.waker());
        let waker = Waker::from(Arc::clone(&self.seat));
        request.poll(&mut Context::from_waker(&waker))
    }

    /// It has what it wants. Returned if somebody stands behind it.
    pub(crate) fn leave(mut self) -> Option<Self> {
        let alone = self.local.as_ref()?.first.lock().take();
        if alone.is_some() {
            self.local = None;
            return None;
        }
        Some(self)
    }

    /// It goes on waiting, in line.
    pub(crate) fn line_up(mut self, candidate: Option<Candidate>) -> Option<Place> {
        let local = self.local.take()?;
        // Whoever makes the line takes the first waiter in; then a second one is counted.
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
            // Others stand behind it.
            local.line.leave();
            self.seat.leave();
        }
    }
}

/// A waiter's place in a line. Dropping it leaves the line.
pub(crate) struct Place {
    local: Local,
    /// Its number among those of the name that wait.
    arrival: u64,
    line: Arc<WaitLine>,
    seat: Option<Arc<Seat>>,
    /// For a waiter that wants permits.
    waiter: Option<Arc<Waiter>>,
    /// For a waiter to which a hold can be handed over.
    candidate: Option<Arc<Candidate>>,
    has_asked: AtomicBool,
}

impl Place {
    /// The waiter for permits has what it asked for, or has given up. `true` if something was
    /// granted that nobody has claimed.
    pub(crate) fn gives_up(&self) -> bool {
        let unclaimed = self.waiter.as_ref().is_some_and(|waiter| waiter.go());
        if let Some(seat) = self.seat.as_ref().filter(|_| unclaimed) {
            // Before the permits go back: they must not wait for others on account of a waiter
            // that wants none any more.
            self.line.state.lock().permits.remove(&seat.number);
        }
        unclaimed
    }

    /// The waiters for permits in its line besides this one, in their order, and no more than
    /// `most`.
    pub(crate) fn others(&self, most: usize) -> Vec<Arc<Waiter>> {
        let own = self.seat.as_ref().map(|seat| seat.number);
        let state = self.line.state.lock();
        let others = state.permits.iter();
        // Only those that wait still: permits for the others would travel for nothing.
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

    /// Whether the line is on the server, and this waiter has a place there.
    pub(crate) fn is_on_server(&self) -> bool {
        let seat = self.seat.as_ref();
        seat.is_some_and(|seat| seat.side == Side::Queues)
    }

    /// Whether others stand in its line.
    pub(crate) fn has_others(&self) -> bool {
        self.line.state.lock().order.has_several()
    }

    pub(super) fn candidate(&self) -> Option<&Arc<Candidate>> {
        self.candidate.as_ref()
    }
}

/// Its turn. Whatever waits for that is polled by [`attend`](Self::attend), which sees to the
/// wake-ups.
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
        // Before the wait is polled: a waiter that was passed over is in its place again when
        // the wait looks whose turn it is.
        seat.come(context.waker());
        let waker = Waker::from(Arc::clone(seat));
        wait.poll(&mut Context::from_waker(&waker))
    }

    /// Whether it is this waiter who asks; of readers, the one who waits for the server.
    pub(crate) fn has_turn(&self) -> bool {
        self.looks_so(Order::has_turn)
    }

    fn looks_so(&self, is_so: impl Fn(&Order, Number) -> bool) -> bool {
        let seat = self.seat.as_ref();
        seat.is_none_or(|seat| is_so(&self.line.state.lock().order, seat.number))
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        // No waker is registered here: whoever changes the order wakes the seats that it
        // concerns, and a seat is the waker of the whole wait.
        let poll = |_: &mut Context<'_>| match is_so() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        std::future::poll_fn(poll).await;
    }

    /// Resolves when this waiter has the turn. Whoever gets it asks first.
    pub(crate) async fn turn(&self) {
        self.until(|| self.has_turn()).await;
    }

    /// Resolves when a reader may ask beside others.
    pub(crate) async fn entered(&self) {
        self.until(|| self.looks_so(Order::entered)).await;
    }

    /// From here on this reader may ask beside writers.
    pub(crate) fn goes_before_writers(&self) {
        let Some(seat) = &self.seat else { return };
        let mut state = self.line.state.lock();
        let woken = state.order.goes_before_writers(seat.number);
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
    }
}

/// What its line knows of the server.
impl Place {
    pub(crate) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.line.outage.lock()
    }

    /// A request of this waiter leaves.
    pub(crate) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// A request that left at `sent` was not answered.
    pub(crate) fn unanswered(&self, sent: Moment, now: Moment, gap: Duration, failure: &Failure) {
        let is_news = self.line.outage.lock().unanswered(sent, now, gap, failure);
        if is_news {
            // Those behind the asker ask nothing, and each has a limit of its own to watch.
            self.line.went_down.notify_waiters();
        }
    }

    /// Notified when a request was not answered, and the one before it was.
    pub(crate) fn went_down(&self) -> &Notify {
        &self.line.went_down
    }

    /// The server has granted something to a request that left at `sent`.
    pub(crate) fn granted(&self, sent: Moment) {
        self.line.outage.lock().over(sent);
        self.line.opened.notify_waiters();
    }

    /// Notified when one of those that enter together got in.
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
        // Behind its place in line: the hold in its slot must not come back to it.
        if let Some(candidate) = &self.candidate {
            hand_over::leave(&self.local, candidate, self.local.now());
        }
    }
}
