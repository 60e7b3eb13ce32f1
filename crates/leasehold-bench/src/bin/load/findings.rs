//! The results of a load: figures for people, and the promises that were broken.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::inspect::Activity;
use leasehold_testkit::RedisServer;

use crate::Result;
use leasehold_bench::server::number;

/// The broken promises of one load. Figures are printed immediately.
#[derive(Debug, Default)]
#[must_use = "only the verdict reports violations"]
pub(crate) struct Findings {
    violations: Vec<String>,
}

impl Findings {
    /// Prints a figure.
    pub(crate) fn say(&self, what: &str, figure: impl Display) {
        println!("{what:<42} {figure}");
    }

    /// Checks a promise. `violation` describes what happened instead.
    pub(crate) fn must(&mut self, kept: bool, violation: impl FnOnce() -> String) {
        if !kept {
            self.violations.push(violation());
        }
    }

    /// Checks that nothing is left behind, in the clients or on the server. Waits for a while,
    /// because some work is undone in the background.
    pub(crate) async fn must_come_to_rest(
        &mut self,
        clients: &[&Client],
        server: &RedisServer,
    ) -> Result<()> {
        const LIMIT: Duration = Duration::from_secs(30);
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = left_behind(clients, server)?;
            if left.is_none() || Instant::now() > deadline {
                self.must(left.is_none(), || {
                    format!("left behind after {LIMIT:?}: {}", left.unwrap_or_default())
                });
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Prints whether all promises were kept, and returns this as an exit code.
    pub(crate) fn verdict(self) -> ExitCode {
        if self.violations.is_empty() {
            println!("every promise was kept");
            return ExitCode::SUCCESS;
        }
        for violation in self.violations {
            eprintln!("violated: {violation}");
        }
        ExitCode::FAILURE
    }
}

fn left_behind(clients: &[&Client], server: &RedisServer) -> Result<Option<String>> {
    // The keys in which clients announce themselves are not counted.
    let keys = server.keys();
    let channels = number(server, "stats", "pubsub_channels")?;
    let busy = clients
        .iter()
        .map(|client| client.activity())
        .find(|activity| *activity != Activity::default());
    let some: Vec<_> = keys.iter().take(5).collect();
    Ok(
        (!keys.is_empty() || channels != 0 || busy.is_some()).then(|| {
            format!(
                "{} keys ({some:?}) and {channels} channels on the server, {busy:?}",
                keys.len()
            )
        }),
    )
}
