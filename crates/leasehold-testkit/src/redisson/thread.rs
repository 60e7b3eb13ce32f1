//! The calls that a thread of a Redisson client can make.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{ANSWER_LIMIT, Answer, HammerReport, Pending, fields, jvm::Jvm, millis};

/// The kind of Redisson lock that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// `getLock`: re-entrant, woken by messages.
    Plain,
    /// `getSpinLock`: waiters send requests repeatedly, and receive no messages.
    Spin,
    /// `getFairLock`: waiters are served in order of arrival.
    Fair,
    /// `getFencedLock`: a lock with tokens. Version 3.16.8 does not have it.
    Fenced,
    /// `getReadWriteLock(..).readLock()`.
    Read,
    /// `getReadWriteLock(..).writeLock()`.
    Write,
    /// `getMultiLock(locks...)`: the name is `a,b`, or `client/a,other/a`.
    Multi,
    /// `RedissonRedLock`: the name is as for [`LockKind::Multi`].
    Red,
    /// `getMultiLock(group, values)`: the name is `group/a,b`. Version 3.16.8 does not have it.
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

/// One Java thread of a Redisson client, which is one holder.
///
/// Every call has two methods. `start_..` sends the call and returns at once. The other method
/// waits up to a minute for the answer. The calls of one thread run in the order in which they were
/// sent.
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

    /// Returns the same Java thread, but with names that refer to this kind of lock. The default is
    /// [`LockKind::Plain`].
    #[must_use = "the thread it is called on stays as it is"]
    pub fn kind(&self, kind: LockKind) -> Self {
        Self {
            kind,
            ..self.clone()
        }
    }

    /// Returns the same Java thread, but with one Java object for each name. All threads of the
    /// client for which this method was called share this object. By default, each call uses a new
    /// object.
    #[must_use = "the thread it is called on stays as it is"]
    pub fn shared(&self) -> Self {
        Self {
            shares: true,
            ..self.clone()
        }
    }

    /// Interrupts this thread in its current call.
    ///
    /// # Errors
    ///
    /// Fails if the thread has not made a call yet.
    pub fn interrupt(&self) -> Answer<()> {
        self.start_call("interrupt", json!({})).wait(ANSWER_LIMIT)
    }

    /// Sends an operation of the driver on the lock `name`, if the operation has no method here.
    ///
    /// # Panics
    ///
    /// Panics if `request` is not an object.
    pub fn start_on<T: DeserializeOwned>(
        &self,
        op: &str,
        name: &str,
        request: Value,
    ) -> Pending<T> {
        self.start_with(op, name, request)
    }

    /// Sends an operation of the driver that has no method here.
    ///
    /// # Panics
    ///
    /// Panics if `request` is not an object.
    pub fn start_call<T: DeserializeOwned>(&self, op: &str, request: Value) -> Pending<T> {
        let mut request: Map<String, Value> = fields(request);
        request.insert("client".to_owned(), self.client.as_str().into());
        request.insert("thread".to_owned(), self.thread.as_str().into());
        self.jvm.send(op, request)
    }

    /// Calls `Thread.getId()`, the second half of the holder id.
    ///
    /// # Errors
    ///
    /// Fails if there is no such client.
    pub fn thread_id(&self) -> Answer<u64> {
        self.start_call("thread_id", json!({})).wait(ANSWER_LIMIT)
    }

    /// Returns whether the thread is asleep and waits for a message. A thread that is asleep can't
    /// miss a release. A thread that is still awake can miss one, because Redisson wakes only the
    /// threads that sleep when the "wake all" message arrives.
    ///
    /// # Panics
    ///
    /// Panics if there is no such client, or the JVM has ended.
    #[must_use]
    pub fn sleeps(&self) -> bool {
        let answer: Answer<bool> = self.start_call("sleeps", json!({})).wait(ANSWER_LIMIT);
        answer.expect("the JVM runs").value
    }

    /// Calls `lock()`: waits without a limit, and the watchdog renews the lock.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn lock(&self, name: &str) -> Answer<()> {
        self.start_lock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::lock`].
    pub fn start_lock(&self, name: &str) -> Pending<()> {
        self.start("lock", name)
    }

    /// Calls `lock(lease)`: waits without a limit, and the lock is not renewed.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn lock_lease(&self, name: &str, lease: Duration) -> Answer<()> {
        self.start_lock_lease(name, lease).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::lock_lease`].
    pub fn start_lock_lease(&self, name: &str, lease: Duration) -> Pending<()> {
        self.start_with("lock_lease", name, json!({ "lease_ms": millis(lease) }))
    }

    /// Calls `tryLock()`: does not wait, and the lock is renewed.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn try_lock(&self, name: &str) -> Answer<bool> {
        self.start_try_lock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::try_lock`].
    pub fn start_try_lock(&self, name: &str) -> Pending<bool> {
        self.start("try_lock", name)
    }

    /// Calls `tryLock(wait, lease)`. Without a lease, the lock is renewed.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
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

    /// Calls `lockAndGetToken()` of a fenced lock.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn lock_and_get_token(&self, name: &str) -> Answer<u64> {
        self.start("lock_and_get_token", name).wait(ANSWER_LIMIT)
    }

    /// Calls `getToken()` of a fenced lock: the last token that any thread got.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn token(&self, name: &str) -> Answer<u64> {
        self.start("token", name).wait(ANSWER_LIMIT)
    }

    /// Calls `unlock()`.
    ///
    /// # Errors
    ///
    /// Returns `IllegalMonitorStateException` if this thread does not hold the lock.
    pub fn unlock(&self, name: &str) -> Answer<()> {
        self.start_unlock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::unlock`].
    pub fn start_unlock(&self, name: &str) -> Pending<()> {
        self.start("unlock", name)
    }

    /// Calls `forceUnlock()`, which ends the hold of any thread. The answer is `false` if no thread
    /// held the lock.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn force_unlock(&self, name: &str) -> Answer<bool> {
        self.start_force_unlock(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::force_unlock`].
    pub fn start_force_unlock(&self, name: &str) -> Pending<bool> {
        self.start("force_unlock", name)
    }

    /// Calls `isLocked()`: whether any thread holds the lock.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn is_locked(&self, name: &str) -> Answer<bool> {
        self.start_is_locked(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::is_locked`].
    pub fn start_is_locked(&self, name: &str) -> Pending<bool> {
        self.start("is_locked", name)
    }

    /// Calls `isHeldByCurrentThread()`.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn is_held_by_current_thread(&self, name: &str) -> Answer<bool> {
        self.start_is_held_by_current_thread(name)
            .wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::is_held_by_current_thread`].
    pub fn start_is_held_by_current_thread(&self, name: &str) -> Pending<bool> {
        self.start("is_held_by_current_thread", name)
    }

    /// Calls `getHoldCount()`: how many times this thread holds the lock.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn hold_count(&self, name: &str) -> Answer<i64> {
        self.start_hold_count(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::hold_count`].
    pub fn start_hold_count(&self, name: &str) -> Pending<i64> {
        self.start("hold_count", name)
    }

    /// Calls `remainTimeToLive()`. The answer is in ms: -2 if no thread holds the lock, -1 if the
    /// lock does not expire.
    ///
    /// # Errors
    ///
    /// Returns the exception that Redisson threw.
    pub fn ttl(&self, name: &str) -> Answer<i64> {
        self.start_ttl(name).wait(ANSWER_LIMIT)
    }

    /// Sends [`RedissonThread::ttl`].
    pub fn start_ttl(&self, name: &str) -> Pending<i64> {
        self.start("ttl", name)
    }

    /// Starts `threads` new Java threads of the client. For the duration `run`, each thread
    /// repeatedly acquires the lock `name` and increments the string at key `counter` in two steps.
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

    /// Starts `threads` new Java threads, which count the string `counter` up under the lock `name`
    /// and claim each number, until the key `over` exists. Each claim is written to the hash
    /// `claims`, as `who-thread asked_ns acquired_ns claimed_ns`, so that claims are not lost when
    /// the JVM is killed. Claiming a number that already has an owner is an error. The answer is
    /// the number of claims.
    ///
    /// With `wait`, a thread waits at most this long before it requests the lock again. So if the
    /// thread dies, its entry in the queue of a fair lock soon expires.
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
