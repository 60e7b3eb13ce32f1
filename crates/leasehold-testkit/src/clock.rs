//! The clock that is common to tests in Rust and in the JVM.

use nix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds of the system's monotonic clock. The values can be compared between
/// processes on one machine.
///
/// Java's `System.nanoTime()` reads the same clock on Linux, so the times in the Redisson driver's
/// answers can be compared with these values.
///
/// # Panics
///
/// Panics if the system has no monotonic clock.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every system has a monotonic clock");
    let seconds = u64::try_from(now.tv_sec()).expect("the monotonic clock starts at zero");
    let nanos = u64::try_from(now.tv_nsec()).expect("the nanoseconds of a time are not negative");
    seconds * 1_000_000_000 + nanos
}
