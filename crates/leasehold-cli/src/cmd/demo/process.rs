//! `leasehold demo-worker`: a worker as a process.

use super::event::Event;
use super::stock::Stock;
use super::worker::Worker;
use super::{LEASE, OUTAGE_LIMIT};
use crate::cli::DemoWorker;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::input;
use crate::output;
use crate::server::Server;

/// Reports that the worker is ready, waits for a line on stdin, and sells. Events are written to
/// stdout. A failure is also an event, which the parent prints.
pub(crate) async fn main(args: DemoWorker, server: &Server) -> Result<Exit, Failure> {
    match work(args, server).await {
        Ok(()) => Ok(Exit::Success),
        Err(failure) => {
            report(Event::Failed {
                exit: failure.exit(),
                message: failure.to_string(),
            })?;
            Ok(failure.exit())
        }
    }
}

async fn work(args: DemoWorker, server: &Server) -> Result<(), Failure> {
    let lock = match &args.lock {
        Some(name) => {
            let client = server.connect(Some(LEASE)).await?;
            Some(client.lock(name).outage_timeout(OUTAGE_LIMIT))
        }
        None => None,
    };
    report(Event::Ready)?;
    let start = input::line().await;
    let start = start.map_err(|error| Failure::io("can't read the start from stdin", error))?;
    if start.is_empty() {
        return Err(Failure::new(
            Exit::Failed,
            "the demo has ended before its start",
        ));
    }
    let worker = Worker {
        number: args.number,
        stock: Stock::at(&args.stock),
        lock,
        pause: args.pause,
        victim_at: args.victim_at,
        limit: args.limit,
        killed: None,
    };
    worker.sell(report).await?;
    Ok(())
}

/// Writes an event to the parent. An error ends the worker: without a parent, no process would read
/// the reports of its sales.
fn report(event: Event) -> Result<(), Failure> {
    output::line(&event).map_err(|error| Failure::io("nobody listens", error))
}
