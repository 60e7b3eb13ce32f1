//! The test setup for the steps of the fenced lock.

use super::{Sample, Suite};
use crate::primitives::fenced::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "fenced",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY", "mode", "read"],
        &["SET", "KEY", "text"],
        &["SET", "KEY:token", "7"],
        // The greatest token: neither the script nor its twin can draw another one after it.
        &["SET", "KEY:token", "9007199254740991"],
        // A number for Lua's `tonumber`, but not for Redis and Java.
        &["SET", "KEY:token", "1e3"],
        &["HSET", "KEY:token", "a", "b"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let Sample { key, hold, .. } = *to;
    match name {
        "lock" => key.into(),
        "counter" => format!("{key}:token"),
        "hold" => hold.into(),
        "lease_ms" => "60000".into(),
        "counter_ms" => ["0", "900000"][to.variant % 2].into(),
        "token" => ["5", "1000", "9007199254740990", "9007199254740991"][to.variant / 2].into(),
        _ => to.unknown_argument(name),
    }
}
