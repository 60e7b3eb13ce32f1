//! Holds that replicas acknowledge, on a cluster.

use std::time::Duration;

use leasehold::{Acknowledgement, Client, ErrorKind};
use leasehold_testkit::Cluster;
use tokio::task::block_in_place;

use crate::support::HOUR;

const NAME: &str = "{moves}x";

fn replicas(number: u8) -> Acknowledgement {
    Acknowledgement::replicas(number).within(Duration::from_secs(20))
}

/// The operation is first one of many in a call, and then alone in a call that declares its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_that_has_moved_is_confirmed_at_its_new_node() {
    let cluster = Cluster::start(2, 1);
    let slot = cluster.slot_of(NAME);
    for declares in [false, true] {
        let builder = Client::builder().declare_keys(declares).lease(HOUR);
        let builder = builder.reply_timeout(HOUR).acknowledged_by(replicas(1));
        let client = builder.connect(&cluster.url()).await.unwrap();
        let guard = client.lock(NAME).acquire().await.unwrap();
        for round in 0..5 {
            let to = 1 - cluster.owner(slot);
            let waits = cluster.nodes()[to].calls("wait");
            block_in_place(|| cluster.migrate(slot, to));
            guard.extend(HOUR).await.unwrap();
            // At first the client also asks the other node whether it supports `WAIT`.
            let asked = u64::from(round == 0);
            assert!(cluster.nodes()[to].calls("wait") > waits + asked);
            let replica = &cluster.nodes()[cluster.replicas_of(to)[0]];
            assert_eq!(replica.keys(), [NAME]);
        }
        let two = client
            .lock("{moves}y")
            .acknowledged_by(Acknowledgement::replicas(2).within(Duration::from_millis(50)));
        let error = two.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        guard.release().await.unwrap();
    }
}

/// The slot remains half-moved: the client asks the new node, whose replicas confirm the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_in_an_open_slot_is_confirmed_at_its_new_node() {
    let cluster = Cluster::start(2, 1);
    let slot = cluster.slot_of(NAME);
    let builder = Client::builder().lease(HOUR).reply_timeout(HOUR);
    let client = builder.connect(&cluster.url()).await.unwrap();
    let to = 1 - cluster.owner(slot);
    block_in_place(|| cluster.open(slot, to));
    let lock = client.lock(NAME);
    let guard = lock
        .clone()
        .acknowledged_by(replicas(1))
        .acquire()
        .await
        .unwrap();
    let replica = &cluster.nodes()[cluster.replicas_of(to)[0]];
    assert_eq!(replica.keys(), [NAME]);
    guard.release().await.unwrap();
    let two = Acknowledgement::replicas(2).within(Duration::from_millis(50));
    let error = lock.acknowledged_by(two).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_hold_outlives_the_master_of_its_slot() {
    let cluster = Cluster::start(3, 1);
    let builder = Client::builder().lease(HOUR);
    let client = builder.connect(&cluster.url()).await.unwrap();
    let lock = client.lock(NAME);
    let guard = lock
        .clone()
        .acknowledged_by(Acknowledgement::replicas(1))
        .acquire()
        .await
        .unwrap();
    let owner = cluster.owner(cluster.slot_of(NAME));
    cluster.nodes()[owner].kill().unwrap();
    block_in_place(|| cluster.wait_until_replaced(owner));
    let other = Client::connect(&cluster.url()).await.unwrap();
    let second = other
        .lock(NAME)
        .try_acquire_for(Duration::from_secs(3))
        .await;
    assert!(second.is_ok_and(|second| second.is_none()));
    assert_eq!(guard.loss(), None);
    guard.release().await.unwrap();
}

/// When a slot has finished moving, the operations that are queued for it are sent together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_that_wait_for_a_moved_slot_are_all_confirmed() {
    let cluster = Cluster::start(2, 1);
    let slot = cluster.slot_of(NAME);
    let builder = Client::builder().lease(HOUR).reply_timeout(HOUR);
    let client = builder.connect(&cluster.url()).await.unwrap();
    let too_many = Acknowledgement::replicas(2).within(Duration::from_millis(50));
    for round in 0..5 {
        let to = 1 - cluster.owner(slot);
        block_in_place(|| cluster.migrate(slot, to));
        let asked = (0..40).map(|number| {
            let lock = client.lock(format!("{{moves}}{round} {number}"));
            let acknowledged = match number % 4 {
                0 => Acknowledgement::master(),
                1 => too_many,
                _ => replicas(1),
            };
            let lock = lock.acknowledged_by(acknowledged);
            tokio::spawn(async move { (number, lock.try_acquire().await) })
        });
        let asked: Vec<_> = asked.collect();
        let replica = &cluster.nodes()[cluster.replicas_of(to)[0]];
        let mut guards = Vec::new();
        for asked in asked {
            match asked.await.unwrap() {
                (number, Err(error)) => {
                    assert_eq!((number % 4, error.kind()), (1, ErrorKind::Unavailable));
                }
                (number, got) => {
                    let guard = got.unwrap().expect("it is free");
                    let has_it = replica.keys().iter().any(|key| key == guard.name());
                    assert!(number % 4 == 0 || number % 4 > 1 && has_it, "{number}");
                    guards.push(guard);
                }
            }
        }
        assert_eq!(guards.len(), 30, "and nobody got more than was confirmed");
        for guard in guards {
            guard.release().await.unwrap();
        }
    }
}
