//! Runs several clients at once, and measures what this costs them and the servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_testkit::RedisServer;

use crate::server::Work;
use crate::system::Worker;
use crate::task::{Done, Task};
use crate::{Result, usage};

/// The work that the clients did, and its cost.
pub(super) struct Measured {
    /// The reports of the clients, one for each client.
    pub(super) done: Vec<Done>,
    pub(super) commands: u64,
    pub(super) scripts: u64,
    pub(super) server_cpu: Duration,
    pub(super) client_cpu: Duration,
}

/// Makes all clients do their tasks at the same time.
pub(super) async fn measure(
    servers: &[RedisServer],
    tasks: Vec<(&Arc<dyn Worker>, Task)>,
) -> Result<Measured> {
    let pids: BTreeSet<u32> = tasks.iter().map(|(worker, _)| worker.pid()).collect();
    let cpu = || -> Result<Duration> { pids.iter().map(|pid| usage::cpu(*pid)).sum() };
    let (before, cpu_before) = (Work::so_far(servers)?, cpu()?);
    let all = tasks.into_iter().map(|(worker, task)| worker.run(task));
    let done = try_join_all(all).await?;
    let (after, cpu_after) = (Work::so_far(servers)?, cpu()?);
    let looking = done.iter().map(|done| done.looking_ns).sum();
    Ok(Measured {
        done,
        commands: after.commands_since(&before),
        scripts: after.scripts_since(&before),
        server_cpu: after.cpu_since(&before),
        client_cpu: (cpu_after - cpu_before).saturating_sub(Duration::from_nanos(looking)),
    })
}
