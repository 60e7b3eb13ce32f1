//! A server whose clock differs from the clock of the Java process.

use super::*;
use leasehold_testkit::ClockShim;

#[tokio::test(flavor = "multi_thread")]
async fn server_clock_ahead_expires_java_leases_early() {
    let clock = ClockShim::new().unwrap();
    let server = topology::start_with(RedisServer::builder().clock(&clock));
    clock.step_ahead(Duration::from_secs(3600));
    let place = place_at(server, json!({})).await;
    place.stranger_holds("x", LONG);
    let fair = place.other("waiter", LockKind::Fair);
    let waiting = fair.start_lock("x");
    let waiter = place.queued(1).await.remove(0);
    assert!(place.score_ms(&waiter) < place.now_ms(), "by its own clock");
    place.int(&["DEL", "x"]);
    place.int(&[
        "PUBLISH",
        &format!("redisson_lock__channel:{{x}}:{waiter}"),
        "0",
    ]);
    waiting.wait(SOON).unwrap();
    fair.unlock("x").unwrap();

    let java = place.thread(LockKind::Plain);
    assert_eq!(call(&java, "expirable_set", json!({"permits": 1})), true);
    let lease = json!({"lease_ms": LONG.as_millis() as u64});
    call(&java, "expirable_acquire_lease", lease);
    let semaphore = place.rust.expirable_semaphore("x");
    let taken = semaphore.try_acquire().await.unwrap();
    taken
        .expect("although Java has it")
        .release()
        .await
        .unwrap();
    if !IS_OLD {
        let java = place.thread(LockKind::Group);
        java.lock("G/a").unwrap();
        let lock = place.rust.group_lock("G", ["a"]);
        let ours = lock.try_acquire().await.unwrap();
        let ours = ours.expect("although Java has it");
        // Java's unlock compares the value's end with its own clock, and does not check who holds
        // the value. Our acquire has cleared that end.
        assert!(java.unlock("G/a").is_err());
        assert!(lock.is_locked().await.unwrap());
        ours.release().await.unwrap();
    }
}
