//! Holds that replicas acknowledge: what counts as confirmed, and the fate of unconfirmed grants.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::{
    Acknowledgement, Client, ClientBuilder, Error, ErrorKind, Lock, LossReason, Owner,
};
use leasehold_testkit::server::Builder;
use leasehold_testkit::{RedisServer, Replicas, Reply};

use crate::support::{HOUR, eventually};

/// A time limit within which a confirmation arrives even if the machine stalls for a moment.
const LONG: Duration = Duration::from_secs(20);
/// A time limit for confirmations that do not arrive.
const SHORT: Duration = Duration::from_millis(100);

fn builder() -> ClientBuilder {
    // The lease is longer than `LONG`. The reply timeout is equally long, so that no second release
    // follows an undo while a test runs.
    Client::builder().lease(HOUR).reply_timeout(HOUR)
}

async fn client(servers: &Replicas) -> Client {
    builder().connect(&servers.master().url()).await.unwrap()
}

fn replicas(number: u8) -> Acknowledgement {
    Acknowledgement::replicas(number).within(LONG)
}

fn soon(number: u8) -> Acknowledgement {
    Acknowledgement::replicas(number).within(SHORT)
}

fn fields(server: &RedisServer, name: &str) -> Vec<String> {
    let fields = server.command(&["HKEYS", name]).unwrap();
    let fields = fields.as_array().unwrap().iter();
    fields
        .map(|field| field.as_text().unwrap().to_owned())
        .collect()
}

async fn is_free(server: &RedisServer, name: &str) {
    eventually("it was given back", async || {
        !server.keys().iter().any(|key| key == name)
    })
    .await;
}

fn too_few(error: &Error, count: u8, needed: u8) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = error.to_string();
    let expected = format!("but only {count} of {needed} replicas confirmed it within 100 ms");
    assert!(said.contains("accepted at redis://"), "{said}");
    assert!(said.contains(&expected), "{said}");
    let ending = "it was released: check the replicas or ask for fewer";
    assert!(said.ends_with(ending), "{said}");
}

#[tokio::test]
async fn confirmed_grant_is_on_each_replica() {
    let servers = Replicas::start(2);
    let client = client(&servers).await;
    for round in 0..20 {
        let name = format!("x{round}");
        let lock = client.lock(&name).acknowledged_by(replicas(2));
        let guard = lock.acquire().await.unwrap();
        for replica in servers.replicas() {
            assert_eq!(fields(replica, &name), [guard.holder_id()]);
        }
        guard.release().await.unwrap();
    }
}

/// A client's default applies to each kind of lock.
#[tokio::test]
async fn each_kind_of_lock_is_confirmed() {
    let servers = Replicas::start(1);
    let builder = builder().acknowledged_by(replicas(1));
    let client = builder.connect(&servers.master().url()).await.unwrap();
    let rw = client.rw_lock("rw");
    let multi = leasehold::MultiLock::new([client.lock("m1"), client.lock("m2")]).unwrap();
    let locks: [leasehold::AnyLock; 7] = [
        client.lock("plain").into(),
        client.fenced_lock("fenced").into(),
        client.fair_lock("fair").into(),
        rw.read_lock().into(),
        client.group_lock("group", ["a"]).into(),
        multi.into(),
        client.rw_lock("rw2").write_lock().into(),
    ];
    for (number, lock) in locks.into_iter().enumerate() {
        let before = servers.master().calls("wait");
        let guard = lock.acquire().await.unwrap();
        assert_eq!(servers.replicas()[0].keys(), servers.master().keys());
        let acquired = servers.master().calls("wait");
        assert!(acquired > before, "lock {number}");
        guard.extend(HOUR * 2).await.unwrap();
        let extended = servers.master().calls("wait");
        assert!(extended > acquired, "lock {number}");
        guard.release().await.unwrap();
        assert_eq!(
            servers.master().calls("wait"),
            extended,
            "a release needs none"
        );
    }
    // Permits can't be acknowledged, and a client's default does not apply to them.
    let before = servers.master().calls("wait");
    let semaphore = client.semaphore("permits");
    semaphore.try_set_permits(1).await.unwrap();
    semaphore.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(servers.master().calls("wait"), before);
}

#[tokio::test]
async fn grant_that_too_few_confirm_is_given_back() {
    let servers = Replicas::start(2);
    let client = client(&servers).await;
    servers.cut(0);
    let lock = client.lock("x");
    let error = lock.clone().acknowledged_by(soon(2)).try_acquire().await;
    too_few(&error.unwrap_err(), 1, 2);
    is_free(servers.master(), "x").await;
    let one = lock.acknowledged_by(replicas(1));
    let guard = one.try_acquire().await.unwrap().expect("it is free");
    guard.release().await.unwrap();
    // There are fewer than three replicas.
    servers.mend(0);
    let three = client.lock("y").acknowledged_by(soon(3));
    let error = three.try_acquire().await.unwrap_err();
    too_few(&error, 2, 3);
    is_free(servers.master(), "y").await;
}

/// The process of a replica is paused, and the master believes for a while that the replica is
/// still connected.
#[tokio::test]
async fn frozen_replica_confirms_nothing() {
    let servers = Replicas::start(2);
    let client = client(&servers).await;
    // Both replicas have confirmed the earlier writes.
    let before = client.lock("before").acknowledged_by(replicas(2));
    let before = before.acquire().await.unwrap();
    servers.wait_until_in_step(0);
    servers.replicas()[0].pause().unwrap();
    let lock = client.lock("x");
    let error = lock.clone().acknowledged_by(soon(2)).try_acquire().await;
    too_few(&error.unwrap_err(), 1, 2);
    let guard = lock.acknowledged_by(replicas(1)).acquire().await.unwrap();
    guard.release().await.unwrap();
    servers.replicas()[0].resume().unwrap();
    before.release().await.unwrap();
}

#[tokio::test]
async fn waiter_gets_the_lock_when_the_replicas_are_back() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    servers.cut(0);
    let lock = client.lock("x").acknowledged_by(soon(1));
    let error = lock.try_acquire_for(SHORT * 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waits = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let before = servers.master().calls("wait");
    eventually("it asks again", async || {
        servers.master().calls("wait") > before + 2
    })
    .await;
    assert!(!waits.is_finished());
    servers.mend(0);
    let guard = waits.await.unwrap();
    assert_eq!(fields(&servers.replicas()[0], "x"), [guard.holder_id()]);
    guard.release().await.unwrap();
}

/// The lock is held by another client. That is the result, whether or not replicas confirm it.
#[tokio::test]
async fn held_lock_is_held_whatever_the_replicas_say() {
    let servers = Replicas::start(1);
    let (client, other) = (client(&servers).await, client(&servers).await);
    let theirs = other.fenced_lock("x").acquire().await.unwrap();
    servers.cut(0);
    let released = servers.master().calls("hdel");
    let lock = client.fenced_lock("x").acknowledged_by(soon(1));
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.try_acquire_for(SHORT * 30).await.unwrap().is_none());
    let fair = client.fair_lock("x").acknowledged_by(soon(1));
    assert!(fair.try_acquire().await.unwrap().is_none());
    assert_eq!(
        servers.master().calls("hdel"),
        released,
        "nothing is undone"
    );
    assert_eq!(fields(servers.master(), "x"), [theirs.holder_id()]);
    theirs.release().await.unwrap();
}

#[tokio::test]
async fn renewal_that_too_few_confirm_is_told_at_the_deadline() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let lock = client.lock("x").lease(Duration::from_secs(6));
    let lock = lock.acknowledged_by(soon(1));
    for together in [1, 3] {
        let mut guards = Vec::new();
        for number in 0..together {
            let lock = client.lock(format!("{together} {number}"));
            let lock = lock.lease(Duration::from_secs(6)).acknowledged_by(soon(1));
            guards.push(lock.acquire().await.unwrap());
        }
        let granted: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
        eventually("all are renewed", async || {
            let renewed = guards.iter().zip(&granted);
            renewed
                .clone()
                .all(|(guard, granted)| guard.valid_until() > *granted)
        })
        .await;
        servers.cut(0);
        // A renewal that was under way may have been confirmed just before.
        let error = guards[0].extend(HOUR).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            error
                .to_string()
                .contains("the hold is valid as long as before"),
            "{error}"
        );
        let until: Vec<_> = guards.iter().map(|guard| guard.valid_until()).collect();
        for (guard, until) in guards.iter().zip(until) {
            let reason = guard.lost().await;
            assert!(
                matches!(&reason, LossReason::RenewalFailed { cause, .. } if cause.contains("0 of 1 replicas")),
                "{reason}"
            );
            assert!(tokio::time::Instant::now() + SHORT / 10 >= until);
            // The rounding of two clocks may move the deadline a little.
            let moved = guard.valid_until().saturating_duration_since(until);
            assert!(moved < SHORT / 10, "the promise has moved by {moved:?}");
        }
        drop(guards);
        servers.mend(0);
    }
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// One client makes calls with several settings at the same time.
#[tokio::test]
async fn each_operation_is_judged_by_its_own_setting() {
    let servers = Replicas::start(2);
    let client = client(&servers).await;
    servers.cut(0);
    let asks = (0..32).map(|number| {
        let lock = client.lock(number.to_string());
        let lock = match number % 4 {
            0 => lock,
            1 => lock.acknowledged_by(replicas(1)),
            2 => lock.acknowledged_by(soon(2)),
            _ => lock.acknowledged_by(soon(1)),
        };
        async move { lock.try_acquire().await }
    });
    let mut guards = Vec::new();
    for (number, asked) in join_all(asks).await.into_iter().enumerate() {
        match number % 4 {
            2 => too_few(&asked.unwrap_err(), 1, 2),
            _ => guards.push(asked.unwrap().expect("it is free")),
        }
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    eventually("nothing is left", async || {
        servers.master().keys().is_empty()
    })
    .await;
}

/// The acquire has been sent when its future is dropped. Its release must not overtake it.
#[tokio::test]
async fn undo_runs_behind_what_it_undoes() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let first = client.lock("first").acknowledged_by(replicas(1));
    let first = first.acquire().await.unwrap();
    for round in 0..5 {
        let name = format!("x{round}");
        servers.master().pause().unwrap();
        // The server reads this connection first.
        let plain = client.lock(format!("plain{round}"));
        let mut plain = Box::pin(plain.try_acquire());
        assert!((&mut plain).now_or_never().is_none());
        let lock = client.lock(&name).acknowledged_by(replicas(1));
        let mut asked = Box::pin(lock.try_acquire());
        assert!((&mut asked).now_or_never().is_none());
        // The request has already been sent, because the connection is idle.
        drop(asked);
        tokio::task::yield_now().await;
        servers.master().resume().unwrap();
        drop(plain.await.unwrap());
        // This request runs after both earlier requests.
        let behind = client.lock("behind").acknowledged_by(replicas(1));
        behind.acquire().await.unwrap().release().await.unwrap();
        assert!(!servers.master().keys().contains(&name));
    }
    first.release().await.unwrap();
}

#[tokio::test]
async fn acquires_of_many_tasks_share_their_waits() {
    let servers = Replicas::start(2);
    let client = client(&servers).await;
    let before = servers.master().calls("wait");
    let lock = |number: usize| {
        let lock = client.lock(number.to_string());
        lock.acknowledged_by(replicas(2))
    };
    let locks: Vec<Lock> = (0..64).map(lock).collect();
    let guards = join_all(locks.iter().map(Lock::acquire)).await;
    let waits = servers.master().calls("wait") - before;
    // Two calls ask whether the server supports the command, one call is for the first acquire, and
    // the other acquires share calls.
    assert!(waits <= 16, "{waits} for 64 acquires");
    for replica in servers.replicas() {
        assert_eq!(replica.keys().len(), 64);
    }
    for guard in guards {
        guard.unwrap().release().await.unwrap();
    }
}

/// The master becomes a replica while it waits for its own replicas.
#[tokio::test]
async fn demoted_master_confirms_nothing() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let lock = client.lock("x").acknowledged_by(replicas(1));
    lock.acquire().await.unwrap().release().await.unwrap();
    servers.cut(0);
    let asks = tokio::spawn({
        let lock = lock.clone();
        async move { lock.try_acquire().await }
    });
    eventually("it is granted, and waits", async || {
        servers.master().keys() == ["x"]
    })
    .await;
    let demoted = ["REPLICAOF", "127.0.0.1", "1"];
    servers.master().command(&demoted).unwrap();
    let error = asks.await.unwrap().unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
    assert!(kinds.contains(&error.kind()), "{error}");
    let promoted = ["REPLICAOF", "NO", "ONE"];
    servers.master().command(&promoted).unwrap();
    is_free(servers.master(), "x").await;
    servers.mend(0);
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// The script of a release could not wait for replicas, so a release must not grant the lock.
#[tokio::test]
async fn fair_lock_is_handed_on_by_a_confirmed_request() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let lock = client.fair_lock("x").waiter_timeout(HOUR);
    // On a machine that stalls for a long time, all requests may fail during that time.
    let lock = lock.outage_timeout(HOUR).acknowledged_by(soon(1));
    let guard = lock.acquire().await.unwrap();
    let waits = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    eventually("it stands in line", async || {
        lock.waiters().await.unwrap().len() == 1
    })
    .await;
    servers.cut(0);
    guard.release().await.unwrap();
    let before = servers.master().calls("wait");
    eventually("it asks again and again", async || {
        servers.master().calls("wait") > before + 3
    })
    .await;
    assert!(!waits.is_finished());
    servers.mend(0);
    let guard = waits.await.unwrap();
    assert_eq!(fields(&servers.replicas()[0], "x"), [guard.holder_id()]);
    guard.release().await.unwrap();
    eventually("nothing is left", async || {
        servers.master().keys().is_empty()
    })
    .await;
}

/// The hold exists already, and lasts longer than the re-entering guard wants. The re-entry must be
/// confirmed anyway.
#[tokio::test]
async fn re_entry_that_wants_more_confirmations_waits_for_them() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let owner = Owner::new();
    servers.replicas()[0].pause().unwrap();
    let lock = client.lock("x").owned_by(&owner);
    let guard = lock.acquire().await.unwrap();
    let confirmed = lock.lease(Duration::from_secs(60)).acknowledged_by(soon(1));
    let error = confirmed.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.replicas()[0].resume().unwrap();
    let confirmed = confirmed.acknowledged_by(replicas(1));
    let again = confirmed.acquire().await.unwrap();
    assert_eq!(fields(&servers.replicas()[0], "x"), [guard.holder_id()]);
    again.release().await.unwrap();
    guard.release().await.unwrap();
}

/// A confirmation that another guard requests at the same time does not confirm this guard.
#[tokio::test]
async fn re_entries_at_the_same_time_are_each_confirmed() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let owner = Owner::new();
    servers.replicas()[0].pause().unwrap();
    let lock = client.lock("x").owned_by(&owner);
    let guard = lock.acquire().await.unwrap();
    let confirmed = lock.acknowledged_by(soon(1));
    let (one, other) = tokio::join!(confirmed.try_acquire(), confirmed.try_acquire());
    for entered in [one, other] {
        let error = entered.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    servers.replicas()[0].resume().unwrap();
    let confirmed = confirmed.acknowledged_by(replicas(1));
    let (one, other) = tokio::join!(confirmed.acquire(), confirmed.acquire());
    assert_eq!(fields(&servers.replicas()[0], "x"), [guard.holder_id()]);
    for guard in [one.unwrap(), other.unwrap(), guard] {
        guard.release().await.unwrap();
    }
}

/// When the client connects, the server is a replica and can't confirm anything. Once it is the
/// master, its grants are confirmed.
#[tokio::test]
async fn replica_that_becomes_the_master_has_grants_confirmed() {
    let servers = Replicas::start(1);
    let (master, replica) = (servers.master(), &servers.replicas()[0]);
    let client = builder().connect(&replica.url()).await.unwrap();
    let lock = client.lock("x").acknowledged_by(replicas(1));
    let waits = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    eventually("it has asked what a replica confirms", async || {
        let info = replica.command(&["INFO", "commandstats"]).unwrap();
        info.as_text().unwrap().contains("cmdstat_wait:")
    })
    .await;
    let port = replica.port().to_string();
    replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    master.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let guard = waits.await.unwrap();
    assert_eq!(fields(master, "x"), [guard.holder_id()]);
    guard.release().await.unwrap();
}

/// A waiter that is handed a hold, without a request of its own, relies on the confirmations of
/// that hold.
#[tokio::test]
async fn hold_is_handed_over_only_to_who_wants_the_same_confirmations() {
    let servers = Replicas::start(1);
    let (client, other) = (client(&servers).await, client(&servers).await);
    servers.cut(0);
    for _ in 0..5 {
        let theirs = other.lock("x").acquire().await.unwrap();
        let lock = client.lock("x");
        let first = tokio::spawn({
            let lock = lock.clone();
            // The release follows at once, because only a recently granted hold is handed over.
            async move { lock.acquire().await.unwrap().release().await.unwrap() }
        });
        eventually("it waits", async || client.activity().lines == 1).await;
        let second = lock.acknowledged_by(soon(1));
        let second = tokio::spawn(async move { second.try_acquire_for(SHORT * 10).await });
        tokio::task::yield_now().await;
        theirs.release().await.unwrap();
        first.await.unwrap();
        let error = second.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        is_free(servers.master(), "x").await;
    }
}

#[tokio::test]
async fn tokens_and_downgrades_are_confirmed() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let lock = client.lock("x").acknowledged_by(soon(1));
    let guard = lock.acquire().await.unwrap();
    let rw = client.rw_lock("rw").acknowledged_by(soon(1));
    let writing = rw.write().await.unwrap();
    servers.cut(0);
    let error = guard.fencing_token().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.mend(0);
    assert!(guard.fencing_token().await.unwrap() > 0);
    assert_eq!(servers.replicas()[0].keys(), servers.master().keys());
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(servers.replicas()[0].keys(), servers.master().keys());
    reading.release().await.unwrap();
    guard.release().await.unwrap();
}

fn knows(server: &RedisServer, command: &str) -> bool {
    let info = server.command(&["COMMAND", "INFO", command]).unwrap();
    matches!(info.as_array(), Some([Reply::Array(_)]))
}

async fn refused(servers: &Replicas, wanted: Acknowledgement, kind: ErrorKind, said: &str) {
    let client = client(servers).await;
    let lock = client.lock("x").acknowledged_by(wanted);
    for error in [
        lock.try_acquire().await.unwrap_err(),
        lock.acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let granted = servers.master().calls("hset");
    assert_eq!(granted, 0, "nothing was granted for it");
}

#[tokio::test]
async fn server_that_can_not_confirm_it_refuses_before_anything_is_granted() {
    let on_disk = replicas(0).on_disk();
    let servers = Replicas::start(0);
    match knows(servers.master(), "waitaof") {
        true => refused(&servers, on_disk, ErrorKind::Unsupported, "appendonly no").await,
        false => refused(&servers, on_disk, ErrorKind::Unsupported, "WAITAOF").await,
    }
    let rules = RedisServer::builder()
        .user("app", "pw")
        .rules("~* &* +@all -wait");
    let servers = Replicas::of(&rules, 0);
    refused(&servers, replicas(1), ErrorKind::Denied, "+wait").await;
}

/// Each connection checks once what the server can confirm. The permission may be withdrawn later.
#[tokio::test]
async fn grant_whose_confirmation_is_denied_is_given_back() {
    let servers = Replicas::start(1);
    let client = client(&servers).await;
    let lock = client.lock("x").acknowledged_by(replicas(1));
    lock.acquire().await.unwrap().release().await.unwrap();
    let denied = ["ACL", "SETUSER", "default", "-wait"];
    assert_eq!(
        servers.master().command(&denied).unwrap(),
        Reply::Text("OK".into())
    );
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = "it was not confirmed (NOPERM";
    assert!(error.to_string().contains(said), "{error}");
    is_free(servers.master(), "x").await;
    let allowed = ["ACL", "SETUSER", "default", "+wait"];
    servers.master().command(&allowed).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn grant_that_is_not_on_the_disk_in_time_is_given_back() {
    let settings: Builder = RedisServer::builder().arg("appendonly", "yes");
    // With this setting, the server leaves the time of the disk write to the operating system.
    let servers = Replicas::of(&settings.arg("appendfsync", "no"), 0);
    if !knows(servers.master(), "waitaof") {
        println!("this server has no WAITAOF");
        return;
    }
    let client = client(&servers).await;
    let lock = client.lock("x").acknowledged_by(soon(0).on_disk());
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = "the server did not have it on its disk within 100 ms";
    assert!(error.to_string().contains(said), "{error}");
    is_free(servers.master(), "x").await;
    // From now on, the server can't confirm a write to its disk at all.
    let off = ["CONFIG", "SET", "appendonly", "no"];
    servers.master().command(&off).unwrap();
    let error = lock.try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("appendonly"), "{error}");
    is_free(servers.master(), "x").await;
}

#[tokio::test]
async fn grant_is_on_the_disks() {
    let settings: Builder = RedisServer::builder().arg("appendonly", "yes");
    let settings = settings.arg("appendfsync", "always");
    let servers = Replicas::of(&settings, 1);
    if !knows(servers.master(), "waitaof") {
        println!("this server has no WAITAOF");
        return;
    }
    let client = client(&servers).await;
    for wanted in [replicas(0).on_disk(), replicas(1).on_disk()] {
        let lock = client.lock("x").acknowledged_by(wanted);
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert!(servers.master().calls("waitaof") >= 3);
    servers.cut(0);
    let lock = client.lock("x").acknowledged_by(soon(1).on_disk());
    let error = lock.try_acquire().await.unwrap_err();
    let said = "only 0 of 1 replicas had it on their disks within 100 ms";
    assert!(error.to_string().contains(said), "{error}");
    is_free(servers.master(), "x").await;
}

#[tokio::test]
async fn time_for_confirmations_is_shorter_than_that_for_replies() {
    let servers = Replicas::start(0);
    let client = Client::connect(&servers.master().url()).await.unwrap();
    let lock = client.lock("x").acknowledged_by(replicas(1));
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(
        error.to_string().contains("between 1 ms and 1.8s"),
        "{error}"
    );
}
