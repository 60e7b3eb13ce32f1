//! Every feature through a failover.

use std::time::Duration;

use leasehold::{Acknowledgement, Client, ClientBuilder};
use leasehold_testkit::Sentinels;
use tokio::task::block_in_place;

use super::failovers::leads_to;
use crate::support::company::Company;
use crate::support::eventually;
use crate::support::guarded::{guarded, is_known};

/// A lease longer than a failover takes.
const LEASE: Duration = Duration::from_secs(60);

/// Brings every feature through a failover. Each promise must hold on the server that takes over.
async fn goes_through_a_failover(sentinels: Sentinels, builder: ClientBuilder, long: Duration) {
    let connect = async || builder.connect(&sentinels.url()).await.unwrap();
    let (ours, theirs) = (connect().await, connect().await);
    let company = Company {
        long,
        ..Company::new(&ours, &theirs)
    };
    let company = company.with_threads(&builder, &sentinels.url()).await;
    let clients = [&ours, &theirs, company.threads.as_ref().unwrap().as_async()].map(Client::clone);
    let fails_over = async || {
        let new = block_in_place(|| sentinels.fail_over());
        for client in &clients {
            leads_to(client, &sentinels.servers()[new]).await;
        }
    };
    company.goes_through(fails_over).await;
    eventually("nothing is left", async || {
        let mut keys = sentinels.keys().into_iter();
        keys.all(|key| key.contains("_token:") || key.starts_with("leasehold:"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_failover() {
    let builder = Client::builder().lease(LEASE);
    goes_through_a_failover(Sentinels::start(1), builder, 2 * LEASE).await;
}

/// The old master becomes the replica that confirms the holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_is_confirmed_after_a_failover() {
    let confirmed = Acknowledgement::replicas(1);
    let builder = Client::builder().lease(LEASE).acknowledged_by(confirmed);
    goes_through_a_failover(Sentinels::start(1), builder, 2 * LEASE).await;
}

/// No client is granted anything for a span after the failover, and holds go on. A replica confirms
/// all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_failover_beside_its_guard() {
    const SPAN: Duration = Duration::from_secs(25);
    let sentinels = Sentinels::start(1);
    is_known(sentinels.master_server());
    let builder = guarded(SPAN).acknowledged_by(Acknowledgement::replicas(1));
    goes_through_a_failover(sentinels, builder, SPAN).await;
}
