//! The slice: the time for which a process keeps a lock, or permits, for its own waiters while
//! other processes wait.
//!
//! A grant from the server starts a slice (10 ms by default). During the slice, returned permits,
//! or a returned hold of a lock, are given to this process's own waiters. The first return after
//! that time ends the slice: it is sent to the server, and the process *yields* for a moment, so
//! that other processes can ask the server first. So a process that uses a name all the time does
//! not starve another process, and waits for one round trip per slice. If several other processes
//! listen, this process lets them ask first until each of them has had a slice. Otherwise the two
//! processes nearest to the server would take all slices.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::DEFAULT_SLICE;

/// The longest absence of a hold within one slice: the time between its release, with no waiter of
/// this process in line, and the next grant. If two tasks use one lock all the time, both may wait
/// for the server at the same moment. The next grant must not begin a new slice each time.
/// Otherwise their slice would never end.
const MAX_AWAY: Duration = Duration::from_millis(2);
/// The time for which a process yields. A Redisson waiter near the server sends its request half a
/// millisecond after the message.
const STAND_DOWN: Duration = Duration::from_millis(2);
/// A longer time, for processes that are far away or slow. It is used every fourth time in a row
/// that the process yields and no other process takes anything.
const LONG_STAND_DOWN: Duration = Duration::from_millis(16);
/// The number of slices in a row without yielding while no other process listens. After the next
/// slice the process yields anyway: a client that asks without listening, like Redisson's spin
/// lock, is not counted.
const MAX_SLICES_ALONE: u32 = 10;

/// The state of a process's slice for one name.
#[derive(Default)]
pub(crate) struct Slice {
    phase: Phase,
    /// The number of other processes that listened when a release was last published; `None` if
    /// unknown.
    others: Option<u32>,
    /// The number of releases that other processes have published since our slice ended, as far as
    /// we know; `None` if we have not had a slice.
    releases_heard: Option<u32>,
    /// The moment until which this process lets other processes, which have not had a slice since
    /// ours, ask the server first.
    yields_until: Option<Moment>,
    /// The number of slices that have ended since the process last yielded.
    slices_alone: u32,
    /// The number of times in a row that the process yielded but no other process took anything.
    unused_slices: u32,
    /// Whether no permit was free after the last request.
    all_taken: bool,
}

#[derive(Default)]
enum Phase {
    /// There is no slice. The next one begins with a grant to this process.
    #[default]
    Idle,
    /// The slice is ours, since a grant by the server.
    Ours { since: Moment },
    /// The slice is ours, but a hold was given back to the server at `at`, because no waiter of
    /// this process could get it.
    Away { since: Moment, at: Moment },
    /// Other processes ask the server first: our waiters do not ask before `until`. `given_back` is
    /// the number of permits that were given back to the server since this phase began.
    StandingDown { until: Moment, given_back: i64 },
}

/// A request and its answer.
pub(crate) struct SliceReport {
    /// The number of permits that were given back while the process yielded, if the request was
    /// sent after that time.
    pub(crate) given_back: Option<i64>,
    /// The number of permits that were free when the request reached the server.
    pub(crate) free: i64,
    /// Whether no free permit is known to remain.
    pub(crate) none_left: bool,
    pub(crate) granted: bool,
    /// The time of the answer.
    pub(crate) now: Moment,
}

impl Slice {
    /// Notes that a release was published, and that `others` other processes received it. `others`
    /// is `None` if their number is unknown.
    pub(crate) fn published(&mut self, others: Option<u32>) {
        self.others = others;
    }

    /// Notes that a waiter has heard of a release, which may have ended a slice of another process.
    /// If fewer releases have followed our slice than there are other processes that listen, this
    /// process lets the others ask first. Otherwise the two processes nearest to the server would
    /// take all slices, and a third process would not get any.
    pub(crate) fn release_heard(&mut self, now: Moment) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        if let (Some(heard), Some(others)) = (&mut self.releases_heard, self.others) {
            *heard = heard.saturating_add(1);
            self.yields_until = (*heard < others).then_some(now + STAND_DOWN);
        }
    }

    /// Notes that a hold that was granted at `since` was given back to the server at `at`, and that
    /// other processes wait for it.
    pub(crate) fn others_wait(&mut self, since: Moment, at: Moment) {
        self.others = None;
        if self.is_idle() {
            self.phase = Phase::Away { since, at };
        }
    }

    /// Returns whether this state contains no more than a new one.
    pub(crate) fn remembers_nothing(&self) -> bool {
        matches!(self.phase, Phase::Idle) && !self.no_other_listener() && self.unused_slices == 0
    }

    /// Returns whether the process neither has a slice nor yields.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    pub(crate) fn no_other_listener(&self) -> bool {
        self.others == Some(0)
    }

    /// Returns the moment until which our waiters let other processes ask first.
    pub(crate) fn not_before(&self, now: Moment) -> Option<Moment> {
        let until = match self.phase {
            Phase::StandingDown { until, .. } => Some(until),
            _ => self.yields_until,
        };
        until.filter(|until| now < *until)
    }

    /// Returns the moment until which our waiters do not ask for a hold, because one of them has it
    /// and will hand it over.
    pub(crate) fn ours_until(&self, now: Moment, length: Duration) -> Option<Moment> {
        match self.phase {
            Phase::Ours { since } if now < since + length => Some(since + length),
            _ => None,
        }
    }

    /// Like [`ours_until`](Self::ours_until), for permits: until a request has found that none are
    /// free, some may be free.
    pub(crate) fn all_ours_until(&self, now: Moment, length: Duration) -> Option<Moment> {
        let until = self.ours_until(now, length);
        until.filter(|_| self.all_taken)
    }

    /// Returns how many permits were given back while the process yielded, if the time for yielding
    /// has passed.
    pub(crate) fn given_back(&self, now: Moment) -> Option<i64> {
        match self.phase {
            Phase::StandingDown { until, given_back } if now >= until => Some(given_back),
            _ => None,
        }
    }

    /// Ends the slice without yielding, because more permits may be in use than exist. Returned
    /// permits are sent to the server until it grants permits again.
    pub(crate) fn end(&mut self) {
        if matches!(self.phase, Phase::Ours { .. } | Phase::Away { .. }) {
            self.phase = Phase::Idle;
        }
    }

    /// Notes that the server has answered a request.
    pub(crate) fn answered(&mut self, report: &SliceReport) {
        self.all_taken = report.none_left;
        if report.free < 0 {
            self.end();
        }
        match (&self.phase, report.given_back) {
            (Phase::Idle, _) => {}
            (Phase::StandingDown { .. }, Some(given_back)) => {
                // All returned permits are still free: no other process wanted them, or none was
                // quick enough.
                let is_unused = report.free >= given_back;
                self.unused_slices = if is_unused {
                    self.unused_slices.wrapping_add(1)
                } else {
                    0
                };
                self.phase = Phase::Idle;
            }
            // The request was sent while the process yielded, or during its slice. If its grant
            // began a slice, our next slice could directly follow the last one.
            (Phase::StandingDown { .. }, None) | (Phase::Ours { .. } | Phase::Away { .. }, _) => {
                return;
            }
        }
        if report.granted {
            self.phase = Phase::Ours { since: report.now };
        }
    }

    /// Returns whether returned permits stay in this process.
    pub(crate) fn permits_stay_local(&mut self, permits: u32, now: Moment) -> bool {
        self.stays_local(permits, now, DEFAULT_SLICE)
    }

    /// Returns whether a returned hold may stay in this process. The server granted it at
    /// `granted`, and it has `permits` permits.
    pub(crate) fn hold_stays_local(
        &mut self,
        (granted, permits): (Moment, u32),
        now: Moment,
        length: Duration,
    ) -> bool {
        // The slice begins here and not with the grant: most holds have no waiter behind them, and
        // for these nothing has to be remembered.
        match self.phase {
            Phase::Idle => self.phase = Phase::Ours { since: granted },
            Phase::Away { since, at } => {
                let since = if granted <= at + MAX_AWAY {
                    since
                } else {
                    granted
                };
                self.phase = Phase::Ours { since };
            }
            Phase::Ours { .. } | Phase::StandingDown { .. } => {}
        }
        self.stays_local(permits, now, length)
    }

    /// Begins a slice for a hold whose line is on the server. The next waiter in line may belong to
    /// any process.
    pub(crate) fn begin(&mut self, now: Moment) {
        self.phase = Phase::Ours { since: now };
    }

    /// Notes that a hold is given back to the server.
    pub(crate) fn hold_returned(&mut self, now: Moment) {
        if let Phase::Ours { since } = self.phase {
            self.phase = Phase::Away { since, at: now };
        }
    }

    fn stays_local(&mut self, permits: u32, now: Moment, length: Duration) -> bool {
        let alone = self.no_other_listener();
        match &mut self.phase {
            Phase::Ours { since } if now.saturating_sub(*since) <= length => return true,
            // No other process listens, so yielding would only cost time.
            Phase::Ours { .. } if alone && self.slices_alone < MAX_SLICES_ALONE => {
                self.slices_alone += 1;
                self.phase = Phase::Idle;
            }
            // The slice ends with a return, not at a time: until something is given back, there is
            // nothing for which other processes could ask.
            Phase::Ours { .. } => {
                self.slices_alone = 0;
                self.releases_heard = Some(0);
                self.phase = Phase::StandingDown {
                    until: now + self.stand_down(),
                    given_back: permits.into(),
                };
            }
            Phase::StandingDown { given_back, .. } => *given_back += i64::from(permits),
            Phase::Idle | Phase::Away { .. } => {}
        }
        false
    }

    fn stand_down(&self) -> Duration {
        // Other processes may be too far away to ask within the short time. The long time is used
        // rarely: usually no other process wants a permit, and then the time is lost.
        match self.unused_slices % 4 {
            3 => LONG_STAND_DOWN,
            _ => STAND_DOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = DEFAULT_SLICE;

    fn after(span: Duration) -> Moment {
        Moment::from_millis(1000) + span
    }

    fn at_once() -> Moment {
        after(Duration::ZERO)
    }

    /// Creates a slice that a grant by the server has begun.
    fn begun() -> Slice {
        let mut slice = Slice::default();
        ask(&mut slice, at_once(), 1);
        slice
    }

    /// Notes a request that is answered at once, and granted if permits are free.
    fn ask(slice: &mut Slice, now: Moment, free: i64) {
        let given_back = slice.given_back(now);
        answer(slice, given_back, now, free);
    }

    fn answer(slice: &mut Slice, given_back: Option<i64>, now: Moment, free: i64) {
        slice.answered(&SliceReport {
            given_back,
            free,
            none_left: free <= 1,
            granted: free > 0,
            now,
        });
    }

    #[test]
    fn release_after_the_turn_starts_standing_down() {
        let mut slice = begun();
        assert!(slice.permits_stay_local(1, after(SLICE)));
        let over = after(SLICE) + Duration::from_millis(1);
        assert_eq!(slice.not_before(over), None, "nothing is free");
        assert!(!slice.permits_stay_local(1, over));
        let until = over + STAND_DOWN;
        assert_eq!(slice.not_before(over), Some(until));
        // A request that was in flight does not begin a new slice, and a return does not change the
        // time until which the process yields.
        answer(&mut slice, None, until, 1);
        assert!(!slice.permits_stay_local(1, over));
        assert_eq!(slice.not_before(over), Some(until));
        assert_eq!(slice.not_before(until), None);
        ask(&mut slice, until, 2);
        assert!(slice.permits_stay_local(1, until));
    }

    /// Returns the time until which the process yields after a slice that began at `since`, and how
    /// long it yields.
    fn stands_down(slice: &mut Slice, since: Moment) -> (Moment, Duration) {
        let over = since + SLICE + Duration::from_millis(1);
        assert!(!slice.permits_stay_local(1, over));
        let until = slice.not_before(over).expect("it stands down");
        (until, until.saturating_sub(over))
    }

    #[test]
    fn every_fourth_stand_down_is_long() {
        let (mut slice, mut since) = (begun(), at_once());
        let spans: Vec<_> = (0..8)
            .map(|_| {
                let (until, span) = stands_down(&mut slice, since);
                ask(&mut slice, until, 1);
                since = until;
                span
            })
            .collect();
        let cycle = [STAND_DOWN, STAND_DOWN, STAND_DOWN, LONG_STAND_DOWN];
        assert_eq!(spans, [cycle, cycle].concat());
    }

    #[test]
    fn who_takes_something_is_near_enough() {
        let (mut slice, mut since) = (begun(), at_once());
        for round in 0..8 {
            let (until, span) = stands_down(&mut slice, since);
            assert_eq!(span, STAND_DOWN, "round {round}");
            ask(&mut slice, until, 0);
            ask(&mut slice, until, 1);
            since = until;
        }
    }

    #[test]
    fn each_other_process_has_a_turn_before_the_next() {
        let mut slice = begun();
        slice.published(Some(3));
        let (until, _) = stands_down(&mut slice, at_once());
        // Another process has taken the permits.
        ask(&mut slice, until, 0);
        let at = |ms| until + Duration::from_millis(ms);
        for other in [10, 20] {
            assert_eq!(slice.not_before(at(other)), None);
            slice.release_heard(at(other));
            assert_eq!(slice.not_before(at(other)), Some(at(other + 2)));
            assert_eq!(slice.not_before(at(other + 2)), None);
        }
        slice.release_heard(at(30));
        assert_eq!(slice.not_before(at(30)), None, "all three have had one");
        // A client that has not had a slice does not let other clients ask first.
        let mut new = Slice::default();
        new.published(Some(3));
        new.release_heard(at_once());
        assert_eq!(new.not_before(at_once()), None);
    }

    #[test]
    fn permits_returned_after_asking_do_not_count() {
        let (mut slice, mut since) = (begun(), at_once());
        for round in 0..4 {
            let (until, span) = stands_down(&mut slice, since);
            assert_eq!(span == LONG_STAND_DOWN, round == 3, "round {round}");
            let before = slice.given_back(until);
            assert!(!slice.permits_stay_local(5, until));
            answer(&mut slice, before, until, 1);
            since = until;
        }
    }

    #[test]
    fn nobody_stands_down_for_nobody() {
        let mut slice = begun();
        slice.published(Some(0));
        let over = after(SLICE + STAND_DOWN);
        assert!(!slice.permits_stay_local(1, over));
        assert_eq!(slice.not_before(over), None);
    }

    /// Clients that ask without listening are not counted, so the process must sometimes let other
    /// clients ask first.
    #[test]
    fn every_eleventh_turn_alone_stands_down() {
        let (mut slice, mut since) = (begun(), at_once());
        slice.published(Some(0));
        for round in 1..=22 {
            let over = since + SLICE + Duration::from_millis(1);
            assert!(!slice.permits_stay_local(1, over));
            let until = slice.not_before(over);
            assert_eq!(until.is_some(), round % 11 == 0, "round {round}");
            since = until.unwrap_or(over);
            ask(&mut slice, since, 1);
        }
    }

    #[test]
    fn turn_with_free_permits_keeps_nobody_from_asking() {
        let mut slice = Slice::default();
        ask(&mut slice, at_once(), 2);
        assert_eq!(slice.all_ours_until(at_once(), SLICE), None);
        ask(&mut slice, at_once(), 1);
        assert_eq!(slice.all_ours_until(at_once(), SLICE), Some(after(SLICE)));
        slice.hold_returned(at_once());
        assert_eq!(slice.all_ours_until(at_once(), SLICE), None);
    }

    #[test]
    fn turn_ends_when_more_are_in_use_than_there_are() {
        let mut slice = begun();
        assert!(slice.permits_stay_local(1, at_once()));
        ask(&mut slice, at_once(), 0);
        assert!(slice.permits_stay_local(1, at_once()), "all are in use");
        ask(&mut slice, at_once(), -1);
        assert!(!slice.permits_stay_local(1, at_once()));
        assert_eq!(
            slice.not_before(at_once()),
            None,
            "others get nothing either"
        );
        ask(&mut slice, at_once(), 1);
        assert!(slice.permits_stay_local(1, at_once()));
    }

    #[test]
    fn own_turn_keeps_waiters_from_asking() {
        let slice = begun();
        assert_eq!(slice.ours_until(at_once(), SLICE), Some(after(SLICE)));
        assert_eq!(slice.ours_until(after(SLICE), SLICE), None);
        assert_eq!(Slice::default().ours_until(at_once(), SLICE), None);
    }

    /// Gives a hold that was granted at `granted` back to the server a millisecond later.
    fn returned(slice: &mut Slice, granted: Moment) -> bool {
        let now = granted + Duration::from_millis(1);
        let stays = slice.hold_stays_local((granted, 1), now, SLICE);
        slice.hold_returned(now);
        stays
    }

    #[test]
    fn short_absences_do_not_prolong_a_turn() {
        let mut slice = Slice::default();
        // Each grant follows less than two milliseconds after the previous release.
        let grants = (0..10).map(|round| after(Duration::from_millis(2) * round));
        let stays: Vec<_> = grants
            .map(|granted| returned(&mut slice, granted))
            .collect();
        assert_eq!(stays[..5], [true; 5]);
        assert_eq!(stays[5..], [false; 5], "its ten milliseconds are over");
    }

    #[test]
    fn a_long_absence_begins_a_new_turn() {
        let mut slice = Slice::default();
        assert!(returned(&mut slice, at_once()));
        let later = after(SLICE) + MAX_AWAY;
        assert!(returned(&mut slice, later), "others could have taken it");
    }
}
