//! How the steps of the semaphore with leases are tried out.

use super::{HOLDS, Suite};
use crate::backend::step::{Operation, Step};
use crate::primitives::expirable::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "expirable",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "3"],
        &["SET", "KEY", "9"],
        &["HSET", "KEY", "c:1", "1"],
        &["ZADD", "KEY", "1", "6161616161616161616161616161616161"],
    ],
};

/// Ids of 16 bytes that can be shown.
fn ids(hold: &str, count: u8) -> Vec<u8> {
    let holder = HOLDS.iter().position(|other| *other == hold).unwrap();
    let letter = ["a", "b", "c"][holder];
    let id = |n| format!("{}{n}", letter.repeat(15));
    (0..count).map(id).collect::<String>().into_bytes()
}

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let step_name = step.name;
    let marker = text(&format!("{step_name}:{key}:{hold}:{}", variant / 2));
    let done = text(&format!("{step_name}:{key}:{hold}:{}", variant % 4));
    let channel = text(&format!("channel:{key}"));
    // One that is something else, now and then.
    let timeout = match variant {
        7 => text("x"),
        _ => text(&format!("{key}:timeout")),
    };
    let first = |more: Vec<Vec<u8>>| [vec![text(key), timeout.clone()], more].concat();
    let some = ids(hold, variant % 3 + 1);
    let lease_ms = ["60000", "0", "90000", "30000", "80000000"];
    let lease_ms = text(lease_ms[usize::from(variant) % 5]);
    let parts = match step.name {
        "expirable.acquire" => first(vec![some, lease_ms, channel]),
        "expirable.renew" => {
            let most_ms = if variant > 4 { "45000" } else { "0" };
            first(vec![some, lease_ms, text(most_ms)])
        }
        "expirable.release" => {
            let all = if variant.is_multiple_of(2) { "1" } else { "0" };
            first(vec![some, text(all), channel])
        }
        "expirable.update" => first(vec![ids(hold, 1), lease_ms, channel]),
        "expirable.left" => first(vec![ids(hold, 1)]),
        "expirable.counts" => first(vec![channel]),
        "expirable.set" => first(vec![marker, done, text(&variant.to_string()), channel]),
        "expirable.delete" => first(vec![marker, done]),
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
