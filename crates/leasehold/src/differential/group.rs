//! How the steps of a group of locks are tried out.

use super::{HOLDS, Suite};
use crate::backend::step::{Operation, Step};
use crate::primitives::lock::group::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "lock/group",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "mode", "read", "c:1", "1"],
        &["HSET", "KEY", "c:1", "1"],
        // A dead holder, and one that never had an end.
        &[
            "HSET",
            "KEY",
            "f",
            "e:1",
            "f:e:1:expire_time",
            "5",
            "f:e:1:lock_count",
            "2",
            "g",
            "e:2",
        ],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let (marker, channel) = (format!("{key}:forced"), format!("channel:{key}"));
    let fields = ["f", "g", "f g", "g h"][usize::from(variant % 4)];
    let parts = match step.name {
        "group.acquire" => {
            let lease_ms = if variant < 4 { "60000" } else { "20000" };
            vec![text(key), text(hold), text(lease_ms), text(fields)]
        }
        // For some holds longer than they have it, for others shorter.
        "group.renew" => {
            let (lease_ms, most_ms) = match hold {
                _ if hold == HOLDS[0] => ("30000", "0"),
                _ if hold == HOLDS[1] => ("30000", "45000"),
                _ => ("90000", "0"),
            };
            vec![
                text(key),
                text(hold),
                text(lease_ms),
                text(most_ms),
                text(fields),
            ]
        }
        "group.release" => vec![text(key), text(hold), text(&channel), text(fields)],
        "group.why_lost" => vec![text(key), text(&marker), text(hold), text(fields)],
        "group.force_unlock" => vec![text(key), text(&marker), text(&channel), text(fields)],
        "group.inspect" => vec![text(key), text(fields)],
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
