//! The test setup for the steps of turns.

use super::{Sample, Suite};
use crate::recipes::slot::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "slot",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY", "mode", "read"],
        &["SET", "KEY", "text"],
        &["SET", "leasehold:TAG:slot", "text"],
        &["HSET", "leasehold:TAG:slot", "slot", "1e3", "state", "done"],
        &[
            "HSET",
            "leasehold:TAG:slot",
            "slot",
            "7",
            "state",
            "running",
            "hold",
            "gone",
        ],
        &[
            "HSET",
            "leasehold:TAG:once:b",
            "slot",
            "0",
            "state",
            "open",
            "missed",
            "4",
        ],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let tag = match to.key.contains('{') {
        true => to.key.to_owned(),
        false => format!("{{{}}}", to.key),
    };
    // Three quarters of the samples are turns per slot, the others are turns per id. If a sample of
    // one kind finds the record of the other kind, it is refused.
    let per_slot = to.variant % 4 < 3;
    let record = format!("leasehold:{tag}:slot");
    match name {
        "lock" => to.key.into(),
        "newest" => record,
        "record" if per_slot => record,
        "record" => format!("leasehold:{tag}:once:b"),
        "hold" => to.hold.into(),
        "lease_ms" => "60000".into(),
        "period_ms" if per_slot => "3600000".into(),
        "period_ms" => "0".into(),
        "offset_ms" => ["0", "0", "0", "0", "0", "5000", "0", "0"][to.variant].into(),
        "requested_ms" if per_slot => {
            let quarters = [32, 35, 44, 0, 33, 34, 48, 0][to.variant];
            (quarters * 900_000).to_string()
        }
        "requested_ms" => "0".into(),
        "slot" if per_slot => ["8", "9", "10"][to.variant % 3].into(),
        "slot" => "0".into(),
        "began_ms" => "1700000000000".into(),
        "id" => if per_slot { "" } else { "b" }.into(),
        "repeats" => ["0", "2", "0", "1", "1", "0", "2", "1"][to.variant].into(),
        "most_once" => ["0", "1"][to.variant % 2].into(),
        "by" => "me".into(),
        "keep_ms" => "900000".into(),
        "channel" => format!("channel:{}", to.key),
        "state" => ["done", "failed", "open", "done"][to.variant % 4].into(),
        "rc" => ["", "0", "3", ""][to.variant % 4].into(),
        _ => to.unknown_argument(name),
    }
}
