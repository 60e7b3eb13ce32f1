//! The delays of many calls.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A distribution of delays in nanoseconds, with three significant digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(crate) struct Delays(Histogram<u64>);

impl Default for Delays {
    fn default() -> Self {
        // Three is a valid number of digits.
        Self(Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits can be kept")))
    }
}

impl Delays {
    pub(crate) fn add(&mut self, ns: u64) {
        // The histogram grows as needed, so it accepts every value.
        let _ = self.0.record(ns.max(1));
    }

    pub(crate) fn add_all(&mut self, others: &Self) {
        for recorded in others.0.iter_recorded() {
            let (value, count) = (recorded.value_iterated_to(), recorded.count_at_value());
            let _ = self.0.record_n(value, count);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the delay that `percent` of the calls did not exceed, in microseconds.
    pub(crate) fn us(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1000.0
    }

    pub(crate) fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1000.0
    }
}

impl From<Vec<(u64, u64)>> for Delays {
    fn from(counts: Vec<(u64, u64)>) -> Self {
        let mut delays = Self::default();
        for (ns, count) in counts {
            let _ = delays.0.record_n(ns.max(1), count);
        }
        delays
    }
}

impl From<Delays> for Vec<(u64, u64)> {
    fn from(delays: Delays) -> Self {
        let recorded = delays.0.iter_recorded();
        recorded
            .map(|value| (value.value_iterated_to(), value.count_at_value()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read_as_they_were_written() {
        let mut delays = Delays::default();
        for us in 1..=100 {
            delays.add(us * 1000);
        }
        let text = serde_json::to_string(&delays).expect("numbers");
        let read: Delays = serde_json::from_str(&text).expect("the same numbers");
        assert!((read.us(50.0) - 50.0).abs() < 0.1, "{}", read.us(50.0));
        assert!((read.max_us() - 100.0).abs() < 0.2, "{}", read.max_us());
        let mut twice = read.clone();
        twice.add_all(&delays);
        assert!((twice.us(99.0) - 99.0).abs() < 0.2, "{}", twice.us(99.0));
    }
}
