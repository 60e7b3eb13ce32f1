//! How processes take turns that want the same name. What is given back stays in a process
//! for its tenure, which a grant of the server begins. The first that is given back when it is
//! over ends it: that goes to the server, and the process stands down for a while.

use std::time::Duration;

use crate::clock::Moment;

/// How long a tenure is. Longer ones would hardly be faster, and others wait for the end.
const TENURE: Duration = Duration::from_millis(10);
/// For how long a process then leaves what it gives back to others: a waiter of Redisson
/// beside the server asks half a millisecond after the message.
const STAND_DOWN: Duration = Duration::from_millis(2);
/// The same for others that are far away, or slow: each fourth time that nobody has taken
/// anything.
const LONG_STAND_DOWN: Duration = Duration::from_millis(16);

/// What a process knows of the turns for one name.
#[derive(Default)]
pub(super) struct Tenure {
    whose: Whose,
    /// Nobody else listened when a release was published last.
    alone: bool,
    /// How often we have stood down, and nobody has taken anything.
    in_vain: u32,
}

#[derive(Default)]
enum Whose {
    /// Whoever asks first.
    #[default]
    Open,
    /// Ours, since a grant of the server.
    Ours { since: Moment },
    /// That of others: nobody of ours asks before that. So much we gave back to the server.
    Others { until: Moment, given_back: i64 },
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

impl Tenure {
    /// A release was published; `alone` if nobody else was told.
    pub(super) fn told(&mut self, alone: bool) {
        self.alone = alone;
    }

    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Before when we leave it to others to ask.
    pub(super) fn not_before(&self, now: Moment) -> Option<Moment> {
        match self.whose {
            Whose::Others { until, .. } if now < until => Some(until),
            _ => None,
        }
    }

    /// How much was given back while others had theirs, if that is over.
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
                let in_vain = asked.free >= given_back;
                self.in_vain = if in_vain {
                    self.in_vain.wrapping_add(1)
                } else {
                    0
                };
                self.whose = Whose::Open;
            }
            // It had left before they were to have theirs.
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
            Whose::Ours { .. } if self.alone => self.whose = Whose::Open,
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

    /// An ask that was answered at once, and got something if so many were free.
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
