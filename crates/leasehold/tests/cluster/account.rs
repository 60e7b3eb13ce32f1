//! The lines that the workers print, and the checks of the uses that they report.
#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use leasehold::testing::history::{Interval, Overlap, check, limits};

use super::worker::PERMITS;

/// The number of permitted overlaps that are printed.
const SHOWN: usize = 5;

/// One use of a name.
struct Use {
    name: String,
    how: String,
    asked: u64,
    from: u64,
    until: u64,
}

/// The uses of all workers of a test.
#[derive(Default)]
pub(crate) struct Account {
    intervals: Vec<Interval>,
    permits: BTreeMap<String, Vec<limits::Use>>,
    /// The holders that learned of a loss.
    told: BTreeSet<String>,
    done: BTreeMap<String, usize>,
    pub(crate) errors: Vec<String>,
    hangs: Vec<String>,
    refused: usize,
    lost: Vec<String>,
}

impl Account {
    /// Adds the lines of the workers of one process.
    pub(crate) fn read(&mut self, process: usize, lines: &[String]) {
        let mut inside = HashMap::<&str, Vec<Use>>::new();
        let number = |text: &str| text.parse::<u64>().unwrap();
        let holder = |number: &str| format!("process {process} hold {number}");
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["in", hold, name, how, asked, from, until] => {
                    inside.entry(hold).or_default().push(Use {
                        name: name.to_owned(),
                        how: how.to_owned(),
                        asked: number(asked),
                        from: number(from),
                        until: number(until),
                    });
                }
                ["out", hold, until] => {
                    let uses = inside.get_mut(hold).unwrap().iter_mut();
                    uses.for_each(|one| one.until = number(until));
                }
                ["told", hold] => {
                    self.told.insert(holder(hold));
                }
                ["done", job] => *self.done.entry(job.to_owned()).or_default() += 1,
                ["error", ..] => self.errors.push(line.clone()),
                ["refused", ..] => self.refused += 1,
                ["lost", ..] => self.lost.push(line.clone()),
                ["hangs", ..] => self.hangs.push(line.clone()),
                _ => {}
            }
        }
        for (number, uses) in inside {
            for one in uses {
                self.add(&holder(number), &one);
            }
        }
    }

    fn add(&mut self, holder: &str, one: &Use) {
        let Use {
            asked, from, until, ..
        } = *one;
        if one.how == "permit" {
            let of = self.permits.entry(one.name.clone()).or_default();
            return of.push(limits::Use::new(1, asked, from, until));
        }
        let interval = Interval::new(&one.name, holder, asked, from, until);
        self.intervals.push(match &*one.how {
            "shared" => interval.shared(),
            _ => interval,
        });
    }

    /// Checks all uses. `losses` are the times at which a master died, maybe with grants that no
    /// replica had. Before the holder of such a grant learned of the loss, another holder may have
    /// acquired the lock. After a loss, the counts of permits can be wrong.
    pub(crate) fn judge(&self, losses: &[u64]) {
        let lost = self.judge_but(losses.is_empty(), |overlap| self.was_lost(overlap, losses));
        assert!(losses.len() >= lost, "{} losses", losses.len());
    }

    /// Checks all uses. Each of these spans begins when a master behind sentinels is replaced, and
    /// ends when no client calls the old master any more. The new master does not know what the old
    /// one granted and took back during the span. A client that still held such a grant after the
    /// span must have learned of its loss.
    pub(crate) fn judge_behind_sentinels(&self, spans: &[RangeInclusive<u64>]) {
        self.judge_but(spans.is_empty(), |overlap| {
            self.was_of_an_old_master(overlap, spans)
        });
    }

    /// Checks all uses, except for the overlaps that the promise allows. Returns the number of
    /// these overlaps.
    fn judge_but(&self, counts_are_right: bool, allows: impl Fn(&Overlap) -> bool) -> usize {
        println!("done: {:?}, told of a loss: {}", self.done, self.told.len());
        for error in &self.errors {
            println!("{error}");
        }
        assert!(self.hangs.is_empty(), "{:?}", self.hangs);
        assert_eq!(self.refused, 0, "acquires that were given up");
        // These holds were granted long before any master died, so a replica had each of them.
        assert!(self.lost.is_empty(), "{:?}", self.lost);
        let mut report = check(&self.intervals);
        println!("{} holds, {} contended", report.holds, report.contended);
        let (lost, wrong): (Vec<_>, Vec<_>) = report.overlaps.drain(..).partition(allows);
        println!("lost with a master: {} holds", lost.len());
        for overlap in lost.iter().take(SHOWN) {
            println!("lost with a master: {overlap}");
        }
        report.overlaps = wrong;
        report.judge().unwrap();
        let mut waited = 0;
        for (name, uses) in &self.permits {
            let report = limits::check(uses, PERMITS.into());
            waited += report.contended;
            match counts_are_right {
                true => assert!(report.most <= report.capacity, "{name}: {report:?}"),
                false => println!("{name}: {report:?}"),
            }
        }
        assert!(
            waited > 0 || !counts_are_right,
            "nobody had to wait for a permit"
        );
        lost.len()
    }

    fn was_of_an_old_master(&self, overlap: &Overlap, spans: &[RangeInclusive<u64>]) -> bool {
        let (first, second) = (&overlap.first, &overlap.second);
        let both_until = first.until_ns().min(second.until_ns());
        let is_told = |one: &Interval| self.told.contains(one.holder());
        spans.iter().any(|span| {
            span.contains(&second.from_ns())
                && (both_until <= *span.end() || is_told(first) || is_told(second))
        })
    }

    fn was_lost(&self, overlap: &Overlap, losses: &[u64]) -> bool {
        let (first, second) = (&overlap.first, &overlap.second);
        // The grant was made a little earlier than the recorded time.
        let span = first.from_ns().saturating_sub(100_000_000)..=second.from_ns();
        losses.iter().any(|loss| span.contains(loss)) && self.told.contains(first.holder())
    }
}
