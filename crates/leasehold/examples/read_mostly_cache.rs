//! A file that many processes read and few rewrite.
//!
//! Readers share the lock. The writer has the lock alone, and reads its own write before any other
//! writer can change it again (`downgrade`). Readers do not starve the writer.
//!
//! ```console
//! $ cargo run -p leasehold --example read_mostly_cache                          # in process
//! $ cargo run -p leasehold --example read_mostly_cache -- redis://127.0.0.1
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Client, Result, RwLock};
use tokio::time::sleep;

const READERS: usize = 4;

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    let client = Client::connect(&url).await?;
    let cache = Arc::new(Cache {
        lock: client.rw_lock("prices"),
        file: std::env::temp_dir().join(format!("prices-{}", std::process::id())),
        inside: AtomicUsize::new(0),
        most_inside: AtomicUsize::new(0),
    });
    cache.write(1).await?;
    let mut tasks = Vec::new();
    for _ in 0..READERS {
        let cache = Arc::clone(&cache);
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                cache.read().await?;
            }
            Result::Ok(())
        }));
    }
    for version in 2..=4 {
        sleep(Duration::from_millis(20)).await;
        cache.write(version).await?;
    }
    for task in tasks {
        task.await.expect("no reader panics")?;
    }
    let most = cache.most_inside.load(Ordering::SeqCst);
    println!("up to {most} of {READERS} readers were inside at once");
    let _ = std::fs::remove_file(&cache.file);
    Ok(())
}

struct Cache {
    lock: RwLock,
    file: PathBuf,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
}

impl Cache {
    async fn read(&self) -> Result<()> {
        let guard = self.lock.read().await?;
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        sleep(Duration::from_millis(5)).await;
        // The file is written in two halves. No reader ever sees one half without the other.
        let text = contents(&self.file);
        let (one, other) = text.split_once(' ').unwrap_or_default();
        assert_eq!(one, other, "a reader saw half a write");
        self.inside.fetch_sub(1, Ordering::SeqCst);
        guard.release().await
    }

    async fn write(&self, version: u32) -> Result<()> {
        let guard = self.lock.write().await?;
        let _ = std::fs::write(&self.file, format!("{version} "));
        sleep(Duration::from_millis(5)).await;
        let _ = std::fs::write(&self.file, format!("{version} {version}"));
        // From here on, others may read at the same time, but no other writer may write.
        let guard = guard.downgrade().await?;
        println!("wrote and read back: {}", contents(&self.file));
        guard.release().await
    }
}

fn contents(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
