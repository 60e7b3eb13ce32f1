//! The rules that decide which reports of sentinels the client trusts.

use std::time::Duration;

use super::super::address::Host;
use crate::backend::failure::{Cause, Failure};
use crate::clock::Moment;
use crate::text::Shown;

/// The longest time for which sentinels may lag behind the first one that knows of a switch: they
/// exchange their configurations every two seconds.
const LAG: Duration = Duration::from_secs(3);

/// The report of one sentinel about the master.
#[derive(Clone, Debug)]
pub(super) struct SentinelReport {
    pub(super) at: Host,
    /// The epoch of the sentinel's configuration: a higher epoch is newer.
    pub(super) epoch: u64,
    pub(super) is_down: bool,
}

/// The reason why a sentinel reports nothing about the master.
#[derive(Clone, Debug)]
pub(super) enum NoReport {
    /// The sentinel knows no master of that name.
    Unknown,
    Failed(Failure),
}

impl From<Failure> for NoReport {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

pub(super) type SentinelAnswer = Result<SentinelReport, NoReport>;

pub(super) fn majority_of(all: usize) -> usize {
    all / 2 + 1
}

/// The address of the master, from the newest reports of the sentinels.
#[derive(Debug, Default)]
pub(super) struct MasterView {
    epoch: u64,
    /// The master's address in that epoch, as a majority reported it.
    judged: Option<Host>,
    /// The master's newer address, as one sentinel reported it and no majority has confirmed yet.
    announced: Option<Host>,
    /// The time of the newest of these reports.
    updated_at: Option<Moment>,
}

impl MasterView {
    /// Returns where the master is.
    pub(super) fn named_master(&self) -> Option<&Host> {
        self.announced.as_ref().or(self.judged.as_ref())
    }

    /// Notes that a sentinel has announced that the master is at `to` from now on. Returns whether
    /// that is new: the sentinels announce a switch one after the other, within a second or two.
    pub(super) fn switched(&mut self, to: Host, now: Moment) -> bool {
        if self.judged.as_ref() == Some(&to) || self.announced.as_ref() == Some(&to) {
            return false;
        }
        self.announced = Some(to);
        self.updated_at = Some(now);
        true
    }

    /// Decides from these answers where the master called `name` is. There is one answer for each
    /// sentinel.
    pub(super) fn judge(
        &mut self,
        name: &str,
        answers: &[SentinelAnswer],
        now: Moment,
    ) -> Result<Host, Cause> {
        let said = || answers.iter().filter_map(|answer| answer.as_ref().ok());
        if said().count() < majority_of(answers.len()) {
            return Err(why_too_few(name, answers));
        }
        let newest = said().max_by_key(|said| said.epoch);
        let Some(newest) = newest else {
            return Err(why_too_few(name, answers));
        };
        if self.is_older_than_known(newest, now) {
            let what = "the sentinels that answer do not know yet where the master is now";
            return Err(Cause::NoAnswer(what.into()));
        }
        let of_this_epoch = || said().filter(|said| said.epoch == newest.epoch);
        let down = of_this_epoch().filter(|said| said.is_down).count();
        if 2 * down > of_this_epoch().count() {
            let (host, port) = &newest.at;
            let what = format!(
                "the sentinels consider the master, {}:{port}, down and have not promoted another server yet",
                Shown(host)
            );
            return Err(Cause::NoAnswer(what));
        }
        self.epoch = newest.epoch;
        self.updated_at = Some(now);
        self.announced = None;
        self.judged = Some(newest.at.clone());
        Ok(newest.at.clone())
    }

    /// Returns whether this report is older than the newest known one. A known report counts only
    /// while it is recent: epochs start from the beginning when an operator sets the sentinels up
    /// anew.
    fn is_older_than_known(&self, said: &SentinelReport, now: Moment) -> bool {
        let is_fresh = |updated_at| now.saturating_sub(updated_at) < LAG;
        let was_replaced = self.announced.is_some() && self.judged.as_ref() == Some(&said.at);
        let is_older = said.epoch < self.epoch || said.epoch == self.epoch && was_replaced;
        is_older && self.updated_at.is_some_and(is_fresh)
    }
}

/// Returns the cause of the failure when fewer than a majority report the master's address.
fn why_too_few(name: &str, answers: &[SentinelAnswer]) -> Cause {
    let (all, needed) = (answers.len(), majority_of(answers.len()));
    let answered = answers.iter().filter(|answer| answer.is_ok()).count();
    let unknown = answers
        .iter()
        .filter(|answer| matches!(answer, Err(NoReport::Unknown)))
        .count();
    if answered + unknown >= needed {
        return Cause::Other(format!(
            "{unknown} of {all} sentinels do not know a master called `{}`; correct the name after the hosts of the URL (`SENTINEL MASTERS` lists the names)",
            Shown(name)
        ));
    }
    let failures = || {
        answers.iter().filter_map(|answer| match answer {
            Err(NoReport::Failed(failure)) => Some(failure),
            _ => None,
        })
    };
    // A failure that does not end by itself takes precedence, so that a waiter fails with it at
    // once.
    let failed = failures().find(|failure| !failure.may_heal());
    let lasting = failures().filter(|failure| !failure.may_heal()).count();
    let Some(failed) = failed.or_else(|| failures().next()) else {
        return Cause::NoAnswer("the URL names no sentinel".into());
    };
    let (at, why) = (&failed.address, &failed.cause);
    let verb = if answered == 1 { "answers" } else { "answer" };
    let what = format!(
        "{answered} of {all} sentinels {verb}, but {needed} must; the one at {at} does not: {why}"
    );
    match &failed.cause {
        Cause::Denied(_) if answered + lasting >= needed => Cause::Denied(format!(
            "{what} (its user and password are `sentinel_user` and `sentinel_pass` in the URL)"
        )),
        _ if !failed.may_heal() && answered + lasting >= needed => Cause::Other(what),
        _ => Cause::NoAnswer(what),
    }
}

/// Reads the new address from a message about a switch: `NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT`.
pub(super) fn read_switch(message: &[u8], name: &str) -> Option<Host> {
    let message = std::str::from_utf8(message).ok()?;
    let mut words = message.strip_prefix(name)?.strip_prefix(' ')?.split(' ');
    let (host, port) = (words.nth(2)?, words.next()?.parse().ok()?);
    words.next().is_none().then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::failure::Outcome;

    fn at(host: &str) -> Host {
        (host.to_owned(), 6379)
    }

    fn says(host: &str, epoch: u64) -> SentinelAnswer {
        Ok(SentinelReport {
            at: at(host),
            epoch,
            is_down: false,
        })
    }

    fn is_down(host: &str, epoch: u64) -> SentinelAnswer {
        says(host, epoch).map(|said| SentinelReport {
            is_down: true,
            ..said
        })
    }

    fn fails(cause: Cause) -> SentinelAnswer {
        let address: Arc<str> = "redis://s:26379".into();
        Err(Failure::new(Outcome::DidNotRun, cause, address).into())
    }

    fn silent() -> SentinelAnswer {
        fails(Cause::NoAnswer("refused".into()))
    }

    fn judged(
        news: &mut MasterView,
        answers: &[SentinelAnswer],
        seconds: u64,
    ) -> Result<Host, Cause> {
        news.judge("m", answers, Moment::from_millis(seconds * 1000))
    }

    #[test]
    fn highest_epoch_of_a_majority_wins() {
        for (answers, found) in [
            (vec![says("a", 1)], "a"),
            (vec![says("a", 1), says("b", 2), says("a", 1)], "b"),
            (vec![says("b", 2), says("a", 1), silent()], "b"),
            (vec![says("a", 9), says("b", 10), silent()], "b"),
        ] {
            let news = &mut MasterView::default();
            assert_eq!(judged(news, &answers, 0), Ok(at(found)), "{answers:?}");
        }
    }

    #[test]
    fn minority_is_not_believed() {
        for answers in [
            vec![says("a", 1), silent(), silent()],
            vec![says("a", 1), silent()],
            vec![says("a", 1), says("a", 1), silent(), silent()],
            vec![silent()],
        ] {
            let refused = judged(&mut MasterView::default(), &answers, 0).unwrap_err();
            let Cause::NoAnswer(what) = refused else {
                panic!("{refused:?}");
            };
            assert!(what.contains("redis://s:26379"), "{what}");
        }
    }

    #[test]
    fn old_news_do_not_lead_back() {
        let news = &mut MasterView::default();
        assert_eq!(judged(news, &[says("a", 1)], 0), Ok(at("a")));
        assert!(news.switched(at("b"), Moment::from_millis(1000)));
        assert!(judged(news, &[says("a", 1)], 2).is_err(), "it was left");
        assert_eq!(judged(news, &[says("b", 2)], 3), Ok(at("b")));
        assert!(judged(news, &[says("a", 1)], 5).is_err(), "an old epoch");
        // The sentinels have forgotten the epochs: they were set up anew.
        assert_eq!(judged(news, &[says("c", 0)], 6), Ok(at("c")));
        // A late message announces an older switch to `b`. It is believed until the sentinels
        // answer.
        assert!(news.switched(at("b"), Moment::from_millis(7000)));
        assert_eq!(judged(news, &[says("c", 0)], 10), Ok(at("c")));
    }

    #[test]
    fn switch_is_news_once() {
        let news = &mut MasterView::default();
        let announced =
            |news: &mut MasterView, host| news.switched(at(host), Moment::from_millis(1000));
        assert_eq!(judged(news, &[says("a", 1)], 0), Ok(at("a")));
        assert!(!announced(news, "a"), "a majority has said it");
        assert!(
            announced(news, "b") && !announced(news, "b"),
            "the next one tells it"
        );
        assert!(!announced(news, "a"), "one that is late");
        assert_eq!(news.named_master(), Some(&at("b")));
        assert_eq!(judged(news, &[says("b", 2)], 2), Ok(at("b")));
        assert!(!announced(news, "b"), "the last one tells it");
    }

    #[test]
    fn master_that_is_down_is_waited_for() {
        let of = |answers: &[SentinelAnswer]| judged(&mut MasterView::default(), answers, 0);
        let refused = of(&[is_down("a", 1), is_down("a", 1), says("a", 1)]).unwrap_err();
        assert!(refused.to_string().contains("a:6379"), "{refused}");
        // One sentinel may be cut off from the master.
        let found = of(&[is_down("a", 1), says("a", 1), says("a", 1)]);
        assert_eq!(found, Ok(at("a")));
        // The sentinels that report the old master as down have not learned of the new one yet.
        let found = of(&[is_down("a", 1), is_down("a", 1), says("b", 2)]);
        assert_eq!(found, Ok(at("b")));
    }

    #[test]
    fn what_does_not_heal_is_told_at_once() {
        let of = |answers: &[SentinelAnswer]| {
            judged(&mut MasterView::default(), answers, 0).unwrap_err()
        };
        let unknown = || Err(NoReport::Unknown);
        let refused = of(&[unknown(), unknown(), silent()]);
        assert!(matches!(refused, Cause::Other(_)), "{refused:?}");
        assert!(refused.to_string().contains("called `m`"), "{refused}");
        let denied = || fails(Cause::Denied("NOAUTH".into()));
        let refused = of(&[denied(), says("a", 1), denied()]);
        assert!(matches!(refused, Cause::Denied(_)), "{refused:?}");
        assert!(refused.to_string().contains("sentinel_pass"), "{refused}");
        // The two silent sentinels may recover, and may know the master.
        let refused = of(&[unknown(), silent(), silent()]);
        assert!(matches!(refused, Cause::NoAnswer(_)), "{refused:?}");
        let other = || fails(Cause::Other("it is not a sentinel".into()));
        let refused = of(&[other(), other(), silent()]);
        assert!(matches!(refused, Cause::Other(_)), "{refused:?}");
    }

    #[test]
    fn message_about_a_switch_is_read() {
        let read = |message: &str| read_switch(message.as_bytes(), "my db");
        let to = Some(("::1".to_owned(), 2));
        assert_eq!(read("my db 10.0.0.1 1 ::1 2"), to);
        for other in [
            "my dbx 10.0.0.1 1 ::1 2",
            "my db 10.0.0.1 1 ::1",
            "my db 10.0.0.1 1 ::1 99999",
            "my db 10.0.0.1 1 ::1 2 3",
            "",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
