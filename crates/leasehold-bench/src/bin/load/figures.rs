//! Formats figures for people: percentages, percentiles and sizes.

use std::time::Duration;

/// Returns the value at `share` of the sorted values, or zero if there are none.
pub(crate) fn percentile<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

/// Returns a string such as `p50 1.2ms, p99 3.4ms, max 5.6ms`.
pub(crate) fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!(
        "p50 {:.1?}, p99 {:.1?}, max {:.1?}",
        percentile(&times, 0.5),
        percentile(&times, 0.99),
        percentile(&times, 1.0)
    )
}

/// Returns CPU time divided by wall time, in percent of a core.
pub(crate) fn percent_of_a_core(cpu: Duration, wall: Duration) -> f64 {
    100.0 * cpu.as_secs_f64() / wall.as_secs_f64()
}

/// Returns `a` divided by `n`.
pub(crate) fn per(a: u64, n: usize) -> f64 {
    a as f64 / n as f64
}

/// Returns a number of bytes as a string in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Returns whether the memory in use is steady: `early` is its size after everything has been used
/// once, and `late` its size at the end. Allocators keep some freed memory, but not more and more.
pub(crate) fn is_steady(early: u64, late: u64) -> bool {
    const SLACK: u64 = 8 << 20;
    late <= early + early / 20 + SLACK
}

/// Parses a duration such as `10m` or `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values = [1, 2, 3, 4, 100];
        assert_eq!(percentile(&values, 0.5), 3);
        assert_eq!(percentile(&values, 0.99), 100);
        assert_eq!(percentile::<u64>(&[], 0.5), 0);
    }

    #[test]
    fn ten_percent_memory_growth_is_not_steady() {
        let gib = 1 << 30;
        assert!(is_steady(gib, gib + gib / 50));
        assert!(!is_steady(gib, gib + gib / 10));
    }
}
