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

/// The end of a write hold's field, as Redisson has it.
// By this ending the scripts tell a writer from readers, and a thread of Redisson that writes is
// known by it as well.
const WRITE: &str = ":write";

/// The operations on one read hold.
pub(super) struct ReadHold {
    key: Key,
    channel: Arc<str>,
    /// `uuid:n`.
    id: String,
    ask: ReadAsk,
}

/// How a read hold is asked for.
#[derive(Debug, Default)]
pub(super) struct ReadAsk {
    /// The field of the write hold that the same owner has.
    pub(super) within: Option<String>,
    pub(super) polite: Polite,
    /// The waiter, which leaves a mark, once it has waited for long.
    pub(super) waiter: Option<Arc<Waiter>>,
}

/// The longest time after which an overdue reader asks again that has left a free lock to a writer.
// As in `acquire_read.lua`.
const LEFT_FREE_FOR_MS: i64 = 50;

/// Whether a reader stays out while one of our writers waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Polite {
    #[default]
    No,
    Yes,
    /// It stays out, and leaves its mark even while the lock is free: others were quicker for long.
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

    /// Turns the write hold `write` into this read hold. Replies 1, or 0 when the write hold is not
    /// there.
    pub(super) fn downgrade(&self, write: &str, lease: Duration) -> Operation {
        steps::Downgrade {
            lock: self.key.as_str().as_bytes(),
            // The key of the new read hold, made in the same step that removes the write hold:
            // between two steps a writer could come in.
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
        // Only an overdue reader has a waiter here: marks of all readers that wait would take from
        // the writers what `prefer_writers` gives them.
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
            "many read at a time, and no number says which of them was last; \
             take the write side for one",
        )
    }
}

/// The operations on one write hold.
pub(super) struct WriteHold {
    key: Key,
    channel: Arc<str>,
    /// `uuid:n:write`.
    id: String,
    ask: WriteAsk,
    /// Whether a read hold has taken `uuid:n`.
    number_taken: AtomicBool,
}

/// How a write hold is asked for.
#[derive(Clone, Debug)]
pub(super) enum WriteAsk {
    /// Now or not at all.
    Once,
    /// With a mark, if it has to wait.
    Waiting(Arc<Waiter>),
    /// As an upgrade, by the holder of this read hold.
    Upgrade { read: Arc<str> },
}

/// A waiter, and the mark that it may have left.
#[derive(Debug)]
pub(super) struct Waiter {
    id: String,
    mark: Duration,
    marked: AtomicBool,
    /// For a reader: it has left a free lock to a writer.
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

    /// Since when this reader leaves a free lock to writers; `None` until it has done so.
    pub(super) fn passed_since(&self, now: Moment) -> Option<Moment> {
        let was_passed = self.was_passed.load(Ordering::Relaxed);
        was_passed.then(|| *self.passed_since.get_or_init(|| now))
    }

    /// The id and the duration of the mark that it asks for.
    fn mark(self: &Arc<Self>) -> (&str, Duration) {
        // Noted before the request leaves: if its answer is lost, the mark may still be there and
        // has to be taken back.
        self.marked.store(true, Ordering::Relaxed);
        (&self.id, self.mark)
    }

    /// The id of the mark that it may have left.
    pub(super) fn marked(&self) -> Option<&str> {
        self.marked.load(Ordering::Relaxed).then_some(&self.id)
    }

    /// The waiter has what it waited for, and the grant took the mark back.
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
    /// Asks for the hold, and for a call if `client` is one that a release may call.
    fn asks(&self, lease: Duration, client: Option<Caller>) -> Operation {
        let (waiter, mark) = match &self.ask {
            WriteAsk::Upgrade { read } => {
                // A step of its own, without a mark: it is asked once. Two readers that waited for
                // each other to leave would wait for ever.
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
        // The number goes to the first read hold only. Once that is released, a late copy of its
        // request must not pass for one of the next read hold.
        let number = self.id.strip_suffix(WRITE)?;
        (!self.number_taken.swap(true, Ordering::Relaxed)).then(|| number.to_owned())
    }
}

/// Ends this hold, of whichever side it is.
pub(in crate::primitives) fn release(key: &Key, hold: &str) -> Operation {
    let channel = key.rw_channel();
    // Not only at the end: inside a transaction, Redisson puts the id of the transaction behind it.
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

/// Takes back the mark of a waiter that waits no more.
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
