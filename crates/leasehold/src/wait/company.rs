//! The waiters for the permits of one name. The first of them asks the server for everyone
//! behind it, so one request serves as many waiters as there are free permits. During this
//! process's turn (`tenure.rs`) returned permits go to the waiters without a request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::cleanup::sweep::Sweep;
use crate::clock::Moment;
use crate::key::Key;
use crate::room::Room;
use crate::sync::Mutex;
use crate::wait::tenure::{Asked, Tenure};

/// The waiters for permits, by name.
#[derive(Default)]
pub(crate) struct Companies {
    lines: Mutex<Lines>,
    /// How many waiters have come so far.
    numbers: AtomicU64,
}

/// A company stays for a while when its last waiter has gone: it knows whose turn it is.
#[derive(Default)]
struct Lines {
    companies: HashMap<Key, Company>,
    sweep: Sweep,
}

impl Lines {
    fn of(&mut self, key: &Key) -> &mut Company {
        let is_new = !self.companies.contains_key(key);
        // Looked through as the table grows, not as waiters leave: a line that is empty for a
        // moment must not begin a turn anew, or other processes would never have theirs.
        if is_new && self.sweep.is_due(self.companies.len()) {
            self.companies
                .retain(|_, company| !company.standing.is_empty());
            self.companies.give_back();
        }
        self.companies.entry(key.clone()).or_default()
    }

    fn known(&mut self, key: &Key) -> Option<&mut Company> {
        self.companies.get_mut(key)
    }
}

#[derive(Default)]
struct Company {
    /// By number: in the order in which they came.
    standing: BTreeMap<u64, Arc<Slot>>,
    tenure: Tenure,
}

/// A waiter: what it asks for, and whether it has that.
pub(crate) struct Slot {
    pub(crate) permits: u32,
    state: Mutex<State>,
    granted: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// By a request of the first in line, or by a holder that gave permits back.
    Granted,
    /// It has what it asked for, or has given up.
    Gone,
}

impl Companies {
    pub(crate) fn join(self: &Arc<Self>, key: &Key, permits: u32) -> Standing {
        let slot = Arc::new(Slot {
            permits,
            state: Mutex::new(State::Waiting),
            granted: Notify::new(),
        });
        let mut lines = self.lines.lock();
        // Drawn with the table locked: otherwise the waiter with the next number could be in
        // line, and be served, before this one.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        lines.of(key).standing.insert(number, Arc::clone(&slot));
        drop(lines);
        Standing {
            companies: Arc::clone(self),
            key: key.clone(),
            number,
            slot,
        }
    }

    /// Whether any waiter of this process is in line.
    pub(crate) fn anyone_stands(&self, key: &Key) -> bool {
        let mut lines = self.lines.lock();
        let company = lines.known(key);
        company.is_some_and(|company| !company.standing.is_empty())
    }

    /// The waiters in line besides `head`, in their order, and no more than `most`.
    pub(crate) fn behind(&self, head: &Standing, most: usize) -> Vec<Arc<Slot>> {
        let mut lines = self.lines.lock();
        let company = lines.known(&head.key);
        let standing = company.map(|company| company.standing.values());
        let others = standing.into_iter().flatten();
        // Only those that wait still: permits for the others would travel for nothing.
        others
            .filter(|slot| !Arc::ptr_eq(slot, &head.slot) && slot.waits())
            .take(most)
            .map(Arc::clone)
            .collect()
    }

    /// A release was published; `alone` if no other process heard it.
    pub(crate) fn told(&self, key: &Key, alone: bool) {
        if let Some(company) = self.lines.lock().known(key) {
            company.tenure.told(alone);
        }
    }

    /// Whether no other process listens, so that our own waiters need not let others ask first.
    pub(crate) fn alone(&self, key: &Key) -> bool {
        let mut lines = self.lines.lock();
        lines
            .known(key)
            .is_some_and(|company| company.tenure.is_alone())
    }

    /// The moment before which our own waiters let other processes ask.
    pub(crate) fn not_before(&self, key: &Key, now: Moment) -> Option<Moment> {
        self.lines.lock().known(key)?.tenure.not_before(now)
    }

    /// How many permits went back to the server during the turn of others, if that is over. For
    /// [`answered`](Self::answered), and read before the ask leaves: permits that come back
    /// behind the ask were not there for it.
    pub(crate) fn given_back(&self, key: &Key, now: Moment) -> Option<i64> {
        self.lines.lock().known(key)?.tenure.given_back(now)
    }

    /// The server has answered an ask of this line.
    pub(crate) fn answered(&self, key: &Key, asked: Asked) {
        if let Some(company) = self.lines.lock().known(key) {
            company.tenure.answered(&asked);
        }
    }

    /// Gives returned permits to the waiters in line, in their order and as far as they go
    /// round, if it is this process's turn. Returns how many are left for the server. An embedded
    /// client passes nothing on: its requests cost nothing.
    pub(crate) fn pass_on(&self, key: &Key, permits: u32, now: Moment) -> u32 {
        let mut left = permits;
        // One at a time: no waiter is woken with the table locked, as it may come back for it.
        while left > 0
            && let Some(slot) = self.next_served(key, left, now)
        {
            slot.granted.notify_one();
            left -= slot.permits;
        }
        left
    }

    fn next_served(&self, key: &Key, permits: u32, now: Moment) -> Option<Arc<Slot>> {
        let mut lines = self.lines.lock();
        let company = lines.known(key)?;
        if !company.tenure.keeps(permits, now) {
            return None;
        }
        while let Some(first) = company.standing.first_entry() {
            // A waiter that asks for many permits is not overtaken by those that ask for fewer:
            // they could keep it waiting for ever.
            if first.get().waits() && first.get().permits > permits {
                return None;
            }
            // Out of the line, also if it has gone or was granted something already: a release of
            // many permits would look at each such waiter again for each of the next ones.
            let slot = first.remove();
            if slot.take_grant() {
                return Some(slot);
            }
        }
        None
    }
}

impl Slot {
    fn waits(&self) -> bool {
        *self.state.lock() == State::Waiting
    }

    /// `false` if the waiter has gone meanwhile, or was granted something already.
    pub(crate) fn grant(&self) -> bool {
        let granted = self.take_grant();
        if granted {
            self.granted.notify_one();
        }
        granted
    }

    /// The same, without waking the waiter.
    fn take_grant(&self) -> bool {
        let mut state = self.state.lock();
        let waits = *state == State::Waiting;
        if waits {
            *state = State::Granted;
        }
        waits
    }

    /// The waiter has what it asked for, or has given up: nothing is granted for it any more.
    /// `true` if something was granted that nobody has claimed.
    pub(crate) fn go(&self) -> bool {
        // In one exchange: a grant at the same time is seen here, or sees that the waiter has
        // gone. Either way somebody gives the permits back.
        std::mem::replace(&mut *self.state.lock(), State::Gone) == State::Granted
    }
}

/// A waiter's place in the line.
pub(crate) struct Standing {
    companies: Arc<Companies>,
    key: Key,
    number: u64,
    slot: Arc<Slot>,
}

impl Standing {
    /// Takes what was granted for this waiter, or passed on to it; `false` if there is nothing.
    pub(crate) fn claim(&self) -> bool {
        let mut state = self.slot.state.lock();
        let granted = *state == State::Granted;
        if granted {
            *state = State::Gone;
        }
        granted
    }

    /// Resolves when there is something to claim, and claims it.
    pub(crate) async fn granted(&self) {
        // `notify_one` is kept for whoever waits next, so no grant between the two is missed.
        while !self.claim() {
            self.slot.granted.notified().await;
        }
    }

    /// Leaves. `true` when something was granted that nobody has claimed.
    pub(crate) fn leave(&self) -> bool {
        // First: while it is still in the table, nothing may be granted for it any more.
        let unclaimed = self.slot.go();
        let mut lines = self.companies.lines.lock();
        if let Some(company) = lines.known(&self.key) {
            // By its number, without a look at the others: thousands may leave together.
            company.standing.remove(&self.number);
        }
        unclaimed
    }

    pub(crate) fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.slot)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn now() -> Moment {
        Moment::from_millis(1000)
    }

    /// A line of waiters that ask for these sizes, in the turn of its process.
    fn line(sizes: &[u32]) -> (Arc<Companies>, Key, Vec<Standing>) {
        let companies = Arc::new(Companies::default());
        let key = Key::parse("x").expect("a name");
        let standing = sizes.iter().map(|permits| companies.join(&key, *permits));
        let standing = standing.collect();
        let asked = Asked {
            given_back: None,
            free: 1,
            granted: true,
            now: now(),
        };
        companies.answered(&key, asked);
        (companies, key, standing)
    }

    fn served(standing: &[Standing]) -> Vec<bool> {
        standing.iter().map(Standing::claim).collect()
    }

    #[test]
    fn what_comes_back_passes_on_as_far_as_it_goes_round() {
        let (companies, key, standing) = line(&[1, 2, 1]);
        assert_eq!(companies.pass_on(&key, 3, now()), 0);
        assert_eq!(served(&standing), [true, true, false]);
        assert_eq!(companies.pass_on(&key, 3, now()), 2, "one is enough");
        assert_eq!(served(&standing), [false, false, true]);
    }

    #[test]
    fn who_asks_for_many_is_not_overtaken() {
        let (companies, key, standing) = line(&[1, 3, 1]);
        assert_eq!(companies.pass_on(&key, 3, now()), 2);
        assert_eq!(served(&standing), [true, false, false]);
    }

    #[test]
    fn nothing_passes_on_to_who_has_gone() {
        let (companies, key, mut standing) = line(&[1, 1]);
        assert!(!standing.remove(0).leave());
        assert_eq!(companies.pass_on(&key, 1, now()), 0);
        assert!(standing.remove(0).leave(), "it goes back");
        assert_eq!(companies.pass_on(&key, 1, now()), 1);
    }

    #[test]
    fn a_line_that_is_empty_for_a_moment_has_the_same_tenure() {
        let (companies, key, standing) = line(&[1]);
        assert!(!standing[0].leave());
        assert!(!companies.anyone_stands(&key));
        let _standing = companies.join(&key, 1);
        assert_eq!(companies.pass_on(&key, 1, now()), 0);
    }

    /// The time for which this thread has computed.
    fn worked() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Duration::from_nanos(nanos.try_into().expect("no more than a life"))
    }

    /// How long `work` computes for a line of `waiters`; the least of some tries.
    fn work_of(waiters: usize, work: impl Fn(Arc<Companies>, Key, Vec<Standing>)) -> Duration {
        let once = |_| {
            let (companies, key, standing) = line(&vec![1; waiters]);
            let before = worked();
            work(companies, key, standing);
            worked().saturating_sub(before)
        };
        (0..5).map(once).min().expect("some tries")
    }

    /// Four times as many waiters are four times the work, or a little more; the square would be
    /// sixteen times.
    fn assert_grows_with_the_line(work: impl Fn(Arc<Companies>, Key, Vec<Standing>)) {
        let (few, many) = (work_of(2000, &work), work_of(8000, &work));
        assert!(many < few * 9, "{few:?} for 2000, {many:?} for 8000");
    }

    #[test]
    fn who_leaves_a_long_line_costs_no_more_than_who_leaves_a_short_one() {
        assert_grows_with_the_line(|_, _, standing| {
            standing.iter().for_each(|one| assert!(!one.leave()));
        });
        assert_grows_with_the_line(|_, _, standing| {
            standing.iter().rev().for_each(|one| assert!(!one.leave()));
        });
    }

    #[test]
    fn many_permits_pass_on_with_as_much_work_for_each() {
        assert_grows_with_the_line(|companies, key, standing| {
            let permits = u32::try_from(standing.len()).expect("so many");
            assert_eq!(companies.pass_on(&key, permits, now()), 0);
            assert!(standing.iter().all(Standing::claim));
        });
    }

    #[test]
    fn lines_that_nobody_stands_in_are_forgotten() {
        let companies = Arc::new(Companies::default());
        for n in 0..5000 {
            let key = Key::parse(&n.to_string()).expect("a name");
            companies.join(&key, 1).leave();
        }
        assert!(companies.lines.lock().companies.len() < 2000);
    }
}
