//! How the steps of the plain lock are tried out.

use super::{HOLDS, Suite};
use crate::backend::step::{Operation, Step};
use crate::primitives::lock::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "lock",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "mode", "read"],
        &["HSET", "KEY", "c:1", "1.5"],
        &["HSET", "KEY", "c:1", "1", "name", "Ann"],
        &["SET", "KEY:longest", "40000"],
        &["SET", "KEY:longest", "-1"],
        &["SET", "KEY:longest", "9007199254740992"],
        &["SET", "KEY:longest", "9007199254740991"],
        &["SET", "KEY:longest", ""],
        &["HSET", "KEY:longest", "a", "b"],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let (marker, channel) = (format!("{key}:forced"), format!("channel:{key}"));
    let parts = match step.name {
        "lock.acquire" => vec![text(key), text(hold), text("60000")],
        // For some holds longer than they have it, for others shorter.
        "lock.renew" => {
            let (lease_ms, most_ms) = match hold {
                _ if hold == HOLDS[0] => ("30000", "0"),
                _ if hold == HOLDS[1] => ("30000", "45000"),
                _ => ("90000", "0"),
            };
            vec![text(key), text(hold), text(lease_ms), text(most_ms)]
        }
        "lock.release" => vec![text(key), text(hold), text(&channel)],
        "lock.why_lost" => vec![text(key), text(&marker), text(hold)],
        "lock.force_unlock" => vec![text(key), text(&marker), text(&channel)],
        "lock.inspect" => vec![text(key)],
        "lock.note_longest" => {
            let own = ["0", "30000", "60000", "9007199254740991"];
            let own = own[usize::from(variant / 2)];
            vec![text(&format!("{key}:longest")), text(own)]
        }
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
