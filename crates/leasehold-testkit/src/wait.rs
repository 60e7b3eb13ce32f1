//! Waits until a condition is true, instead of for a time that should be long enough.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Polls `condition` every 5 ms until it is true.
///
/// # Panics
///
/// Panics if the condition is not true within `limit`. The panic message contains `what`.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        // The deadline is checked after the condition. So the condition is checked once more at the
        // limit, even if this thread was not scheduled for a while.
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        thread::sleep(POLL);
    }
}

const POLL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_the_condition_holds() {
        let mut polls = 0;
        eventually("third poll", Duration::from_secs(5), || {
            polls += 1;
            polls == 3
        });
        assert_eq!(polls, 3);
    }

    #[test]
    #[should_panic(expected = "not within 20ms: the sky to fall")]
    fn waiting_in_vain_says_what_for() {
        eventually("the sky to fall", Duration::from_millis(20), || false);
    }
}
