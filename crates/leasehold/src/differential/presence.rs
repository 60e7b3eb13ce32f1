//! The test setup for the steps of the clients' presence.

use super::{HOLDS, KEYS, Sample, Suite};
use crate::operate::presence::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "presence",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY", "at", "text"],
        &["HSET", "KEY", "at", "-5"],
        &["HSET", "KEY", "label", "x"],
        &["SET", "register", "text"],
        &["ZADD", "register", "9000000000000", "<c>:1"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    match name {
        "client" => to.key.into(),
        "clients" if to.variant == 7 && to.step == "presence.clients" => KEYS[0].into(),
        "clients" => "register".into(),
        "id" => to.hold.into(),
        "ms" => {
            ["60000", "0", "90000"][HOLDS.iter().position(|hold| *hold == to.hold).unwrap()].into()
        }
        "most" => "1000".into(),
        "age_ms" => "7".into(),
        "holds" => "1:20 ".repeat(to.variant * 500),
        "label" | "host" | "pid" | "version" | "address" | "waits" => name.repeat(to.variant * 20),
        _ => to.unknown_argument(name),
    }
}
