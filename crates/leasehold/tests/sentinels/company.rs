//! Every feature during a failover.

use std::time::Duration;

use leasehold::{Acknowledgement, Client, ClientBuilder, blocking};
use leasehold_testkit::{RedisServer, Sentinels, eventually as soon};
use tokio::task::block_in_place;

use super::failovers::leads_to;
use crate::support::HOUR;
use crate::support::asleep::asleep;
use crate::support::company::{Company, leaves_nothing, stays_at_the_end};
use crate::support::ended::at_runtime_end;
use crate::support::guarded::{guarded, is_known};
use crate::support::users::{Users, logged_in};

/// A lease longer than a failover takes.
const LEASE: Duration = Duration::from_secs(60);

/// Uses every feature during a failover. The promoted replica must keep each promise.
async fn goes_through_a_failover(sentinels: Sentinels, builder: ClientBuilder, long: Duration) {
    let company = Company {
        long,
        ..Company::connect(&builder, &sentinels.url()).await
    };
    let company = company.with_threads(&builder, &sentinels.url()).await;
    let fails_over = async || {
        let new = block_in_place(|| sentinels.fail_over());
        all_lead_to(&company, &sentinels.servers()[new]).await;
    };
    company.clone().goes_through(fails_over).await;
    leaves_nothing(|| sentinels.keys()).await;
}

async fn all_lead_to(company: &Company, server: &RedisServer) {
    let threads = company.threads.as_ref().map(blocking::Client::as_async);
    for client in [&company.ours, &company.theirs].into_iter().chain(threads) {
        leads_to(client, server).await;
    }
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

/// For a span after the failover, clients do not get new holds, but existing holds are renewed. A
/// replica confirms all holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_failover_beside_its_guard() {
    const SPAN: Duration = Duration::from_secs(40);
    let sentinels = Sentinels::start(1);
    is_known(sentinels.master_server());
    let builder = guarded(SPAN).acknowledged_by(Acknowledgement::replicas(1));
    goes_through_a_failover(sentinels, builder, SPAN).await;
}

/// The clients log in at the new master as a user that they learned of only after the failover. The
/// servers admit no other user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_outlasts_a_failover_with_new_credentials() {
    let sentinels = Sentinels::start(1);
    let users = Users::of(sentinels.servers(), "first");
    let builder = users.log_in(Client::builder().lease(LEASE));
    let company = Company::connect(&builder, &sentinels.url()).await;
    let company = company.with_threads(&builder, &sentinels.url()).await;
    let trouble = async || {
        users.change_to("second");
        let new = block_in_place(|| {
            users.delete("first");
            sentinels.fail_over()
        });
        let new = &sentinels.servers()[new];
        all_lead_to(&company, new).await;
        assert!(logged_in(new, "second") >= 3, "each client calls it");
    };
    company.clone().goes_through(trouble).await;
    leaves_nothing(|| sentinels.keys()).await;
}

/// The master is replaced while the machine of the clients sleeps. They learn of the new master
/// when the machine wakes.
#[tokio::test]
async fn every_feature_sleeps_through_a_failover() {
    let sentinels = Sentinels::start(1);
    let builder = Client::builder().lease(LEASE);
    let company = Company::connect(&builder, &sentinels.url()).await;
    let trouble = async || {
        let new = asleep(|| sentinels.fail_over());
        all_lead_to(&company, &sentinels.servers()[new]).await;
    };
    company.clone().goes_through(trouble).await;
    leaves_nothing(|| sentinels.keys()).await;
}

/// The releases that are sent when the runtime ends reach the new master.
#[test]
fn runtime_end_after_a_failover_leaves_nothing() {
    let sentinels = Sentinels::start(1);
    let work = async || {
        let builder = Client::builder().lease(HOUR);
        let company = Company::connect(&builder, &sentinels.url()).await;
        company.clone().settles().await;
        let new = sentinels.fail_over();
        all_lead_to(&company, &sentinels.servers()[new]).await;
    };
    // These names are released during the failover, and the old master may lose a release.
    let may_stay = |key: &str| ["dropped", "limited", "forgotten"].contains(&key);
    let check = |()| {
        soon("nothing is left", Duration::from_secs(20), || {
            let mut keys = sentinels.keys().into_iter();
            keys.all(|key| stays_at_the_end(&key) || may_stay(&key))
        });
    };
    let again = || drop(sentinels.master_server().command(&["FLUSHALL"]).unwrap());
    at_runtime_end(work, check, again);
}
