//! A process of the load: acquires the lock `rounds` times, and increments a counter under it.

use std::io::{Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leasehold::Client;
use leasehold::testing::history::monotonic_ns;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::{COUNTER, NAME};
use crate::Result;
use crate::seen::Seen;

#[derive(Args)]
pub(crate) struct Child {
    #[arg(long)]
    url: String,

    #[arg(long)]
    rounds: usize,
}

impl Child {
    /// Reports that this process is ready, waits on stdin for the signal to start, and prints its
    /// holds when it is done.
    pub(crate) fn run(self) -> ExitCode {
        match self.print_holds() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => crate::failed(&*error),
        }
    }

    fn print_holds(&self) -> Result<()> {
        let holds = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(self.work())?;
        let mut out = stdout().lock();
        for hold in holds {
            writeln!(out, "{hold}")?;
        }
        Ok(())
    }

    async fn work(&self) -> Result<Vec<Seen>> {
        let client = Client::connect(&self.url).await?;
        let mut connection = redis::Client::open(&*self.url)?
            .get_multiplexed_async_connection()
            .await?;
        println!("ready");
        stdout().flush()?;
        stdin().read_line(&mut String::new())?;
        let lock = client.lock(NAME);
        let mut holds = Vec::with_capacity(self.rounds);
        for _ in 0..self.rounds {
            // If a wait never ends, the parent must not wait forever.
            const LIMIT: Duration = Duration::from_secs(300);
            let asked = monotonic_ns();
            let guard = lock.try_acquire_for(LIMIT).await?.ok_or("never served")?;
            let from = monotonic_ns();
            count(&mut connection).await?;
            holds.push(Seen::at_release(asked, from, &guard));
            guard.release().await?;
        }
        Ok(holds)
    }
}

/// Increments the counter in two steps. Counts are lost if another process does this at the same
/// time.
async fn count(connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    let counted: Option<u64> = connection.get(COUNTER).await?;
    connection.set(COUNTER, counted.unwrap_or(0) + 1).await
}
