//! The test setup for the steps of a group of locks.

use super::{Sample, Suite};
use crate::primitives::group::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "group",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY:forced", "<c>:1", "on call"],
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "mode", "read", "<c>:1", "1"],
        &["HSET", "KEY", "<c>:1", "1"],
        // A dead holder, and a holder without an expiry.
        &[
            "HSET",
            "KEY",
            "f",
            "<e>:1",
            "f:<e>:1:expire_time",
            "5",
            "f:<e>:1:lock_count",
            "2",
            "g",
            "<e>:2",
        ],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let Sample { key, hold, .. } = *to;
    match (to.step, name) {
        (_, "group") => key.into(),
        (_, "hold") => hold.into(),
        (_, "by") => to.label().into(),
        (_, "marker") => format!("{key}:forced"),
        (_, "channel") => format!("channel:{key}"),
        ("group.renew", "lease_ms") => super::renewed(hold).0.into(),
        (_, "lease_ms") => ["60000", "20000"][to.variant / 4].into(),
        (_, "most_ms") => super::renewed(hold).1.into(),
        (_, "fields") => ["f", "g", "f g", "g h"][to.variant % 4].into(),
        _ => to.unknown_argument(name),
    }
}
