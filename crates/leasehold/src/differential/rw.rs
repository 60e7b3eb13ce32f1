//! How the steps of the read-write lock are tried out.

use super::Suite;
use crate::backend::step::{Operation, Step};
use crate::key::Key;
use crate::primitives::rw::steps;

pub(super) const SUITE: Suite = Suite {
    folder: "rw",
    steps: &steps::ALL,
    operation,
    foreign: &[
        &["SET", "KEY", "text"],
        &["HSET", "KEY", "c:1", "1"],
        &["HSET", "KEY", "mode", "odd"],
        &["HSET", "KEY", "c:1", "1", "name", "Ann"],
        // Redisson's: a thread that has entered twice, and one whose lease has ended.
        &["HSET", "KEY", "mode", "read", "e:1", "2", "e:2", "1"],
        &["SET", "{KEY}:e:1:rwlock_timeout:2", "1"],
        &["HSET", "KEY", "mode", "write", "c:1:write", "2", "c:1", "1"],
        &["HSET", "KEY", "mode", "read", "name", "Ann"],
        &["SET", "KEY:writers", "text"],
        &["SET", "KEY:readers", "text"],
    ],
};

fn operation(step: &'static Step, key: &str, hold: &str, variant: u8) -> Operation {
    let text = |text: &str| text.as_bytes().to_vec();
    let writers = text(&format!("{key}:writers"));
    let readers = text(&format!("{key}:readers"));
    let (marker, channel) = (format!("{key}:forced"), text("channel"));
    let write = text(&format!("{hold}:write"));
    let timeout = match (step.name, variant) {
        // One whose own key is not there: its lease has ended.
        ("rw.acquire_read", 7) => text(&format!("{key}:elsewhere")),
        _ => Key::parse(key).unwrap().read_timeout(hold).into_bytes(),
    };
    let odd = variant % 2 == 1;
    let lease_ms = text(["30000", "60000", "90000", "60000"][usize::from(variant % 4)]);
    let most_ms = text(["0", "0", "45000"][usize::from(variant % 3)]);
    let side = text(if odd { "read" } else { "write" });
    let (lock, hold) = (text(key), text(hold));
    let parts = match step.name {
        "rw.acquire_read" => {
            let within = if odd { write } else { Vec::new() };
            let polite = text(["1", "2", "1", "2", "0", "0"][usize::from(variant.min(5))]);
            let mark_ms = text(if variant % 3 == 1 { "50000" } else { "0" });
            let waiter = hold.clone();
            vec![
                lock, timeout, writers, readers, hold, within, lease_ms, polite, waiter, mark_ms,
            ]
        }
        "rw.acquire_write" => {
            let mark_ms = text(if odd { "50000" } else { "0" });
            vec![lock, writers, readers, write, lease_ms, hold, mark_ms]
        }
        "rw.withdraw" => vec![if odd { readers } else { writers }, hold, channel],
        "rw.release_read" => vec![lock, timeout, hold, channel],
        "rw.release_write" => vec![lock, write, channel],
        "rw.renew_read" => vec![lock, timeout, hold, lease_ms, most_ms],
        "rw.renew_write" => vec![lock, write, lease_ms, most_ms],
        "rw.downgrade" => vec![lock, timeout, write, hold, lease_ms, channel],
        "rw.upgrade" => vec![lock, write, hold, lease_ms],
        "rw.why_lost" => vec![lock, text(&marker), if odd { hold } else { write }],
        "rw.force_unlock" => vec![lock, text(&marker), side, channel],
        "rw.inspect" => vec![lock, side],
        other => panic!("`{other}` needs arguments here"),
    };
    Operation::new(step, parts)
}
