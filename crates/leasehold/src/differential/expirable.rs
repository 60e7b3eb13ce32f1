//! The test setup for the steps of the semaphore with leases.

use super::{CLIENTS_OF_WRONG_TYPE, HOLDS, MALFORMED_CLIENTS, Sample, Suite};
use crate::primitives::expirable::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "expirable",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "3"],
        &["SET", "KEY", "9"],
        &["HSET", "KEY", "<c>:1", "1"],
        // The id of a permit as Redisson 3.16.8 writes it: a string of 32 hex digits.
        &[
            "ZADD",
            "KEY:timeout",
            "9000000000000",
            "61616161616161616161616161616130",
        ],
        // The second of three permits was taken back by force.
        &["HSET", "KEY:forced", "2", "on call"],
        CLIENTS_OF_WRONG_TYPE,
        MALFORMED_CLIENTS,
    ],
};

/// Returns `count` printable ids of 16 bytes.
fn ids(hold: &str, count: usize) -> String {
    let holder = HOLDS.iter().position(|other| *other == hold).unwrap();
    let letter = ["a", "b", "c"][holder];
    let id = |n| format!("{}{n}", letter.repeat(15));
    (0..count).map(id).collect()
}

/// Returns the holder after this one.
fn next(hold: &str) -> &'static str {
    let holder = HOLDS.iter().position(|other| *other == hold).unwrap();
    HOLDS[(holder + 1) % HOLDS.len()]
}

fn argument(to: &Sample, name: &str) -> String {
    let key = to.key;
    match name {
        "permits" => key.into(),
        // In some cases, this key has another type.
        "timeout" if to.variant == 7 => "x".into(),
        "timeout" => format!("{key}:timeout"),
        "marker" if to.step == "expirable.why_lost" => format!("{key}:forced"),
        "marker" => to.marker(),
        "done" => to.done(),
        "asking" => format!("{key}:asking"),
        "client" => ["1234:1", "5678:3", "", "3456:10"][to.variant / 2].into(),
        "notified" => (to.variant % 2).to_string(),
        "channel" => format!("channel:{key}"),
        "ids" => ids(to.hold, to.variant % 3 + 1),
        "next" => ids(next(to.hold), to.variant % 3 + 1),
        "id" => ids(to.hold, 1),
        "holds" => ["1 2 3", "3", "2"][to.variant % 3].into(),
        // A lease of 0 expires at once, so the next step finds a permit to take back.
        "lease_ms" => ["60000", "0", "90000", "30000", "80000000"][to.variant % 5].into(),
        "most_ms" => if to.variant > 4 { "45000" } else { "0" }.into(),
        "all" => ["1", "0"][to.variant % 2].into(),
        "total" => to.variant.to_string(),
        _ => to.unknown_argument(name),
    }
}
