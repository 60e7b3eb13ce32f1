//! The report of many threads that increment one counter.

use serde::Deserialize;

/// The report of a hammer run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct HammerReport {
    /// Number of increments, by which the counter must have grown.
    pub increments: u64,
    /// The holds of the lock, one for each increment, in no particular order.
    pub intervals: Vec<Interval>,
}

/// One hold of a lock, on the clock of [`monotonic_ns`](crate::monotonic_ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "(u64, u64, u64, u64)")]
#[non_exhaustive]
pub struct Interval {
    /// The thread that held the lock.
    pub thread: u64,
    /// The time just before the request.
    pub asked_ns: u64,
    /// The time just after the grant.
    pub acquired_ns: u64,
    /// The time just before the release.
    pub released_ns: u64,
}

impl Interval {
    /// Creates a hold from times that a test has measured itself.
    pub fn new(thread: u64, asked_ns: u64, acquired_ns: u64, released_ns: u64) -> Self {
        Self {
            thread,
            asked_ns,
            acquired_ns,
            released_ns,
        }
    }
}

impl From<(u64, u64, u64, u64)> for Interval {
    fn from((thread, asked, acquired, released): (u64, u64, u64, u64)) -> Self {
        Self::new(thread, asked, acquired, released)
    }
}

/// Returns the first two holds that overlapped in time, if there are any.
pub fn first_overlap(
    intervals: impl IntoIterator<Item = Interval>,
) -> Option<(Interval, Interval)> {
    let mut sorted: Vec<Interval> = intervals.into_iter().collect();
    sorted.sort_by_key(|interval| (interval.acquired_ns, interval.released_ns));
    // When the holds are sorted by their start, an overlap always shows between two neighbours.
    sorted
        .windows(2)
        .find(|pair| pair[1].acquired_ns < pair[0].released_ns)
        .map(|pair| (pair[0], pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_one_after_the_other_do_not_overlap() {
        let holds = [Interval::new(2, 0, 20, 30), Interval::new(1, 0, 10, 20)];
        assert_eq!(first_overlap(holds), None);
    }

    #[test]
    fn overlap_is_found_in_any_order() {
        let (a, b) = (Interval::new(1, 0, 10, 50), Interval::new(2, 0, 20, 30));
        assert_eq!(first_overlap([b, a]), Some((a, b)));
    }
}
