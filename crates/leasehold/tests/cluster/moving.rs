//! Slots that move and masters that change while every primitive is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::Cluster;
use tokio::task::block_in_place;

use super::crew::Crew;
use super::worker::TAG;
use crate::support::{acquire_and_release, eventually};

const MOVES: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_moves_disturb_nobody() {
    let cluster = Cluster::start(3, 0);
    let slot = cluster.slot_of(TAG);
    let crew = Crew::start(&cluster).await;
    crew.goes_on().await;
    for _ in 0..MOVES {
        block_in_place(|| cluster.migrate(slot, (cluster.owner(slot) + 1) % 3));
        crew.goes_on().await;
    }
    let errors = crew.end(&cluster).await;
    assert_eq!(errors, [""; 0], "no call fails");
}

/// Only Valkey 9.0 and later can move slots in this way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_at_once_disturb_nobody() {
    let cluster = Cluster::start(3, 0);
    let slot = cluster.slot_of(TAG);
    let crew = Crew::start(&cluster).await;
    crew.goes_on().await;
    for _ in 0..MOVES {
        let to = (cluster.owner(slot) + 1) % 3;
        if !block_in_place(|| cluster.migrate_at_once(slot, to)) {
            println!("this server moves no slot at once");
            break;
        }
        crew.goes_on().await;
    }
    let errors = crew.end(&cluster).await;
    assert_eq!(errors, [""; 0], "no call fails");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_slot_loses_no_hold() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(TAG);
    let from = cluster.owner(slot);
    let client = Client::builder().lease(Duration::from_secs(3));
    let client = client.connect(&cluster.url()).await.unwrap();
    let free = client.lock(format!("{TAG}free"));
    let held = client.lock(format!("{TAG}held")).acquire().await.unwrap();
    let write = client
        .rw_lock(format!("{TAG}written"))
        .write()
        .await
        .unwrap();
    let crew = Crew::start(&cluster).await;
    crew.goes_on().await;
    // These requests are sent by the same client. If they blocked it, its renewals would have to
    // wait for them.
    let waiting: Vec<_> = (0..10)
        .map(|n| {
            let semaphore = client.semaphore(format!("{TAG}waits {n}"));
            tokio::spawn(async move {
                loop {
                    // The semaphore has no permits, but a node must have all its keys to find that
                    // out.
                    let _ = semaphore.try_acquire().await;
                    // At the end of the runtime each call fails at once.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    cluster.open(slot, 1 - from);
    // This is far longer than the leases of these holds, so they are renewed while the other
    // requests wait.
    let (first, second) = (held.valid_until(), write.valid_until());
    eventually("they are renewed in the open slot", async || {
        let enough = Duration::from_secs(5);
        held.valid_until() > first + enough && write.valid_until() > second + enough
    })
    .await;
    assert_eq!((held.loss(), write.loss()), (None, None));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    // A free lock has no key at the old node, so the other node grants it.
    free.acquire().await.unwrap().release().await.unwrap();
    block_in_place(|| {
        for key in cluster.keys_in(from, slot) {
            cluster.move_key(from, 1 - from, &key);
        }
    });
    eventually("all keys have moved", async || {
        let left = block_in_place(|| cluster.keys_in(from, slot));
        left.iter().for_each(|key| {
            block_in_place(|| cluster.move_key(from, 1 - from, key));
        });
        left.is_empty()
    })
    .await;
    cluster.assign(slot, 1 - from);
    crew.goes_on().await;
    held.release().await.unwrap();
    write.release().await.unwrap();
    drop(client);
    crew.end(&cluster).await;
}

/// The new node accepts only the one request that follows `ASKING` on its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_node_takes_each_request_that_was_sent_on_to_it() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(TAG);
    let to = 1 - cluster.owner(slot);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let at_home = |name: &String| cluster.owner(cluster.slot_of(name)) == to;
    let names = (0..).map(|n| format!("name {n}")).filter(at_home).take(8);
    let busy: Vec<_> = names
        .map(|name| {
            let lock = client.lock(&name);
            tokio::spawn(async move {
                loop {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    cluster.open(slot, to);
    for n in 0..100 {
        // The lock has no key yet, so the old node redirects the request.
        let lock = client.lock(format!("{TAG}{n}"));
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    busy.iter().for_each(tokio::task::JoinHandle::abort);
    let errors = cluster.nodes()[to].command(&["INFO", "errorstats"]);
    let errors = errors.unwrap();
    let errors = errors.as_text().unwrap();
    assert!(!errors.contains("errorstat_MOVED"), "{errors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_disturb_nobody() {
    let cluster = Cluster::start(3, 1);
    let slot = cluster.slot_of(TAG);
    let crew = Crew::start(&cluster).await;
    for _ in 0..2 {
        crew.goes_on().await;
        let replicas = || block_in_place(|| cluster.replicas_of(cluster.owner(slot)));
        eventually("the master has a replica", async || !replicas().is_empty()).await;
        block_in_place(|| cluster.fail_over(replicas()[0]));
    }
    crew.goes_on().await;
    crew.end(&cluster).await;
}

/// No replica acknowledged the dead master's grants, so holds may be lost; but the calls must end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_master_is_replaced() {
    let cluster = Cluster::start(3, 1);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let lock = client.lock("x");
    lock.acquire().await.unwrap().release().await.unwrap();
    let owner = cluster.owner(cluster.slot_of("x"));
    cluster.nodes()[owner].kill().unwrap();
    // This acquire waits for the replica to take over.
    let guard = lock.acquire().await.unwrap();
    guard.release().await.unwrap();
    // The other masters were in use all the time.
    acquire_and_release(&client.lock("y")).await;
}

/// A step that must wait for its slot must not delay a step that can run.
#[tokio::test]
async fn renewals_pass_what_waits_for_its_slot() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(TAG);
    let builder = Client::builder().lease(Duration::from_secs(6));
    let client = builder.connect(&cluster.url()).await.unwrap();
    let held = client.lock(format!("{TAG}held")).acquire().await.unwrap();
    cluster.open(slot, 1 - cluster.owner(slot));
    let refused = Arc::<AtomicUsize>::default();
    let waiting = (0..20).map(|n| {
        let semaphore = client.semaphore(format!("{TAG}waits {n}"));
        let refused = Arc::clone(&refused);
        tokio::spawn(async move {
            while semaphore.add_permits(1).await.is_err() {
                refused.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let waiting: Vec<_> = waiting.collect();
    let first = held.valid_until();
    eventually("it is renewed", async || {
        assert_eq!(held.loss(), None, "the others hold its renewals up");
        held.valid_until() > first + Duration::from_secs(6)
    })
    .await;
    eventually("some of the others were given up", async || {
        assert_eq!(held.loss(), None, "the others hold its renewals up");
        refused.load(Ordering::SeqCst) > 0
    })
    .await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// One request renews holds of several slots. It must not wait for the one slot that is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grouped_renewals_do_not_queue_for_one_of_their_slots() {
    const OTHERS: usize = 8;
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of(TAG);
    let from = cluster.owner(slot);
    let client = Client::builder().lease(Duration::from_secs(3));
    let client = client.connect(&cluster.url()).await.unwrap();
    // The first hold of a group decides for which slot the group would queue.
    let mut held = Vec::new();
    for n in 0..OTHERS {
        let lock = client.lock(format!("{TAG}held {n}"));
        held.push(lock.acquire().await.unwrap());
    }
    let at_home = |name: &String| cluster.owner(cluster.slot_of(name)) == from;
    for name in (0..)
        .map(|n| format!("name {n}"))
        .filter(at_home)
        .take(OTHERS)
    {
        held.push(client.lock(&name).acquire().await.unwrap());
    }
    cluster.open(slot, 1 - from);
    // These locks have no key at the old node, so every request is forwarded by the slot's queue.
    let busy: Vec<_> = (0..10)
        .map(|n| {
            let lock = client.lock(format!("{TAG}busy {n}"));
            tokio::spawn(async move {
                loop {
                    acquire_and_release(&lock).await;
                }
            })
        })
        .collect();
    let first = held[0].valid_until();
    eventually("they are renewed ten times", async || {
        for guard in &held {
            assert_eq!(guard.loss(), None);
            // On a busy machine, a reply may be late.
            let failure = guard.renewal_failure();
            let refused = failure.filter(|why| !why.to_string().contains("no reply yet"));
            assert_eq!(refused, None, "the server refuses no renewal");
        }
        held.iter()
            .all(|guard| guard.valid_until() > first + Duration::from_secs(10))
    })
    .await;
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The keys of two readers are on two nodes. A reader that releases its hold must not believe that
/// the other reader is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_outlives_the_release_of_another_in_an_open_slot() {
    let cluster = Cluster::start(2, 0);
    let slot = cluster.slot_of("x");
    let (from, to) = (cluster.owner(slot), 1 - cluster.owner(slot));
    let builder = Client::builder().lease(Duration::from_secs(60));
    let leaves = builder.connect(&cluster.url()).await.unwrap();
    let stays = builder.connect(&cluster.url()).await.unwrap();
    let first = leaves.rw_lock("x").read().await.unwrap();
    // Another client waits, so every key of the release exists. If a step names a missing key of an
    // open slot, the server itself refuses it.
    let others = ["RPUSH", "leasehold:{x}:asking", "1234:1"];
    cluster.nodes()[from].command(&others).unwrap();
    let moved = cluster.keys();
    let second = stays.rw_lock("x").read().await.unwrap();
    cluster.open(slot, to);
    for key in &moved {
        assert!(cluster.move_key(from, to, key), "{key}");
    }
    let released = tokio::spawn(first.release());
    block_in_place(|| {
        // The release has arrived, but can't run until the other reader's key has moved, too.
        std::thread::sleep(Duration::from_millis(200));
        for key in cluster.keys_in(from, slot) {
            cluster.move_key(from, to, &key);
        }
        cluster.assign(slot, to);
    });
    released.await.unwrap().unwrap();
    second.release().await.expect("it was held all the time");
}

/// Each release is sent before its acquire is answered, as when a wait is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_names_move_together() {
    const NAMES: usize = 300;
    let cluster = Cluster::start(2, 0);
    let client = Client::connect(&cluster.url()).await.unwrap();
    let slot = cluster.slot_of(TAG);
    let locks = (0..NAMES).map(|n| client.lock(format!("{TAG}{n}")));
    let locks: Vec<_> = locks.collect();
    let mut guards = Vec::new();
    for lock in &locks {
        guards.push(lock.acquire().await.unwrap());
    }
    let from = cluster.owner(slot);
    block_in_place(|| cluster.migrate(slot, 1 - from));
    let releases = guards.into_iter().map(|guard| guard.release());
    for released in futures_util::future::join_all(releases).await {
        released.unwrap();
    }
    let acquires = locks.iter().map(|lock| lock.acquire());
    for guard in futures_util::future::join_all(acquires).await {
        guard.unwrap().release().await.unwrap();
    }
    eventually("nothing is left", async || cluster.keys().is_empty()).await;
}
