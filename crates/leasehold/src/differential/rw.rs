//! The test setup for the steps of the read-write lock.

use super::{Sample, Suite};
use crate::key::Key;
use crate::primitives::rw::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "rw",
    steps: &steps::ALL,
    argument,
    foreign: &[
        &["HSET", "KEY:forced", "<c>:1", "on call"],
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "<c>:1", "1"],
        &["HSET", "KEY", "mode", "odd"],
        &["HSET", "KEY", "<c>:1", "1", "name", "Ann"],
        // Holds of Redisson: a thread that has entered twice, and a thread whose lease has ended.
        &["HSET", "KEY", "mode", "read", "<e>:1", "2", "<e>:2", "1"],
        &["SET", "TAG:<e>:1:rwlock_timeout:2", "1"],
        &[
            "HSET",
            "KEY",
            "mode",
            "write",
            "<c>:1:write",
            "2",
            "<c>:1",
            "1",
        ],
        &["HSET", "KEY", "mode", "read", "name", "Ann"],
        // These values are not reservations, so they do not keep any client out.
        &["SET", "KEY:writers", "text"],
        &["SET", "KEY:readers", "text"],
        &["SET", "KEY:asking", "text"],
        &["RPUSH", "KEY:asking", "text", "1234:1"],
        &["RPUSH", "KEY:asking", "1234", "5678:x", "9012:1", "12"],
    ],
};

fn argument(to: &Sample, name: &str) -> String {
    let Sample { key, hold, .. } = *to;
    let (write, odd) = (format!("{hold}:write"), to.variant % 2 == 1);
    let writes = [
        "rw.acquire_write",
        "rw.release_write",
        "rw.renew_write",
        "rw.keep_write",
        "rw.downgrade",
        "rw.upgrade",
    ];
    match (to.step, name) {
        (_, "lock") => key.into(),
        // A hold whose own key does not exist, because its lease has ended.
        ("rw.acquire_read", "timeout") if to.variant == 7 => format!("{key}:elsewhere"),
        (_, "timeout") => Key::parse(key).unwrap().read_timeout(hold),
        (_, "client") => ["1234:1", "5678", "", "3456:1"][to.variant / 2].into(),
        (_, "notified") => (to.variant % 2).to_string(),
        (_, "writers" | "readers" | "asking") => format!("{key}:{name}"),
        (_, "reservations") => format!("{key}:{}", if odd { "readers" } else { "writers" }),
        (_, "by") => to.label().into(),
        (_, "marker") => format!("{key}:forced"),
        (_, "channel") => format!("channel:{key}"),
        ("rw.why_lost", "hold") if !odd => write,
        (step, "hold") if writes.contains(&step) => write,
        (_, "hold" | "read" | "waiter") => hold.into(),
        (_, "inside") => {
            if odd {
                write
            } else {
                String::new()
            }
        }
        (_, "lease_ms") => ["30000", "60000", "90000", "60000"][to.variant % 4].into(),
        (_, "span_ms") => if odd { "20000" } else { "120000" }.into(),
        (_, "most_ms") => ["0", "0", "45000"][to.variant % 3].into(),
        (_, "yields") => ["1", "2", "1", "2", "0", "0"][to.variant.min(5)].into(),
        ("rw.acquire_read", "reserve_ms") => ["0", "50000", "0"][to.variant % 3].into(),
        (_, "reserve_ms") => if odd { "50000" } else { "0" }.into(),
        (_, "side") => if odd { "read" } else { "write" }.into(),
        _ => to.unknown_argument(name),
    }
}
