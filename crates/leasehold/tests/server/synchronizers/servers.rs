//! Real servers: behind a proxy that disturbs one request, out of memory, and with a process that
//! is killed.

use std::time::Duration;

use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::{Client, ErrorKind};
use leasehold_testkit::proxy::{Proxy, Strike};
use leasehold_testkit::{Heard, RedisServer, Reply};

use crate::support::{HOUR, eventually};

const STRIKES: [Strike; 9] = [
    Strike::CutBefore,
    Strike::CutInRequest,
    Strike::CutAfter,
    Strike::CutInReply,
    Strike::CutBehindReply,
    Strike::LoseRequest,
    Strike::LoseReply,
    Strike::Double,
    Strike::HoldRequest,
];

async fn free(server: &RedisServer) -> i64 {
    let client = Client::connect(&server.url()).await.unwrap();
    client.semaphore("x").available_permits().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connection_neither_loses_nor_doubles_permits() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let direct = Client::connect(&server.url()).await.unwrap();
    direct.semaphore("x").try_set_permits(5).await.unwrap();
    for strike in STRIKES {
        for step in ["semaphore.acquire", "semaphore.add", "semaphore.undo"] {
            // The timeout is shorter than the default, because the test waits for lost replies.
            let builder = Client::builder().reply_timeout(Duration::from_millis(400));
            let client = builder.connect(&proxy.url()).await.unwrap();
            let semaphore = client.semaphore("x");
            let fault = proxy.strike_next(step.as_bytes(), strike);
            let permit = semaphore.try_acquire_many_for(3, Duration::from_secs(20));
            let permit = permit.await.unwrap().expect("five are free");
            if step == "semaphore.undo" {
                // This acquire is abandoned while its request is under way.
                let second = proxy.strike_next(b"semaphore.acquire", Strike::HoldReply);
                let acquire = semaphore.acquire_many(2);
                tokio::select! {
                    _ = acquire => panic!("its answer is held"),
                    () = eventually("it has run", async || second.fired()) => {}
                }
                proxy.let_go(&second);
            }
            let release = permit.release();
            let let_go = async {
                if strike == Strike::HoldRequest {
                    eventually("it is held", async || fault.fired()).await;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    proxy.let_go(&fault);
                }
            };
            let (released, ()) = tokio::join!(release, let_go);
            // A release that fails is completed in the background.
            drop(released);
            client.close().await;
            eventually("all are back", async || free(&server).await == 5).await;
            eventually(&format!("{strike:?} {step} struck"), async || fault.fired()).await;
            proxy.disarm();
        }
    }
    // After this time, requests that were still under way have arrived.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(free(&server).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_count_down_counts_once() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let direct = Client::connect(&server.url()).await.unwrap();
    let latch = direct.count_down_latch("x");
    for strike in STRIKES
        .into_iter()
        .filter(|strike| *strike != Strike::HoldRequest)
    {
        assert!(latch.try_set_count(3).await.unwrap());
        let builder = Client::builder().reply_timeout(Duration::from_secs(1));
        let client = builder.connect(&proxy.url()).await.unwrap();
        let counts = client.count_down_latch("x");
        let fault = proxy.strike_next(b"latch.count_down", strike);
        assert_eq!(counts.count_down().await.unwrap(), 2, "{strike:?}");
        eventually("it struck", async || fault.fired()).await;
        assert_eq!(latch.count().await.unwrap(), 2, "{strike:?}");
        assert_eq!(counts.count_down_by(2).await.unwrap(), 0);
        client.close().await;
    }
}

/// When a latch reaches zero, Redisson does not leave a note. This library leaves one at that time,
/// and when it sets the count again.
#[tokio::test(flavor = "multi_thread")]
async fn poll_sees_zero_reset_by_other_side() {
    let server = RedisServer::start().unwrap();
    let ours = Client::connect(&server.url()).await.unwrap();
    let java = |parts: &[&str]| server.command(parts).unwrap();
    for zero_is_ours in [true, false] {
        java(&["FLUSHALL"]);
        let latch = ours.count_down_latch("l");
        latch.try_set_count(1).await.unwrap();

        // This waiter does not subscribe. It asks the server once before all of this and once after
        // it.
        let waiter = Client::connect(&server.url()).await.unwrap();
        let pause = Duration::from_secs(2);
        let waits = waiter
            .count_down_latch("l")
            .wait_strategy(WaitStrategy::Backoff(Backoff::constant(pause)));
        let asked = server.scripts();
        let waits = tokio::spawn(async move { waits.wait().await });
        eventually("it has asked", async || server.scripts() > asked).await;

        if zero_is_ours {
            assert_eq!(latch.count_down().await.unwrap(), 0);
            java(&["SET", "l", "3"]);
        } else {
            java(&["DEL", "l"]);
            assert!(latch.try_set_count(3).await.unwrap());
        }
        assert_eq!(latch.count().await.unwrap(), 3);
        eventually("it goes on", async || waits.is_finished()).await;
        waits.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn full_memory_allows_releases_and_count_downs() {
    let server = RedisServer::start().unwrap();
    let lease = Duration::from_millis(900);
    let client = Client::builder()
        .lease(lease)
        .connect(&server.url())
        .await
        .unwrap();
    let (semaphore, expirable) = (client.semaphore("s"), client.expirable_semaphore("e"));
    let latch = client.count_down_latch("l");
    semaphore.try_set_permits(3).await.unwrap();
    expirable.try_set_permits(3).await.unwrap();
    latch.try_set_count(2).await.unwrap();
    let (permit, dropped) = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
    let (leased, renewed) = (
        expirable.acquire().await.unwrap(),
        expirable.acquire().await.unwrap(),
    );
    let memory = |limit: &str| {
        let reply = server
            .command(&["CONFIG", "SET", "maxmemory", limit])
            .unwrap();
        assert_eq!(reply, Reply::Text("OK".into()));
    };
    memory("1");
    // This is not an acquire, because an acquire that shares its call with a renewal is not
    // refused.
    let refused = server.command(&["SET", "x", "1"]).unwrap();
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    let before = renewed.valid_until();
    permit.release().await.unwrap();
    leased.release().await.unwrap();
    drop(dropped);
    assert_eq!(latch.count_down().await.unwrap(), 1);
    assert_eq!(latch.count_down().await.unwrap(), 0);
    eventually("both are back", async || {
        semaphore.available_permits().await.unwrap() == 3
    })
    .await;
    eventually("it is renewed", async || {
        renewed.valid_until() > before + lease
    })
    .await;
    memory("0");
    renewed.release().await.unwrap();
    assert_eq!(expirable.available_permits().await.unwrap(), 3);
}

#[tokio::test]
async fn idempotency_markers_stay_few_in_long_use() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.semaphore("x");
    semaphore.try_set_permits(1).await.unwrap();
    for _ in 0..2000 {
        semaphore.acquire().await.unwrap().release().await.unwrap();
    }
    let keys = server.keys().len();
    assert!((2..=600).contains(&keys), "{keys} keys");
}

/// Returns the messages of the semaphore's channel, as Redisson reads them. The number of leading
/// zeros says how many clients were notified.
fn texts(heard: &mut Heard) -> Vec<String> {
    let messages = heard.messages().into_iter();
    let of_all = messages.filter(|(channel, _)| channel.ends_with("{x}"));
    let number = |text: String| text.parse::<i64>().unwrap().to_string();
    of_all.map(|(_, text)| number(text)).collect()
}

#[tokio::test]
async fn leased_permit_release_publishes_extra_messages() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.expirable_semaphore("x");
    let mut heard = server.listen();
    semaphore.try_set_permits(3).await.unwrap();
    assert_eq!(texts(&mut heard), ["3", "0", "0"]);
    let permits = semaphore.acquire_many(3).await.unwrap();
    permits.release().await.unwrap();
    let told = texts(&mut heard);
    assert_eq!((told[0].as_str(), told.len()), ("3", 3 + 8));
    assert!(told[1..].iter().all(|text| text == "0"), "{told:?}");
}

#[tokio::test]
async fn undone_acquire_publishes_each_returned_permit() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let client = Client::connect(&proxy.url()).await.unwrap();
    let direct = Client::connect(&server.url()).await.unwrap();
    // The waiters ask the server when they are woken, and never on their own.
    let semaphore = client.semaphore("x").poll_interval(HOUR);
    let asked = server.scripts();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await })
        })
        .collect();
    // The first waiter asks the server, subscribes, and asks once more. The next request is for all
    // three waiters.
    eventually("they wait", async || server.scripts() >= asked + 2).await;
    let answer = proxy.strike_next(b"\r\n1 1 1\r\n", Strike::HoldReply);
    let mut heard = server.listen();
    direct.semaphore("x").release(3).await.unwrap();
    eventually("they are granted", async || answer.fired()).await;
    for waiter in waiters {
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
    }
    proxy.let_go(&answer);
    eventually("it is undone", async || free(&server).await == 3).await;
    let undone = ["3", "0", "0"].repeat(2);
    assert_eq!(texts(&mut heard)[..6], undone, "a release, and an undo");
}

/// Plain permits have no lease: a permit that is not released remains in use forever.
#[tokio::test]
async fn refused_permit_releases_are_resent_until_accepted() {
    type Refuses = fn(&RedisServer, bool);
    let refusals: [(Refuses, ErrorKind); 3] = [
        (
            |server, refuses| {
                let least = if refuses { "1" } else { "0" };
                ok(server, &["CONFIG", "SET", "min-replicas-to-write", least]);
            },
            ErrorKind::Unavailable,
        ),
        (
            |server, refuses| {
                let (host, port) = if refuses {
                    ("127.0.0.1", "1")
                } else {
                    ("NO", "ONE")
                };
                ok(server, &["REPLICAOF", host, port]);
            },
            ErrorKind::Unavailable,
        ),
        (
            |server, refuses| {
                let rule = if refuses { "-incrby" } else { "+incrby" };
                ok(server, &["ACL", "SETUSER", "default", rule]);
            },
            ErrorKind::Denied,
        ),
    ];
    for (refuse, kind) in refusals {
        let server = RedisServer::start().unwrap();
        let builder = Client::builder().reply_timeout(Duration::from_secs(2));
        let client = builder.connect(&server.url()).await.unwrap();
        let semaphore = client.semaphore("x");
        semaphore.try_set_permits(3).await.unwrap();
        let (released, dropped) = (
            semaphore.acquire().await.unwrap(),
            semaphore.acquire_many(2).await.unwrap(),
        );
        refuse(&server, true);
        let error = released.release().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("sent again"), "{error}");
        drop(dropped);
        // Both releases have been refused at least once.
        let asked = server.scripts();
        eventually("they are sent again", async || server.scripts() > asked + 2).await;
        assert_eq!(client.activity().releases, 2);
        refuse(&server, false);
        eventually("all are back", async || {
            semaphore
                .available_permits()
                .await
                .is_ok_and(|free| free == 3)
        })
        .await;
        client.close().await;
    }
}

fn ok(server: &RedisServer, command: &[&str]) {
    assert_eq!(server.command(command).unwrap(), Reply::Text("OK".into()));
}

/// Redisson serves one asynchronous waiter for each message.
#[tokio::test]
async fn each_permit_that_comes_back_has_its_message() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let semaphore = client.semaphore("x");
    semaphore.try_set_permits(5).await.unwrap();
    let mut permits = Vec::new();
    for _ in 0..5 {
        permits.push(semaphore.acquire().await.unwrap());
    }
    let waits = semaphore.clone();
    let waiter = tokio::spawn(async move { waits.acquire_many(5).await });
    eventually("it waits", async || client.activity().channels == 1).await;
    let adds = || server.calls("incrby");
    let (mut heard, before) = (server.listen(), adds());
    drop(permits);
    waiter.await.unwrap().unwrap().forget();
    assert_eq!(adds() - before, 1);
    assert_eq!(texts(&mut heard), ["5", "0", "0", "0", "0"]);
}
