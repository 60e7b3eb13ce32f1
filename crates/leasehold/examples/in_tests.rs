//! Tests of code that uses locks, without a server and with a clock that the test moves.
//!
//! [`Embedded`] is a keyspace in this process. All its clients see the same locks. Its leases run
//! on tokio's clock. So with a paused clock, a lease of an hour ends at once, and always at the
//! same point. [`leasehold::testing`] adds a network that can be cut, frozen or slow.
//!
//! ```console
//! $ cargo run -p leasehold --example in_tests                          # in process
//! $ cargo run -p leasehold --example in_tests -- redis://127.0.0.1     # the code under test, for real
//! ```
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use leasehold::{Client, Embedded, Error, ErrorKind, LossReason};

/// The code under test: bills an order once, however many processes try.
async fn bill(client: &Client, order: u32, work: Duration) -> Result<bool, Error> {
    let lock = client.lock(format!("orders:{order}"));
    let Some(guard) = lock.try_acquire().await? else {
        return Ok(false);
    };
    guard.protect(tokio::time::sleep(work)).await?;
    guard.release().await?;
    Ok(true)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    match std::env::args().nth(1) {
        Some(url) => {
            let billed = bill(&Client::connect(&url).await?, 42, Duration::from_millis(50)).await?;
            println!("billed: {billed}");
        }
        None => {
            tokio::time::pause();
            one_of_two_bills(&Embedded::new()).await;
            a_bill_takes_longer_than_the_lease(&Embedded::new()).await;
            the_network_breaks(&Embedded::new()).await;
        }
    }
    Ok(())
}

async fn one_of_two_bills(server: &Embedded) {
    let (ours, theirs) = (server.client(), server.client());
    let hour = Duration::from_secs(3600);
    let (one, other) = tokio::join!(bill(&ours, 42, hour), bill(&theirs, 42, hour));
    assert_eq!((one.unwrap_or(false), other.unwrap_or(true)), (true, false));
    assert_eq!(server.keys(), [""; 0], "nothing is left");
    println!("one of two bills, and the other does not wait");
}

async fn a_bill_takes_longer_than_the_lease(server: &Embedded) {
    let client = server.client();
    let day = Duration::from_secs(24 * 3600);
    // The lock is renewed all day, which takes the test only a moment.
    assert!(bill(&client, 42, day).await.unwrap_or(false));
    println!("a bill that takes a day keeps its lock");
}

async fn the_network_breaks(server: &Embedded) {
    let (client, network) = server
        .client_over_network(&Client::builder())
        .expect("the default settings are in range");
    let billing = bill(&client, 42, Duration::from_secs(3600));
    let cut = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        network.refuse(true);
    };
    let (billed, ()) = tokio::join!(billing, cut);
    let error = billed.expect_err("the lock could not be renewed");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(matches!(
        error.loss(),
        Some(LossReason::RenewalFailed { .. })
    ));
    println!("a bill without a network stops: {error}");
}
