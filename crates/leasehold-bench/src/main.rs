//! Uncontended acquire and release, ours beside bare scripts through the same
//! driver, alternating in one run against one server. Only the ratios count.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

mod cpu;
mod run;

use std::time::Duration;

use comfy_table::Table;
use leasehold_testkit::RedisServer;

use run::{Bare, Measured, Ours, Pair, measure};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROUNDS: usize = 5;

#[tokio::main]
async fn main() -> Result<()> {
    let slice = match std::env::args().nth(1) {
        Some(ms) => Duration::from_millis(ms.parse()?),
        None => Duration::from_millis(1000),
    };
    let server = RedisServer::start()?;
    let bare = Bare::connect(&server.url()).await?;
    let client = leasehold::Client::connect(&server.url()).await?;
    let ours = Ours::new(&client);
    let mut table = Table::new();
    table.set_header([
        "tasks",
        "who",
        "pairs/s",
        "ratio",
        "p50 us",
        "p99 us",
        "server us",
        "client us",
        "calls/pair",
        "where the time goes",
    ]);
    let only: Option<usize> = std::env::args().nth(2).and_then(|n| n.parse().ok());
    for tasks in only.map_or(vec![1, 64, 1024], |n| vec![n]) {
        // Once unmeasured, so that neither pays for warming up.
        measure(&bare, &server, tasks, slice / 4).await?;
        measure(&ours, &server, tasks, slice / 4).await?;
        let (mut theirs, mut mine) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(measure(&bare, &server, tasks, slice).await?);
            mine.push(measure(&ours, &server, tasks, slice).await?);
        }
        let (theirs, mine) = (Measured::median(theirs), Measured::median(mine));
        row(&mut table, tasks, "bare EVALSHA", &theirs, 1.0);
        row(
            &mut table,
            tasks,
            "leasehold",
            &mine,
            mine.pairs_per_s / theirs.pairs_per_s,
        );
    }
    println!("{table}");
    in_process(&client, &server, slice).await
}

fn row(table: &mut Table, tasks: usize, who: &str, measured: &Measured, ratio: f64) {
    table.add_row([
        tasks.to_string(),
        who.to_owned(),
        format!("{:.0}", measured.pairs_per_s),
        format!("{ratio:.2}"),
        format!("{:.0}", measured.p50_us),
        format!("{:.0}", measured.p99_us),
        format!("{:.1}", measured.server_us),
        format!("{:.1}", measured.client_us),
        format!("{:.2}", measured.calls_per_pair),
        measured.where_it_goes(),
    ]);
}

/// What costs no call to a server at all.
async fn in_process(
    client: &leasehold::Client,
    server: &RedisServer,
    slice: Duration,
) -> Result<()> {
    let embedded = leasehold::Client::embedded();
    let lock = Ours::new(&embedded);
    let measured = measure(&lock, server, 1, slice).await?;
    println!("embedded pair: {:.2} us", 1e6 / measured.pairs_per_s);

    let owner = leasehold::Owner::new();
    let lock = client.lock("bench:owned").owned_by(&owner);
    let outer = lock.acquire().await?;
    let before = run::calls(server)?;
    let again = run::Again(lock);
    again.pair(0).await?;
    let measured = measure(&again, server, 1, slice).await?;
    let calls = run::calls(server)? - before;
    println!(
        "re-entrant pair: {:.2} us, {calls} server calls",
        1e6 / measured.pairs_per_s
    );
    outer.release().await?;
    Ok(())
}
