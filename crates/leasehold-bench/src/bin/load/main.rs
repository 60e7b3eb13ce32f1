//! Loads with many waiters, processes, holds or names. Each load starts its own server, prints its
//! measurements, and checks the promises. The program exits with 1 if a promise was broken.
#![allow(clippy::print_stdout, reason = "a program that prints figures")]

mod churn;
mod figures;
mod findings;
mod holds;
mod processes;
mod seen;
mod waiters;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use findings::Findings;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Load a server with locks, print the cost, and check the results
#[derive(Parser)]
#[command(name = "load")]
struct Load {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// Let tasks of one process wait for one name
    Waiters(waiters::Waiters),
    /// Let processes compete for one name
    Processes(processes::Processes),
    /// Let one client hold many names and renew them
    Holds(holds::Holds),
    /// Use many names one after the other, then wait for many names at once
    Churn(churn::Churn),
    #[command(hide = true)]
    Child(processes::child::Child),
}

fn main() -> ExitCode {
    let outcome = match Load::parse().kind {
        Kind::Waiters(load) => on_all_cores(load.run()),
        Kind::Processes(load) => load.run(),
        Kind::Holds(load) => on_all_cores(load.run()),
        Kind::Churn(load) => on_all_cores(load.run()),
        Kind::Child(child) => return child.run(),
    };
    match outcome {
        Ok(findings) => findings.verdict(),
        Err(error) => failed(&*error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("can't run the load: {error}");
    ExitCode::FAILURE
}

fn on_all_cores(load: impl Future<Output = Result<Findings>>) -> Result<Findings> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(load)
}
