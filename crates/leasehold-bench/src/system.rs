//! The systems that are measured. A scenario gives all of them the same task.

mod bare;
mod java;
mod ours;
mod pairs;
pub(crate) mod process;
mod rslock;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use leasehold_testkit::redisson::java_available;
use leasehold_testkit::{Redisson, RedissonVersion};
use tokio::sync::Mutex;

use crate::task::{Done, Task};
use crate::{Error, Result};

/// The library whose locks are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    Leasehold,
    /// Leasehold without hand-over within the process: each release is sent to the server. See
    /// `Lock::local_hand_over`.
    NoHandOver,
    /// Leasehold with names that are not shared with Redisson: see `Peers::RustOnly`.
    RustOnly,
    /// Leasehold with holds that one replica must confirm.
    OneReplica,
    /// Leasehold with holds that two replicas must confirm.
    TwoReplicas,
    /// Leasehold with holds that must be on the server's disk.
    OnDisk,
    /// The smallest scripts that acquire and release, through the driver that Leasehold uses. They
    /// can't wait.
    Bare,
    Rslock,
    Redisson3,
    Redisson4,
}

impl System {
    pub(crate) const ALL: [Self; 10] = [
        Self::Leasehold,
        Self::NoHandOver,
        Self::RustOnly,
        Self::OneReplica,
        Self::TwoReplicas,
        Self::OnDisk,
        Self::Bare,
        Self::Rslock,
        Self::Redisson3,
        Self::Redisson4,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::NoHandOver => "leasehold-no-hand-over",
            Self::RustOnly => "leasehold-rust-only",
            Self::OneReplica => "leasehold-1-replica",
            Self::TwoReplicas => "leasehold-2-replicas",
            Self::OnDisk => "leasehold-on-disk",
            Self::Bare => "bare",
            Self::Rslock => "rslock",
            Self::Redisson3 => "redisson-3.16.8",
            Self::Redisson4 => "redisson-4.7.0",
        }
    }

    pub(crate) fn redisson(self) -> Option<RedissonVersion> {
        match self {
            Self::Redisson3 => Some(RedissonVersion::V3_16_8),
            Self::Redisson4 => Some(RedissonVersion::V4_7_0),
            _ => None,
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|system| system.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|system| system.name()).collect();
            format!("no system `{name}`; there are {}", names.join(", "))
        })
    }
}

/// A client of a system.
pub(crate) trait Worker: Send + Sync {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<Done>>;

    /// Returns the id of the process in which the client works.
    fn pid(&self) -> u32 {
        std::process::id()
    }
}

/// The place where a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    /// A separate process. Redisson's clients always share one JVM, which costs less.
    Apart,
}

/// Connects a client in this process.
pub(crate) async fn here(system: System, url: &str) -> Result<Arc<dyn Worker>> {
    Ok(match system {
        System::Leasehold
        | System::NoHandOver
        | System::RustOnly
        | System::OneReplica
        | System::TwoReplicas
        | System::OnDisk => Arc::new(ours::Ours::connect(url, system).await?),
        System::Bare => Arc::new(bare::Bare::connect(url).await?),
        System::Rslock => Arc::new(rslock::Rslock::new(url)),
        System::Redisson3 | System::Redisson4 => Err(format!("{system} runs in a JVM"))?,
    })
}

/// Opens clients, and owns the JVMs in which they run.
pub(crate) struct Systems {
    url: String,
    jvms: Mutex<BTreeMap<System, Arc<Redisson>>>,
    /// Whether the system `leasehold` hands locks over within the process. If it does not, floors
    /// are missed.
    hand_over: bool,
}

impl Systems {
    pub(crate) fn new(url: String, hand_over: bool) -> Self {
        Self {
            url,
            jvms: Mutex::default(),
            hand_over,
        }
    }

    /// Returns why a system can't be measured here, or `None` if it can.
    pub(crate) async fn missing(&self, system: System) -> Option<String> {
        system.redisson()?;
        if !java_available() {
            return Some("no Java, or no Maven to build its driver with".to_owned());
        }
        self.jvm(system).await.err().map(|error| error.to_string())
    }

    pub(crate) async fn worker(&self, system: System, place: Place) -> Result<Arc<dyn Worker>> {
        if system.redisson().is_some() {
            let jvm = self.jvm(system).await?;
            return Ok(Arc::new(java::Java::connect(jvm, &self.url).await?));
        }
        let system = match system {
            System::Leasehold if !self.hand_over => System::NoHandOver,
            system => system,
        };
        match place {
            Place::Here => here(system, &self.url).await,
            Place::Apart => Ok(Arc::new(process::Process::start(system, &self.url).await?)),
        }
    }

    async fn jvm(&self, system: System) -> Result<Arc<Redisson>> {
        let version = system.redisson().ok_or("not a Redisson")?;
        let mut jvms = self.jvms.lock().await;
        if let Some(jvm) = jvms.get(&system) {
            return Ok(Arc::clone(jvm));
        }
        let url = self.url.clone();
        // This panics if the driver can't be built. The panic ends only the thread that runs this
        // code.
        let start = move || Redisson::start_as_shipped(version, &url);
        let jvm = tokio::task::spawn_blocking(start).await;
        let jvm = Arc::new(jvm.map_err(|panic| Error::from(format!("its JVM: {panic}")))?);
        jvms.insert(system, Arc::clone(&jvm));
        Ok(jvm)
    }
}

/// Returns the error for a system that can't do this task.
fn cannot(system: &str, task: &Task) -> Error {
    format!("{system} has nothing for {task:?}").into()
}
