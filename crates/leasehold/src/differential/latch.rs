//! How the steps of the latch are tried out.

use super::Suite;
use crate::backend::step::{Operation, Step};
use crate::primitives::latch::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "latch",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "0"],
        &["SET", "KEY", "-3"],
        &["HSET", "KEY", "c:1", "1"],
        &["ZADD", "KEY", "1", "member"],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    // Some requests come twice, and some markers are taken along.
    let step_name = step.name;
    let marker = text(&format!("{step_name}:{key}:{hold}:{}", variant / 2));
    let done = text(&format!("{step_name}:{key}:{hold}:{}", variant % 4));
    let opened = text(&format!("opened:{key}"));
    let channel = text(&format!("channel:{key}"));
    let first = |more: Vec<Vec<u8>>| [vec![text(key), marker.clone(), done.clone()], more].concat();
    let parts = match step.name {
        "latch.set" => first(vec![opened, text(&(variant + 1).to_string()), channel]),
        "latch.count_down" => {
            let by = ["1", "1", "1", "2", "1", "3", "1", "50"];
            first(vec![opened, text(by[usize::from(variant)]), channel])
        }
        "latch.count" => vec![text(key), opened],
        "latch.delete" => first(vec![opened, channel]),
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
