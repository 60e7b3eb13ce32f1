//! The test setup for the steps of tickets.

use super::{HOLDS, Sample, Suite};
use crate::recipes::ticket::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "ticket",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY", "<c>:1", "1"],
        &["HSET", "KEY", "<c>:2", "1"],
        &["HSET", "KEY", "<d>:1", "01"],
        &["HSET", "KEY", "mode", "write", "<c>:1", "1"],
        &["HSET", "KEY", "mode", "read", "<c>:1", "1", "<d>:1", "1"],
        &["HSET", "KEY", "mode", "write", "<c>:1:write", "1"],
        &["HSET", "KEY", "mode", "read"],
        &["HSET", "KEY", "a", "b"],
        &["SET", "KEY", "3"],
        &["SET", "KEY", "text"],
        &["SET", "KEY:token", "9007199254740991"],
        &["SET", "KEY:token", "1e3"],
        &["HSET", "KEY:token", "a", "b"],
        &["RPUSH", "KEY:queue", "<d>:1", "<c>:2"],
        &["SET", "KEY:queue", "text"],
        &["SET", "leasehold:TAG:taken", "text"],
        &["HSET", "leasehold:TAG:taken", "<c>:1", "<d>:1"],
        &["HSET", "leasehold:TAG:forced", "<c>:2", "on call"],
        &["HSET", "leasehold:TAG:forced", "<c>:2", ""],
        &["SET", "TAG:<c>:1:rwlock_timeout:1", "1"],
        &["SET", "TAG:<d>:1:rwlock_timeout:1", "1"],
        &["ZADD", "KEY:timeout", "9000000000000", "aaaaaaaaaaaaaaa0"],
        &[
            "ZADD",
            "KEY:timeout",
            "9000000000000",
            "61616161616161616161616161616130",
        ],
    ],
};

/// Returns the hold after this one.
fn next(hold: &str) -> &'static str {
    let holder = HOLDS.iter().position(|other| *other == hold).unwrap_or(0);
    HOLDS[(holder + 1) % HOLDS.len()]
}

/// Returns `count` printable ids of permits.
fn ids(hold: &str, count: usize) -> String {
    let holder = HOLDS.iter().position(|other| *other == hold).unwrap_or(0);
    let letter = ["a", "b", "c"][holder];
    (0..count)
        .map(|n| format!("{}{n}", letter.repeat(15)))
        .collect()
}

fn argument(to: &Sample, name: &str) -> String {
    let key = to.key;
    let tag = match key.contains('{') {
        true => key.to_owned(),
        false => format!("{{{key}}}"),
    };
    let timeout = |hold: &str| format!("{tag}:{hold}:rwlock_timeout:1");
    let of_read = to.step == "ticket.take_read";
    let ending = if to.variant % 4 == 3 && !of_read {
        ":write"
    } else {
        ""
    };
    match name {
        "lock" | "permits" => key.into(),
        "counter" => format!("{key}:token"),
        "marker" => format!("leasehold:{tag}:forced"),
        "queue" if to.variant < 4 => key.into(),
        "queue" => format!("{key}:queue"),
        "taken" => format!("leasehold:{tag}:taken"),
        "old" => format!("{}{ending}", to.hold),
        "hold" => format!("{}{ending}", next(to.hold)),
        "lease_ms" => ["60000", "30000"][to.variant % 2].into(),
        "channel" => format!("channel:{key}"),
        "fenced" => ["0", "1"][to.variant / 4].into(),
        "counter_ms" => ["0", "900000"][to.variant % 2].into(),
        "writes" => if ending.is_empty() { "0" } else { "1" }.into(),
        "old_timeout" => timeout(to.hold),
        "timeout" if of_read => timeout(next(to.hold)),
        "timeout" => format!("{key}:timeout"),
        "ids" => ids(to.hold, to.variant % 2 + 1),
        "next" => ids(next(to.hold), to.variant % 2 + 1),
        _ => to.unknown_argument(name),
    }
}
