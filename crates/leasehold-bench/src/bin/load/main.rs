//! Many of everything: waiters, processes, holds, names. Each load starts a server of
//! its own, prints what it measures and judges it; it ends with 1 if a promise was
//! broken.
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

/// Loads a server with locks, prints what it costs, and judges what it saw
#[derive(Parser)]
#[command(name = "load")]
struct Load {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// Tasks of one process wait for one name
    Waiters(waiters::Waiters),
    /// Processes want one name
    Processes(processes::Processes),
    /// One client holds many names and renews them
    Holds(holds::Holds),
    /// Many names come and go; many names are waited for at once
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
    eprintln!("the load could not be run: {error}");
    ExitCode::FAILURE
}

fn on_all_cores(load: impl Future<Output = Result<Findings>>) -> Result<Findings> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(load)
}
