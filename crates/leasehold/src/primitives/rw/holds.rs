//! The operations on one hold of either side.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::kind::Side;
use super::steps;
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::config::wire_ms;
use crate::hold::{Asked, Caller, HoldSteps};
use crate::key::Key;
use crate::loss::LossReason;
use crate::primitives::lock::steps as lock;

/// The end of a write hold's field, as in Redisson.
// The scripts recognise a writer by this ending, including a thread of Redisson that writes.
const WRITE: &str = ":write";

/// The operations on one read hold.
pub(super) struct ReadHold {
    key: Key,
    channel: Arc<str>,
    /// The id `uuid:n`.
    id: String,
    ask: ReadAsk,
}

/// The parts of a read hold's acquire that depend on its waiter.
#[derive(Debug, Default)]
pub(super) struct ReadAsk {
    /// The field of the write hold of the same owner.
    pub(super) within: Option<String>,
    pub(super) polite: Polite,
    /// The waiter, once it has waited for long. It leaves a mark.
    pub(super) waiter: Option<Arc<Waiter>>,
}

/// The longest pause after which an overdue reader asks again if it has left a free lock to a
/// writer.
// As in `acquire_read.lua`.
const LEFT_FREE_FOR_MS: i64 = 50;

/// The behaviour of a reader while one of our writers waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Polite {
    #[default]
    No,
    Yes,
    /// The reader stays out, and leaves its mark even while the lock is free, because writers have
    /// been quicker for long.
    ForTheLastTime,
}

impl Polite {
    fn argument(self) -> u64 {
        match self {
            Self::No => 0,
            Self::Yes => 1,
            Self::ForTheLastTime => 2,
        }
    }
}

impl ReadHold {
    pub(super) fn new(key: Key, channel: Arc<str>, id: String, ask: ReadAsk) -> Self {
        Self {
            key,
            channel,
            id,
            ask,
        }
    }

    fn timeout(&self) -> String {
        self.key.read_timeout(&self.id)
    }

    /// Turns the write hold `write` into this read hold. Replies 1, or 0 when the write hold does
    /// not exist.
    pub(super) fn downgrade(&self, write: &str, lease: Duration) -> Operation {
        steps::Downgrade {
            lock: self.key.as_str().as_bytes(),
            // The key of the new read hold is made in the step that removes the write hold: between
            // two steps a writer could enter.
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
        let ReadAsk {
            within,
            polite,
            waiter,
        } = &self.ask;
        // Only an overdue reader has a waiter here: if all waiting readers left marks, they would
        // take away the priority that `prefer_writers` gives to writers.
        let (waiter, mark) = waiter.as_ref().map_or(("", Duration::ZERO), Waiter::mark);
        steps::AcquireRead {
            lock: self.key.as_str().as_bytes(),
            timeout: self.timeout().as_bytes(),
            writers: self.key.waiting_writers().as_bytes(),
            readers: self.key.waiting_readers().as_bytes(),
            hold: self.id.as_bytes(),
            within: within.as_deref().unwrap_or_default().as_bytes(),
            lease_ms: wire_ms(lease),
            polite: polite.argument(),
            waiter: waiter.as_bytes(),
            mark_ms: wire_ms(mark),
        }
        .operation()
    }

    fn read_acquire(&self, reply: Value) -> Option<Asked> {
        let asked = lock::asked(&reply);
        if let (Some(Asked::Busy { ttl_ms, .. }), Some(waiter)) = (&asked, &self.ask.waiter)
            && *ttl_ms <= LEFT_FREE_FOR_MS
        {
            waiter.was_passed.store(true, Ordering::Relaxed);
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
    ask: WriteAsk,
    /// Whether a read hold has taken `uuid:n`.
    number_taken: AtomicBool,
}

/// The way in which a write hold is acquired.
#[derive(Clone, Debug)]
pub(super) enum WriteAsk {
    /// The acquire asks once.
    Once,
    /// The acquire leaves a mark if it must wait.
    Waiting(Arc<Waiter>),
    /// The acquire is an upgrade by the holder of the read hold `read`.
    Upgrade { read: Arc<str> },
}

/// A waiter, and the mark that it may have left.
#[derive(Debug)]
pub(super) struct Waiter {
    id: String,
    mark: Duration,
    marked: AtomicBool,
    /// Whether this reader has left a free lock to a writer.
    was_passed: AtomicBool,
    passed_since: OnceLock<Moment>,
}

impl Waiter {
    pub(super) fn new(id: String, mark: Duration) -> Arc<Self> {
        Arc::new(Self {
            id,
            mark,
            marked: AtomicBool::new(false),
            was_passed: AtomicBool::new(false),
            passed_since: OnceLock::new(),
        })
    }

    /// Returns the time since which this reader leaves a free lock to writers; `None` if it never
    /// has. The first call after that sets the time to `now`.
    pub(super) fn passed_since(&self, now: Moment) -> Option<Moment> {
        let was_passed = self.was_passed.load(Ordering::Relaxed);
        was_passed.then(|| *self.passed_since.get_or_init(|| now))
    }

    /// Returns the id and the duration of the mark that the waiter asks for.
    fn mark(self: &Arc<Self>) -> (&str, Duration) {
        // Noted before the request is sent: if its answer is lost, the mark may exist and must be
        // withdrawn.
        self.marked.store(true, Ordering::Relaxed);
        (&self.id, self.mark)
    }

    /// Returns the id of the mark that the waiter may have left.
    pub(super) fn marked(&self) -> Option<&str> {
        self.marked.load(Ordering::Relaxed).then_some(&self.id)
    }

    /// Notes that the waiter got the lock, and that the grant removed its mark.
    pub(super) fn served(&self) {
        self.marked.store(false, Ordering::Relaxed);
    }
}

impl WriteHold {
    pub(super) fn new(key: Key, channel: Arc<str>, number: &str, ask: WriteAsk) -> Self {
        Self {
            key,
            channel,
            id: format!("{number}{WRITE}"),
            ask,
            number_taken: AtomicBool::new(false),
        }
    }
}

impl WriteHold {
    /// Asks for the hold. With a `client`, also asks that releases call this client.
    fn asks(&self, lease: Duration, client: Option<Caller>) -> Operation {
        let (waiter, mark) = match &self.ask {
            WriteAsk::Upgrade { read } => {
                // An upgrade has a step of its own, without a mark, and asks once. Two readers that
                // waited for each other to leave would wait for ever.
                let upgrade = steps::Upgrade {
                    lock: self.key.as_str().as_bytes(),
                    hold: self.id.as_bytes(),
                    read: read.as_bytes(),
                    lease_ms: wire_ms(lease),
                };
                return upgrade.operation();
            }
            WriteAsk::Once => ("", Duration::ZERO),
            WriteAsk::Waiting(waiter) => waiter.mark(),
        };
        steps::AcquireWrite {
            lock: self.key.as_str().as_bytes(),
            writers: self.key.waiting_writers().as_bytes(),
            readers: self.key.waiting_readers().as_bytes(),
            asking: self.key.asking_clients().as_bytes(),
            hold: self.id.as_bytes(),
            lease_ms: wire_ms(lease),
            waiter: waiter.as_bytes(),
            mark_ms: wire_ms(mark),
            client: Caller::waits_or_not(client, 1).as_bytes(),
            called: client.is_some_and(|client| client.was_called),
        }
        .operation()
    }
}

impl HoldSteps for WriteHold {
    fn acquire(&self, lease: Duration) -> Operation {
        self.asks(lease, None)
    }

    fn acquire_in_turn(&self, lease: Duration, client: Caller) -> Option<Operation> {
        let waits = !matches!(self.ask, WriteAsk::Upgrade { .. });
        waits.then(|| self.asks(lease, Some(client)))
    }

    fn leave_turn(&self, client: Caller) -> Option<Operation> {
        Some(lock::leave_turn(&self.key, client))
    }

    fn read_acquire(&self, reply: Value) -> Option<Asked> {
        lock::asked(&reply)
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
        // Only the first read hold gets the number. After its release, a late copy of its request
        // must not be mistaken for a request of the next read hold.
        let number = self.id.strip_suffix(WRITE)?;
        (!self.number_taken.swap(true, Ordering::Relaxed)).then(|| number.to_owned())
    }
}

/// Ends the hold with this id, of either side.
pub(in crate::primitives) fn release(key: &Key, hold: &str) -> Operation {
    let channel = key.rw_channel();
    // The ending need not be at the end: inside a transaction, Redisson appends the id of the
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
        asking: key.asking_clients().as_bytes(),
        hold: hold.as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}

fn release_write(key: &Key, hold: &str, channel: &str) -> Operation {
    steps::ReleaseWrite {
        lock: key.as_str().as_bytes(),
        asking: key.asking_clients().as_bytes(),
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
        [_, Value::Int(1)] => Some(LossReason::Forced),
        [Value::Text(holder), _] if !holder.is_empty() => Some(LossReason::Taken {
            by: String::from_utf8_lossy(holder).into_owned(),
        }),
        _ => None,
    }
}

/// Withdraws the mark of a waiter that no longer waits.
pub(super) fn withdraw(marks: &str, waiter: &str, channel: &str) -> Operation {
    steps::Withdraw {
        marks: marks.as_bytes(),
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

pub(super) fn force_unlock(key: &Key, side: Side, channel: &str) -> Operation {
    steps::ForceUnlock {
        lock: key.as_str().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        side: side.name().as_bytes(),
        channel: channel.as_bytes(),
    }
    .operation()
}
