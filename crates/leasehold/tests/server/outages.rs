//! Servers that stop, are paused, or restart with or without their data, and operators who remove
//! keys, flush scripts, and cut and pause clients.

use std::time::Duration;

use leasehold::{Error, ErrorKind, LossReason};
use leasehold_testkit::{RedisServer, Reply};
use tokio::task::JoinSet;

use super::scene::{LEASE, Load, NAME, Scene, builder, steady};
use crate::support::{HOUR, eventually};

/// Stops the loads once they have held the lock more than twenty times. Returns their errors.
async fn stop(loads: Vec<Load>) -> Vec<Error> {
    let holds = || loads.iter().map(Load::holds).sum::<usize>();
    eventually("they have held it", async || holds() > 20).await;
    let mut errors = Vec::new();
    for load in loads {
        errors.extend(load.stop().await);
    }
    errors
}

/// Starts two clients with three tasks each, all of which use one name.
async fn loads(scene: &mut Scene, lease: Duration) -> Vec<Load> {
    let mut loads = Vec::new();
    for number in 0..2 {
        let client = scene.client(builder().lease(lease)).await;
        for task in 0..3 {
            let lock = client.lock(NAME).poll_interval(LEASE);
            loads.push(scene.load(&lock, &format!("client {number} task {task}")));
        }
    }
    loads
}

#[tokio::test]
async fn hold_survives_server_restart_with_data() {
    let server = RedisServer::builder()
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start()
        .unwrap();
    let mut scene = Scene::with(server);
    let ours = scene.client(builder()).await;
    let theirs = scene.beside(builder()).await;
    let hold = scene.hold(&steady(&ours), "ours").await;
    let id = hold.holder_id().to_owned();
    scene.waiter(theirs.lock(NAME).poll_interval(HOUR), "theirs");
    for _ in 0..2 {
        scene.server.restart().unwrap();
        let there = scene.server.command(&["HGET", NAME, &id]).unwrap();
        assert_eq!(there, Reply::Text("1".into()));
        hold.is_renewed().await;
    }
    hold.release().await.unwrap();
    scene.end().await;
}

/// The power fails before the last grant has been written to the disk.
#[tokio::test]
async fn grant_that_no_disk_had_is_told_when_the_server_is_back() {
    let settings = RedisServer::builder().arg("appendonly", "yes");
    let server = settings.arg("appendfsync", "no").start().unwrap();
    let client = builder().lease(HOUR).connect(&server.url()).await.unwrap();
    let early = client.lock("early").acquire().await.unwrap();
    let synced = server.log_length().unwrap();
    let late = client.lock("late").acquire().await.unwrap();
    assert!(server.log_length().unwrap() > synced);
    server.kill().unwrap();
    server.cut_log(synced).unwrap();
    server.restart().unwrap();
    assert_eq!(server.keys(), ["early"]);
    // No renewal is due for a long time.
    eventually("its holder is told", async || late.loss().is_some()).await;
    assert_eq!(late.loss(), Some(LossReason::Deleted));
    assert_eq!(early.loss(), None);
    early.release().await.unwrap();
}

#[tokio::test]
async fn removed_key_is_reported_at_next_renewal() {
    let mut cases = JoinSet::new();
    for command in [
        &["FLUSHALL"][..],
        &["FLUSHDB", "ASYNC"],
        &["DEL", NAME],
        &["RENAME", NAME, "elsewhere"],
        &["EXPIRE", NAME, "0"],
    ] {
        cases.spawn(async {
            let by_force = |server: &RedisServer| {
                server.command(command).unwrap();
            };
            Scene::new().take_away(&command.join(" "), by_force).await;
        });
    }
    cases.join_all().await;
}

#[tokio::test]
async fn empty_restart_is_reported_at_next_renewal() {
    let by_force = |server: &RedisServer| server.restart().unwrap();
    Scene::new().take_away("restart", by_force).await;
}

#[tokio::test]
async fn server_freeze_causes_no_overlap() {
    let mut scene = Scene::new();
    // Even on a busy machine, this lease is long enough that it is a failed renewal that ends the
    // hold.
    let ours = scene.client(builder().lease(LEASE * 2)).await;
    let loads = loads(&mut scene, LEASE).await;
    let hold = scene.hold(&ours.lock(NAME), "ours").await;
    scene.server.pause().unwrap();
    let (reason, guard) = hold.until_lost().await;
    assert!(
        matches!(reason, LossReason::RenewalFailed { .. }),
        "{reason:?}"
    );
    // The outage has this length. No event tells the test that it has lasted long enough.
    tokio::time::sleep(LEASE * 4).await;
    scene.server.resume().unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let before = scene.recorder.report().holds;
    eventually("the others go on", async || {
        scene.recorder.report().holds > before + 20
    })
    .await;
    stop(loads).await;
    scene.end().await;
}

#[tokio::test]
async fn client_pause_causes_no_overlap() {
    for mode in ["WRITE", "ALL"] {
        let mut scene = Scene::new();
        let ours = scene.client(builder().lease(LEASE * 2)).await;
        let theirs = scene.beside(builder()).await;
        let hold = scene.hold(&ours.lock(NAME), "ours").await;
        scene.waiter(theirs.lock(NAME), "theirs");
        let pause = (LEASE * 6).as_millis().to_string();
        let paused = scene.server.command(&["CLIENT", "PAUSE", &pause, mode]);
        assert_eq!(paused.unwrap(), Reply::Text("OK".into()));
        let (reason, guard) = hold.until_lost().await;
        assert!(
            matches!(reason, LossReason::RenewalFailed { .. }),
            "{mode}: {reason:?}"
        );
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        scene.end().await;
    }
}

#[tokio::test]
async fn constant_script_flushes_cause_no_errors() {
    let mut scene = Scene::new();
    let loads = loads(&mut scene, LEASE * 8).await;
    let ours = scene.client(builder()).await;
    let lock = ours.lock("kept").lease(LEASE * 8).renew_every(LEASE / 6);
    let kept = scene.hold(&lock, "ours").await;
    let mut flushed = 0;
    while flushed < 200 {
        let reply = scene.server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(reply, Reply::Text("OK".into()));
        flushed += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let errors = stop(loads).await;
    assert!(errors.is_empty(), "{} errors: {errors:?}", errors.len());
    kept.release().await.unwrap();
    scene.end().await;
}

/// Kills some clients, and returns their number.
type Kill = fn(&RedisServer) -> i64;

async fn kill_clients(server: &RedisServer, at_least: i64, kill: Kill) {
    let mut killed = 0;
    eventually("enough clients are killed", async || {
        killed += kill(server);
        tokio::time::sleep(Duration::from_millis(45)).await;
        killed >= at_least
    })
    .await;
}

fn kill_kind(server: &RedisServer, kind: &str) -> i64 {
    let reply = server.command(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
    reply.as_int().unwrap()
}

/// Kills the client that has been connected for the longest time.
fn kill_oldest(server: &RedisServer) -> i64 {
    let list = server.command(&["CLIENT", "LIST"]).unwrap();
    let list = list.as_text().unwrap().to_owned();
    let ids = list.lines().filter_map(|line| line.strip_prefix("id="));
    let id = ids.filter_map(|rest| rest.split(' ').next()).next();
    let kill = ["CLIENT", "KILL", "ID", id.unwrap()];
    server.command(&kill).unwrap().as_int().unwrap()
}

#[tokio::test]
async fn killed_connections_cause_no_overlap_or_hang() {
    let kinds: [(&str, Kill); 3] = [
        ("calls", |server| kill_kind(server, "normal")),
        ("messages", |server| kill_kind(server, "pubsub")),
        ("the oldest", kill_oldest),
    ];
    for (what, kill) in kinds {
        let mut scene = Scene::new();
        let loads = loads(&mut scene, LEASE).await;
        kill_clients(&scene.server, 20, kill).await;
        let errors = stop(loads).await;
        for error in errors {
            // A release without a reply may have to report this.
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::OutcomeUnknown | ErrorKind::Unavailable | ErrorKind::Lost
                ),
                "{what}: {error}"
            );
        }
        scene.end().await;
    }
}
