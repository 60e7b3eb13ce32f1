//! Failovers in which the promoted replica had not received the last grants. If the replica must
//! acknowledge the holds, no two holders overlap. Otherwise every holder whose hold is lost learns
//! of the loss.
//!
//! `LEASEHOLD_FAILOVERS=200` makes more failovers.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::slot::{Begin, Turn};
use leasehold::testing::history::{Inside, Recorder};
use leasehold::{Acknowledgement, Client, ErrorKind, Lock, LockGuard};
use leasehold_testkit::{Reply, Sentinels};
use tokio::task::{JoinSet, block_in_place};

use super::failovers::{cut_off, leads_to};
use crate::support::{HOUR, eventually};

/// The number of names that clients acquire while the replica is cut off.
const NAMES: usize = 4;

/// Returns the number of failovers of a test.
pub(super) fn failovers() -> usize {
    let wanted = std::env::var("LEASEHOLD_FAILOVERS").ok();
    wanted.map_or(5, |wanted| wanted.parse().expect("a number"))
}

async fn client(sentinels: &Sentinels, acknowledged: Acknowledgement) -> Client {
    let builder = Client::builder()
        .lease(Duration::from_secs(120))
        .acknowledged_by(acknowledged);
    builder.connect(&sentinels.url()).await.unwrap()
}

/// A hold in the history.
struct Recorded {
    guard: LockGuard,
    inside: Inside,
}

impl Recorded {
    async fn get(lock: Lock, who: String, recorder: Recorder) -> Self {
        let asked = recorder.ask(lock.name(), &who);
        let guard = lock.outage_timeout(HOUR).acquire().await.unwrap();
        let inside = asked.acquired(&guard);
        Self { guard, inside }
    }

    async fn release(self) -> leasehold::Result<()> {
        self.inside.releasing(&self.guard);
        self.guard.release().await
    }
}

/// Cuts the replica off from the master.
fn cut_off_replica(sentinels: &Sentinels) {
    let master = sentinels.master();
    let servers = sentinels.servers();
    cut_off(&servers[1 - master], &servers[master]);
}

/// Kills the master. Returns the number of its successor.
fn replace_master(sentinels: &Sentinels) -> usize {
    block_in_place(|| {
        let new = sentinels.kill_and_replace();
        // The sentinels have made the servers save their settings, including those that cut them
        // off.
        for server in sentinels.servers() {
            for setting in ["masterauth", "masteruser"] {
                let reset = server.command(&["CONFIG", "SET", setting, ""]);
                assert_eq!(reset.unwrap(), Reply::Text("OK".into()));
            }
        }
        new
    })
}

/// Waits until a server says that the lock is held.
async fn is_held(lock: &Lock) {
    eventually("a server says that it is held", async || {
        match lock.try_acquire().await {
            Ok(second) => {
                assert!(second.is_none(), "`{}` is held twice", lock.name());
                true
            }
            // The client has not reached the new master yet.
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::Lost);
                false
            }
        }
    })
    .await;
}

/// Waits until the master has granted each name with this beginning at least once.
async fn granted(sentinels: &Sentinels, beginning: &str) {
    let master = sentinels.master_server();
    let mut seen = BTreeSet::new();
    eventually("the master has granted them", async || {
        let keys = master.keys();
        seen.extend(keys.into_iter().filter(|key| key.starts_with(beginning)));
        seen.len() >= NAMES
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_all_replicas_confirm_survive_every_failover() {
    let sentinels = Sentinels::start(1);
    let all = Acknowledgement::replicas(1);
    let clients = [client(&sentinels, all).await, client(&sentinels, all).await];
    let recorder = Recorder::new();
    for round in 0..failovers() {
        // This hold was confirmed before the cut. It is renewed, and another client is refused.
        let held = clients[0].lock(format!("held{round}"));
        let held = Recorded::get(held, "first".into(), recorder.clone()).await;
        block_in_place(|| cut_off_replica(&sentinels));
        let asked = format!("asked{round} ");
        let mut waiters = JoinSet::new();
        for (number, name) in (0..2 * NAMES).map(|number| (number, number / 2)) {
            let lock = clients[number % 2].lock(format!("{asked}{name}"));
            let got = Recorded::get(lock, format!("waiter {number}"), recorder.clone());
            waiters.spawn(async move { got.await.release().await });
        }
        granted(&sentinels, &asked).await;
        let new = replace_master(&sentinels);
        for client in &clients {
            leads_to(client, &sentinels.servers()[new]).await;
        }
        is_held(&clients[1].lock(held.guard.name())).await;
        for released in waiters.join_all().await {
            released.unwrap();
        }
        held.release().await.unwrap();
        block_in_place(|| sentinels.wait_until_whole());
    }
    recorder.report().judge().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_the_master_alone_are_lost_with_it_and_each_holder_is_told() {
    let sentinels = Sentinels::start(1);
    let master = Acknowledgement::master();
    let clients = [
        client(&sentinels, master).await,
        client(&sentinels, master).await,
    ];
    let recorder = Recorder::new();
    let rounds = failovers().min(20);
    for round in 0..rounds {
        block_in_place(|| cut_off_replica(&sentinels));
        let mut first = Vec::new();
        for name in 0..NAMES {
            let lock = clients[0].lock(format!("x{round} {name}"));
            first.push(Recorded::get(lock, "first".into(), recorder.clone()).await);
        }
        let new = replace_master(&sentinels);
        for client in &clients {
            leads_to(client, &sentinels.servers()[new]).await;
        }
        for held in first {
            let lock = clients[1].lock(held.guard.name());
            let second = Recorded::get(lock, "second".into(), recorder.clone()).await;
            eventually("its holder is told", async || held.guard.loss().is_some()).await;
            held.release().await.unwrap_err();
            second.release().await.unwrap();
        }
        block_in_place(|| sentinels.wait_until_whole());
    }
    let overlaps = recorder.report().overlaps.len();
    assert_eq!(overlaps, rounds * NAMES, "each of them was granted twice");
}

/// Begins the turn for this id, which must be open.
async fn begun(client: &Client, id: &str) -> Turn {
    let turns = client.lock("job").outage_timeout(HOUR).once_for(id);
    match turns.begin().await.unwrap() {
        Begin::Run(turn) => turn,
        other => panic!("`{id}` is not open: {other:?}"),
    }
}

/// If a turn was reported as done, its end is on the replica, so its job never runs again. While
/// the replica can't confirm the end, it is not reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_replicas_confirmed_stay_done_after_a_failover() {
    let sentinels = Sentinels::start(1);
    // The release of a turn may be lost with the master, so its lease has to end.
    let builder = Client::builder().lease(Duration::from_secs(5));
    let builder = builder.acknowledged_by(Acknowledgement::replicas(1));
    let client = builder.connect(&sentinels.url()).await.unwrap();
    for round in 0..failovers().min(20) {
        let [confirmed, unconfirmed] =
            ["confirmed", "unconfirmed"].map(|id| format!("{id} {round}"));
        begun(&client, &confirmed).await.done().await.unwrap();
        let turn = begun(&client, &unconfirmed).await;
        block_in_place(|| cut_off_replica(&sentinels));
        let error = turn.done().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let new = replace_master(&sentinels);
        leads_to(&client, &sentinels.servers()[new]).await;
        let again = client.lock("job").once_for(&*confirmed).begin().await;
        assert!(matches!(again, Ok(Begin::Done(_))), "{again:?}");
        begun(&client, &unconfirmed).await.done().await.unwrap();
        block_in_place(|| sentinels.wait_until_whole());
    }
}

/// The connections stay open, but no reply arrives on them for longer than the test takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledging_connection_leaves_a_frozen_master() {
    let sentinels = Sentinels::start(2);
    let one = Acknowledgement::replicas(1).within(Duration::from_secs(20));
    let builder = Client::builder().lease(HOUR).acknowledged_by(one);
    let builder = builder.reply_timeout(HOUR);
    let client = builder.connect(&sentinels.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let before = guard.valid_until();
    let old = sentinels.master_server();
    old.pause().unwrap();
    block_in_place(|| sentinels.wait_until_replaced(0));
    eventually("it is confirmed by the new master", async || {
        assert_eq!(guard.loss(), None);
        guard.valid_until() > before + Duration::from_millis(100)
    })
    .await;
    old.resume().unwrap();
    guard.release().await.unwrap();
}
