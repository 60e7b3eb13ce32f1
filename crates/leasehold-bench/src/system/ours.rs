//! Leasehold, called as a user would call it.

mod holds;
mod waits;

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use leasehold::settings::Peers;
use leasehold::{
    Acknowledgement, Client, ExpirableSemaphore, FairLock, Lock, Owner, RwLock, Semaphore,
};
use leasehold_testkit::monotonic_ns;

use self::holds::Holds;
use super::pairs::{self, Pair};
use super::{System, Worker};
use crate::Result;
use crate::task::{Done, Pairs, Task, What};

pub(super) struct Ours {
    url: String,
    client: Client,
    hand_over: bool,
    holds: Holds,
}

impl Ours {
    pub(super) async fn connect(url: &str, system: System) -> Result<Self> {
        let peers = match system {
            System::RustOnly => Peers::RustOnly,
            _ => Peers::All,
        };
        let acknowledged = match system {
            System::OneReplica => Acknowledgement::replicas(1),
            System::TwoReplicas => Acknowledgement::replicas(2),
            System::OnDisk => Acknowledgement::master().on_disk(),
            _ => Acknowledgement::master(),
        };
        let builder = Client::builder().peers(peers).acknowledged_by(acknowledged);
        Ok(Self {
            url: url.to_owned(),
            client: builder.connect(url).await?,
            hand_over: system != System::NoHandOver,
            holds: Holds::default(),
        })
    }

    fn lock(&self, client: &Client, name: &str) -> Lock {
        let lock = client.lock(name);
        match self.hand_over {
            true => lock,
            false => lock.local_hand_over(Duration::ZERO),
        }
    }

    async fn pairs(&self, task: &Pairs) -> Result<Done> {
        let (client, tasks, run_ms) = (&self.client, task.tasks, task.run_ms);
        let name = |n| match task.own_names {
            true => format!("{}:{n}", task.name),
            false => task.name.clone(),
        };
        match task.what {
            What::Lock => pairs::run(tasks, run_ms, |n| self.lock(client, &name(n))).await,
            What::Embedded => {
                let embedded = Client::embedded();
                pairs::run(tasks, run_ms, |n| self.lock(&embedded, &name(n))).await
            }
            What::Reentrant => {
                let lock = client.lock(&task.name).owned_by(&Owner::new());
                let outer = lock.acquire().await?;
                let done = pairs::run(tasks, run_ms, |_| lock.clone()).await?;
                outer.release().await?;
                Ok(done)
            }
            What::Fair => pairs::run(tasks, run_ms, |n| client.fair_lock(name(n))).await,
            What::Rw => {
                let side = |_| ReadOrWrite {
                    lock: client.rw_lock(&task.name),
                    writes_every: task.writes_every,
                };
                pairs::run(tasks, run_ms, side).await
            }
            What::Semaphore => {
                let semaphore = client.semaphore(&task.name);
                semaphore.try_set_permits(task.permits).await?;
                pairs::run(tasks, run_ms, |_| semaphore.clone()).await
            }
            What::Expirable => {
                let semaphore = client.expirable_semaphore(&task.name);
                semaphore.try_set_permits(task.permits).await?;
                pairs::run(tasks, run_ms, |_| semaphore.clone()).await
            }
            What::Connect => {
                let fresh = |_| Fresh(self.url.clone(), task.name.clone());
                pairs::run(tasks, run_ms, fresh).await
            }
        }
    }

    async fn hand_over(&self, task: &Task) -> Result<Done> {
        let Task::HandOver {
            name,
            run_ms,
            hold_ms,
            pause_ms,
        } = task
        else {
            return Err(super::cannot("leasehold", task));
        };
        let lock = self.lock(&self.client, name);
        let [run, hold, pause] = [run_ms, hold_ms, pause_ms].map(|ms| Duration::from_millis(*ms));
        // The loop runs in a spawned task, as in a service. The runtime wakes such a task sooner
        // than the main thread, which runs the program's outermost future.
        let holds = tokio::spawn(take_turns(lock, run, hold, pause)).await??;
        Ok(Done {
            holds,
            ..Done::default()
        })
    }
}

/// Acquires and releases in a loop. Returns the times at which each hold was requested, granted and
/// released.
async fn take_turns(
    lock: Lock,
    run: Duration,
    hold: Duration,
    pause: Duration,
) -> Result<Vec<[u64; 3]>> {
    let (start, mut holds) = (Instant::now(), Vec::new());
    while start.elapsed() < run {
        let asked = monotonic_ns();
        let guard = lock.acquire().await?;
        let granted = monotonic_ns();
        tokio::time::sleep(hold).await;
        let released = monotonic_ns();
        guard.release().await?;
        holds.push([asked, granted, released]);
        tokio::time::sleep(pause).await;
    }
    Ok(holds)
}

impl Worker for Ours {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<Done>> {
        Box::pin(async move {
            match &task {
                Task::Pairs(pairs) => self.pairs(pairs).await,
                Task::HandOver { .. } => self.hand_over(&task).await,
                Task::Latch { name, tasks } => waits::latch(&self.client, name, *tasks).await,
                Task::Line { name, tasks } => {
                    waits::line(&self.client, &self.lock(&self.client, name), *tasks).await
                }
                Task::Hold { name, locks } => self.holds.acquire(&self.client, name, *locks).await,
                Task::Watch { run_ms } => self.holds.watch(Duration::from_millis(*run_ms)).await,
                Task::LetGo { .. } => self.holds.release().await,
            }
        })
    }
}

impl Pair for Lock {
    async fn pair(&mut self, _: u64) -> Result<()> {
        Ok(self.acquire().await?.release().await?)
    }
}

impl Pair for FairLock {
    async fn pair(&mut self, _: u64) -> Result<()> {
        Ok(self.acquire().await?.release().await?)
    }
}

impl Pair for Semaphore {
    async fn pair(&mut self, _: u64) -> Result<()> {
        Ok(self.acquire().await?.release().await?)
    }
}

impl Pair for ExpirableSemaphore {
    async fn pair(&mut self, _: u64) -> Result<()> {
        Ok(self.acquire().await?.release().await?)
    }
}

struct ReadOrWrite {
    lock: RwLock,
    writes_every: u64,
}

impl Pair for ReadOrWrite {
    async fn pair(&mut self, _: u64) -> Result<()> {
        if fastrand::u64(..self.writes_every) == 0 {
            Ok(self.lock.write().await?.release().await?)
        } else {
            Ok(self.lock.read().await?.release().await?)
        }
    }
}

/// A pair that connects a new client each time.
struct Fresh(String, String);

impl Pair for Fresh {
    async fn pair(&mut self, _: u64) -> Result<()> {
        let client = Client::connect(&self.0).await?;
        client.lock(&self.1).acquire().await?.release().await?;
        client.close().await;
        Ok(())
    }
}
