//! A real Redisson client in a JVM of its own, driven from a test.
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

/// The Redisson releases the driver is built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RedissonVersion {
    /// 3.16.8, of January 2022.
    V3_16_8,
    /// 4.7.0.
    V4_7_0,
}

impl RedissonVersion {
    /// All of them, oldest first.
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

/// A JVM with the Redisson driver. It is killed when this is dropped.
#[derive(Debug)]
pub struct Redisson {
    jvm: Arc<Jvm>,
    version: RedissonVersion,
}

impl Redisson {
    /// Starts a JVM whose clients connect to `redis_url`, after building the driver if it is
    /// older than its sources.
    ///
    /// # Panics
    ///
    /// When the driver cannot be built, or the JVM does not come up with this version.
    pub fn start(version: RedissonVersion, redis_url: &str) -> Self {
        Self::start_with(version, redis_url, &QUICK_TO_START)
    }

    /// The same with the JVM's own settings, as a service has them: slower to start, and fast once
    /// it has compiled what runs often.
    ///
    /// # Panics
    ///
    /// When the driver cannot be built, or the JVM does not come up with this version.
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

    /// The release that runs here.
    pub fn version(&self) -> RedissonVersion {
        self.version
    }

    /// Connects a client, in place of the one of this name if there is one. Returns its id: a
    /// thread of it holds locks as `id:thread_id`.
    ///
    /// `watchdog` is the lease of locks that are renewed. Default 30 s.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn client(&self, name: &str, watchdog: Option<Duration>) -> Result<String, RedissonError> {
        self.open(name, settings(watchdog, Value::Null))
    }

    /// As [`Redisson::client`], with a server or proxy of its own.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn client_at(
        &self,
        name: &str,
        redis_url: &str,
        watchdog: Option<Duration>,
    ) -> Result<String, RedissonError> {
        self.open(name, settings(watchdog, redis_url.into()))
    }

    /// As [`Redisson::client_at`], with any of the settings that the driver knows:
    /// `interop/redisson/README.md` has them.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or this version has no such setting.
    ///
    /// # Panics
    ///
    /// When `settings` is not an object.
    pub fn client_with(
        &self,
        name: &str,
        redis_url: &str,
        mut settings: Value,
    ) -> Result<String, RedissonError> {
        settings["address"] = redis_url.into();
        self.open(name, settings)
    }

    /// Shuts a client down. What its threads hold stays held until it expires.
    ///
    /// # Errors
    ///
    /// When there is no such client.
    pub fn close_client(&self, name: &str) -> Result<(), RedissonError> {
        let answer: Answer<()> = self.call("close_client", fields(json!({ "client": name })));
        answer.map(|done| done.value)
    }

    /// A thread of a client; Redisson takes each for another holder. It starts with its first
    /// call, and its calls run one after the other.
    pub fn thread(&self, client: &str, thread: &str) -> RedissonThread {
        RedissonThread::new(Arc::clone(&self.jvm), client, thread)
    }

    /// The process id of the JVM.
    pub fn pid(&self) -> u32 {
        self.jvm.pid()
    }

    /// Ends the JVM with SIGKILL, as a crash would. Waiting calls end with an error.
    pub fn kill(&self) {
        self.jvm.kill();
    }

    /// Lets the JVM end itself between two instructions, and waits until it has.
    pub fn exit_hard(&self) {
        // It never answers; the error is that it is gone.
        let _: Answer<()> = self.call("exit_hard", Map::new());
        self.jvm.kill();
    }

    /// Stops the JVM, as a long garbage collection would: its watchdogs renew nothing.
    ///
    /// # Panics
    ///
    /// When the JVM is gone.
    pub fn pause(&self) {
        crate::process::pause(self.pid()).expect("the JVM is our child");
    }

    /// Lets a paused JVM run on.
    ///
    /// # Panics
    ///
    /// When the JVM is gone.
    pub fn resume(&self) {
        crate::process::resume(self.pid()).expect("the JVM is our child");
    }

    /// What the JVM has printed as errors so far.
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
        // Threads of it may still be around; they must not keep the JVM alive.
        self.jvm.kill();
    }
}

/// How long a blocking call waits for its answer.
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
