//! The line of a name inside this process: one waiter asks the server, the others wait behind
//! it. A hundred tasks that want one name cost the server as much as one task. Readers wait
//! together: once one of them got in, the others ask at the same time.
//!
//! A future is polled by its caller, and a caller may stop: a loop around `select!` does. So a
//! waiter that was woken has to be polled within a short time. If it is not, it is passed over:
//! the turn goes to the next in line, and the waiter keeps its place for when it is polled
//! again. Its request is not taken back: if the server has granted it the lock, it holds it.
//!
//! To find such a waiter, its future is polled with a waker of the line's own ([`Seat`]), which
//! notes that the waiter was called; a poll takes the note away. So nobody in a line may be
//! woken by another waker: that would leave no note.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::order::{Number, Order, Side};
use super::outage::Outage;
use crate::backend::failure::Failure;
use crate::clock::Moment;
use crate::key::Key;
use crate::room::Room;
use crate::sync::{Mutex, MutexGuard};

/// How often the lines are looked at in which a waiter was called. A waiter that two looks find
/// called is passed over. Two, because after a pause of the whole runtime the first look may
/// come before the waiter's poll.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The lines of a client, one per name.
pub(crate) struct Turns {
    lines: Mutex<HashMap<Key, Standing>>,
    looks: Mutex<Looks>,
    runtime: Handle,
}

struct Standing {
    queue: Arc<Queue>,
    places: usize,
}

/// The lines in which a waiter was called.
#[derive(Default)]
struct Looks {
    queues: Vec<Arc<Queue>>,
    /// A task looks at them.
    running: bool,
}

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
            Self::Alone | Self::AllAsk | Self::OnServer { .. } => None,
        }
    }
}

/// One line.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// What its waiters know of the server; it is gone with the line.
    outage: Mutex<Outage>,
    /// Notified when a reader got in.
    opened: Notify,
    /// Notified when the server stops answering.
    went_down: Notify,
}

#[derive(Default)]
struct State {
    next: Number,
    order: Order,
    /// Of all waiters, those included that were passed over.
    seats: BTreeMap<Number, Arc<Seat>>,
    /// The line is among those that are looked at.
    looked_at: bool,
}

/// A waiter in a line, and the waker that its future is polled with: it notes that the waiter
/// was called.
struct Seat {
    turns: Arc<Turns>,
    queue: Arc<Queue>,
    number: Number,
    side: Side,
    /// Of the task that polls the waiter; taken when that task is woken.
    waker: Mutex<Option<Waker>>,
}

impl Turns {
    pub(crate) fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            lines: Mutex::default(),
            looks: Mutex::default(),
            runtime,
        })
    }

    pub(crate) fn line_up(self: &Arc<Self>, key: &Key, line: Line) -> Place {
        let queue = {
            let mut lines = self.lines.lock();
            let standing = lines.entry(key.clone()).or_insert_with(|| Standing {
                queue: Arc::default(),
                places: 0,
            });
            standing.places += 1;
            // A waiter that waits behind nobody knows only what its own requests have found.
            match line.side() {
                Some(_) => Arc::clone(&standing.queue),
                None => Arc::default(),
            }
        };
        let seat = line.side().map(|side| self.take_seat(&queue, side));
        Place {
            turns: Arc::clone(self),
            key: key.clone(),
            queue,
            seat,
            has_asked: AtomicBool::new(false),
        }
    }

    fn take_seat(self: &Arc<Self>, queue: &Arc<Queue>, side: Side) -> Arc<Seat> {
        let mut state = queue.state.lock();
        let number = state.next;
        state.next += 1;
        let seat = Arc::new(Seat {
            turns: Arc::clone(self),
            queue: Arc::clone(queue),
            number,
            side,
            waker: Mutex::default(),
        });
        state.seats.insert(number, Arc::clone(&seat));
        let woken = state.order.come(number, side);
        // The waiter before it may have been called long ago, when nobody was behind it and no
        // look was needed.
        let look = state.wants_look();
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
        if look {
            self.look_at(queue);
        }
        seat
    }

    /// Whether a waiter is there that a try must not overtake, and that the server answers.
    pub(crate) fn anyone_waits(self: &Arc<Self>, key: &Key, line: Line) -> bool {
        let queue = self
            .lines
            .lock()
            .get(key)
            .map(|standing| Arc::clone(&standing.queue));
        let Some(queue) = queue else {
            return false;
        };
        let mut state = queue.state.lock();
        let anyone = match line.side() {
            Some(Side::Asks | Side::Writes) => !state.order.is_empty(),
            Some(Side::Reads) => state.order.any_writer(),
            None => false,
        };
        // A waiter that is alone in line is not looked at otherwise. If nobody polled it, it
        // would keep a free lock from everybody who tries.
        let look = anyone && state.order.anyone_called();
        let look = look && !std::mem::replace(&mut state.looked_at, true);
        drop(state);
        if look {
            self.look_at(&queue);
        }
        // Behind waiters that no server answers, a try asks by itself: "held" may only be said
        // of a lock of which a server has said it.
        let outage = queue.outage.lock();
        anyone && outage.has_answered() && outage.down().is_none()
    }

    /// The server has told a try, which is in no line, that the name is held.
    pub(crate) fn held(&self, key: &Key, sent: Moment, now: Moment, ttl: Option<Duration>) {
        let lines = self.lines.lock();
        if let Some(standing) = lines.get(key) {
            standing.queue.outage.lock().held(sent, now, ttl);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.lock().len()
    }

    /// Has this line looked at until each waiter that was called has come or is passed over.
    fn look_at(self: &Arc<Self>, queue: &Arc<Queue>) {
        let mut looks = self.looks.lock();
        looks.queues.push(Arc::clone(queue));
        let starts = !std::mem::replace(&mut looks.running, true);
        // A runtime that has ended drops the task at once, and `Looking::drop` takes this lock.
        drop(looks);
        if starts {
            let looking = Looking(Some(Arc::clone(self)));
            self.runtime.spawn(looking.run());
        }
    }

    /// One look at each line in question. `false` when there is none any more.
    fn look(&self) -> bool {
        // Looked at without the lock: waiters are woken meanwhile, and their seats come back
        // for it (`look_at`).
        let mut queues = std::mem::take(&mut self.looks.lock().queues);
        queues.retain(Queue::look);
        // Decided under the lock: whoever adds a line finds this task at work, or starts one.
        let mut looks = self.looks.lock();
        looks.queues.append(&mut queues);
        looks.running = !looks.queues.is_empty();
        looks.running
    }
}

/// The task that looks at lines.
struct Looking(Option<Arc<Turns>>);

impl Looking {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if !self.0.as_ref().is_some_and(|turns| turns.look()) {
                // From here on another task may be at work, whose lines `drop` must not clear.
                self.0 = None;
                return;
            }
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        // Dropped with its runtime: no waiter is passed over any more.
        if let Some(turns) = self.0.take() {
            // Dropped behind the lock: what goes with a line may come back for it.
            let left = std::mem::take(&mut *turns.looks.lock());
            drop(left);
        }
    }
}

impl Queue {
    /// Whether it has to be looked at again.
    fn look(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        let look = state.order.look();
        // Where one waiter is not polled, many may not be. Called all at once, they are passed
        // over together; else each would cost the next in line two looks.
        let woken = match look.turn_was_lost {
            true => state.seats.values().cloned().collect(),
            false => state.seats_of(&look.woken),
        };
        state.looked_at = state.order.anyone_called();
        let again = state.looked_at;
        drop(state);
        wake(woken);
        again
    }
}

impl State {
    fn seats_of(&self, numbers: &[Number]) -> Vec<Arc<Seat>> {
        let seats = numbers.iter().filter_map(|number| self.seats.get(number));
        seats.cloned().collect()
    }

    /// Whether looks at this line have to begin.
    fn wants_look(&mut self) -> bool {
        // A waiter that is alone keeps nobody behind it.
        let wants = self.order.anyone_called() && self.order.has_several();
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
    /// The waiter is polled.
    fn come(&self, waker: &Waker) {
        // The waker first: a call right behind the note's removal must not go to the task that
        // polled the waiter before.
        let before = self.waker.lock().replace(waker.clone());
        drop(before);
        let mut state = self.queue.state.lock();
        let woken = state.order.come(self.number, self.side);
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
    }

    fn leave(&self) {
        let waker = self.waker.lock().take();
        drop(waker);
        let mut state = self.queue.state.lock();
        // The caller keeps the seat alive: nothing is dropped under the lock.
        state.seats.remove(&self.number);
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
        let mut state = self.queue.state.lock();
        state.order.call(self.number);
        let look = state.wants_look();
        drop(state);
        if look {
            self.turns.look_at(&self.queue);
        }
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A waiter's place in a line. Dropping it leaves the line.
pub(crate) struct Place {
    turns: Arc<Turns>,
    key: Key,
    queue: Arc<Queue>,
    /// `None` for a waiter that waits behind nobody.
    seat: Option<Arc<Seat>>,
    has_asked: AtomicBool,
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
        seat.is_none_or(|seat| is_so(&self.queue.state.lock().order, seat.number))
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
        let mut state = self.queue.state.lock();
        let woken = state.order.goes_before_writers(seat.number);
        let woken = state.seats_of(&woken);
        drop(state);
        wake(woken);
    }
}

/// What its line knows of the server.
impl Place {
    pub(crate) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.queue.outage.lock()
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
        let is_news = self.queue.outage.lock().unanswered(sent, now, gap, failure);
        if is_news {
            // Those behind the asker ask nothing, and each has a limit of its own to watch.
            self.queue.went_down.notify_waiters();
        }
    }

    /// Notified when a request was not answered, and the one before it was.
    pub(crate) fn went_down(&self) -> &Notify {
        &self.queue.went_down
    }

    /// The server has granted something to a request that left at `sent`.
    pub(crate) fn granted(&self, sent: Moment) {
        self.queue.outage.lock().over(sent);
        self.queue.opened.notify_waiters();
    }

    /// Notified when one of those that enter together got in.
    pub(crate) fn opened(&self) -> &Notify {
        &self.queue.opened
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = {
            let mut lines = self.turns.lines.lock();
            let standing = lines.get_mut(&self.key);
            let places = standing.map(|standing| {
                standing.places -= 1;
                standing.places
            });
            // With the last place goes the line. Nobody else is in it, so a waiter that comes
            // before this seat has left may begin a new one.
            (places == Some(0)).then(|| {
                let standing = lines.remove(&self.key);
                lines.give_back();
                standing
            })
        };
        drop(left);
        if let Some(seat) = &self.seat {
            seat.leave();
        }
    }
}
