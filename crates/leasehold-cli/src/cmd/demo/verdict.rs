//! The verdict: whether the demo had the expected outcome.

use std::collections::BTreeMap;

use leasehold::testing::history::{Interval, Report, check};

use super::Plan;
use super::stock::Shelf;
use super::story::Story;

pub(super) struct Verdict {
    pub(super) as_announced: bool,
    pub(super) text: String,
}

/// Compares the stock with the reports of the workers, and checks the holds with the history
/// checker.
pub(super) fn judge(plan: &Plan, shelf: &Shelf, story: &Story) -> Verdict {
    let report = history(plan, story);
    match plan.lock {
        Some(_) => with_lock(plan, shelf, story, &report),
        None => without_lock(plan, shelf, story, &report),
    }
}

fn history(plan: &Plan, story: &Story) -> Report {
    let name = plan.lock.as_deref().unwrap_or("no lock");
    let mut intervals = Vec::new();
    for (index, row) in story.rows().iter().enumerate() {
        for (number, hold) in row.holds.iter().enumerate() {
            let holder = format!("worker {} (hold {})", index + 1, number + 1);
            let interval = Interval::new(name, &holder, hold.asked, hold.from, hold.until);
            intervals.push(interval);
        }
    }
    let mut report = check(&intervals);
    if plan.victim_at.is_some() {
        report.faults.push(("kill".into(), killed(story)));
    }
    report
}

fn killed(story: &Story) -> u64 {
    let rows = story.rows().iter();
    rows.map(|row| u64::from(row.killed_at.is_some())).sum()
}

fn sold(story: &Story) -> u64 {
    story.rows().iter().map(|row| row.sold).sum()
}

fn with_lock(plan: &Plan, shelf: &Shelf, story: &Story, report: &Report) -> Verdict {
    let in_ledger = shelf.ledger.len();
    let mut lines = vec![format!(
        "sold {} of {}: {} left, {in_ledger} sales in the ledger, {} reported",
        count(in_ledger),
        plan.items,
        shelf.left,
        sold(story)
    )];
    let wrong = wrong_with(plan, shelf, story);
    let exact = wrong.is_empty();
    if exact {
        lines.push("every item was sold once, and every reported sale is in the ledger".into());
    }
    lines.extend(wrong);
    for (index, row) in story.rows().iter().enumerate() {
        if row.killed_at.is_some() {
            lines.push(format!(
                "worker {} was killed; the others continued when its lease was over",
                index + 1
            ));
        }
        if row.lost > 0 {
            lines.push(format!(
                "worker {} found that it had lost its lock, and did not sell ({} of its holds)",
                index + 1,
                row.lost
            ));
        }
    }
    let history = report.judge();
    lines.push(match &history {
        Ok(()) => format!(
            "no two of {} holds overlapped ({} were asked for while another held the lock)",
            report.holds, report.contended
        ),
        Err(what) => format!("the history checker says: {what}"),
    });
    Verdict {
        as_announced: exact && history.is_ok(),
        text: lines.join("\n"),
    }
}

/// Returns a line for each contradiction.
fn wrong_with(plan: &Plan, shelf: &Shelf, story: &Story) -> Vec<String> {
    let mut wrong = Vec::new();
    let in_ledger = count(shelf.ledger.len());
    if shelf.left + in_ledger != plan.items {
        wrong.push(format!(
            "WRONG: {} left and {in_ledger} sold don't make {}",
            shelf.left, plan.items
        ));
    }
    if shelf.left > 0 {
        wrong.push(format!(
            "NOT DONE: no worker was left to sell the last {}",
            shelf.left
        ));
    }
    let mut entries: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for entry in &shelf.ledger {
        *entries.entry(*entry).or_default() += 1;
    }
    if entries.values().any(|times| *times > 1) {
        wrong.push("WRONG: a sale is in the ledger twice".into());
    }
    for (index, row) in story.rows().iter().enumerate() {
        let number = index + 1;
        let missing = (1..=row.sold).filter(|serial| !entries.contains_key(&(number, *serial)));
        let missing = missing.count();
        if missing > 0 {
            wrong.push(format!(
                "WRONG: {missing} sales of worker {number} are not in the ledger"
            ));
        }
        // If a worker was killed after it had written a sale, it may not have reported this sale.
        let reported = row.sold + u64::from(row.killed_at.is_some());
        let unreported = entries
            .keys()
            .filter(|(worker, serial)| *worker == number && *serial > reported);
        if unreported.count() > 0 {
            wrong.push(format!(
                "WRONG: the ledger has sales of worker {number} that it did not report"
            ));
        }
    }
    wrong
}

fn without_lock(plan: &Plan, shelf: &Shelf, story: &Story, report: &Report) -> Verdict {
    let sold = sold(story);
    let in_ledger = count(shelf.ledger.len());
    let mut lines = vec![format!(
        "{sold} sales reported from a stock of {}; {} left, {in_ledger} sales in the ledger",
        plan.items, shelf.left
    )];
    let over = sold.saturating_sub(plan.items);
    if over > 0 {
        lines.push(format!(
            "OVERSOLD: {over} items were sold that did not exist"
        ));
    }
    let lost = sold.saturating_sub(in_ledger);
    if lost > 0 {
        lines.push(format!("LOST: {lost} sales are not in the ledger"));
    }
    let as_announced = over > 0 || lost > 0;
    lines.push(if as_announced {
        format!(
            "this is what happens without a lock: {} times a worker began a sale during another sale; \
             leave out --no-lock",
            report.overlaps.len()
        )
    } else {
        "nothing went wrong this time, by chance; try it with more --workers".into()
    });
    Verdict {
        as_announced,
        text: lines.join("\n"),
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
