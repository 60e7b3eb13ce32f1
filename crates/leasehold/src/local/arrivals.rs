//! The times at which waiters of this process began to wait for a name. Operators see the oldest
//! wait for each name.

use std::collections::{BTreeMap, BinaryHeap};

use tokio::sync::Notify;

use super::LocalRecords;
use crate::clock::Moment;
use crate::sync::Mutex;

/// The waiters of one name, in order of arrival.
#[derive(Default)]
pub(super) struct Arrivals(Mutex<ArrivalsState>);

#[derive(Default)]
struct ArrivalsState {
    next: u64,
    since: BTreeMap<u64, Moment>,
    /// The wait that has been reported to operators.
    reported: Option<u64>,
}

impl Arrivals {
    /// Notes a waiter that arrives now. Returns its number, for [`leave`](Self::leave).
    pub(super) fn arrive(&self, now: Moment) -> u64 {
        let mut waits = self.0.lock();
        let number = waits.next;
        waits.next += 1;
        waits.since.insert(number, now);
        number
    }

    /// Notes that a wait has ended. Notifies `reported_over` if this wait was reported to
    /// operators.
    pub(super) fn leave(&self, number: u64, reported_over: &Notify) {
        let mut waits = self.0.lock();
        waits.since.remove(&number);
        let was_reported = waits
            .reported
            .take_if(|reported| *reported == number)
            .is_some();
        drop(waits);
        if was_reported {
            reported_over.notify_one();
        }
    }

    /// Returns the time at which the oldest wait that still continues began.
    fn oldest(&self) -> Option<Moment> {
        let waits = self.0.lock();
        waits.since.first_key_value().map(|(_, since)| *since)
    }

    /// Notes that the oldest wait is reported to operators, and returns the time at which it began.
    fn report_oldest(&self) -> Option<Moment> {
        let mut waits = self.0.lock();
        let (number, since) = waits.since.first_key_value()?;
        let (number, since) = (*number, *since);
        waits.reported = Some(number);
        Some(since)
    }
}

impl LocalRecords {
    /// Returns the names with a wait that began at `before` or earlier, and the time at which the
    /// oldest wait for each name began. Returns at most `limit` names: the names with the oldest
    /// waits, the oldest wait first. When one of these waits ends,
    /// [`reported_wait_over`](Self::reported_wait_over) is notified.
    pub(crate) fn report_waits(&self, before: Moment, limit: usize) -> Vec<(String, Moment)> {
        let table = self.table.lock();
        let waits = table.records.iter().filter_map(|(key, record)| {
            let since = record.arrivals.oldest()?;
            (since <= before).then_some((since, key))
        });
        let reported = smallest(waits, limit).into_iter().filter_map(|(_, key)| {
            // That wait may have ended since then. If so, a younger wait is now the oldest.
            let since = table.records.get(key)?.arrivals.report_oldest()?;
            Some((key.as_str().to_owned(), since))
        });
        reported.filter(|(_, since)| *since <= before).collect()
    }
}

/// Returns the `limit` smallest items, the smallest first. Compares each item with only a few
/// others: one client may wait for tens of thousands of names.
fn smallest<T: Ord>(all: impl Iterator<Item = T>, limit: usize) -> Vec<T> {
    let mut heap = BinaryHeap::new();
    for one in all {
        if heap.len() < limit {
            heap.push(one);
        } else if let Some(mut largest) = heap.peek_mut()
            && one < *largest
        {
            *largest = one;
        }
    }
    heap.into_sorted_vec()
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    static COMPARED: AtomicUsize = AtomicUsize::new(0);

    /// A number that counts its comparisons.
    #[derive(Debug, PartialEq, Eq)]
    struct ComparisonCounter(u64);

    impl Ord for ComparisonCounter {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.fetch_add(1, Relaxed);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for ComparisonCounter {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn the_oldest_waits_of_many_are_found_by_few_comparisons() {
        const WAITS: usize = 50_000;
        const LIMIT: usize = 1000;
        // The waits are visited from the youngest to the oldest, which is the worst case: each one
        // replaces another.
        let all = (0..WAITS as u64).rev().map(ComparisonCounter);
        let found = smallest(all, LIMIT);
        let compared = COMPARED.load(Relaxed);
        let wanted: Vec<_> = (0..LIMIT as u64).map(ComparisonCounter).collect();
        assert_eq!(found, wanted);
        // Two comparisons for each level of a heap of 1024.
        assert!(compared < WAITS * 24, "{compared} comparisons");
    }

    #[test]
    fn no_more_are_taken_than_there_are() {
        assert_eq!(smallest([3, 1, 2].into_iter(), 5), [1, 2, 3]);
        assert_eq!(smallest([3, 1, 2].into_iter(), 0), [0; 0]);
    }

    #[test]
    fn end_of_a_told_wait_is_notified_and_no_other() {
        use futures_util::FutureExt as _;

        let (arrivals, over) = (Arrivals::default(), Notify::new());
        let at = Moment::from_millis;
        let (first, second) = (arrivals.arrive(at(1)), arrivals.arrive(at(2)));
        assert_eq!(arrivals.report_oldest(), Some(at(1)));
        arrivals.leave(second, &over);
        assert!(over.notified().now_or_never().is_none());
        let third = arrivals.arrive(at(3));
        arrivals.leave(first, &over);
        assert!(over.notified().now_or_never().is_some());
        assert_eq!(arrivals.oldest(), Some(at(3)));
        arrivals.leave(third, &over);
        assert!(over.notified().now_or_never().is_none());
        assert_eq!(arrivals.report_oldest(), None);
    }
}
