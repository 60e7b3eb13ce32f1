//! How the step that looks at a name is tried out: on what strangers leave there.

use super::{HOLDS, Suite};
use crate::backend::step::{Operation, Step};
use crate::key::Key;
use crate::primitives::name::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "name",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "3"],
        &["SET", "KEY", "a text that is much longer than any number"],
        &["HSET", "KEY", "c:1", "1"],
        &["HSET", "KEY", "mode", "read", "c:1", "2", "d:1", "x"],
        &["HSET", "KEY", "mode", "write", "c:1:write", "1"],
        &[
            "HSET",
            "KEY",
            "v",
            "c:1",
            "v:c:1:expire_time",
            "9000000000000",
        ],
        &["RPUSH", "KEY", "c:1", "c:2"],
        &["ZADD", "KEY", "9000000000000", "aaaaaaaaaaaaaaaa"],
        &["ZADD", "KEY", "9000000000000", "c:1"],
        &["ZADD", "KEY", "-1", "c:1"],
        &["SET", "{x}:c:1:rwlock_timeout:1", "1"],
        &["RPUSH", "{x}:c:1:rwlock_timeout:2", "1"],
    ],
};

/// The name, and what stands beside it, in the places of each other, so that each is now and
/// then of a type that it should not be.
fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let mut parts = steps::look(&Key::parse(key).unwrap()).parts;
    let beside = HOLDS.iter().position(|other| *other == hold).unwrap();
    let names = super::KEYS.map(|name| name.as_bytes().to_vec());
    for (at, part) in parts.iter_mut().enumerate().skip(1) {
        if usize::from(variant) + 1 == at || variant == 7 {
            *part = names[(at + beside) % names.len()].clone();
        }
    }
    Operation::new(step, parts)
}
