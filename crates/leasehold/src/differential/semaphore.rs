//! How the steps of the semaphore are tried out.

use super::Suite;
use crate::backend::step::{Operation, Step};
use crate::primitives::semaphore::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "semaphore",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "1.5"],
        &["SET", "KEY", "123456789012345"],
        &["SET", "KEY", "-4"],
        &["HSET", "KEY", "c:1", "1"],
        &["RPUSH", "KEY", "item"],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    // Some requests come twice, and some markers are taken along.
    let step_name = step.name.replace("undo", "acquire");
    let marker = text(&format!("{step_name}:{key}:{hold}:{}", variant / 2));
    let done = text(&format!("{step_name}:{key}:{hold}:{}", variant % 4));
    let channel = text(&format!("channel:{key}"));
    // One that is something else, now and then.
    let released = match variant {
        7 => text("x"),
        _ => text(&format!("released:{key}")),
    };
    let first = |more: Vec<Vec<u8>>| [vec![text(key), marker.clone(), done.clone()], more].concat();
    let parts = match step.name {
        "semaphore.acquire" => {
            let sizes = ["1", "2", "3 1 1", "1 5 1", "10", "2 2 2", "1 1", "40 1"];
            first(vec![released, text(sizes[usize::from(variant)])])
        }
        "semaphore.undo" => vec![text(key), marker, channel],
        "semaphore.add" => {
            let permits = ["1", "3", "-2", "7", "1", "-9", "2", "5"];
            let if_there = if variant.is_multiple_of(3) { "1" } else { "0" };
            first(vec![
                released,
                text(permits[usize::from(variant)]),
                text(if_there),
                channel,
            ])
        }
        "semaphore.set" => {
            let expiry_ms = if variant > 4 { "600000" } else { "0" };
            let permits = variant.to_string();
            first(vec![text(&permits), text(expiry_ms), channel])
        }
        "semaphore.drain" | "semaphore.delete" => first(Vec::new()),
        "semaphore.available" => vec![text(key)],
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
