//! A real Redisson client in a separate JVM, which a test controls.
//!
//! ```no_run
//! use leasehold_testkit::{RedisServer, Redisson, RedissonVersion};
//!
//! let server = RedisServer::start()?;
//! let redisson = Redisson::start(RedissonVersion::V4_7_0, &server.url());
//! redisson.client("app", None)?;
//! let thread = redisson.thread("app", "t1");
//! thread.lock("orders")?;
//! thread.unlock("orders")?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod archive;
mod build;
mod hammer;
mod jvm;
mod thread;

use std::{fmt, sync::Arc, time::Duration};

use serde_json::{Map, Value, json};

pub use answer::{Answer, Pending, RedissonError, Timed};
pub use build::java_available;
pub use hammer::{HammerReport, Interval, first_overlap};
pub use thread::{LockKind, RedissonThread};

use jvm::{Jvm, QUICK_TO_START};

/// The Redisson releases for which the driver is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedissonVersion {
    /// Version 3.16.8, released in January 2022.
    V3_16_8,
    /// 4.7.0.
    V4_7_0,
}

impl RedissonVersion {
    /// All releases, oldest first.
    pub const ALL: [Self; 2] = [Self::V3_16_8, Self::V4_7_0];
}

impl fmt::Display for RedissonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3_16_8 => "3.16.8",
            Self::V4_7_0 => "4.7.0",
        })
    }
}

/// A JVM with the Redisson driver. The JVM is killed when this value is dropped.
#[derive(Debug)]
pub struct Redisson {
    jvm: Arc<Jvm>,
    version: RedissonVersion,
}

impl Redisson {
    /// Starts a JVM whose clients connect to `redis_url`. Builds the driver first if it is older
    /// than its sources.
    ///
    /// # Panics
    ///
    /// Panics if the driver can't be built, or the JVM does not start with this version.
    pub fn start(version: RedissonVersion, redis_url: &str) -> Self {
        build::build();
        let target = build::target(version);
        archive::make(&target);
        let archive = archive::flag(&target);
        let flags = QUICK_TO_START.into_iter().chain([archive.as_str()]);
        Self::start_with(version, redis_url, &flags.collect::<Vec<_>>())
    }

    /// Like [`start`](Self::start), but with the JVM's default settings, which services use. This
    /// JVM starts more slowly, but is fast once it has compiled the code that runs often.
    ///
    /// # Panics
    ///
    /// Panics if the driver can't be built, or the JVM does not start with this version.
    pub fn start_as_shipped(version: RedissonVersion, redis_url: &str) -> Self {
        Self::start_with(version, redis_url, &[])
    }

    fn start_with(version: RedissonVersion, redis_url: &str, flags: &[&str]) -> Self {
        build::build();
        let redisson = Self {
            jvm: Jvm::start(&build::target(version), redis_url, flags),
            version,
        };
        let answer: Answer<String> = redisson.call("version", Map::new());
        match answer {
            Ok(found) if found.value == version.to_string() => redisson,
            other => panic!(
                "Redisson {version} did not start: {other:?}\n{}",
                redisson.stderr()
            ),
        }
    }

    /// Returns the release that runs in this JVM.
    pub fn version(&self) -> RedissonVersion {
        self.version
    }

    /// Connects a client, which replaces a client with this name if there is one. Returns the
    /// client's id. A thread of the client holds locks as `id:thread_id`.
    ///
    /// `watchdog` is the lease of locks that are renewed. The default is 30 s.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub fn client(&self, name: &str, watchdog: Option<Duration>) -> Result<String, RedissonError> {
        self.open(name, settings(watchdog, Value::Null))
    }

    /// Like [`Redisson::client`], but connects to another server or to a proxy.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer.
    pub fn client_at(
        &self,
        name: &str,
        redis_url: &str,
        watchdog: Option<Duration>,
    ) -> Result<String, RedissonError> {
        self.open(name, settings(watchdog, redis_url.into()))
    }

    /// Like [`Redisson::client_at`], with any settings that the driver knows.
    /// `interop/redisson/README.md` lists them.
    ///
    /// # Errors
    ///
    /// Fails if the server does not answer, or this version has no such setting.
    ///
    /// # Panics
    ///
    /// Panics if `settings` is not an object.
    pub fn client_with(
        &self,
        name: &str,
        redis_url: &str,
        mut settings: Value,
    ) -> Result<String, RedissonError> {
        settings["address"] = redis_url.into();
        self.open(name, settings)
    }

    /// Shuts a client down. The locks of its threads remain locked until they expire.
    ///
    /// # Errors
    ///
    /// Fails if there is no such client.
    pub fn close_client(&self, name: &str) -> Result<(), RedissonError> {
        let answer: Answer<()> = self.call("close_client", fields(json!({ "client": name })));
        answer.map(|done| done.value)
    }

    /// Returns a thread of a client. To Redisson, each thread is a separate holder. The thread
    /// starts with its first call, and its calls run one after the other.
    pub fn thread(&self, client: &str, thread: &str) -> RedissonThread {
        RedissonThread::new(Arc::clone(&self.jvm), client, thread)
    }

    /// Returns the process id of the JVM.
    pub fn pid(&self) -> u32 {
        self.jvm.pid()
    }

    /// Kills the JVM with SIGKILL, like a crash. Calls that wait for an answer end with an error.
    pub fn kill(&self) {
        self.jvm.kill();
    }

    /// Makes the JVM exit at once, without any clean-up, and waits until it has ended.
    pub fn exit_hard(&self) {
        // The JVM never answers this call. The error says that the JVM has ended.
        let _: Answer<()> = self.call("exit_hard", Map::new());
        self.jvm.kill();
    }

    /// Suspends the JVM, like a long garbage collection. While the JVM is suspended, its watchdogs
    /// do not renew locks.
    ///
    /// # Panics
    ///
    /// Panics if the JVM has ended.
    pub fn pause(&self) {
        crate::process::pause(self.pid()).expect("the JVM is our child");
    }

    /// Resumes a suspended JVM.
    ///
    /// # Panics
    ///
    /// Panics if the JVM has ended.
    pub fn resume(&self) {
        crate::process::resume(self.pid()).expect("the JVM is our child");
    }

    /// Returns the JVM's output on stderr so far.
    pub fn stderr(&self) -> String {
        self.jvm.stderr()
    }

    fn open(&self, name: &str, mut settings: Value) -> Result<String, RedissonError> {
        settings["client"] = name.into();
        self.call("client", fields(settings))
            .map(|id: Timed<String>| id.value)
    }

    fn call<T: serde::de::DeserializeOwned>(
        &self,
        op: &str,
        request: Map<String, Value>,
    ) -> Answer<T> {
        self.jvm.send(op, request).wait(ANSWER_LIMIT)
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        // Handles of the JVM's threads may still exist. They must not keep the JVM alive.
        self.jvm.kill();
    }
}

/// The time limit for the answer to a blocking call.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

fn settings(watchdog: Option<Duration>, address: Value) -> Value {
    json!({ "watchdog_ms": watchdog.map(millis), "address": address })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("tests do not last that long")
}

fn fields(request: Value) -> Map<String, Value> {
    match request {
        Value::Object(fields) => fields,
        other => panic!("a request has fields, not {other}"),
    }
}
