//! The test setup for the steps that inspect a name: they run on keys that other programs write.

use super::{HOLDS, KEYS, Sample, Suite, renewed};
use crate::key::Key;
use crate::operate::name::steps::{self, INSPECT};

pub(super) const SUITE: Suite = Suite {
    folder: "name",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["SET", "KEY", "text"],
        &["SET", "KEY", "3"],
        // The script cuts this value with `GETRANGE`, the twin with code of its own.
        &["SET", "KEY", "a text that is much longer than any number"],
        &["HSET", "KEY", "<c>:1", "1"],
        &["HSET", "KEY", "mode", "read", "<c>:1", "2", "<d>:1", "x"],
        &["HSET", "KEY", "mode", "write", "<c>:1:write", "1"],
        &[
            "HSET",
            "KEY",
            "v",
            "<c>:1",
            "v:<c>:1:expire_time",
            "9000000000000",
        ],
        &["RPUSH", "KEY", "<c>:1", "<c>:2"],
        &["ZADD", "KEY", "9000000000000", "aaaaaaaaaaaaaaaa"],
        &["ZADD", "KEY", "9000000000000", "<c>:1"],
        // An end before 1970, which is shown as 0.
        &["ZADD", "KEY", "-1", "<c>:1"],
        &["HSET", "leasehold:TAG:forced", "<c>:1", "1"],
        &["ZADD", "leasehold:TAG:writers", "9000000000000", "<c>:1"],
        &["ZADD", "leasehold:TAG:readers", "1", "<d>:1"],
        // Keys of read holds, which are not arguments: the step builds their names itself. One of
        // them is a list, because `PTTL` accepts any type.
        &["SET", "{x}:<c>:1:rwlock_timeout:1", "1"],
        &["RPUSH", "{x}:<c>:1:rwlock_timeout:2", "1"],
    ],
};

/// Returns the value of an argument. In some variants, an additional key is another name, so that
/// each key sometimes has the wrong type.
fn argument(to: &Sample, name: &str) -> String {
    let at = INSPECT.parameters.iter().position(|other| *other == name);
    let at = at.unwrap_or_default();
    if (1..INSPECT.keys).contains(&at) && (to.variant + 1 == at || to.variant == 7) {
        let beside = HOLDS.iter().position(|other| *other == to.hold).unwrap();
        return KEYS[(at + beside) % KEYS.len()].into();
    }
    let key = Key::parse(to.key).unwrap();
    match name {
        "name" => to.key.into(),
        "leases" => key.timeout_key(),
        "queue" => key.fair_queue(),
        "waiters" => key.fair_waiters(),
        "writers" => key.waiting_writers(),
        "readers" => key.waiting_readers(),
        "tokens" => key.token_counter(),
        "opened" => key.opened_marker(),
        "locks" | "sides" | "frees" | "opens" => key.lock_channel(),
        "most" | "count" => "1000".into(),
        "cursor" => "0".into(),
        "pattern" => {
            ["*", "x", "?", "[w-z]", "*{*", "*o*er", "a\\{*", "nothing"][to.variant].into()
        }
        "marker" => match to.variant {
            7 => to.key.into(),
            _ => key.forced_marker(),
        },
        "hold" => to.hold.into(),
        "by" => to.label().into(),
        "ms" => renewed(to.hold).0.into(),
        _ => to.unknown_argument(name),
    }
}
