//! The calls a thread of a Redisson client can make.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{ANSWER_LIMIT, Answer, HammerReport, Pending, fields, jvm::Jvm, millis};

/// Which of Redisson's locks a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// `getLock`: re-entrant, woken by messages.
    Plain,
    /// `getSpinLock`: asks again and again.
    Spin,
    /// `getFairLock`: first come, first served.
    Fair,
    /// `getFencedLock`: with tokens. Not in 3.16.8.
    Fenced,
    /// `getReadWriteLock(..).readLock()`.
    Read,
    /// `getReadWriteLock(..).writeLock()`.
    Write,
    /// `getMultiLock(locks...)`: the name is `a,b`, or `client/a,other/a`.
    Multi,
    /// `RedissonRedLock`: names as for [`LockKind::Multi`].
    Red,
    /// `getMultiLock(group, values)`, which 3.16.8 has not: the name is `group/a,b`.
    Group,
}

impl LockKind {
    fn wire_name(self) -> &'static str {
        match self {
            Self::Plain => "lock",
            Self::Spin => "spin",
            Self::Fair => "fair",
            Self::Fenced => "fenced",
            Self::Read => "read",
            Self::Write => "write",
            Self::Multi => "multi",
            Self::Red => "red",
            Self::Group => "group",
        }
    }
}

/// One Java thread of a Redisson client: one holder.
///
/// Every call exists twice: `start_..` sends it and comes back at once, the other waits up to a
/// minute for the answer. Calls of one thread run in the order they were sent.
#[derive(Clone, Debug)]
pub struct RedissonThread {
    jvm: Arc<Jvm>,
    client: String,
    thread: String,
    kind: LockKind,
    shares: bool,
}

impl RedissonThread {
    pub(super) fn new(jvm: Arc<Jvm>, client: &str, thread: &str) -> Self {
        Self {
            jvm,
            client: client.to_owned(),
            thread: thread.to_owned(),
            kind: LockKind::Plain,
            shares: false,
        }
    }

    /// The same Java thread, whose names stand for this kind of lock. Default
    /// [`LockKind::Plain`].
    #[must_use = "the thread it is called on stays as it is"]
    pub fn kind(&self, kind: LockKind) -> Self {
        Self {
            kind,
            ..self.clone()
        }
    }

    /// The same Java thread, which uses one Java object for a name, together with all threads of
    /// its client that do so too. Default: each call has an object of its own.
    #[must_use = "the thread it is called on stays as it is"]
    pub fn shared(&self) -> Self {
        Self {
            shares: true,
            ..self.clone()
        }
    }

    /// Interrupts this thread in the call that it is in.
    ///
    /// # Errors
    ///
    /// When it has not made a call yet.
    pub fn interrupt(&self) -> Answer<()> {
        self.start_call("interrupt", json!({})).wait(ANSWER_LIMIT)
    }

    /// Sends any operation of the driver on the lock `name`, for those without a method here.
    ///
    /// # Panics
    ///
    /// When `request` is not an object.
    pub fn start_on<T: DeserializeOwned>(
        &self,
        op: &str,
        name: &str,
        request: Value,
    ) -> Pending<T> {
        self.start_with(op, name, request)
    }

    /// Sends any operation of the driver, for those without a method here.
    ///
    /// # Panics
    ///
    /// When `request` is not an object.
    pub fn start_call<T: DeserializeOwned>(&self, op: &str, request: Value) -> Pending<T> {
        let mut request: Map<String, Value> = fields(request);
        request.insert("client".to_owned(), self.client.as_str().into());
        request.insert("thread".to_owned(), self.thread.as_str().into());
        self.jvm.send(op, request)
    }

    /// `Thread.getId()`: the second half of the holder id.
    ///
    /// # Errors
    ///
    /// When there is no such client.
    pub fn thread_id(&self) -> Answer<u64> {
        self.start_call("thread_id", json!({})).wait(ANSWER_LIMIT)
    }

    /// Whether the thread sleeps until a message wakes it: from then on a release can't be
    /// missed. Until then some can: Redisson counts the sleepers when "wake all" comes.
    ///
    /// # Panics
    ///
    /// When there is no such client, or the JVM is gone.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        let answer: Answer<bool> = self.start_call("sleeps", json!({})).wait(ANSWER_LIMIT);
        answer.expect("the JVM runs").value
    }

    /// `lock()`: waits without limit, and is renewed by the watchdog.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn lock(&self, name: &str) -> Answer<()> {
        self.start_lock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::lock`].
    pub fn start_lock(&self, name: &str) -> Pending<()> {
        self.start("lock", name)
    }

    /// `lock(lease)`: waits without limit, and is not renewed.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn lock_lease(&self, name: &str, lease: Duration) -> Answer<()> {
        self.start_lock_lease(name, lease).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::lock_lease`].
    pub fn start_lock_lease(&self, name: &str, lease: Duration) -> Pending<()> {
        self.start_with("lock_lease", name, json!({ "lease_ms": millis(lease) }))
    }

    /// `tryLock()`: now or never, and is renewed.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn try_lock(&self, name: &str) -> Answer<bool> {
        self.start_try_lock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::try_lock`].
    pub fn start_try_lock(&self, name: &str) -> Pending<bool> {
        self.start("try_lock", name)
    }

    /// `tryLock(wait, lease)`; without a lease it is renewed.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn try_lock_wait(
        &self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Answer<bool> {
        self.start_try_lock_wait(name, wait, lease)
            .wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::try_lock_wait`].
    pub fn start_try_lock_wait(
        &self,
        name: &str,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Pending<bool> {
        let lease_ms = lease.map_or(json!(-1), |lease| json!(millis(lease)));
        let times = json!({ "wait_ms": millis(wait), "lease_ms": lease_ms });
        self.start_with("try_lock_wait", name, times)
    }

    /// `lockAndGetToken()` of a fenced lock.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn lock_and_get_token(&self, name: &str) -> Answer<u64> {
        self.start("lock_and_get_token", name).wait(ANSWER_LIMIT)
    }

    /// `getToken()` of a fenced lock: the last one that anybody got.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn token(&self, name: &str) -> Answer<u64> {
        self.start("token", name).wait(ANSWER_LIMIT)
    }

    /// `unlock()`.
    ///
    /// # Errors
    ///
    /// `IllegalMonitorStateException` when this thread does not hold the lock.
    pub fn unlock(&self, name: &str) -> Answer<()> {
        self.start_unlock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::unlock`].
    pub fn start_unlock(&self, name: &str) -> Pending<()> {
        self.start("unlock", name)
    }

    /// `forceUnlock()`: whoever holds it; `false` when nobody did.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn force_unlock(&self, name: &str) -> Answer<bool> {
        self.start_force_unlock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::force_unlock`].
    pub fn start_force_unlock(&self, name: &str) -> Pending<bool> {
        self.start("force_unlock", name)
    }

    /// `isLocked()`, by anybody.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn is_locked(&self, name: &str) -> Answer<bool> {
        self.start_is_locked(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::is_locked`].
    pub fn start_is_locked(&self, name: &str) -> Pending<bool> {
        self.start("is_locked", name)
    }

    /// `isHeldByCurrentThread()`.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn is_held_by_current_thread(&self, name: &str) -> Answer<bool> {
        self.start_is_held_by_current_thread(name)
            .wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::is_held_by_current_thread`].
    pub fn start_is_held_by_current_thread(&self, name: &str) -> Pending<bool> {
        self.start("is_held_by_current_thread", name)
    }

    /// `getHoldCount()`: how often this thread holds it.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn hold_count(&self, name: &str) -> Answer<i64> {
        self.start_hold_count(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::hold_count`].
    pub fn start_hold_count(&self, name: &str) -> Pending<i64> {
        self.start("hold_count", name)
    }

    /// `remainTimeToLive()` in ms; -2 when nobody holds it, -1 when it does not expire.
    ///
    /// # Errors
    ///
    /// What Redisson threw.
    pub fn ttl(&self, name: &str) -> Answer<i64> {
        self.start_ttl(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::ttl`].
    pub fn start_ttl(&self, name: &str) -> Pending<i64> {
        self.start("ttl", name)
    }

    /// Lets `threads` new Java threads of the client take the lock `name` and increment the
    /// string at key `counter` in two steps, again and again, for as long as `run`.
    pub fn hammer(
        &self,
        name: &str,
        counter: &str,
        threads: usize,
        run: Duration,
    ) -> Pending<HammerReport> {
        let plan = json!({ "counter": counter, "threads": threads, "run_ms": millis(run) });
        self.start_with("hammer", name, plan)
    }

    /// Lets `threads` new Java threads claim the numbers of the string `counter` under the lock
    /// `name` until there is a key `over`: each in the hash `claims`, as `who-thread asked_ns
    /// acquired_ns claimed_ns`, so that nothing of it is lost when the JVM is killed. A number
    /// that has an owner already is an error. The value is how many were claimed.
    ///
    /// With `wait` a thread asks for that long and then again, so that what is left of it in
    /// the queue of a fair lock after its death ends.
    pub fn torment(
        &self,
        name: &str,
        who: &str,
        threads: usize,
        wait: Option<Duration>,
    ) -> Pending<u64> {
        let mut plan = json!({ "who": who, "threads": threads });
        if let Some(wait) = wait {
            plan["wait_ms"] = millis(wait).into();
        }
        self.start_with("torment", name, plan)
    }

    fn start<T: DeserializeOwned>(&self, op: &str, name: &str) -> Pending<T> {
        self.start_with(op, name, json!({}))
    }

    fn start_with<T: DeserializeOwned>(&self, op: &str, name: &str, request: Value) -> Pending<T> {
        let mut request = fields(request);
        request.insert("name".to_owned(), name.into());
        request.insert("kind".to_owned(), self.kind.wire_name().into());
        if self.shares {
            request.insert("shared".to_owned(), true.into());
        }
        self.start_call(op, Value::Object(request))
    }
}
