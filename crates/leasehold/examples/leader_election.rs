//! One leader at a time, which others can observe. A leader leads until it resigns, dies, or learns
//! that it has lost the lead.
//!
//! ```console
//! $ cargo run -p leasehold --example leader_election                          # in process
//! $ cargo run -p leasehold --example leader_election -- redis://127.0.0.1    # start it twice
//! ```
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example"
)]

use std::time::Duration;

use leasehold::{Client, Result, Term, Terms};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or("memory://".into());
    // Another candidate takes over one second after a leader has died, not sooner.
    let builder = Client::builder().lease(Duration::from_secs(1));
    let client = builder.connect(&url).await?;
    let observer = tokio::spawn(observe(client.election("leader").observe()));
    let candidates = ["anna", "ben", "carl"].map(|name| tokio::spawn(stand(client.clone(), name)));
    for candidate in candidates {
        candidate.await.expect("no candidate panics")?;
    }
    // The observer ends with the client.
    client.close().await;
    observer.abort();
    Ok(())
}

/// Waits until it leads, and leads once. A service would use `lead_until`, which leads again and again.
async fn stand(client: Client, name: &str) -> Result<()> {
    let term = client.election("leader").payload(name).stand().await?;
    // The work is dropped at once when the term is lost, because there may be another leader by
    // then.
    match term.protect(lead(name, &term)).await {
        Ok(()) => {
            println!("{name} resigns");
            term.resign().await
        }
        Err(error) => {
            println!("{name} leads no more: {error}");
            Ok(())
        }
    }
}

async fn lead(name: &str, term: &Term) {
    for round in 1..=3 {
        // A database can refuse the token of a former leader.
        println!("{name} does round {round} with the token {}", term.token());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn observe(mut terms: Terms) -> Result<()> {
    while let Some(leader) = terms.next().await {
        let leader = leader?.and_then(|leader| leader.payload);
        println!("the leader is {}", leader.as_deref().unwrap_or("nobody"));
    }
    Ok(())
}
