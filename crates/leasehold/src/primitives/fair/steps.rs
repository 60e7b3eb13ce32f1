//! The steps of the fair lock, and how each is sent. `fair.lua` describes the steps; `twins.rs` has
//! their twins on the embedded keyspace.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::step::{LuaFile, Operation, SharedLua, Step, Value, step};
use crate::config::wire_ms;
use crate::hold::{AcquireReply, BatchRenewal, HoldSteps, QueueSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::hash_kind::HASH_KIND;
use crate::primitives::lock::steps::{BREAK_HOLD, GRANT, LockHold};
use crate::primitives::twin::{KEPT, NOW_MS};
use crate::sync::Mutex;

static LUA: LuaFile = LuaFile::new(include_str!("fair.lua"));

static QUEUE: SharedLua = SharedLua::new(&LUA, "queue", &[&NOW_MS]);

step! {
    // `grants` must also be set because the step takes a place in line: a request that arrives
    // after its waiter has given up would add a place without a waiter.
    ACQUIRE: Acquire = fair.acquire, grants: true,
    keys: [lock, queue, timeouts, waiters],
    args: [hold, lease_ms: u64, place_ms: u64, channel, for_ever: bool],
    uses: [HASH_KIND, KEPT, QUEUE, GRANT],
}

step! {
    KEEP_PLACES: KeepPlaces = fair.keep_places, grants: true,
    for_holders: true,
    keys: [lock, queue, timeouts, waiters],
    args: [holds, place_ms: u64, channel, for_ever: bool],
    uses: [QUEUE],
}

step! {
    RELEASE: Release = fair.release, grants: false,
    keys: [lock, queue, timeouts, waiters],
    args: [hold, channel, lease_ms: u64, own, served],
    uses: [QUEUE, GRANT],
}

step! {
    KEEP_FOR: KeepFor = fair.keep_for, grants: true,
    for_holders: true,
    keys: [lock, queue, timeouts, waiters],
    args: [hold, span_ms: u64, channel, served],
    uses: [KEPT, QUEUE],
}

step! {
    FORCE_UNLOCK: ForceUnlock = fair.force_unlock, grants: false,
    keys: [lock, queue, timeouts, waiters, marker],
    args: [channel, by],
    uses: [BREAK_HOLD, QUEUE],
}

step! {
    LIST_WAITERS: ListWaiters = fair.list_waiters, grants: false,
    keys: [queue, timeouts, waiters],
    args: [],
    uses: [QUEUE],
}

/// All steps, in the order of the script.
pub(crate) static ALL: [&Step; 6] = [
    &ACQUIRE,
    &KEEP_PLACES,
    &RELEASE,
    &KEEP_FOR,
    &FORCE_UNLOCK,
    &LIST_WAITERS,
];

/// The operations on one hold of a fair lock, or on a waiter's place in line.
pub(crate) struct FairHold {
    key: Key,
    channel: Arc<str>,
    /// The steps that a fair lock shares with a plain lock.
    plain: LockHold,
    settings: WaiterSettings,
    /// The ids of the waiters to which the hold was handed over, each after a space. They remain in
    /// line until the hold is released.
    served: Mutex<String>,
}

/// The settings of a waiter.
#[derive(Clone, Copy)]
pub(crate) struct WaiterSettings {
    /// The time for which the server keeps the place in line after each request; zero to take no
    /// place.
    pub(crate) place_time: Duration,
    /// Whether waiters of Redisson may be in the same line.
    pub(crate) with_redisson: bool,
}

impl FairHold {
    pub(crate) fn new(key: &Key, channel: Arc<str>, id: String, settings: WaiterSettings) -> Self {
        Self {
            key: key.clone(),
            plain: LockHold::new(key.clone(), Arc::clone(&channel), id),
            channel,
            settings,
            served: Mutex::default(),
        }
    }

    /// Builds the release of the hold. With a `lease`, the server grants the lock to the head of
    /// the line if that waiter belongs to the same client.
    fn released(&self, lease: Duration) -> Operation {
        self.released_by(self.wire_id(), lease, &self.served.lock())
    }

    /// Builds the request that releases the hold with this id, or gives up the place with this id.
    /// It also removes the places of the waiters in `served`.
    fn released_by(&self, id: &str, lease: Duration, served: &str) -> Operation {
        let own = id.rfind(':').map_or(id, |colon| &id[..=colon]);
        // The release of a plain lock would not be enough: it publishes on the channel of the name,
        // but each waiter of a fair lock subscribes to its own channel. The head would sleep until
        // its next poll.
        Release {
            lock: self.key.as_str().as_bytes(),
            queue: self.key.fair_queue().as_bytes(),
            timeouts: self.key.fair_timeouts().as_bytes(),
            waiters: self.key.fair_waiters().as_bytes(),
            hold: id.as_bytes(),
            channel: self.channel.as_bytes(),
            lease_ms: wire_ms(lease),
            own: own.as_bytes(),
            served: served.as_bytes(),
        }
        .operation()
    }
}

impl HoldSteps for FairHold {
    fn acquire(&self, lease: Duration) -> Operation {
        Acquire {
            lock: self.key.as_str().as_bytes(),
            queue: self.key.fair_queue().as_bytes(),
            timeouts: self.key.fair_timeouts().as_bytes(),
            waiters: self.key.fair_waiters().as_bytes(),
            hold: self.wire_id().as_bytes(),
            lease_ms: wire_ms(lease),
            place_ms: wire_ms(self.settings.place_time),
            channel: self.channel.as_bytes(),
            for_ever: self.settings.with_redisson,
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        self.plain.read_acquire(reply)
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        self.plain.renew(lease, most)
    }

    fn keep_for(&self, span: Duration) -> Option<Operation> {
        let served = self.served.lock();
        let keep = KeepFor {
            lock: self.key.as_str().as_bytes(),
            queue: self.key.fair_queue().as_bytes(),
            timeouts: self.key.fair_timeouts().as_bytes(),
            waiters: self.key.fair_waiters().as_bytes(),
            hold: self.wire_id().as_bytes(),
            span_ms: wire_ms(span),
            channel: self.channel.as_bytes(),
            served: served.as_bytes(),
        }
        .operation();
        Some(keep)
    }

    fn batch_renewal(&self) -> Option<BatchRenewal<'_>> {
        self.plain.batch_renewal()
    }

    fn queue_steps(&self) -> Option<&dyn QueueSteps> {
        Some(self)
    }

    fn release(&self) -> Operation {
        self.released(Duration::ZERO)
    }

    fn ends_within(&self, lease: Duration) -> Duration {
        // There may be no hold to release, only a place. A place keeps other waiters out for as
        // long as its waiter counts as alive, which may be longer than the lease.
        lease.max(self.settings.place_time)
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

impl QueueSteps for FairHold {
    fn waiter_timeout(&self) -> Duration {
        self.settings.place_time
    }

    fn keep_places(&self, ids: &str) -> Operation {
        KeepPlaces {
            lock: self.key.as_str().as_bytes(),
            queue: self.key.fair_queue().as_bytes(),
            timeouts: self.key.fair_timeouts().as_bytes(),
            waiters: self.key.fair_waiters().as_bytes(),
            holds: ids.as_bytes(),
            place_ms: wire_ms(self.settings.place_time),
            channel: self.channel.as_bytes(),
            for_ever: self.settings.with_redisson,
        }
        .operation()
    }

    fn release_to_next(&self, lease: Duration) -> Operation {
        self.released(lease)
    }

    fn read_next(&self, reply: Value) -> Option<Vec<String>> {
        let Value::List(ids) = reply else {
            return None;
        };
        let ids = ids.into_iter().map(|id| match id {
            Value::Text(id) => String::from_utf8(id).ok(),
            _ => None,
        });
        ids.collect()
    }

    fn of_waiter(&self, id: String) -> Box<dyn HoldSteps> {
        let channel = Arc::clone(&self.channel);
        Box::new(Self::new(&self.key, channel, id, self.settings))
    }

    fn note_handed_to(&self, id: &str) {
        if id != self.wire_id() {
            let mut served = self.served.lock();
            served.push(' ');
            served.push_str(id);
        }
    }

    fn leave_queue(&self) -> Option<Operation> {
        let served = std::mem::take(&mut *self.served.lock());
        let served = served.trim_start();
        let (first, others) = served.split_once(' ').unwrap_or((served, ""));
        (!first.is_empty()).then(|| self.released_by(first, Duration::ZERO, others))
    }
}

/// Builds the request that ends a hold, which may belong to another client. The head of the line is
/// only notified: if it were granted the lock, it would not learn of the grant.
pub(crate) fn release(key: &Key, hold: &str, channel: &str) -> Operation {
    let settings = WaiterSettings {
        place_time: Duration::ZERO,
        with_redisson: false,
    };
    FairHold::new(key, channel.into(), hold.to_owned(), settings).release()
}

pub(crate) fn force_unlock(key: &Key, channel: &str, by: &str) -> Operation {
    ForceUnlock {
        lock: key.as_str().as_bytes(),
        queue: key.fair_queue().as_bytes(),
        timeouts: key.fair_timeouts().as_bytes(),
        waiters: key.fair_waiters().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        channel: channel.as_bytes(),
        by: by.as_bytes(),
    }
    .operation()
}

pub(crate) fn list_waiters(key: &Key) -> Operation {
    ListWaiters {
        queue: key.fair_queue().as_bytes(),
        timeouts: key.fair_timeouts().as_bytes(),
        waiters: key.fair_waiters().as_bytes(),
    }
    .operation()
}
