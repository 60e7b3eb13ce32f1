//! The operations on one hold of either side.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::steps;
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::config::wire_ms;
use crate::hold::{AcquireReply, HoldSteps, WaitingClient};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::lock::steps as lock;

/// The side of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

impl Side {
    /// Returns the `mode` of this side in the hash.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The end of a write hold's field, as in Redisson.
// The scripts recognise every writer by this ending, also a thread of Redisson that writes.
const WRITE: &str = ":write";

/// The operations on one read hold.
pub(super) struct ReadHold {
    key: Key,
    channel: Arc<str>,
    /// The id `uuid:n`.
    id: String,
    options: ReadOptions,
}

/// The parts of a read hold's acquire that depend on its waiter.
#[derive(Debug, Default)]
pub(super) struct ReadOptions {
    /// The field of the write hold of the same owner.
    pub(super) inside: Option<String>,
    pub(super) yields: Yield,
    /// The waiter, once it has waited long enough to make a reservation.
    pub(super) waiter: Option<Arc<RwWaiter>>,
}

/// The longest time after which a reader sends its next request if it has left a free lock to a
/// writer.
// The same value as in `rw.lua`.
const FREE_LOCK_PAUSE_MS: i64 = 50;

/// The behaviour of a reader while one of our writers waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Yield {
    #[default]
    No,
    Yes,
    /// The reader stays out, but makes a reservation even while the lock is free, because quicker
    /// writers have been overtaking it for some time.
    Last,
}

impl Yield {
    fn argument(self) -> u64 {
        match self {
            Self::No => 0,
            Self::Yes => 1,
            Self::Last => 2,
        }
    }
}

impl ReadHold {
    pub(super) fn new(key: Key, channel: Arc<str>, id: String, options: ReadOptions) -> Self {
        Self {
            key,
            channel,
            id,
            options,
        }
    }

    fn timeout(&self) -> String {
        self.key.read_timeout(&self.id)
    }

    /// Builds the request that downgrades the write hold `write` to this read hold. Its reply is 1,
    /// or 0 if the write hold does not exist.
    pub(super) fn downgrade(&self, write: &str, lease: Duration) -> Operation {
        steps::Downgrade {
            lock: self.key.as_str().as_bytes(),
            // The key of the new read hold is made in the step that removes the write hold: with
            // two steps, a writer could enter in between.
            timeout: self.timeout().as_bytes(),
            hold: write.as_bytes(),
            read: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            channel: self.channel.as_bytes(),
        }
        .operation()
    }
}

impl HoldSteps for ReadHold {
    fn acquire(&self, lease: Duration) -> Operation {
        let ReadOptions {
            inside,
            yields,
            waiter,
        } = &self.options;
        // Only a reader that has waited for `YIELDS_FOR` has a waiter here: if all waiting readers
        // made reservations, writers would lose the priority that `prefer_writers` gives them.
        let (waiter, reservation) = waiter
            .as_ref()
            .map_or(("", Duration::ZERO), RwWaiter::reserve);
        steps::AcquireRead {
            lock: self.key.as_str().as_bytes(),
            timeout: self.timeout().as_bytes(),
            writers: self.key.waiting_writers().as_bytes(),
            readers: self.key.waiting_readers().as_bytes(),
            hold: self.id.as_bytes(),
            inside: inside.as_deref().unwrap_or_default().as_bytes(),
            lease_ms: wire_ms(lease),
            yields: yields.argument(),
            waiter: waiter.as_bytes(),
            reserve_ms: wire_ms(reservation),
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        let asked = lock::read_acquire_reply(&reply);
        if let (Some(AcquireReply::Busy { ttl_ms, .. }), Some(waiter)) =
            (&asked, &self.options.waiter)
            && *ttl_ms <= FREE_LOCK_PAUSE_MS
        {
            waiter.has_yielded.store(true, Ordering::Relaxed);
        }
        asked
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        steps::RenewRead {
            lock: self.key.as_str().as_bytes(),
            timeout: self.timeout().as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            most_ms: wire_ms(most.unwrap_or_default()),
        }
        .operation()
    }

    fn release(&self) -> Operation {
        release_read(&self.key, &self.id, &self.channel)
    }

    fn why_lost(&self) -> Operation {
        why_lost(&self.key, &self.id)
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        read_why_lost(&reply)
    }

    fn wire_id(&self) -> &str {
        &self.id
    }

    fn unfenced(&self) -> Option<&'static str> {
        Some(
            "several readers can hold the lock at a time, so a token could not order them; \
             acquire the write lock to get one",
        )
    }
}

/// The operations on one write hold.
pub(super) struct WriteHold {
    key: Key,
    channel: Arc<str>,
    /// The id `uuid:n:write`.
    id: String,
    intent: WriteIntent,
    /// Whether a read hold has taken the id `uuid:n`.
    number_taken: AtomicBool,
}

/// The way in which a write hold is acquired.
#[derive(Clone, Debug)]
pub(super) enum WriteIntent {
    /// The acquire sends one request.
    Once,
    /// The acquire makes a reservation if it must wait.
    Waiting(Arc<RwWaiter>),
    /// The acquire is an upgrade by the holder of the read hold `read`.
    Upgrade { read: Arc<str> },
}

/// A waiter, and the reservation that it may have made.
#[derive(Debug)]
pub(super) struct RwWaiter {
    id: String,
    reservation: Duration,
    reserved: AtomicBool,
    /// Whether this reader has left a free lock to a writer.
    has_yielded: AtomicBool,
    yielding_since: OnceLock<Moment>,
}

impl RwWaiter {
    pub(super) fn new(id: String, reservation: Duration) -> Arc<Self> {
        Arc::new(Self {
            id,
            reservation,
            reserved: AtomicBool::new(false),
            has_yielded: AtomicBool::new(false),
            yielding_since: OnceLock::new(),
        })
    }

    /// Returns the time since which this reader has been leaving a free lock to writers; `None` if
    /// it never has. The first call after the reader has yielded records `now` as this time.
    pub(super) fn yielding_since(&self, now: Moment) -> Option<Moment> {
        let has_yielded = self.has_yielded.load(Ordering::Relaxed);
        has_yielded.then(|| *self.yielding_since.get_or_init(|| now))
    }

    /// Returns the id and the duration of the reservation that the waiter requests.
    fn reserve(self: &Arc<Self>) -> (&str, Duration) {
        // Note this before the request is sent: if its answer is lost, the reservation may exist
        // and must be withdrawn.
        self.reserved.store(true, Ordering::Relaxed);
        (&self.id, self.reservation)
    }

    /// Returns the id of the reservation that the waiter may have made.
    pub(super) fn reserved(&self) -> Option<&str> {
        self.reserved.load(Ordering::Relaxed).then_some(&self.id)
    }

    /// Notes that the waiter got the lock, and that the grant removed its reservation.
    pub(super) fn granted(&self) {
        self.reserved.store(false, Ordering::Relaxed);
    }
}

impl WriteHold {
    pub(super) fn new(key: Key, channel: Arc<str>, number: &str, intent: WriteIntent) -> Self {
        Self {
            key,
            channel,
            id: format!("{number}{WRITE}"),
            intent,
            number_taken: AtomicBool::new(false),
        }
    }
}

impl WriteHold {
    /// Builds the request for the hold. With a `client`, the request also adds this client to the
    /// list of clients to notify of a release.
    fn acquire_with(&self, lease: Duration, client: Option<WaitingClient>) -> Operation {
        let (waiter, reservation) = match &self.intent {
            WriteIntent::Upgrade { read } => {
                // An upgrade has its own step, which makes no reservation. The upgrade sends only
                // one request: two readers that waited for each other's release would wait forever.
                let upgrade = steps::Upgrade {
                    lock: self.key.as_str().as_bytes(),
                    hold: self.id.as_bytes(),
                    read: read.as_bytes(),
                    lease_ms: wire_ms(lease),
                };
                return upgrade.operation();
            }
            WriteIntent::Once => ("", Duration::ZERO),
            WriteIntent::Waiting(waiter) => waiter.reserve(),
        };
        steps::AcquireWrite {
            lock: self.key.as_str().as_bytes(),
            writers: self.key.waiting_writers().as_bytes(),
            readers: self.key.waiting_readers().as_bytes(),
            asking: self.key.waiting_clients().as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            waiter: waiter.as_bytes(),
            reserve_ms: wire_ms(reservation),
            client: WaitingClient::list_item_or_empty(client, 1).as_bytes(),
            notified: client.is_some_and(|client| client.was_notified),
        }
        .operation()
    }
}

impl HoldSteps for WriteHold {
    fn acquire(&self, lease: Duration) -> Operation {
        self.acquire_with(lease, None)
    }

    fn acquire_and_enlist(&self, lease: Duration, client: WaitingClient) -> Option<Operation> {
        let waits = !matches!(self.intent, WriteIntent::Upgrade { .. });
        waits.then(|| self.acquire_with(lease, Some(client)))
    }

    fn delist(&self, client: WaitingClient) -> Option<Operation> {
        Some(lock::delist(&self.key, client))
    }

    fn read_acquire(&self, reply: Value) -> Option<AcquireReply> {
        lock::read_acquire_reply(&reply)
    }

    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation {
        steps::RenewWrite {
            lock: self.key.as_str().as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            most_ms: wire_ms(most.unwrap_or_default()),
        }
        .operation()
    }

    fn keep_for(&self, span: Duration) -> Option<Operation> {
        let keep = steps::KeepWrite {
            lock: self.key.as_str().as_bytes(),
            hold: self.id.as_bytes(),
            span_ms: wire_ms(span),
            channel: self.channel.as_bytes(),
        };
        Some(keep.operation())
    }

    fn release(&self) -> Operation {
        release_write(&self.key, &self.id, &self.channel)
    }

    fn counted_channel(&self) -> Option<&str> {
        Some(&self.channel)
    }

    fn why_lost(&self) -> Operation {
        why_lost(&self.key, &self.id)
    }

    fn read_why_lost(&self, reply: Value) -> Option<LossReason> {
        read_why_lost(&reply)
    }

    fn wire_id(&self) -> &str {
        &self.id
    }

    fn take_read_id(&self) -> Option<String> {
        // Only the first read hold gets the number. After the release of that hold, a late copy of
        // its request must not be mistaken for a request of the next read hold.
        let number = self.id.strip_suffix(WRITE)?;
        (!self.number_taken.swap(true, Ordering::Relaxed)).then(|| number.to_owned())
    }
}

/// Builds the request that ends the hold with the id `hold`, on either side.
pub(crate) fn release(key: &Key, hold: &str) -> Operation {
    let channel = key.rw_channel();
    // `:write` need not be at the end: inside a transaction, Redisson appends the id of the
    // transaction.
    match hold.contains(WRITE) {
        true => release_write(key, hold, &channel),
        false => release_read(key, hold, &channel),
    }
}

fn release_read(key: &Key, hold: &str, channel: &str) -> Operation {
    steps::ReleaseRead {
        lock: key.as_str().as_bytes(),
        timeout: key.read_timeout(hold).as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        hold: hold.as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

fn release_write(key: &Key, hold: &str, channel: &str) -> Operation {
    steps::ReleaseWrite {
        lock: key.as_str().as_bytes(),
        asking: key.waiting_clients().as_bytes(),
        hold: hold.as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

fn why_lost(key: &Key, id: &str) -> Operation {
    steps::WhyLost {
        lock: key.as_str().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        hold: id.as_bytes(),
    }
    .operation()
}

fn read_why_lost(reply: &Value) -> Option<LossReason> {
    let Value::List(items) = reply else {
        return None;
    };
    match &items[..] {
        [_, Value::Text(note)] => Some(LossReason::forced(note)),
        [Value::Text(holder), _] if !holder.is_empty() => Some(LossReason::Taken {
            by: String::from_utf8_lossy(holder).into_owned(),
        }),
        _ => None,
    }
}

/// Builds the request that withdraws the reservation of a waiter that no longer waits.
pub(super) fn withdraw(reservations: &str, waiter: &str, channel: &str) -> Operation {
    steps::Withdraw {
        reservations: reservations.as_bytes(),
        waiter: waiter.as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

pub(super) fn inspect(key: &Key, side: Side) -> Operation {
    steps::Inspect {
        lock: key.as_str().as_bytes(),
        side: side.name().as_bytes(),
    }
    .operation()
}

pub(super) fn force_unlock(key: &Key, side: Side, channel: &str, by: &str) -> Operation {
    steps::ForceUnlock {
        lock: key.as_str().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        side: side.name().as_bytes(),
        channel: channel.as_bytes(),
        by: by.as_bytes(),
    }
    .operation()
}
