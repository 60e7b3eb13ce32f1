//! Makes a failing scenario smaller: finds the fewest turns and faults with which it still fails.

use crate::play::{play, play_again};
use crate::scenario::Scenario;

/// Returns the parts that are enough for a violation.
#[must_use]
pub fn shrink(scenario: &Scenario) -> Vec<usize> {
    let mut parts: Vec<usize> = (0..scenario.parts()).collect();
    let mut size = parts.len() / 2;
    while size > 0 {
        let mut start = 0;
        while start < parts.len() {
            let end = (start + size).min(parts.len());
            let fewer = [&parts[..start], &parts[end..]].concat();
            if fails(&scenario.keeping(&fewer)) {
                parts = fewer;
            } else {
                start = end;
            }
        }
        size /= 2;
    }
    parts
}

fn fails(scenario: &Scenario) -> bool {
    !play_again(|| play(scenario)).violations.is_empty()
}
