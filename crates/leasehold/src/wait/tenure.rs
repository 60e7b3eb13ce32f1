//! How the processes that want permits of one name take turns.
//!
//! A grant from the server starts a turn of 10 ms (a tenure), during which returned permits go
//! to this process's own waiters. The first return behind that ends the turn: it goes to the
//! server, and the process stands down for a while, so that other processes can ask first. So a
//! process that uses all permits all the time does not starve another one, and waits for one
//! round trip in each turn. Beside two such processes a slower one can still starve: each of the
//! two takes what the other leaves.

use std::time::Duration;

use crate::clock::Moment;

/// How long a turn lasts. A longer one would hardly be faster, and others wait for its end.
const TENURE: Duration = Duration::from_millis(10);
/// How long a process then lets others ask first: a waiter of Redisson near the server asks
/// half a millisecond after the message.
const STAND_DOWN: Duration = Duration::from_millis(2);
/// The same for others that are far away or slow: every fourth time that nobody has taken
/// anything.
const LONG_STAND_DOWN: Duration = Duration::from_millis(16);

/// What a process knows of the turns for one name.
#[derive(Default)]
pub(super) struct Tenure {
    whose: Whose,
    /// No other process listened when a release was published last.
    alone: bool,
    /// How many times in a row the process has stood down and nobody has taken anything.
    in_vain: u32,
}

#[derive(Default)]
enum Whose {
    /// That of whoever asks first.
    #[default]
    Open,
    /// Ours, since a grant of the server.
    Ours { since: Moment },
    /// That of other processes: none of our waiters asks before `until`. So many permits went
    /// back to the server since it began.
    Others { until: Moment, given_back: i64 },
}

/// An ask and its answer.
pub(crate) struct Asked {
    /// How many permits had gone back before it left, if others have had their turn.
    pub(crate) given_back: Option<i64>,
    /// How many permits were free when it reached the server.
    pub(crate) free: i64,
    pub(crate) granted: bool,
    /// When it was answered.
    pub(crate) now: Moment,
}

impl Tenure {
    /// A release was published; `alone` if no other process heard it.
    pub(super) fn told(&mut self, alone: bool) {
        self.alone = alone;
    }

    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }

    /// The moment before which our waiters let others ask.
    pub(super) fn not_before(&self, now: Moment) -> Option<Moment> {
        match self.whose {
            Whose::Others { until, .. } if now < until => Some(until),
            _ => None,
        }
    }

    /// How many permits went back during the turn of others, if that is over.
    pub(super) fn given_back(&self, now: Moment) -> Option<i64> {
        match self.whose {
            Whose::Others { until, given_back } if now >= until => Some(given_back),
            _ => None,
        }
    }

    /// The server has answered.
    pub(super) fn answered(&mut self, asked: &Asked) {
        match (&self.whose, asked.given_back) {
            (Whose::Open, _) => {}
            (Whose::Others { .. }, Some(given_back)) => {
                // All that went back is there still: nobody wanted it, or nobody was quick
                // enough.
                let in_vain = asked.free >= given_back;
                self.in_vain = if in_vain {
                    self.in_vain.wrapping_add(1)
                } else {
                    0
                };
                self.whose = Whose::Open;
            }
            // It left before the turn of the others was over, or during ours. If its grant began a
            // turn, one of our turns could follow the other.
            (Whose::Others { .. }, None) | (Whose::Ours { .. }, _) => return,
        }
        if asked.granted {
            self.whose = Whose::Ours { since: asked.now };
        }
    }

    /// Whether permits that come back stay in this process.
    pub(super) fn keeps(&mut self, permits: u32, now: Moment) -> bool {
        match &mut self.whose {
            Whose::Ours { since } if now.saturating_sub(*since) <= TENURE => return true,
            // No other process listens: to stand down for nobody would only cost time.
            Whose::Ours { .. } if self.alone => self.whose = Whose::Open,
            // A return ends the turn, not the clock: until something comes back, there is
            // nothing that others could ask for.
            Whose::Ours { .. } => {
                self.whose = Whose::Others {
                    until: now + self.stand_down(),
                    given_back: permits.into(),
                };
            }
            Whose::Others { given_back, .. } => *given_back += i64::from(permits),
            Whose::Open => {}
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

    fn after(span: Duration) -> Moment {
        Moment::from_millis(1000) + span
    }

    fn at_once() -> Moment {
        after(Duration::ZERO)
    }

    /// The server has granted something.
    fn begun() -> Tenure {
        let mut tenure = Tenure::default();
        ask(&mut tenure, at_once(), 1);
        tenure
    }

    /// An ask that is answered at once, and granted if permits are free.
    fn ask(tenure: &mut Tenure, now: Moment, free: i64) {
        let given_back = tenure.given_back(now);
        answer(tenure, given_back, now, free);
    }

    fn answer(tenure: &mut Tenure, given_back: Option<i64>, now: Moment, free: i64) {
        tenure.answered(&Asked {
            given_back,
            free,
            granted: free > 0,
            now,
        });
    }

    #[test]
    fn it_ends_with_a_release_and_then_others_have_theirs() {
        let mut tenure = begun();
        assert!(tenure.keeps(1, after(TENURE)));
        let over = after(TENURE) + Duration::from_millis(1);
        assert_eq!(tenure.not_before(over), None, "nothing is free");
        assert!(!tenure.keeps(1, over));
        let until = over + STAND_DOWN;
        assert_eq!(tenure.not_before(over), Some(until));
        // An ask that was on its way brings no new one, and a release no other end.
        answer(&mut tenure, None, until, 1);
        assert!(!tenure.keeps(1, over));
        assert_eq!(tenure.not_before(over), Some(until));
        assert_eq!(tenure.not_before(until), None);
        ask(&mut tenure, until, 2);
        assert!(tenure.keeps(1, until));
    }

    /// Until when it stands down after a tenure that began at `since`, and for how long.
    fn stands_down(tenure: &mut Tenure, since: Moment) -> (Moment, Duration) {
        let over = since + TENURE + Duration::from_millis(1);
        assert!(!tenure.keeps(1, over));
        let until = tenure.not_before(over).expect("it stands down");
        (until, until.saturating_sub(over))
    }

    #[test]
    fn who_is_far_away_has_more_time_now_and_then() {
        let (mut tenure, mut since) = (begun(), at_once());
        let in_vain: Vec<_> = (0..8)
            .map(|_| {
                let (until, span) = stands_down(&mut tenure, since);
                ask(&mut tenure, until, 1);
                since = until;
                span
            })
            .collect();
        let cycle = [STAND_DOWN, STAND_DOWN, STAND_DOWN, LONG_STAND_DOWN];
        assert_eq!(in_vain, [cycle, cycle].concat());
    }

    #[test]
    fn who_takes_something_is_near_enough() {
        let (mut tenure, mut since) = (begun(), at_once());
        for round in 0..8 {
            let (until, span) = stands_down(&mut tenure, since);
            assert_eq!(span, STAND_DOWN, "round {round}");
            ask(&mut tenure, until, 0);
            ask(&mut tenure, until, 1);
            since = until;
        }
    }

    #[test]
    fn what_comes_back_behind_an_ask_was_not_there_for_it() {
        let (mut tenure, mut since) = (begun(), at_once());
        for round in 0..4 {
            let (until, span) = stands_down(&mut tenure, since);
            assert_eq!(span == LONG_STAND_DOWN, round == 3, "round {round}");
            let before = tenure.given_back(until);
            assert!(!tenure.keeps(5, until));
            answer(&mut tenure, before, until, 1);
            since = until;
        }
    }

    #[test]
    fn nobody_stands_down_for_nobody() {
        let mut tenure = begun();
        tenure.told(true);
        let over = after(TENURE + STAND_DOWN);
        assert!(!tenure.keeps(1, over));
        assert_eq!(tenure.not_before(over), None);
    }
}
