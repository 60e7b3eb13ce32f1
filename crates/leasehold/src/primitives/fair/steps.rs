//! The steps of the fair lock, and how each is sent. The Lua beside this file says what
//! each does; `twins.rs` does the same on the embedded keyspace.

use std::sync::Arc;
use std::time::Duration;

use super::twins;
use crate::backend::step::{Operation, Step, Value};
use crate::hold::{Asked, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::lock::steps::LockHold;
use crate::primitives::twin::ms;

pub(crate) static ACQUIRE: Step = Step {
    name: "fair.acquire",
    lua: concat!(
        include_str!("../lock/shape.lua"),
        include_str!("queue.lua"),
        include_str!("acquire.lua")
    ),
    keys: 4,
    args: 5,
    grants: true,
    twin: twins::acquire,
};

pub(crate) static RELEASE: Step = Step {
    name: "fair.release",
    lua: concat!(include_str!("queue.lua"), include_str!("release.lua")),
    keys: 4,
    args: 2,
    grants: false,
    twin: twins::release,
};

pub(crate) static FORCE_UNLOCK: Step = Step {
    name: "fair.force_unlock",
    lua: concat!(
        include_str!("../lock/shape.lua"),
        include_str!("../lock/break_hold.lua"),
        include_str!("queue.lua"),
        include_str!("force_unlock.lua")
    ),
    keys: 5,
    args: 1,
    grants: false,
    twin: twins::force_unlock,
};

pub(crate) static LINE: Step = Step {
    name: "fair.line",
    lua: concat!(include_str!("queue.lua"), include_str!("line.lua")),
    keys: 3,
    args: 0,
    grants: false,
    twin: twins::line,
};

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 4] = [&ACQUIRE, &RELEASE, &FORCE_UNLOCK, &LINE];

/// The operations on one hold of a fair lock, or on a waiter's place in line.
pub(crate) struct FairHold {
    key: Key,
    channel: Arc<str>,
    /// What a fair lock shares with a plain one.
    plain: LockHold,
    place: Place,
}

/// How a waiter waits.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// How long its place in line is kept after each ask; zero to take no place.
    pub(crate) stay: Duration,
    /// Whether waiters of Redisson may be in the same line.
    pub(crate) with_redisson: bool,
}

impl FairHold {
    pub(crate) fn new(key: &Key, channel: Arc<str>, id: String, place: Place) -> Self {
        Self {
            key: key.clone(),
            plain: LockHold::new(key.clone(), Arc::clone(&channel), id),
            channel,
            place,
        }
    }

    fn id(&self) -> Vec<u8> {
        self.wire_id().into()
    }
}

impl HoldSteps for FairHold {
    fn acquire(&self, lease: Duration) -> Operation {
        let mut parts = keys(&self.key);
        parts.extend([
            self.id(),
            ms(lease),
            ms(self.place.stay),
            self.channel.as_bytes().into(),
            if self.place.with_redisson { b"1" } else { b"0" }.into(),
        ]);
        Operation::new(&ACQUIRE, parts)
    }

    fn read_acquire(&self, reply: Value) -> Option<Asked> {
        self.plain.read_acquire(reply)
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        self.plain.renew(lease, most)
    }

    fn release(&self) -> Operation {
        let mut parts = keys(&self.key);
        parts.extend([self.id(), self.channel.as_bytes().into()]);
        Operation::new(&RELEASE, parts)
    }

    fn gone_within(&self, lease: Duration) -> Duration {
        lease.max(self.place.stay)
    }

    fn why_lost(&self) -> Operation {
        self.plain.why_lost()
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        self.plain.read_why_lost(reply)
    }

    fn wire_id(&self) -> &str {
        self.plain.wire_id()
    }
}

pub(crate) fn force_unlock(key: &Key, channel: &str) -> Operation {
    let mut parts = keys(key);
    parts.extend([key.forced_marker().into_bytes(), channel.into()]);
    Operation::new(&FORCE_UNLOCK, parts)
}

pub(crate) fn line(key: &Key) -> Operation {
    Operation::new(&LINE, keys(key).split_off(1))
}

/// The lock, the queue, the timeouts and the waiters.
fn keys(key: &Key) -> Vec<Vec<u8>> {
    vec![
        key.as_str().into(),
        key.fair_queue().into_bytes(),
        key.fair_timeouts().into_bytes(),
        key.fair_waiters().into_bytes(),
    ]
}
