//! The line for a fair lock, while servers, networks and other processes interfere.

use std::time::Duration;

use leasehold::{Client, FairLock, LockGuard};
use leasehold_testkit::{Proxy, RedisServer, Strike};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::child;
use super::permissions::client_with;
use super::scene::{LEASE, NAME, builder, struck, through_proxy};
use crate::support::{HOUR, eventually, is_clean};

/// Complete arguments, as in `scene.rs`.
const ACQUIRE: &[u8] = b"\r\nfair.acquire\r\n";
const RELEASE: &[u8] = b"\r\nfair.release\r\n";
/// A limit after which a wait is hopeless: a waiter timeout is 5 s, a lease 30 s.
const PATIENCE: Duration = Duration::from_secs(15);

fn lock_of(client: &Client) -> FairLock {
    client.fair_lock(NAME)
}

async fn waiting(client: &Client, waiters: usize) {
    let lock = lock_of(client);
    eventually(&format!("{waiters} wait"), async || {
        lock.waiters().await.is_ok_and(|line| line.len() == waiters)
    })
    .await;
}

/// Starts a task that waits for the lock. Returns when the task is in line.
async fn waiter(lock: FairLock, beside: &Client) -> JoinHandle<LockGuard> {
    let before = lock_of(beside).waiters().await.unwrap().len();
    let task = tokio::spawn(async move { lock.acquire().await.unwrap() });
    waiting(beside, before + 1).await;
    task
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let guard = tokio::time::timeout(PATIENCE, waiter).await;
    guard.expect("served in time").unwrap()
}

async fn nothing_is_left(server: &RedisServer, clients: &[&Client]) {
    is_clean(|| server.keys(), || server.channels(), clients).await;
}

#[tokio::test]
async fn killed_waiter_is_skipped_after_its_timeout() {
    let server = RedisServer::start().unwrap();
    let ours = builder().connect(&server.url()).await.unwrap();
    let theirs = builder().connect(&server.url()).await.unwrap();
    let guard = lock_of(&ours).acquire().await.unwrap();
    let mut dead = child::stand_in_line(&server.url());
    waiting(&ours, 1).await;
    let next = waiter(lock_of(&theirs), &ours).await;
    dead.kill();
    guard.release().await.unwrap();
    served(next).await.release().await.unwrap();
    nothing_is_left(&server, &[&ours, &theirs]).await;
}

/// Redisson adds 300 s for each waiter in line. When a waiter leaves, it subtracts 300 s from the
/// timeouts of all later waiters.
#[tokio::test]
async fn removing_dead_waiters_lowers_later_timeouts() {
    const ALLOWANCE_MS: i64 = 300_000;
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let (queue, timeouts) = ("redisson_lock_queue:{x}", "redisson_lock_timeout:{x}");
    let score = |waiter: &str| -> i64 {
        let score = server.command(&["ZSCORE", timeouts, waiter]).unwrap();
        score.as_text().unwrap().parse().unwrap()
    };
    let guard = lock_of(&client).fixed_lease(HOUR).acquire().await.unwrap();
    let first_end = server.command(&["PEXPIRETIME", "x"]).unwrap();
    let first_end = first_end.as_int().unwrap();
    for dead in 0..3 {
        let lock = lock_of(&client).waiter_timeout(Duration::from_secs(2));
        let mut killed = Box::pin(async move { lock.acquire().await.map(drop) });
        let polled = async { waiting(&client, dead + 1).await };
        tokio::select! {
            _ = &mut killed => panic!("it is held"),
            () = polled => {}
        }
        std::mem::forget(killed);
    }
    // This adds a Redisson waiter, as Redisson's script does.
    let line = lock_of(&client).waiters().await.unwrap();
    let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
    let java_until = score(&line[2]) + ALLOWANCE_MS;
    server.command(&["RPUSH", queue, java]).unwrap();
    let text = java_until.to_string();
    server.command(&["ZADD", timeouts, &text, java]).unwrap();
    assert!((java_until - first_end - 4 * ALLOWANCE_MS).abs() <= 2);
    let last = waiter(lock_of(&client), &client).await;
    let ours_until = score(&lock_of(&client).waiters().await.unwrap()[4]);
    assert!((ours_until - java_until - ALLOWANCE_MS).abs() <= 2);

    eventually("those behind them have moved up", async || {
        score(java) == java_until - 3 * ALLOWANCE_MS
    })
    .await;
    let line = lock_of(&client).waiters().await.unwrap();
    assert_eq!(line[0], java);
    assert!((score(&line[1]) - (ours_until - 3 * ALLOWANCE_MS)).abs() <= 2);

    // The Java waiter gives up, and removes its own entries.
    server.command(&["LREM", queue, "0", java]).unwrap();
    server.command(&["ZREM", timeouts, java]).unwrap();
    guard.release().await.unwrap();
    served(last).await.release().await.unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
}

/// When a waiter leaves, one command moves the timeouts of many later waiters.
#[tokio::test]
async fn a_grant_before_many_java_waiters_takes_few_commands() {
    const JAVAS: usize = 1200;
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let guard = lock_of(&client).acquire().await.unwrap();
    let next = waiter(lock_of(&client), &client).await;
    let first = 4_000_000_000_000_u64;
    let (mut listed, mut timed) = (vec![], vec![]);
    for n in 0..JAVAS {
        let java = format!("8743c9c0-0795-4907-87fd-6c719a6b4586:{n}");
        timed.extend([(first + n as u64).to_string(), java.clone()]);
        listed.push(java);
    }
    let run = |command: &[&str], rest: &[String]| {
        let rest = rest.iter().map(String::as_str);
        let whole: Vec<_> = command.iter().copied().chain(rest).collect();
        server.command(&whole).unwrap()
    };
    run(&["RPUSH", "redisson_lock_queue:{x}"], &listed);
    run(&["ZADD", "redisson_lock_timeout:{x}"], &timed);

    let calls = || server.calls("zadd") + server.calls("zscore") + server.calls("zrange");
    let before = calls();
    guard.release().await.unwrap();
    let next = served(next).await;
    let used = calls() - before;
    assert!(used <= 50, "{used} commands for {JAVAS} that move up");
    for n in [0, JAVAS - 1] {
        let score = run(&["ZSCORE", "redisson_lock_timeout:{x}"], &listed[n..=n]);
        let moved = (first + n as u64 - 300_000).to_string();
        assert_eq!(score.as_text(), Some(&*moved));
    }
    run(
        &[
            "DEL",
            "redisson_lock_queue:{x}",
            "redisson_lock_timeout:{x}",
        ],
        &[],
    );
    next.release().await.unwrap();
    nothing_is_left(&server, &[&client]).await;
}

#[tokio::test]
async fn a_place_in_line_outlives_the_connection() {
    let (server, proxy, ours, beside) = through_proxy().await;
    let guard = lock_of(&beside).acquire().await.unwrap();
    let first = waiter(lock_of(&ours), &beside).await;
    let line = lock_of(&beside).waiters().await.unwrap();
    let second = waiter(lock_of(&beside), &beside).await;
    assert!(proxy.cut() > 0);
    guard.release().await.unwrap();
    let guard = served(first).await;
    assert_eq!(guard.holder_id(), line[0]);
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    served(second).await.release().await.unwrap();
    nothing_is_left(&server, &[&ours, &beside]).await;
}

#[tokio::test]
async fn grant_with_lost_reply_is_asked_again() {
    let (server, proxy, ours, beside) = through_proxy().await;
    let guard = lock_of(&beside).acquire().await.unwrap();
    let lease = LEASE * 10;
    // The waiter sends a request only when it is notified.
    let lock = lock_of(&ours)
        .fixed_lease(lease)
        .poll_interval(HOUR)
        .waiter_timeout(HOUR);
    let first = waiter(lock, &beside).await;
    let line = lock_of(&beside).waiters().await.unwrap();
    // Two calls of ZADD join the line, and a third one keeps the place.
    eventually("it listens, and has asked once more", async || {
        server.calls("zadd") > 2
    })
    .await;
    let second = waiter(lock_of(&beside), &beside).await;
    let fault = proxy.strike_next(ACQUIRE, Strike::LoseReply);
    guard.release().await.unwrap();
    struck(&fault).await;
    let guard = served(first).await;
    assert_eq!(guard.holder_id(), line[0]);
    let info = lock_of(&beside).inspect().await.unwrap();
    assert_eq!(info.holders[0].id, line[0]);
    let leasehold::inspect::Ttl::Left(left) = info.ttl else {
        panic!("{info:?}");
    };
    let believed = guard.valid_until() - tokio::time::Instant::now();
    assert!(
        believed <= left,
        "it counts on {believed:?}, the server on {left:?}"
    );
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    served(second).await.release().await.unwrap();
    nothing_is_left(&server, &[&ours, &beside]).await;
}

#[tokio::test]
async fn replayed_acquire_after_release_is_undone() {
    let (server, proxy, _, beside) = through_proxy().await;
    // The server may grant a request for as long as its client waits for the reply.
    let patient = Client::builder().reply_timeout(Duration::from_secs(3));
    let ours = patient.connect(&proxy.url()).await.unwrap();
    let guard = lock_of(&beside).acquire().await.unwrap();
    // The struck request is replayed later, on a connection of its own, after the waiter has
    // released.
    let fault = proxy.strike_next(ACQUIRE, Strike::CutBefore);
    let first = tokio::spawn({
        let lock = lock_of(&ours).fixed_lease(HOUR);
        async move { lock.acquire().await.unwrap() }
    });
    struck(&fault).await;
    waiting(&beside, 1).await;
    guard.release().await.unwrap();
    served(first).await.release().await.unwrap();
    // The server receives the request only now, as if the network had delayed it.
    let reply = super::scene::replay(&server, &fault.request());
    assert!(
        !reply.contains("late"),
        "it was in time for a grant: {reply}"
    );
    nothing_is_left(&server, &[&ours, &beside]).await;
}

#[tokio::test]
async fn give_up_with_lost_reply_leaves_nothing() {
    let (server, proxy, ours, beside) = through_proxy().await;
    for strike in [
        Strike::LoseReply,
        Strike::LoseRequest,
        Strike::CutBefore,
        Strike::Double,
    ] {
        let guard = lock_of(&beside).acquire().await.unwrap();
        let first = waiter(lock_of(&ours), &beside).await;
        let fault = proxy.strike_next(RELEASE, strike);
        first.abort();
        struck(&fault).await;
        waiting(&beside, 0).await;
        guard.release().await.unwrap();
        nothing_is_left(&server, &[&ours, &beside]).await;
    }
}

#[tokio::test]
async fn waiters_rejoin_queue_after_empty_restart() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let ours = builder().connect(&proxy.url()).await.unwrap();
    let guard = lock_of(&ours).fixed_lease(HOUR).acquire().await.unwrap();
    let (sender, mut done) = mpsc::unbounded_channel();
    for _ in 0..5 {
        let (lock, sender) = (lock_of(&ours), sender.clone());
        tokio::spawn(async move {
            lock.acquire().await.unwrap().release().await.unwrap();
            sender.send(()).unwrap();
        });
    }
    waiting(&ours, 5).await;
    server.restart().unwrap();
    for _ in 0..5 {
        let served = tokio::time::timeout(PATIENCE, done.recv()).await;
        served.expect("served in time").unwrap();
    }
    assert!(guard.release().await.is_err());
    nothing_is_left(&server, &[&ours]).await;
}

#[tokio::test]
async fn fair_queue_survives_out_of_memory() {
    let server = RedisServer::start().unwrap();
    let ours = builder().connect(&server.url()).await.unwrap();
    let timeout = LEASE * 3;
    let guard = lock_of(&ours).acquire().await.unwrap();
    let first = waiter(lock_of(&ours).waiter_timeout(timeout), &ours).await;
    let line = lock_of(&ours).waiters().await.unwrap();
    let second = waiter(lock_of(&ours).waiter_timeout(timeout), &ours).await;
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let asked = server.calls("time");
    eventually(
        "they have asked for longer than their timeout",
        async || server.calls("time") > asked + 20,
    )
    .await;
    assert_eq!(lock_of(&ours).waiters().await.unwrap().len(), 2);
    guard.release().await.unwrap();
    let guard = served(first).await;
    assert_eq!(guard.holder_id(), line[0]);
    guard.release().await.unwrap();
    served(second).await.release().await.unwrap();
    nothing_is_left(&server, &[&ours]).await;
}

/// If the list exists without the set, Redisson fails, or waits forever.
#[tokio::test]
async fn denied_command_leaves_queue_and_timeouts_equal() {
    const COMMANDS: [&str; 16] = [
        "time",
        "hset",
        "hdel",
        "pexpire",
        "pttl",
        "hlen",
        "llen",
        "zcard",
        "lindex",
        "rpush",
        "lpop",
        "lrem",
        "zadd",
        "zscore",
        "zrangebyscore",
        "publish",
    ];
    for denied in COMMANDS {
        let server = RedisServer::start().unwrap();
        let admin = Client::connect(&server.url()).await.unwrap();
        let rules = ["+@all", "~*", "&*"];
        drop(client_with(&server, &rules).await);
        let rule = format!("-{denied}");
        let client = client_with(&server, &[&rules[..], &[&rule]].concat()).await;
        let guard = lock_of(&admin).fixed_lease(HOUR).acquire().await.unwrap();
        let behind = waiter(lock_of(&admin), &admin).await;
        let wait = Duration::from_millis(50);
        let _ = lock_of(&client).try_acquire_for(wait).await;
        client.close().await;
        let both = [
            "LRANGE redisson_lock_queue:{x} 0 -1",
            "ZRANGE redisson_lock_timeout:{x} 0 -1",
        ];
        let [listed, timed] = both.map(|command| {
            let command: Vec<_> = command.split(' ').collect();
            let reply = server.command(&command).unwrap();
            let mut ids: Vec<_> = reply
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_text().unwrap().to_owned())
                .collect();
            ids.sort();
            ids
        });
        assert_eq!(listed, timed, "without {denied}");
        guard.release().await.unwrap();
        served(behind).await.release().await.unwrap();
    }
}

/// Measures how much work a long line causes on the server. Run it with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "measures, for minutes"]
async fn long_fair_queue_is_served_in_order() {
    for (one_of_redissons, waiters) in [(false, 5000), (true, 1000)] {
        let server = RedisServer::start().unwrap();
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = lock_of(&client).fixed_lease(HOUR).acquire().await.unwrap();
        let (sender, mut served) = mpsc::unbounded_channel();
        for number in 0..waiters {
            let (lock, sender) = (lock_of(&client), sender.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                sender.send(number).unwrap();
                guard.release().await.unwrap();
            });
        }
        waiting(&client, waiters).await;
        eventually("all listen", async || server.channels().len() == waiters).await;
        if one_of_redissons {
            let far = "9000000000000";
            server
                .command(&["RPUSH", "redisson_lock_queue:{x}", "java:1"])
                .unwrap();
            server
                .command(&["ZADD", "redisson_lock_timeout:{x}", far, "java:1"])
                .unwrap();
        }
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (idle, asks) = (usec(&server), server.calls("evalsha"));
        println!("waiting: {asks} calls and {idle} us of the server in 5 s");
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
        let started = std::time::Instant::now();
        guard.release().await.unwrap();
        for number in 0..waiters {
            assert_eq!(served.recv().await, Some(number));
        }
        let (took, busy) = (started.elapsed(), usec(&server));
        let each = busy / waiters as u64;
        println!(
            "one of Redisson's in line: {one_of_redissons}; {waiters} grants in {took:.1?}, \
             {each} us of the server for each with the polls of those who wait"
        );
    }
}

/// Returns the time that the server has spent in scripts.
fn usec(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let stats = stats.as_text().unwrap().to_owned();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let usec = line.and_then(|line| line.split("usec=").nth(1));
    usec.and_then(|rest| rest.split(',').next())
        .map_or(0, |usec| usec.parse().unwrap())
}

#[tokio::test]
async fn wrong_type_queue_key_is_named() {
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let keys = [
        ("redisson_lock_queue:{x}", "a lock whose queue is a string"),
        (
            "redisson_lock_timeout:{x}",
            "whose set of timeouts is a string",
        ),
        ("leasehold:{x}:waiters", "whose set of waiters is a string"),
        ("x", "a key of another type"),
    ];
    for (key, said) in keys {
        server.command(&["SET", key, "text"]).unwrap();
        let lock = lock_of(&client);
        let errors = [
            lock.acquire().await.unwrap_err(),
            lock.try_acquire().await.unwrap_err(),
            lock.try_acquire_for(LEASE).await.unwrap_err(),
            lock.force_unlock().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), leasehold::ErrorKind::WrongKind, "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
        assert_eq!(server.keys(), [key]);
        server.command(&["DEL", key]).unwrap();
    }
}
