//! The crate rslock, with its default settings. A task that finds the lock held retries after up to
//! 200 ms.

use std::time::Duration;

use futures_util::future::BoxFuture;
use rslock::LockManager;

use super::pairs::{self, Pair};
use super::{Worker, cannot};
use crate::Result;
use crate::task::{Done, Task, What};

const LEASE: Duration = Duration::from_secs(30);

pub(super) struct Rslock {
    url: String,
    manager: LockManager,
}

impl Rslock {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            manager: LockManager::new(vec![url]),
        }
    }
}

impl Worker for Rslock {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<Done>> {
        Box::pin(async move {
            match task {
                Task::Pairs(task) if task.what == What::Lock => {
                    let named = |n| Named {
                        manager: self.manager.clone(),
                        name: match task.own_names {
                            true => format!("{}:{n}", task.name),
                            false => task.name.clone(),
                        },
                    };
                    pairs::run(task.tasks, task.run_ms, named).await
                }
                Task::Pairs(task) if task.what == What::Connect => {
                    let fresh = |_| Fresh(self.url.clone(), task.name.clone());
                    pairs::run(task.tasks, task.run_ms, fresh).await
                }
                task => Err(cannot("rslock", &task)),
            }
        })
    }
}

struct Named {
    manager: LockManager,
    name: String,
}

impl Pair for Named {
    async fn pair(&mut self, _: u64) -> Result<()> {
        let guard = self.manager.acquire(self.name.as_bytes(), LEASE).await?;
        guard.release().await;
        Ok(())
    }
}

/// A pair that opens a new connection each time.
struct Fresh(String, String);

impl Pair for Fresh {
    async fn pair(&mut self, turn: u64) -> Result<()> {
        let mut named = Named {
            manager: LockManager::new(vec![self.0.as_str()]),
            name: self.1.clone(),
        };
        named.pair(turn).await
    }
}
