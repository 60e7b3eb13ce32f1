//! How the processes that want one name, or permits of it, take turns.
//!
//! A grant from the server starts a turn of 10 ms, during which what comes back (permits, or a
//! hold of a lock) goes to this process's own waiters. The first return behind that ends the turn:
//! it goes to the server, and the process stands down for a while, so that other processes can ask
//! first. So a process that uses a name all the time does not starve another one, and waits for
//! one round trip in each turn. Beside several such processes it lets others go first until as
//! many turns have ended as others listen: without that the two nearest have all of them.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::DEFAULT_TURN;

/// How long a hold may be away in its turn: between its release, when nobody of this process stood
/// in line, and the next grant. Two tasks that use one lock all the time wait for the server's
/// answers at the same moment, and their turn must end nevertheless.
const AWAY: Duration = Duration::from_millis(2);
/// How long a process then lets others ask first: a waiter of Redisson near the server asks
/// half a millisecond after the message.
const STAND_DOWN: Duration = Duration::from_millis(2);
/// The same for others that are far away or slow: every fourth time that nobody has taken
/// anything.
const LONG_STAND_DOWN: Duration = Duration::from_millis(16);
/// Each so many turns the process stands down although nobody else listens: who asks without
/// listening, as Redisson's spin lock does, is counted by nobody.
const ALONE_FOR: u32 = 10;

/// What a process knows of the turns for one name.
#[derive(Default)]
pub(crate) struct Turn {
    phase: Phase,
    /// How many other processes listened when a release was published last; `None`
    /// if that is not known.
    others: Option<u32>,
    /// How many releases others have published since our turn ended, of which we know; `None` if we
    /// have had none.
    heard: Option<u32>,
    /// Until when it lets others ask whose turn comes first.
    yields_until: Option<Moment>,
    /// How many turns have ended since the process stood down.
    turns_alone: u32,
    /// How many times in a row the process has stood down and nobody has taken anything.
    in_vain: u32,
    /// The last ask has left nothing free.
    all_taken: bool,
}

#[derive(Default)]
enum Phase {
    /// That of whoever asks first.
    #[default]
    Idle,
    /// Ours, since a grant of the server.
    Ours { since: Moment },
    /// The same, but a hold went back to the server at `at`: nobody of this process could have it.
    Away { since: Moment, at: Moment },
    /// That of other processes: none of our waiters asks before `until`. So many permits went
    /// back to the server since it began.
    StandingDown { until: Moment, given_back: i64 },
}

/// An ask and its answer.
pub(crate) struct Asked {
    /// How many permits had gone back before it left, if others have had their turn.
    pub(crate) given_back: Option<i64>,
    /// How many permits were free when it reached the server.
    pub(crate) free: i64,
    /// It is known that none is left.
    pub(crate) none_left: bool,
    pub(crate) granted: bool,
    /// When it was answered.
    pub(crate) now: Moment,
}

impl Turn {
    /// A release was published, and so many other processes heard it; `None` if that can't be known.
    pub(crate) fn published(&mut self, others: Option<u32>) {
        self.others = others;
    }

    /// A waiter heard of a release. If that was the end of a turn of another process, those that
    /// have had no turn since ours ask first: as many others as listen have to have theirs. The
    /// nearest two processes would have all turns otherwise, and a third one none.
    pub(crate) fn hears(&mut self, now: Moment) {
        if !matches!(self.phase, Phase::Idle) {
            return;
        }
        if let (Some(heard), Some(others)) = (&mut self.heard, self.others) {
            *heard = heard.saturating_add(1);
            self.yields_until = (*heard < others).then_some(now + STAND_DOWN);
        }
    }

    /// A hold that the server granted at `since` went back to it at `at`, and others wait for it.
    pub(crate) fn others_wait(&mut self, since: Moment, at: Moment) {
        self.others = None;
        if self.is_idle() {
            self.phase = Phase::Away { since, at };
        }
    }

    /// It knows no more than a new one.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.phase, Phase::Idle) && !self.is_alone() && self.in_vain == 0
    }

    /// Whether nobody has taken a turn, and none is over.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.others == Some(0)
    }

    /// The moment before which our waiters let others ask.
    pub(crate) fn not_before(&self, now: Moment) -> Option<Moment> {
        let until = match self.phase {
            Phase::StandingDown { until, .. } => Some(until),
            _ => self.yields_until,
        };
        until.filter(|until| now < *until)
    }

    /// The moment before which none of our waiters asks for a hold, because one of them has it and
    /// hands it over when it comes back.
    pub(crate) fn ours_until(&self, now: Moment, length: Duration) -> Option<Moment> {
        match self.phase {
            Phase::Ours { since } if now < since + length => Some(since + length),
            _ => None,
        }
    }

    /// The same for permits, of which some may be free until an ask has found none.
    pub(crate) fn all_ours_until(&self, now: Moment, length: Duration) -> Option<Moment> {
        let until = self.ours_until(now, length);
        until.filter(|_| self.all_taken)
    }

    /// How many permits went back during the turn of others, if that is over.
    pub(crate) fn given_back(&self, now: Moment) -> Option<i64> {
        match self.phase {
            Phase::StandingDown { until, given_back } if now >= until => Some(given_back),
            _ => None,
        }
    }

    /// It ends, without one of others: more permits are in use than there are, perhaps. What comes
    /// back goes to the server until that grants something again.
    pub(crate) fn ends(&mut self) {
        if matches!(self.phase, Phase::Ours { .. } | Phase::Away { .. }) {
            self.phase = Phase::Idle;
        }
    }

    /// The server has answered.
    pub(crate) fn answered(&mut self, asked: &Asked) {
        self.all_taken = asked.none_left;
        if asked.free < 0 {
            self.ends();
        }
        match (&self.phase, asked.given_back) {
            (Phase::Idle, _) => {}
            (Phase::StandingDown { .. }, Some(given_back)) => {
                // All that went back is there still: nobody wanted it, or nobody was quick
                // enough.
                let in_vain = asked.free >= given_back;
                self.in_vain = if in_vain {
                    self.in_vain.wrapping_add(1)
                } else {
                    0
                };
                self.phase = Phase::Idle;
            }
            // It left before the turn of the others was over, or during ours. If its grant began a
            // turn, one of our turns could follow the other.
            (Phase::StandingDown { .. }, None) | (Phase::Ours { .. } | Phase::Away { .. }, _) => {
                return;
            }
        }
        if asked.granted {
            self.phase = Phase::Ours { since: asked.now };
        }
    }

    /// Whether permits that come back stay in this process.
    pub(crate) fn passes_on(&mut self, permits: u32, now: Moment) -> bool {
        self.stays(permits, now, DEFAULT_TURN)
    }

    /// Whether a hold that comes back may stay in this process. The server granted it at
    /// `granted`, and it is one of so many permits.
    pub(crate) fn hold_stays(
        &mut self,
        (granted, permits): (Moment, u32),
        now: Moment,
        length: Duration,
    ) -> bool {
        // Begun here and not with the grant: most holds have nobody behind them, and of those
        // nothing has to be remembered.
        match self.phase {
            Phase::Idle => self.phase = Phase::Ours { since: granted },
            Phase::Away { since, at } => {
                let since = if granted <= at + AWAY { since } else { granted };
                self.phase = Phase::Ours { since };
            }
            Phase::Ours { .. } | Phase::StandingDown { .. } => {}
        }
        self.stays(permits, now, length)
    }

    /// A waiter of this process has the hold, which goes to the next one in line, whoever that is.
    pub(crate) fn holds(&mut self, now: Moment) {
        self.phase = Phase::Ours { since: now };
    }

    /// A hold goes back to the server.
    pub(crate) fn hold_leaves(&mut self, now: Moment) {
        if let Phase::Ours { since } = self.phase {
            self.phase = Phase::Away { since, at: now };
        }
    }

    fn stays(&mut self, permits: u32, now: Moment, length: Duration) -> bool {
        let alone = self.is_alone();
        match &mut self.phase {
            Phase::Ours { since } if now.saturating_sub(*since) <= length => return true,
            // No other process listens: to stand down for nobody would only cost time.
            Phase::Ours { .. } if alone && self.turns_alone < ALONE_FOR => {
                self.turns_alone += 1;
                self.phase = Phase::Idle;
            }
            // A return ends the turn, not the clock: until something comes back, there is
            // nothing that others could ask for.
            Phase::Ours { .. } => {
                self.turns_alone = 0;
                self.heard = Some(0);
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
        // Others may be too far away to ask within the short time. Seldom: mostly nobody else
        // wants a permit, and each long time is lost then.
        match self.in_vain % 4 {
            3 => LONG_STAND_DOWN,
            _ => STAND_DOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = DEFAULT_TURN;

    fn after(span: Duration) -> Moment {
        Moment::from_millis(1000) + span
    }

    fn at_once() -> Moment {
        after(Duration::ZERO)
    }

    /// The server has granted something.
    fn begun() -> Turn {
        let mut turn = Turn::default();
        ask(&mut turn, at_once(), 1);
        turn
    }

    /// An ask that is answered at once, and granted if permits are free.
    fn ask(turn: &mut Turn, now: Moment, free: i64) {
        let given_back = turn.given_back(now);
        answer(turn, given_back, now, free);
    }

    fn answer(turn: &mut Turn, given_back: Option<i64>, now: Moment, free: i64) {
        turn.answered(&Asked {
            given_back,
            free,
            none_left: free <= 1,
            granted: free > 0,
            now,
        });
    }

    #[test]
    fn release_after_the_turn_starts_standing_down() {
        let mut turn = begun();
        assert!(turn.passes_on(1, after(TURN)));
        let over = after(TURN) + Duration::from_millis(1);
        assert_eq!(turn.not_before(over), None, "nothing is free");
        assert!(!turn.passes_on(1, over));
        let until = over + STAND_DOWN;
        assert_eq!(turn.not_before(over), Some(until));
        // An ask that was on its way brings no new one, and a release no other end.
        answer(&mut turn, None, until, 1);
        assert!(!turn.passes_on(1, over));
        assert_eq!(turn.not_before(over), Some(until));
        assert_eq!(turn.not_before(until), None);
        ask(&mut turn, until, 2);
        assert!(turn.passes_on(1, until));
    }

    /// Until when it stands down after a turn that began at `since`, and for how long.
    fn stands_down(turn: &mut Turn, since: Moment) -> (Moment, Duration) {
        let over = since + TURN + Duration::from_millis(1);
        assert!(!turn.passes_on(1, over));
        let until = turn.not_before(over).expect("it stands down");
        (until, until.saturating_sub(over))
    }

    #[test]
    fn every_fourth_stand_down_is_long() {
        let (mut turn, mut since) = (begun(), at_once());
        let in_vain: Vec<_> = (0..8)
            .map(|_| {
                let (until, span) = stands_down(&mut turn, since);
                ask(&mut turn, until, 1);
                since = until;
                span
            })
            .collect();
        let cycle = [STAND_DOWN, STAND_DOWN, STAND_DOWN, LONG_STAND_DOWN];
        assert_eq!(in_vain, [cycle, cycle].concat());
    }

    #[test]
    fn who_takes_something_is_near_enough() {
        let (mut turn, mut since) = (begun(), at_once());
        for round in 0..8 {
            let (until, span) = stands_down(&mut turn, since);
            assert_eq!(span, STAND_DOWN, "round {round}");
            ask(&mut turn, until, 0);
            ask(&mut turn, until, 1);
            since = until;
        }
    }

    #[test]
    fn each_other_process_has_a_turn_before_the_next() {
        let mut turn = begun();
        turn.published(Some(3));
        let (until, _) = stands_down(&mut turn, at_once());
        // One of them has taken it.
        ask(&mut turn, until, 0);
        let at = |ms| until + Duration::from_millis(ms);
        for other in [10, 20] {
            assert_eq!(turn.not_before(at(other)), None);
            turn.hears(at(other));
            assert_eq!(turn.not_before(at(other)), Some(at(other + 2)));
            assert_eq!(turn.not_before(at(other + 2)), None);
        }
        turn.hears(at(30));
        assert_eq!(turn.not_before(at(30)), None, "all three have had one");
        // A client that has had none lets nobody go first.
        let mut new = Turn::default();
        new.published(Some(3));
        new.hears(at_once());
        assert_eq!(new.not_before(at_once()), None);
    }

    #[test]
    fn permits_returned_after_asking_do_not_count() {
        let (mut turn, mut since) = (begun(), at_once());
        for round in 0..4 {
            let (until, span) = stands_down(&mut turn, since);
            assert_eq!(span == LONG_STAND_DOWN, round == 3, "round {round}");
            let before = turn.given_back(until);
            assert!(!turn.passes_on(5, until));
            answer(&mut turn, before, until, 1);
            since = until;
        }
    }

    #[test]
    fn nobody_stands_down_for_nobody() {
        let mut turn = begun();
        turn.published(Some(0));
        let over = after(TURN + STAND_DOWN);
        assert!(!turn.passes_on(1, over));
        assert_eq!(turn.not_before(over), None);
    }

    /// A waiter that asks without listening is counted by nobody.
    #[test]
    fn every_eleventh_turn_alone_stands_down() {
        let (mut turn, mut since) = (begun(), at_once());
        turn.published(Some(0));
        for round in 1..=22 {
            let over = since + TURN + Duration::from_millis(1);
            assert!(!turn.passes_on(1, over));
            let until = turn.not_before(over);
            assert_eq!(until.is_some(), round % 11 == 0, "round {round}");
            since = until.unwrap_or(over);
            ask(&mut turn, since, 1);
        }
    }

    #[test]
    fn turn_with_free_permits_keeps_nobody_from_asking() {
        let mut turn = Turn::default();
        ask(&mut turn, at_once(), 2);
        assert_eq!(turn.all_ours_until(at_once(), TURN), None);
        ask(&mut turn, at_once(), 1);
        assert_eq!(turn.all_ours_until(at_once(), TURN), Some(after(TURN)));
        turn.hold_leaves(at_once());
        assert_eq!(turn.all_ours_until(at_once(), TURN), None);
    }

    #[test]
    fn turn_ends_when_more_are_in_use_than_there_are() {
        let mut turn = begun();
        assert!(turn.passes_on(1, at_once()));
        ask(&mut turn, at_once(), 0);
        assert!(turn.passes_on(1, at_once()), "all are in use");
        ask(&mut turn, at_once(), -1);
        assert!(!turn.passes_on(1, at_once()));
        assert_eq!(
            turn.not_before(at_once()),
            None,
            "others get nothing either"
        );
        ask(&mut turn, at_once(), 1);
        assert!(turn.passes_on(1, at_once()));
    }

    #[test]
    fn own_turn_keeps_waiters_from_asking() {
        let turn = begun();
        assert_eq!(turn.ours_until(at_once(), TURN), Some(after(TURN)));
        assert_eq!(turn.ours_until(after(TURN), TURN), None);
        assert_eq!(Turn::default().ours_until(at_once(), TURN), None);
    }

    /// A hold that was granted at `granted` comes back a millisecond later, and goes to the server.
    fn returned(turn: &mut Turn, granted: Moment) -> bool {
        let now = granted + Duration::from_millis(1);
        let stays = turn.hold_stays((granted, 1), now, TURN);
        turn.hold_leaves(now);
        stays
    }

    #[test]
    fn short_absences_do_not_prolong_a_turn() {
        let mut turn = Turn::default();
        // Each grant follows the release before it by less than two milliseconds.
        let grants = (0..10).map(|round| after(Duration::from_millis(2) * round));
        let stays: Vec<_> = grants.map(|granted| returned(&mut turn, granted)).collect();
        assert_eq!(stays[..5], [true; 5]);
        assert_eq!(stays[5..], [false; 5], "its ten milliseconds are over");
    }

    #[test]
    fn a_long_absence_begins_a_new_turn() {
        let mut turn = Turn::default();
        assert!(returned(&mut turn, at_once()));
        let later = after(TURN) + AWAY;
        assert!(returned(&mut turn, later), "others could have taken it");
    }
}
