//! A partitioned network: a master of a cluster and a client on one side, all others on the other.

use std::io::Read;
use std::time::Duration;

use leasehold::testing::history::monotonic_ns;
use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Cluster, Hosts, RedisServer, eventually};

use super::bad_input::names_at;
use super::worker::deadline_ns;
use crate::support::child::{Child, job};

const TEST: &str = "cluster::partition::a_client_of_its_own";
/// The lease. A third of it is longer than a master in the minority keeps serving, which is the
/// node timeout of a second and a little more. So if the partition begins just after a renewal, no
/// other renewal is due while that master still serves.
const LEASE: Duration = Duration::from_secs(12);
const LIMIT: Duration = Duration::from_secs(60);

/// The host with the minority of the nodes, and the host with the majority.
const FEW: usize = 0;
const MOST: usize = 1;

#[test]
fn client_with_a_minority_is_told_and_never_holds_beside_the_majority() {
    let hosts = match Hosts::start() {
        Ok(hosts) => hosts,
        Err(error) => return println!("skipped: it takes network namespaces: {error}"),
    };
    let on = |node| RedisServer::builder().on(&hosts, if node == 0 { FEW } else { MOST });
    let cluster = Cluster::of_each(on, 3, 1);
    let name = names_at(&cluster, 0).remove(0);
    let successor = cluster.replicas_of(0)[0];
    let url = cluster.url();
    let start = |host, what: &str| Child::on(&hosts, host, TEST, &format!("{what} {url} {name}"));

    let holder = start(FEW, "hold");
    said(&holder, "renewed");
    let waiter = start(MOST, "wait");
    eventually("it waits", LIMIT, || !cluster.channels().is_empty());
    let renewals = is_renewed(&holder, &cluster, successor);
    hosts.cut();
    eventually("the majority has another master", LIMIT, || {
        cluster.is_master(successor)
    });

    let told = said(&holder, "told");
    let granted = said(&waiter, "granted")[0];
    let late = holder.count("renewed") - renewals;
    assert_eq!(late, 0, "a master without the majority has renewed it");
    let [valid_until, told_at] = told[..] else {
        panic!("{told:?}");
    };
    let behind = |at: u64| Duration::from_nanos(at.saturating_sub(valid_until));
    let (told, granted_behind) = (behind(told_at), behind(granted));
    println!("told {told:?} behind its deadline, granted {granted_behind:?} behind it");
    assert!(granted >= valid_until, "two held it");

    // The partition has ended, and the client now calls the new master.
    hosts.join();
    waiter.finished();
    said(&holder, "again");
    holder.finished();
}

/// Waits for a renewal that has reached the replica. Returns the number of renewals.
fn is_renewed(holder: &Child, cluster: &Cluster, replica: usize) -> usize {
    let before = holder.count("renewed");
    eventually("it is renewed", LIMIT, || holder.count("renewed") > before);
    let done = offset(&cluster.nodes()[0], "master_repl_offset:");
    eventually("the replica has that", LIMIT, || {
        offset(&cluster.nodes()[replica], "slave_repl_offset:") >= done
    });
    holder.count("renewed")
}

/// Returns how many of the master's writes a node has received, as a replication offset.
fn offset(node: &RedisServer, field: &str) -> u64 {
    let info = node.command(&["INFO", "replication"]).unwrap();
    let info = info.as_text().unwrap();
    let offset = info.lines().find_map(|line| line.strip_prefix(field));
    offset.unwrap().parse().unwrap()
}

/// Returns the numbers that the child has printed after this word.
fn said(child: &Child, word: &str) -> Vec<u64> {
    eventually(word, LIMIT, || child.said(word).is_some());
    let said = child.said(word).unwrap();
    let numbers = said.split_whitespace();
    numbers.map(|number| number.parse().unwrap()).collect()
}

/// The job of a child process. When run as a test, this does nothing.
#[test]
fn a_client_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let what = job[0].clone();
    let (url, name) = (job[1].clone(), job[2..].join(" "));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match &*what {
            "hold" => hold(&url, &name).await,
            _ => wait(&url, &name).await,
        }
    });
}

fn builder() -> ClientBuilder {
    Client::builder().lease(LEASE)
}

/// Holds the lock until it is lost, and acquires it again when that is possible.
async fn hold(url: &str, name: &str) {
    let client = builder().connect(url).await.unwrap();
    let lock = client.lock(name).outage_timeout(LIMIT);
    let guard = lock.acquire().await.unwrap();
    let mut last = guard.valid_until();
    let lost = guard.lost();
    tokio::pin!(lost);
    loop {
        tokio::select! {
            biased;
            _ = &mut lost => break,
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
        if guard.valid_until() > last + LEASE / 6 {
            last = guard.valid_until();
            println!("renewed");
        }
    }
    println!("told {} {}", deadline_ns(&guard), monotonic_ns());
    assert!(guard.release().await.is_err(), "it was lost");
    lock.acquire().await.unwrap().release().await.unwrap();
    println!("again");
}

/// Waits for the lock, and releases it when the parent closes this process's input.
async fn wait(url: &str, name: &str) {
    let client = builder().connect(url).await.unwrap();
    let lock = client.lock(name).outage_timeout(LIMIT);
    let guard = lock.acquire().await.unwrap();
    println!("granted {}", monotonic_ns());
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    end.await.unwrap().unwrap();
    guard.release().await.unwrap();
}
