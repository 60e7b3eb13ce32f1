//! Clients with a failover guard, and holds that a failover loses.

use std::time::Duration;

use leasehold::settings::Peers;
use leasehold::testing::history::{Inside, Recorder, Report};
use leasehold::{Client, ClientBuilder, Lock, LockGuard};
use leasehold_testkit::{RedisServer, Reply};

/// The key of the guard.
pub(crate) const GUARD: &str = "leasehold:guard";

/// Returns the number of times that each failover is tried.
pub(crate) fn failovers() -> usize {
    let told = std::env::var("LEASEHOLD_FAILOVERS").ok();
    told.map_or(3, |number| number.parse().expect("a number"))
}

/// Returns the builder of a client that does not share its names with Redisson clients.
pub(crate) fn builder(lease: Duration) -> ClientBuilder {
    Client::builder().peers(Peers::RustOnly).lease(lease)
}

/// Like [`builder`], with a guard that lasts as long as a lease.
pub(crate) fn guarded(span: Duration) -> ClientBuilder {
    builder(span).failover_guard(span)
}

/// Returns the server's replication id.
pub(crate) fn replication_id(server: &RedisServer) -> String {
    let info = server.command(&["INFO", "replication"]).unwrap();
    let mut lines = info.as_text().unwrap().lines();
    let id = lines.find_map(|line| line.strip_prefix("master_replid:"));
    id.unwrap().trim().to_owned()
}

/// Returns the guard's record: the replication id, and the time since which the guard has known it.
pub(crate) fn noted(server: &RedisServer) -> Option<(String, u64)> {
    let noted = server.command(&["GET", GUARD]).unwrap();
    let (id, since) = noted.as_text()?.split_once(' ')?;
    Some((id.to_owned(), since.parse().unwrap()))
}

/// Writes to the guard's record that this server has been known for a long time, so that clients do
/// not wait.
pub(crate) fn is_known(server: &RedisServer) {
    let noted = format!("{} 1", replication_id(server));
    tell(server, &["SET", GUARD, &noted]);
}

/// Makes the server unknown to all guards, while it keeps its data.
pub(crate) fn is_promoted(server: &RedisServer) {
    let before = replication_id(server);
    tell(server, &["REPLICAOF", "127.0.0.1", "1"]);
    tell(server, &["REPLICAOF", "NO", "ONE"]);
    assert_ne!(replication_id(server), before);
}

pub(crate) fn tell(server: &RedisServer, command: &[&str]) {
    let said = server.command(command).unwrap();
    assert_eq!(said, Reply::Text("OK".into()), "{command:?}");
}

/// Two clients that acquire one lock, one after the other. The first holder never releases it.
pub(crate) struct Both {
    recorder: Recorder,
    holds: Vec<(LockGuard, Inside)>,
}

impl Both {
    pub(crate) fn new() -> Self {
        Self {
            recorder: Recorder::new(),
            holds: Vec::new(),
        }
    }

    /// Acquires the lock, and waits for it as long as necessary.
    pub(crate) async fn hold(&mut self, lock: Lock, who: &str) {
        let asked = self.recorder.ask("x", who);
        let guard = lock.acquire().await.unwrap();
        let inside = asked.acquired(&guard);
        self.holds.push((guard, inside));
    }

    /// Acquires the lock after the first holder, which believes in its hold until its deadline.
    pub(crate) async fn hold_second(&mut self, lock: Lock) -> Report {
        self.hold(lock, "second").await;
        self.recorder.report()
    }
}

/// Runs `lost` as often as [`failovers`] says, three runs at a time because most of a run is
/// waiting. Each run has threads of its own, because starting and killing servers blocks them.
pub(crate) fn each_failover<F>(lost: impl Fn() -> F + Sync) -> Vec<Report>
where
    F: Future<Output = Report>,
{
    let once = || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(lost())
    };
    let (mut reports, times) = (Vec::new(), failovers());
    while reports.len() < times {
        let at_once = (times - reports.len()).min(3);
        reports.extend(std::thread::scope(|scope| {
            let runs: Vec<_> = (0..at_once).map(|_| scope.spawn(once)).collect();
            runs.into_iter()
                .map(|run| run.join().unwrap())
                .collect::<Vec<_>>()
        }));
    }
    reports
}
