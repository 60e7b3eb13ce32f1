//! The holds as their holders measured them, in all processes on the machine.

use std::fmt;
use std::str::FromStr;

use leasehold::LockGuard;
use leasehold::testing::history::{Interval, monotonic_ns};
use tokio::time::Instant;

/// One hold, in ns of the machine's monotonic clock. It has no strings and allocates no memory,
/// because there are many of these values, and they must not count as memory of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The time of the request.
    pub(crate) asked: u64,
    /// The time at which the acquire returned.
    pub(crate) from: u64,
    /// The time at which its release was called, or its deadline if the deadline was earlier.
    pub(crate) until: u64,
}

impl Seen {
    /// Returns a hold whose release is about to be called.
    pub(crate) fn at_release(asked: u64, from: u64, guard: &LockGuard) -> Self {
        let overdue = Instant::now().saturating_duration_since(guard.valid_until());
        let overdue = u64::try_from(overdue.as_nanos()).unwrap_or(u64::MAX);
        let until = monotonic_ns().saturating_sub(overdue);
        Self { asked, from, until }
    }

    pub(crate) fn interval(&self, name: &str, holder: &str) -> Interval {
        Interval::new(name, holder, self.asked, self.from, self.until)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.asked, self.from, self.until)
    }
}

impl FromStr for Seen {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let numbers: Vec<u64> = line.split(' ').flat_map(str::parse).collect();
        match numbers[..] {
            [asked, from, until] => Ok(Self { asked, from, until }),
            _ => Err(format!("not a hold: {line:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_read_as_it_was_written() {
        let seen = Seen {
            asked: 1,
            from: 20,
            until: 300,
        };
        assert_eq!(seen.to_string().parse(), Ok(seen));
        assert!("1 20".parse::<Seen>().is_err());
    }
}
