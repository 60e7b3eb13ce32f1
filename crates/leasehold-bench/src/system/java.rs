//! A client of a live Redisson.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_testkit::Redisson;
use leasehold_testkit::redisson::{RedissonThread, Timed};
use serde_json::{Value, json};

use super::{Worker, cannot};
use crate::Result;
use crate::task::{Done, Task};

/// The time limit for a call. Only calls that are never answered reach it.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) struct Java {
    jvm: Arc<Redisson>,
    client: String,
    thread: RedissonThread,
}

impl Java {
    pub(super) async fn connect(jvm: Arc<Redisson>, url: &str) -> Result<Self> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let client = format!("bench-{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
        let (there, name, url) = (Arc::clone(&jvm), client.clone(), url.to_owned());
        let settings = json!({ "as_shipped": true });
        blocking(move || there.client_with(&name, &url, settings)).await??;
        Ok(Self {
            thread: jvm.thread(&client, "main"),
            jvm,
            client,
        })
    }

    async fn call(&self, task: &Task) -> Result<Done> {
        let mut request = serde_json::to_value(task)?;
        let op = match request.as_object_mut().and_then(|it| it.remove("op")) {
            Some(Value::String(op)) => op,
            _ => return Err("a task has no operation".into()),
        };
        let pending = self.thread.start_call::<Done>(&op, request);
        let Timed {
            value,
            from_ns,
            until_ns,
            ..
        } = blocking(move || pending.wait(LIMIT)).await??;
        Ok(Done {
            took_ns: until_ns - from_ns,
            ..value
        })
    }
}

impl Worker for Java {
    fn run(&self, task: Task) -> BoxFuture<'_, Result<Done>> {
        Box::pin(async move {
            match task {
                // The client's watchdog renews the locks on its own.
                Task::Watch { run_ms } => {
                    tokio::time::sleep(Duration::from_millis(run_ms)).await;
                    Ok(Done::default())
                }
                Task::Line { .. } => Err(cannot("Redisson", &task)),
                task => self.call(&task).await,
            }
        })
    }

    fn pid(&self) -> u32 {
        self.jvm.pid()
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let (jvm, client) = (Arc::clone(&self.jvm), std::mem::take(&mut self.client));
        // Closing runs in the background: it may take a second, and the client is not used any
        // more.
        std::thread::spawn(move || jvm.close_client(&client));
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    Ok(tokio::task::spawn_blocking(call).await?)
}
