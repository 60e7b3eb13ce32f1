//! The test setup for the steps of the semaphore.

use super::{CLIENTS_OF_WRONG_TYPE, MALFORMED_CLIENTS, Sample, Suite};
use crate::primitives::semaphore::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "semaphore",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "1.5"],
        // One digit more than `number_at` accepts as a count.
        &["SET", "KEY", "123456789012345"],
        // Redisson lets the number be negative, so this is a semaphore.
        &["SET", "KEY", "-4"],
        &["HSET", "KEY", "<c>:1", "1"],
        &["RPUSH", "KEY", "item"],
        CLIENTS_OF_WRONG_TYPE,
        MALFORMED_CLIENTS,
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let key = to.key;
    match (to.step, name) {
        (_, "semaphore") => key.into(),
        // The undo gets the marker of an acquire with the same number. With a marker of its own, it
        // would never find anything to give back.
        ("semaphore.undo", "marker") => to.marker_of("semaphore.acquire", to.variant / 2),
        (_, "marker") => to.marker(),
        (_, "done") => to.done(),
        // In some cases, this key has another type.
        (_, "released") if to.variant == 7 => "x".into(),
        (_, "released") => format!("released:{key}"),
        (_, "asking") => format!("{key}:asking"),
        (_, "client") => ["1234:1", "5678:3", "", "3456:10"][to.variant / 2].into(),
        (_, "notified") => (to.variant % 2).to_string(),
        (_, "channel") => format!("channel:{key}"),
        (_, "sizes") => {
            // Some lists begin with a waiter that wants many permits: the waiters behind it must
            // not overtake it.
            let sizes = ["1", "2", "3 1 1", "1 5 1", "10", "2 2 2", "1 1", "40 1"];
            sizes[to.variant].into()
        }
        ("semaphore.set", "permits") => to.variant.to_string(),
        (_, "permits") => ["1", "3", "-2", "7", "1", "-9", "2", "5"][to.variant].into(),
        (_, "if_exists") => ["1", "0", "0"][to.variant % 3].into(),
        (_, "expiry_ms") => if to.variant > 4 { "600000" } else { "0" }.into(),
        _ => to.unknown_argument(name),
    }
}
