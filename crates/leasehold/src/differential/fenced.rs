//! How the steps of the fenced lock are tried out.

use super::Suite;
use crate::backend::step::{Operation, Step};
use crate::primitives::fenced::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "fenced",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["HSET", "KEY", "mode", "read"],
        &["SET", "KEY", "text"],
        &["SET", "KEY:token", "7"],
        &["SET", "KEY:token", "9007199254740991"],
        &["SET", "KEY:token", "1e3"],
        &["HSET", "KEY:token", "a", "b"],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let counter = format!("{key}:token");
    let counter_ms = ["0", "900000"][usize::from(variant % 2)];
    let parts = match step.name {
        "fenced.acquire" => {
            vec![
                text(key),
                text(&counter),
                text(hold),
                text("60000"),
                text(counter_ms),
            ]
        }
        "fenced.draw" => vec![text(key), text(&counter), text(hold), text(counter_ms)],
        "fenced.raise" => {
            let token = ["5", "1000", "9007199254740990", "9007199254740991"];
            vec![
                text(key),
                text(&counter),
                text(hold),
                text(token[usize::from(variant / 2)]),
                text(counter_ms),
            ]
        }
        "fenced.last_token" => vec![text(&counter)],
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
