//! The test setup for the steps of the fair lock.

use super::{Sample, Suite};
use crate::primitives::fair::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "fair",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "mode", "read"],
        &["HSET", "KEY", "<c>:1", "1"],
        &["SET", "KEY:queue", "text"],
        &["SET", "KEY:timeouts", "text"],
        &["HSET", "KEY:waiters", "a", "1"],
        // Only the list exists, or only the sorted set.
        &["RPUSH", "KEY:queue", "<d>:1"],
        &["RPUSH", "KEY:queue", "<a>:1", "<c>:1"],
        &["ZADD", "KEY:timeouts", "1", "<c>:1"],
        // A waiter of Redisson, whose timeout is far ahead or long past.
        &["RPUSH", "KEY:queue", "<c>:1", "<a>:1", "<c>:2"],
        &["ZADD", "KEY:timeouts", "9000000000000", "<a>:1"],
        &["ZADD", "KEY:timeouts", "1", "<a>:1"],
        // Waiters of this library that have died, or are not in the queue.
        &["ZADD", "KEY:waiters", "1", "<c>:1"],
        &["ZADD", "KEY:waiters", "1", "<c>:2"],
        &["ZADD", "KEY:waiters", "9000000000000", "<d>:1"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let Sample { key, hold, .. } = *to;
    // These times are not close to a value at which the rounded number in the state changes. In
    // most variants waiters do not expire.
    let (lease_ms, place_ms) = match to.variant {
        0 => ("60000", "0"),
        1 => ("30000", "2000"),
        _ => ("60000", "3600000"),
    };
    match name {
        "lock" => key.into(),
        "queue" | "timeouts" | "waiters" => format!("{key}:{name}"),
        "hold" => hold.into(),
        "by" => to.label().into(),
        "marker" => format!("{key}:forced"),
        "channel" => format!("channel:{key}"),
        "lease_ms" => lease_ms.into(),
        "span_ms" => if to.variant == 1 { "120000" } else { "20000" }.into(),
        "place_ms" => place_ms.into(),
        "own" => if to.variant == 3 { "<d>:" } else { "<c>:" }.into(),
        "holds" => match to.variant {
            1 => " <c>:1",
            3 => " <d>:1 <a>:1 <c>:2",
            _ => " <c>:1 <c>:2 <d>:1",
        }
        .into(),
        "served" => match to.variant {
            2 => "<c>:1 <c>:2",
            4 => "<c>:2 <d>:1 <c>:1",
            _ => "",
        }
        .into(),
        "for_ever" => if to.variant == 5 { "0" } else { "1" }.into(),
        _ => to.unknown_argument(name),
    }
}
