//! The lock.

use super::*;
use leasehold_testkit::Proxy;
use leasehold_testkit::Strike;

#[tokio::test(flavor = "multi_thread")]
async fn java_reentry_with_shorter_lease_cuts_hold() {
    let place = place().await;
    let java = place.thread(LockKind::Plain);
    java.lock_lease("x", LONG).unwrap();
    java.lock_lease("x", SHORT).unwrap();
    assert!(place.ttl_ms("x") <= SHORT_MS);
    java.unlock("x").unwrap();
    java.unlock("x").unwrap();
    let owner = leasehold::Owner::new();
    let lock = place.rust.lock("x").owned_by(&owner);
    let outer = lock.clone().fixed_lease(LONG).acquire().await.unwrap();
    let inner = lock.fixed_lease(SHORT).acquire().await.unwrap();
    assert!(place.ttl_ms("x") > SHORT_MS);
    inner.release().await.unwrap();
    outer.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_lease_leaks_to_next_thread() {
    let place = place().await;
    let leased = place.other("leased", LockKind::Plain).shared();
    let watched = place.other("watched", LockKind::Plain).shared();
    leased.lock_lease("x", Duration::from_secs(3)).unwrap();
    let waiting = watched.start_lock("x");
    waiting.wait(SOON).expect("after the lease");
    assert!(place.ttl_ms("x") <= 3000, "its own would be 30 s");
    // Its watchdog would renew after 10 s.
    let guard = place.rust.lock("x").acquire().await.unwrap();
    assert!(watched.unlock("x").is_err());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn java_loses_lock_when_reply_is_lost() {
    let server = topology::start();
    let proxy = Proxy::to(server.port());
    let settings = json!({"timeout_ms": 3000, "retry_attempts": 0});
    let java = JavaClient::with(VERSION, &proxy.url(), settings);
    let thread = java.thread("t");
    // After this call the server knows its script.
    assert!(thread.try_lock_wait("x", SOON, Some(LONG)).unwrap().value);
    let fault = proxy.strike_next(b"lost", Strike::LoseReply);
    let taken = thread.try_lock_wait("lost", SOON, Some(LONG));
    assert!(fault.fired());
    assert!(!taken.is_ok_and(|taken| taken.value));
    let left = server.command(&["PTTL", "lost"]).unwrap();
    assert!(left.as_int().unwrap() > SHORT_MS, "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_java_unlock_writes_temporary_key() {
    let place = place().await;
    let java = place.thread(LockKind::Plain);
    let count = |command: &str| place.server.calls(command);
    for _ in 0..5 {
        java.lock("x").unwrap();
        java.unlock("x").unwrap();
    }
    let (set, evalsha) = if IS_OLD { (0, 0) } else { (5, 10) };
    // Each cycle deletes the hold's own key and the temporary key.
    eventually("the keys are gone", async || count("del") == 5 + set).await;
    assert_eq!(count("set"), set);
    assert!(count("evalsha") >= evalsha);
    assert!(!IS_OLD || count("evalsha") == 0, "it sends the text");
    topology::is_empty(&place.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_release_makes_every_java_process_ask() {
    let place = place().await;
    let processes: Vec<_> = (0..4).map(|_| place.stranger()).collect();
    let guard = place.rust.lock("x").acquire().await.unwrap();
    let threads: Vec<_> = processes.iter().map(|java| java.thread("t")).collect();
    let before = place.asks();
    let waiting: Vec<_> = threads.iter().map(|java| java.start_lock("x")).collect();
    place.listen(4, "redisson_lock__channel:{x}").await;
    place.asked(before, 8).await;
    let before = place.asks();
    guard.release().await.unwrap();
    place.asked(before, 5).await;
    // All of these requests but one are refused.
    let mut waiting: Vec<_> = threads.iter().zip(waiting).collect();
    while !waiting.is_empty() {
        let next = async || waiting.iter().any(|(_, waiting)| waiting.is_done());
        eventually("one has it", next).await;
        let served = waiting.iter().position(|(_, waiting)| waiting.is_done());
        let (java, _) = waiting.remove(served.unwrap());
        java.unlock("x").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn java_wait_fails_without_free_channel() {
    // The first two subscriptions must be done within this time.
    let mut settings = json!({"timeout_ms": 8000, "retry_attempts": 0, "channels": 2});
    if !IS_OLD {
        settings["subscription_timeout_ms"] = 8000.into();
    }
    let place = place_with(settings).await;
    let names = ["a", "b", "c"];
    for name in names {
        place.stranger_holds(name, LONG);
    }
    let threads = names.map(|name| place.java.thread(name));
    let start = |n: usize| threads[n].start_lock(names[n]);
    let mut waiting = Vec::new();
    // The waiters start one after the other: if two subscribed at once, each would need a
    // connection.
    for n in [0, 1] {
        waiting.push(start(n));
        let channel = format!("redisson_lock__channel:{{{}}}", names[n]);
        place.listen(1, &channel).await;
    }
    let error = start(2).wait(SOON).unwrap_err();
    assert!(error.class.contains("Timeout"), "{error}");
    for (n, waiting) in waiting.into_iter().enumerate() {
        place.stranger_releases(names[n]);
        waiting.wait(SOON).unwrap();
    }
}
