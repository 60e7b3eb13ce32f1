//! Those who stand behind the head of a line, for whom the head asks as well: what a
//! release makes free goes to as many of them as it is enough for, with one request; and
//! without one, while this process has its tenure.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::key::Key;

/// How long a tenure is. Longer ones would hardly be faster, and others wait for the end.
const TENURE: Duration = Duration::from_millis(10);
/// For how long a process then leaves what it gives back to others: a waiter of Redisson
/// beside the server asks half a millisecond after the message.
const STAND_DOWN: Duration = Duration::from_millis(2);
/// The same for others that are far away, or slow: each fourth time that nobody has taken
/// anything.
const LONG_STAND_DOWN: Duration = Duration::from_millis(16);

/// Who stands in line for what, by name.
#[derive(Default)]
pub(crate) struct Companies {
    lines: Mutex<Lines>,
    /// Releases of this client so far.
    releases: AtomicU64,
}

/// A company stays for a while when nobody stands any more: it knows whose tenure it is.
#[derive(Default)]
struct Lines {
    companies: HashMap<Key, Company>,
    new_since_sweep: usize,
}

impl Lines {
    fn of(&mut self, key: &Key) -> &mut Company {
        if !self.companies.contains_key(key) {
            self.new_since_sweep += 1;
            if self.new_since_sweep > 1024.max(self.companies.len() / 2) {
                self.new_since_sweep = 0;
                self.companies
                    .retain(|_, company| !company.standing.is_empty());
            }
        }
        self.companies.entry(key.clone()).or_default()
    }

    fn known(&mut self, key: &Key) -> Option<&mut Company> {
        self.companies.get_mut(key)
    }
}

#[derive(Default)]
struct Company {
    /// In the order they came.
    standing: VecDeque<Arc<Slot>>,
    /// Nobody else listened when a release was published last.
    alone: bool,
    tenure: Tenure,
    /// How often we have stood down, and nobody has taken anything.
    in_vain: u32,
}

/// Which of the processes that want a name have it for now.
#[derive(Default)]
enum Tenure {
    /// Whoever asks first.
    #[default]
    Open,
    /// This one, since a grant of the server: what is given back passes on in here.
    Ours { since: Moment },
    /// Others: what is given back goes to the server, and nobody of ours asks before that.
    Others { until: Moment, given_back: i64 },
}

/// What one of them asks for.
pub(crate) struct Slot {
    pub(crate) permits: u32,
    state: Mutex<State>,
    granted: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// By the head of the line, or by who gave back.
    Granted,
    /// Has what it asked for, or has given up.
    Gone,
}

impl Companies {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        // No code that can panic runs under this lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(self: &Arc<Self>, key: &Key, permits: u32) -> Standing {
        let slot = Arc::new(Slot {
            permits,
            state: Mutex::new(State::Waiting),
            granted: Notify::new(),
        });
        let mut lines = self.lines();
        lines.of(key).standing.push_back(Arc::clone(&slot));
        drop(lines);
        Standing {
            companies: Arc::clone(self),
            key: key.clone(),
            slot,
        }
    }

    /// Whether anybody of ours stands in line.
    pub(crate) fn anyone_stands(&self, key: &Key) -> bool {
        let mut lines = self.lines();
        let company = lines.known(key);
        company.is_some_and(|company| !company.standing.is_empty())
    }

    /// Those who stand in line beside `head`, in their order, and no more than `most`.
    pub(crate) fn behind(&self, head: &Standing, most: usize) -> Vec<Arc<Slot>> {
        let mut lines = self.lines();
        let company = lines.known(&head.key);
        let standing = company.map(|company| company.standing.iter());
        let others = standing.into_iter().flatten();
        others
            .filter(|slot| !Arc::ptr_eq(slot, &head.slot) && slot.waits())
            .take(most)
            .map(Arc::clone)
            .collect()
    }

    /// The server has run a release of this client.
    pub(crate) fn released(&self) {
        self.releases.fetch_add(1, Ordering::Relaxed);
    }

    /// A release was published; `alone` if nobody else was told.
    pub(crate) fn told(&self, key: &Key, alone: bool) {
        if let Some(company) = self.lines().known(key) {
            company.alone = alone;
        }
    }

    /// Whether our own waiters need not leave the first ask to others: nobody else
    /// listens.
    pub(crate) fn alone(&self, key: &Key) -> bool {
        self.lines().known(key).is_some_and(|company| company.alone)
    }

    /// Before when our own waiters leave it to others to ask.
    pub(crate) fn not_before(&self, key: &Key, now: Moment) -> Option<Moment> {
        match self.lines().known(key)?.tenure {
            Tenure::Others { until, .. } if now < until => Some(until),
            _ => None,
        }
    }

    /// How much was given back while others had their tenure, if that is over: for
    /// [`answered`](Self::answered), and taken before the ask leaves.
    pub(crate) fn given_back(&self, key: &Key, now: Moment) -> Option<i64> {
        match self.lines().known(key)?.tenure {
            Tenure::Others { until, given_back } if now >= until => Some(given_back),
            _ => None,
        }
    }

    /// The server has answered an ask of this line, when so many were free.
    pub(crate) fn answered(&self, key: &Key, asked: Asked) {
        if let Some(company) = self.lines().known(key) {
            company.answered(asked);
        }
    }

    /// Gives permits that come back to those who stand in line, in their order and as far as
    /// they go round, if this process has them for now. How many are left, for the server.
    pub(crate) fn pass_on(&self, key: &Key, permits: u32, now: Moment) -> u32 {
        let mut left = permits;
        // None of them is woken with the table locked.
        while left > 0
            && let Some(slot) = self.next_served(key, left, now)
        {
            slot.granted.notify_one();
            left -= slot.permits;
        }
        left
    }

    fn next_served(&self, key: &Key, permits: u32, now: Moment) -> Option<Arc<Slot>> {
        let mut lines = self.lines();
        let company = lines.known(key)?;
        if !company.passes_on(permits, now) {
            return None;
        }
        for slot in company.standing.iter().filter(|slot| slot.waits()) {
            // Who asks for many is not overtaken.
            if slot.permits > permits {
                return None;
            }
            // It may have gone meanwhile.
            if slot.take_grant() {
                return Some(Arc::clone(slot));
            }
        }
        None
    }

    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }
}

/// An ask, and what was said to it.
pub(crate) struct Asked {
    /// What was given back before it left, if others have had their tenure.
    pub(crate) given_back: Option<i64>,
    /// So many were free when it came.
    pub(crate) free: i64,
    pub(crate) granted: bool,
    /// When it was answered.
    pub(crate) now: Moment,
}

impl Company {
    fn answered(&mut self, asked: Asked) {
        match (&self.tenure, asked.given_back) {
            (Tenure::Others { .. }, Some(given_back)) => {
                let in_vain = asked.free >= given_back;
                self.in_vain = if in_vain {
                    self.in_vain.wrapping_add(1)
                } else {
                    0
                };
                self.tenure = Tenure::Open;
            }
            (Tenure::Open, _) => {}
            // It had left before they were to have theirs.
            (Tenure::Ours { .. } | Tenure::Others { .. }, _) => return,
        }
        if asked.granted {
            self.tenure = Tenure::Ours { since: asked.now };
        }
    }

    /// Whether `permits` that come back stay in this process. The first that do not, because
    /// its tenure is over, begin that of others.
    fn passes_on(&mut self, permits: u32, now: Moment) -> bool {
        match &mut self.tenure {
            Tenure::Ours { since } if now.saturating_sub(*since) <= TENURE => return true,
            Tenure::Ours { .. } if self.alone => self.tenure = Tenure::Open,
            Tenure::Ours { .. } => {
                let span = match self.in_vain % 4 {
                    3 => LONG_STAND_DOWN,
                    _ => STAND_DOWN,
                };
                self.tenure = Tenure::Others {
                    until: now + span,
                    given_back: permits.into(),
                };
            }
            Tenure::Others { given_back, .. } => *given_back += i64::from(permits),
            Tenure::Open => {}
        }
        false
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits(&self) -> bool {
        *self.state() == State::Waiting
    }

    /// `false` when it has gone meanwhile, or has something already.
    pub(crate) fn grant(&self) -> bool {
        let granted = self.take_grant();
        if granted {
            self.granted.notify_one();
        }
        granted
    }

    /// The same, and whoever waits is not woken yet.
    fn take_grant(&self) -> bool {
        let mut state = self.state();
        let waits = *state == State::Waiting;
        if waits {
            *state = State::Granted;
        }
        waits
    }
}

/// A place among them.
pub(crate) struct Standing {
    companies: Arc<Companies>,
    key: Key,
    slot: Arc<Slot>,
}

impl Standing {
    /// Takes what was granted for it, or passed on to it; `false` when there is nothing.
    pub(crate) fn claim(&self) -> bool {
        let mut state = self.slot.state();
        let granted = *state == State::Granted;
        if granted {
            *state = State::Gone;
        }
        granted
    }

    /// Resolves when there is something to claim, and claims it.
    pub(crate) async fn granted(&self) {
        while !self.claim() {
            self.slot.granted.notified().await;
        }
    }

    /// Leaves. `true` when something was granted that nobody has claimed.
    pub(crate) fn leave(&self) -> bool {
        let before = std::mem::replace(&mut *self.slot.state(), State::Gone);
        let mut lines = self.companies.lines();
        if let Some(company) = lines.known(&self.key) {
            company
                .standing
                .retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        }
        before == State::Granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(span: Duration) -> Moment {
        Moment::from_millis(1000) + span
    }

    fn at_once() -> Moment {
        after(Duration::ZERO)
    }

    /// A line of those who ask for so many, and that the server has granted something to.
    fn line(sizes: &[u32]) -> (Arc<Companies>, Key, Vec<Standing>) {
        let companies = Arc::new(Companies::default());
        let key = Key::parse("x").expect("a name");
        let standing = sizes.iter().map(|permits| companies.join(&key, *permits));
        let standing = standing.collect();
        asked(&companies, &key, at_once(), 1);
        (companies, key, standing)
    }

    /// The line has asked, and got something if so many were free.
    fn asked(companies: &Companies, key: &Key, when: Moment, free: i64) {
        let given_back = companies.given_back(key, when);
        answered(companies, key, given_back, when, free);
    }

    fn answered(companies: &Companies, key: &Key, before: Option<i64>, now: Moment, free: i64) {
        let asked = Asked {
            given_back: before,
            free,
            granted: free > 0,
            now,
        };
        companies.answered(key, asked);
    }

    fn served(standing: &[Standing]) -> Vec<bool> {
        standing.iter().map(Standing::claim).collect()
    }

    #[test]
    fn what_comes_back_passes_on_as_far_as_it_goes_round() {
        let (companies, key, standing) = line(&[1, 2, 1]);
        assert_eq!(companies.pass_on(&key, 3, at_once()), 0);
        assert_eq!(served(&standing), [true, true, false]);
        assert_eq!(companies.pass_on(&key, 3, at_once()), 2, "one is enough");
        assert_eq!(served(&standing), [false, false, true]);
    }

    #[test]
    fn who_asks_for_many_is_not_overtaken() {
        let (companies, key, standing) = line(&[1, 3, 1]);
        assert_eq!(companies.pass_on(&key, 3, at_once()), 2);
        assert_eq!(served(&standing), [true, false, false]);
    }

    #[test]
    fn nothing_passes_on_to_who_has_gone() {
        let (companies, key, mut standing) = line(&[1, 1]);
        assert!(!standing.remove(0).leave());
        assert_eq!(companies.pass_on(&key, 1, at_once()), 0);
        assert!(standing.remove(0).leave(), "it goes back");
        assert_eq!(companies.pass_on(&key, 1, at_once()), 1);
    }

    #[test]
    fn a_tenure_ends_with_a_release_and_then_others_have_theirs() {
        let (companies, key, standing) = line(&[1, 1]);
        assert_eq!(companies.pass_on(&key, 1, after(TENURE)), 0);
        let over = after(TENURE) + Duration::from_millis(1);
        assert_eq!(companies.not_before(&key, over), None, "nothing is free");
        assert_eq!(companies.pass_on(&key, 1, over), 1);
        let until = over + STAND_DOWN;
        assert_eq!(companies.not_before(&key, over), Some(until));
        // An ask that was on its way brings no new one, and a release no other end.
        answered(&companies, &key, None, until, 1);
        assert_eq!(companies.pass_on(&key, 1, over), 1);
        assert_eq!(companies.not_before(&key, over), Some(until));
        assert_eq!(companies.not_before(&key, until), None);
        asked(&companies, &key, until, 2);
        assert_eq!(companies.pass_on(&key, 1, until), 0);
        assert_eq!(served(&standing), [true, true]);
    }

    /// For how long it stands down when its tenure is over.
    fn stands_down(companies: &Companies, key: &Key, since: Moment) -> (Duration, Moment) {
        let over = since + TENURE + Duration::from_millis(1);
        assert_eq!(companies.pass_on(key, 1, over), 1);
        let until = companies.not_before(key, over).expect("it stands down");
        (until.saturating_sub(over), until)
    }

    #[test]
    fn who_is_far_away_has_more_time_now_and_then() {
        let (companies, key, _standing) = line(&[1]);
        let mut since = at_once();
        let mut spans = |free: i64| {
            let (span, until) = stands_down(&companies, &key, since);
            asked(&companies, &key, until, free);
            since = until;
            span
        };
        let in_vain: Vec<_> = (0..8).map(|_| spans(1)).collect();
        let cycle = [STAND_DOWN, STAND_DOWN, STAND_DOWN, LONG_STAND_DOWN];
        assert_eq!(in_vain, [cycle, cycle].concat());
    }

    #[test]
    fn who_takes_something_is_near_enough() {
        let (companies, key, _standing) = line(&[1]);
        let mut since = at_once();
        for round in 0..8 {
            let (span, until) = stands_down(&companies, &key, since);
            assert_eq!(span, STAND_DOWN, "round {round}");
            asked(&companies, &key, until, 0);
            asked(&companies, &key, until, 1);
            since = until;
        }
    }

    #[test]
    fn what_comes_back_behind_an_ask_was_not_there_for_it() {
        let (companies, key, _standing) = line(&[1]);
        let mut since = at_once();
        for round in 0..4 {
            let (span, until) = stands_down(&companies, &key, since);
            assert_eq!(span == LONG_STAND_DOWN, round == 3, "round {round}");
            let before = companies.given_back(&key, until);
            assert_eq!(companies.pass_on(&key, 5, until), 5);
            answered(&companies, &key, before, until, 1);
            since = until;
        }
    }

    #[test]
    fn a_line_that_is_empty_for_a_moment_has_the_same_tenure() {
        let (companies, key, standing) = line(&[1]);
        drop(
            standing
                .into_iter()
                .map(|standing| standing.leave())
                .collect::<Vec<_>>(),
        );
        assert!(!companies.anyone_stands(&key));
        let over = after(TENURE) + Duration::from_millis(1);
        assert_eq!(companies.pass_on(&key, 1, over), 1);
        let standing = companies.join(&key, 1);
        assert_eq!(companies.not_before(&key, over), Some(over + STAND_DOWN));
        drop(standing);
    }

    #[test]
    fn lines_that_nobody_stands_in_are_forgotten() {
        let companies = Arc::new(Companies::default());
        for n in 0..5000 {
            let key = Key::parse(&n.to_string()).expect("a name");
            companies.join(&key, 1).leave();
        }
        assert!(companies.lines().companies.len() < 2000);
    }

    #[test]
    fn nobody_stands_down_for_nobody() {
        let (companies, key, _standing) = line(&[1]);
        companies.told(&key, true);
        let over = after(TENURE + STAND_DOWN);
        assert_eq!(companies.pass_on(&key, 1, over), 1);
        assert_eq!(companies.not_before(&key, over), None);
    }
}
