//! The steps of the fair lock on the embedded keyspace: the twins of the steps in `fair.lua`.

use super::steps::{self, Acquire, ForceUnlock, KeepFor, KeepPlaces, Release};
use crate::backend::memory::Keyspace;
use crate::backend::step::{Refusal, Value};
use crate::primitives::lock::steps::{break_hold, plain};
use crate::primitives::twin::{can_be_renewed, keep_for_span, lengthen, to_int};

// Redisson's default allowance. At each grant, Redisson subtracts this time from the timeout of
// every waiter. So each of our waiters must add the same time, or two grants in a row would put its
// timeout into the past.
const ALLOWANCE_MS: i64 = 300_000;
const IDLE_EXPIRY_MS: u64 = 3_600_000;
/// The largest number of dead waiters that one step removes.
const BATCH: usize = 100;
/// The largest number of waiters to which a hold is handed over, one after the other.
const MOST_SUCCESSORS: usize = 64;

type TwinResult<T> = Result<T, Refusal>;

/// The line of a fair lock: the twin of the section `queue` of `fair.lua`.
struct FairQueue<'a> {
    keyspace: &'a mut Keyspace,
    queue: &'a [u8],
    timeouts: &'a [u8],
    waiters: &'a [u8],
    now: i64,
    free_at: i64,
}

impl<'a> FairQueue<'a> {
    /// Creates the line of a lock that has `ttl` left.
    fn at(keyspace: &'a mut Keyspace, [queue, timeouts, waiters]: [&'a [u8]; 3], ttl: i64) -> Self {
        let now = to_int(keyspace.now_ms());
        Self {
            keyspace,
            queue,
            timeouts,
            waiters,
            now,
            free_at: now + ttl.max(0),
        }
    }

    fn is_shared(&mut self) -> TwinResult<bool> {
        // `waiters` has only our waiters and the list has all of them, so their sizes differ while
        // one of Redisson's waiters is in line.
        Ok(self.keyspace.zcard(self.waiters)? != self.keyspace.llen(self.queue)?)
    }

    fn waits(&mut self, hold: &[u8]) -> TwinResult<bool> {
        Ok(self.keyspace.zscore(self.timeouts, hold)?.is_some())
    }

    fn set_last_timeout(&mut self) -> TwinResult<()> {
        if let Some(last) = self.keyspace.llast(self.queue)?
            && self.keyspace.zscore(self.waiters, &last)?.is_some()
        {
            let places = i64::try_from(self.keyspace.llen(self.queue)?).unwrap_or(i64::MAX);
            let timeout = self.free_at + ALLOWANCE_MS * places;
            self.keyspace.zadd(self.timeouts, &last, timeout)?;
        }
        Ok(())
    }

    fn remove_waiters(&mut self, gone: &[Vec<u8>]) -> TwinResult<()> {
        // Read the line before any waiter is removed: a waiter moves up by the number of removed
        // waiters that were before it. While all waiters are ours, the line is not read, and the
        // cost of a grant does not depend on the length of the line.
        let line = match self.is_shared()? {
            true => Some(self.keyspace.lrange(self.queue)?),
            false => None,
        };
        for waiter in gone {
            self.keyspace.zrem(self.timeouts, waiter)?;
            self.keyspace.zrem(self.waiters, waiter)?;
            if self.keyspace.lfirst(self.queue)?.as_ref() == Some(waiter) {
                self.keyspace.lpop(self.queue)?;
            } else {
                self.keyspace.lrem(self.queue, waiter)?;
            }
        }
        let Some(line) = line else {
            return self.set_last_timeout();
        };
        let mut taken = 0;
        for waiter in line {
            if gone.contains(&waiter) {
                // Subtract one allowance for each removed waiter, as in Redisson. With less, the
                // timeouts of the remaining waiters would still include allowances of removed
                // waiters.
                taken += ALLOWANCE_MS;
            } else if taken > 0
                && let Some(timeout) = self.keyspace.zscore(self.timeouts, &waiter)?
                && timeout > self.free_at
            {
                // The timeout must not be earlier than the end of the current hold. The waiter may
                // have waited longer than Redisson expects, because our waiters before it keep
                // their places by sending requests, and Redisson removes a waiter whose timeout has
                // passed.
                let timeout = (timeout - taken).max(self.free_at);
                self.keyspace.zadd(self.timeouts, &waiter, timeout)?;
            }
        }
        Ok(())
    }

    fn tidy(&mut self) -> TwinResult<Option<Vec<u8>>> {
        let gone = self
            .keyspace
            .zrange_by_score(self.waiters, self.now, BATCH)?;
        if !gone.is_empty() {
            self.remove_waiters(&gone)?;
        }
        while let Some(head) = self.keyspace.lfirst(self.queue)? {
            // Redisson's waiters are dead when their timeouts have passed, ours when they have not
            // sent a request in time. An entry of the list without a timeout is removed, because it
            // makes Redisson's scripts fail.
            if let Some(timeout) = self.keyspace.zscore(self.timeouts, &head)?
                && (timeout > self.now || self.keyspace.zscore(self.waiters, &head)?.is_some())
            {
                return Ok(Some(head));
            }
            self.keyspace.zrem(self.timeouts, &head)?;
            self.keyspace.zrem(self.waiters, &head)?;
            self.keyspace.lpop(self.queue)?;
        }
        // The line is empty. An entry that is only in the set of timeouts would make Redisson's
        // waiters wait forever.
        self.keyspace.del(self.timeouts);
        self.keyspace.del(self.waiters);
        Ok(None)
    }

    /// Keeps the places of these waiters, which are in line.
    fn refresh_places(&mut self, holds: &[&[u8]], place_ms: i64) -> TwinResult<()> {
        self.keyspace.pexpire(self.waiters, IDLE_EXPIRY_MS);
        for hold in holds {
            self.keyspace
                .zadd(self.waiters, hold, self.now + place_ms)?;
        }
        let last = self.keyspace.llast(self.queue)?;
        for hold in holds {
            if last.as_deref() == Some(*hold) && !self.is_shared()? {
                self.set_last_timeout()?;
                continue;
            }
            let timeout = self.keyspace.zscore(self.timeouts, hold)?;
            if timeout.is_some_and(|timeout| timeout < self.now + place_ms + ALLOWANCE_MS) {
                let timeout = self.free_at + place_ms + ALLOWANCE_MS;
                self.keyspace.zadd(self.timeouts, hold, timeout)?;
            }
        }
        Ok(())
    }

    fn join(&mut self, hold: &[u8], place_ms: i64) -> TwinResult<()> {
        let place = i64::try_from(self.keyspace.llen(self.queue)?).unwrap_or(i64::MAX) + 1;
        let mut timeout = self.free_at + ALLOWANCE_MS * place;
        if self.is_shared()? {
            let before = match self.keyspace.llast(self.queue)? {
                Some(last) => self.keyspace.zscore(self.timeouts, &last)?,
                None => None,
            };
            timeout = before.unwrap_or(0).max(self.free_at) + ALLOWANCE_MS;
        }
        self.keyspace.zadd(self.timeouts, hold, timeout)?;
        self.keyspace.rpush(self.queue, hold)?;
        self.keyspace
            .zadd(self.waiters, hold, self.now + place_ms)?;
        self.keyspace.pexpire(self.waiters, IDLE_EXPIRY_MS);
        Ok(())
    }

    /// Makes the line expire once its waiters send no more requests.
    fn expire_when_idle(&mut self) {
        self.keyspace.pexpire(self.queue, IDLE_EXPIRY_MS);
        self.keyspace.pexpire(self.timeouts, IDLE_EXPIRY_MS);
    }

    /// Returns for how many ms a free lock is reserved for the head of the line.
    fn head_time_left(&mut self, head: &[u8]) -> TwinResult<i64> {
        let until = match self.keyspace.zscore(self.waiters, head)? {
            Some(until) => Some(until),
            None => self.keyspace.zscore(self.timeouts, head)?,
        };
        Ok((until.unwrap_or(0) - self.now).max(0))
    }

    fn notify_head(&mut self, channel: &[u8], head: Option<&[u8]>) {
        if let Some(head) = head {
            self.keyspace.publish(&[channel, b":", head].concat(), b"0");
        }
    }
}

/// Checks the three keys. Returns an error if one of them is not part of a line, and also the
/// number of entries in all of them.
fn check_keys(
    keyspace: &mut Keyspace,
    [queue, timeouts, waiters]: [&[u8]; 3],
) -> (TwinResult<()>, usize) {
    let parts = [
        (keyspace.llen(queue), "queue", queue),
        (keyspace.zcard(timeouts), "set of timeouts", timeouts),
        (keyspace.zcard(waiters), "set of waiters", waiters),
    ];
    let mut all = 0;
    for (size, what, key) in parts {
        match size {
            Ok(size) => all += size,
            Err(_) => {
                let kind = keyspace.kind(key);
                return (
                    Err(Refusal(format!(
                        "WRONGKIND a lock whose {what} is a {kind}"
                    ))),
                    0,
                );
            }
        }
    }
    (Ok(()), all)
}

fn grant(keyspace: &mut Keyspace, lock: &[u8], hold: &[u8], lease_ms: u64) -> TwinResult<()> {
    keyspace.hset(lock, hold, b"1")?;
    keyspace.pexpire(lock, lease_ms);
    Ok(())
}

impl Acquire<'_> {
    pub(super) fn twin(self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        let keys = [self.queue, self.timeouts, self.waiters];
        let (line, in_line) = check_keys(keyspace, keys);
        let fields = keyspace.hlen(self.lock)?;
        // All requests from a waiter have the same id, so an earlier one may have been granted
        // without an answer. The holder counts its lease from the request that got the answer, so
        // the server must do so, too.
        if line.is_ok() && keyspace.hexists(self.lock, self.hold)? {
            if can_be_renewed(keyspace, self.lock, self.hold)? {
                lengthen(keyspace, self.lock, self.lease_ms);
            }
            return Ok(Value::Nil);
        }
        line?;
        if fields > 0 {
            plain(keyspace, self.lock)?;
        } else if in_line == 0 {
            return self.grant(keyspace);
        }
        let ttl = keyspace.pttl(self.lock);
        let mut line = FairQueue::at(keyspace, keys, ttl);
        // Do this before dead waiters are removed: this waiter has just sent a request, so it is
        // alive, even if the request is late.
        if self.place_ms > 0 && line.waits(self.hold)? {
            line.refresh_places(&[self.hold], to_int(self.place_ms))?;
        }
        let head = match in_line {
            0 => None,
            _ => line.tidy()?,
        };
        if fields == 0 && head.as_ref().is_none_or(|head| head == self.hold) {
            if head.is_some() {
                line.free_at = line.now + to_int(self.lease_ms);
                line.remove_waiters(&[self.hold.to_vec()])?;
            }
            return self.grant(keyspace);
        }
        if self.place_ms > 0 {
            self.take_place(&mut line)?;
        }
        let Some(head) = head.filter(|_| fields == 0) else {
            return Ok(Value::Int(ttl));
        };
        line.notify_head(self.channel, Some(&head));
        Ok(Value::Int(line.head_time_left(&head)?))
    }

    fn grant(&self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        grant(keyspace, self.lock, self.hold, self.lease_ms)?;
        Ok(Value::Nil)
    }

    fn take_place(&self, line: &mut FairQueue<'_>) -> TwinResult<()> {
        if !line.waits(self.hold)? {
            line.join(self.hold, to_int(self.place_ms))?;
        }
        if !self.for_ever {
            line.expire_when_idle();
        }
        Ok(())
    }
}

impl KeepPlaces<'_> {
    pub(super) fn twin(self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        let keys = [self.queue, self.timeouts, self.waiters];
        check_keys(keyspace, keys).0?;
        let ttl = keyspace.pttl(self.lock);
        let mut line = FairQueue::at(keyspace, keys, ttl);
        let holds = ids(self.holds);
        let (mut in_line, mut alone) = (Vec::new(), Vec::new());
        for (number, hold) in (1..).zip(&holds) {
            match line.waits(hold)? {
                true => in_line.push(hold.as_slice()),
                false => alone.push(number),
            }
        }
        if !in_line.is_empty() {
            line.refresh_places(&in_line, to_int(self.place_ms))?;
            if !self.for_ever {
                line.expire_when_idle();
            }
        }
        let mut left = ttl;
        if ttl == -2 {
            // The head might not have been notified: a lease may have ended, or the waiter before
            // the head may have given up. Dead waiters are not removed here: while a failover guard
            // lasts, a waiter's own request does not keep its place.
            let head = line.keyspace.lfirst(self.queue)?;
            left = match &head {
                Some(head) => line.head_time_left(head)?,
                None => 0,
            };
            // If an id is in `holds` twice, the last one counts: the waiter has left the batch and
            // joined it again.
            let is_head = |hold: &Vec<u8>| Some(hold) == head.as_ref();
            let number = (1..).zip(&holds).filter(|(_, hold)| is_head(hold)).last();
            match number.filter(|(number, _)| !alone.contains(number)) {
                Some((number, _)) => alone.push(number),
                None => line.notify_head(self.channel, head.as_deref()),
            }
        }
        let numbers = std::iter::once(left).chain(alone);
        Ok(Value::List(numbers.map(Value::Int).collect()))
    }
}

impl Release<'_> {
    pub(super) fn twin(self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        let keys = [self.queue, self.timeouts, self.waiters];
        let (line, in_line) = check_keys(keyspace, keys);
        line?;
        let released = keyspace.hdel(self.lock, self.hold)?;
        let reply = Ok(Value::Int(released.into()));
        if in_line == 0 {
            return reply;
        }
        let ttl = keyspace.pttl(self.lock);
        let mut line = FairQueue::at(keyspace, keys, ttl);
        let mut gone = ids(self.served);
        if line.waits(self.hold)? || line.keyspace.zscore(self.waiters, self.hold)?.is_some() {
            gone.push(self.hold.to_vec());
        }
        if !gone.is_empty() {
            line.remove_waiters(&gone)?;
        }
        let head = line.tidy()?;
        if ttl != -2 {
            return reply;
        }
        let granted = head
            .clone()
            .filter(|_| released && self.lease_ms > 0)
            .filter(|head| head.starts_with(self.own));
        let Some(next) = granted else {
            // The lock is free, so the head is notified. `hold` may have been only a place at the
            // head of the line that its waiter gave up. Without this message, the new head might
            // learn of the free lock only when another client sends a request.
            line.notify_head(self.channel, head.as_deref());
            return reply;
        };
        line.free_at = line.now + to_int(self.lease_ms);
        line.remove_waiters(std::slice::from_ref(&next))?;
        grant(line.keyspace, self.lock, &next, self.lease_ms)?;
        let behind = line
            .keyspace
            .lrange(self.queue)?
            .into_iter()
            .take(MOST_SUCCESSORS - 1);
        let behind = behind.take_while(|waiter| waiter.starts_with(self.own));
        Ok(Value::List(
            std::iter::once(next)
                .chain(behind)
                .map(Value::Text)
                .collect(),
        ))
    }
}

/// Splits a string of ids, which are separated by spaces.
fn ids(text: &[u8]) -> Vec<Vec<u8>> {
    let ids = text.split(u8::is_ascii_whitespace);
    let ids = ids.filter(|id| !id.is_empty());
    ids.map(<[u8]>::to_vec).collect()
}

impl KeepFor<'_> {
    pub(super) fn twin(self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        let keys = [self.queue, self.timeouts, self.waiters];
        let (line, in_line) = check_keys(keyspace, keys);
        line?;
        if !keyspace.hexists(self.lock, self.hold)? {
            return Ok(Value::Int(0));
        }
        let is_sooner = keep_for_span(self.span_ms, keyspace, self.lock, self.hold)?;
        if in_line > 0 {
            let mut line = FairQueue::at(keyspace, keys, to_int(self.span_ms));
            let gone = ids(self.served);
            if !gone.is_empty() {
                line.remove_waiters(&gone)?;
            }
            let head = line.tidy()?.filter(|_| is_sooner);
            line.notify_head(self.channel, head.as_deref());
        }
        Ok(Value::Int(1))
    }
}

impl ForceUnlock<'_> {
    pub(super) fn twin(self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        let keys = [self.queue, self.timeouts, self.waiters];
        let (line, in_line) = check_keys(keyspace, keys);
        line?;
        let broken = break_hold(keyspace, self.lock, self.marker, self.by)?;
        if broken && in_line > 0 {
            let mut line = FairQueue::at(keyspace, keys, 0);
            let head = line.tidy()?;
            line.notify_head(self.channel, head.as_deref());
        }
        Ok(Value::Int(broken.into()))
    }
}

impl steps::ListWaiters<'_> {
    pub(super) fn twin(self, keyspace: &mut Keyspace) -> TwinResult<Value> {
        let keys = [self.queue, self.timeouts, self.waiters];
        let (line, in_line) = check_keys(keyspace, keys);
        line?;
        let mut alive = Vec::new();
        if in_line > 0 {
            let line = FairQueue::at(keyspace, keys, 0);
            for waiter in line.keyspace.lrange(self.queue)? {
                let until = line.keyspace.zscore(self.waiters, &waiter)?;
                if until.is_none_or(|until| until > line.now) {
                    alive.push(Value::Text(waiter));
                }
            }
        }
        Ok(Value::List(alive))
    }
}
