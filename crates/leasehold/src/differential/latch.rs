//! The test setup for the steps of the latch.

use super::{Sample, Suite};
use crate::primitives::latch::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "latch",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["SET", "KEY", "text"],
        // A latch at zero has no key in Redisson. Here it has one, and must count as open.
        &["SET", "KEY", "0"],
        &["SET", "KEY", "-3"],
        &["HSET", "KEY", "<c>:1", "1"],
        &["ZADD", "KEY", "1", "member"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let key = to.key;
    match name {
        "latch" => key.into(),
        "marker" => to.marker(),
        "done" => to.done(),
        "opened" => format!("opened:{key}"),
        "channel" => format!("channel:{key}"),
        "count" => (to.variant + 1).to_string(),
        // The value is mostly 1, so that the last of several count-downs opens the latch. 50 is
        // more than any count: the latch opens, and its count does not fall below zero.
        "by" => ["1", "1", "1", "2", "1", "3", "1", "50"][to.variant].into(),
        _ => to.unknown_argument(name),
    }
}
