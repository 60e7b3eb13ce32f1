//! How the steps of the fair lock are tried out.

use super::Suite;
use crate::backend::step::{Operation, Step};
use crate::primitives::fair::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "fair",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "mode", "read"],
        &["HSET", "KEY", "c:1", "1"],
        &["SET", "KEY:queue", "text"],
        &["SET", "KEY:timeouts", "text"],
        &["HSET", "KEY:waiters", "a", "1"],
        // Only one of list and set.
        &["RPUSH", "KEY:queue", "d:1"],
        &["RPUSH", "KEY:queue", "java:1", "c:1"],
        &["ZADD", "KEY:timeouts", "1", "c:1"],
        // One of Redisson's, whose timeout is far or long ago.
        &["RPUSH", "KEY:queue", "c:1", "java:1", "c:2"],
        &["ZADD", "KEY:timeouts", "9000000000000", "java:1"],
        &["ZADD", "KEY:timeouts", "1", "java:1"],
        // Ours that are gone, or have no place.
        &["ZADD", "KEY:waiters", "1", "c:1"],
        &["ZADD", "KEY:waiters", "1", "c:2"],
        &["ZADD", "KEY:waiters", "9000000000000", "d:1"],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let line = [
        format!("{key}:queue"),
        format!("{key}:timeouts"),
        format!("{key}:waiters"),
    ];
    let line = line.map(String::into_bytes);
    let channel = format!("channel:{key}");
    // Not near what the comparison rounds to, and of those that wait all but one often.
    let (lease_ms, stay_ms) = match variant {
        0 => ("60000", "0"),
        1 => ("30000", "2000"),
        _ => ("60000", "3600000"),
    };
    let ours = match step.name {
        "fair.acquire" => {
            let for_ever = if variant == 5 { "0" } else { "1" };
            [hold, lease_ms, stay_ms, &channel, for_ever]
                .map(text)
                .to_vec()
        }
        "fair.release" => vec![text(hold), text(&channel)],
        "fair.force_unlock" => vec![format!("{key}:forced").into_bytes(), text(&channel)],
        "fair.line" => return Operation::new(step, line.to_vec()),
        other => panic!("`{other}` needs arguments here"),
    };
    let parts = [vec![text(key)], line.to_vec(), ours].concat();
    Operation::new(step, parts)
}
