//! The watchdog.

use super::*;

const WATCHDOG_MS: u64 = 3000;

fn watchdog(ms: u64) -> Value {
    json!({ "watchdog_ms": ms })
}

/// A key that no script can use: until this is dropped, each script on `key` fails.
struct Spoilt<'a>(&'a Place, String);

impl<'a> Spoilt<'a> {
    fn new(place: &'a Place, key: &str) -> Self {
        let kept = format!("{key} as it was");
        // The keys are swapped in one step, so that no renewal finds the lock free.
        let swap = "redis.call('RENAME', KEYS[1], KEYS[2]) return redis.call('SET', KEYS[1], 1)";
        let reply = place.server.command(&["EVAL", swap, "2", key, &kept]);
        assert_eq!(reply.unwrap().as_text(), Some("OK"));
        Self(place, key.into())
    }
}

impl Drop for Spoilt<'_> {
    fn drop(&mut self) {
        let Self(place, key) = self;
        let command = ["RENAME", &format!("{key} as it was"), key];
        place.server.command(&command).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn javas_renewals_grow_with_each_lock_and_unlock() {
    let place = place_with(watchdog(6000)).await;
    let java = place.thread(LockKind::Plain);
    let cycles = || {
        for _ in 0..50 {
            java.lock("x").unwrap();
            java.unlock("x").unwrap();
        }
    };
    // The renewals do not grow while the thread holds another lock.
    java.lock("kept").unwrap();
    cycles();
    let before = place.asks();
    place.is_renewed("kept", 2).await;
    assert!(place.asks() - before < 5);
    java.unlock("kept").unwrap();
    cycles();
    java.lock("x").unwrap();
    let before = place.asks();
    if IS_OLD {
        place.is_renewed("x", 2).await;
        assert!(place.asks() - before < 5);
    } else {
        place.asked(before, 30).await;
    }
    java.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_one_java_mode_stops_others_renewal() {
    let place = place_with(watchdog(WATCHDOG_MS)).await;
    let (read, write) = (place.thread(LockKind::Read), place.thread(LockKind::Write));
    // 3.16.8 loses the read hold, 4.7.0 loses the write hold.
    let (left, kept) = match IS_OLD {
        true => (&write, &read),
        false => (&read, &write),
    };
    write.lock("x").unwrap();
    read.lock("x").unwrap();
    left.unlock("x").unwrap();
    assert!(place.exists("x"));
    place.has_ended("x").await;
    write.lock("x").unwrap();
    read.lock("x").unwrap();
    kept.unlock("x").unwrap();
    place.is_renewed("x", 4).await;
    left.unlock("x").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_java_unlock_stops_watchdog_of_hold() {
    let place = place_with(watchdog(WATCHDOG_MS)).await;
    let java = place.thread(LockKind::Plain);
    java.lock("x").unwrap();
    java.lock("x").unwrap();
    let spoilt = Spoilt::new(&place, "x");
    assert!(java.unlock("x").is_err());
    drop(spoilt);
    java.unlock("x").unwrap();
    assert_eq!(java.hold_count("x").unwrap().value, 1);
    place.has_ended("x").await;
    assert!(java.unlock("x").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_renewal_is_old_javas_last() {
    let place = place_with(watchdog(WATCHDOG_MS)).await;
    let java = place.thread(LockKind::Plain);
    java.lock("x").unwrap();
    place.is_renewed("x", 1).await;
    let before = place.asks();
    let spoilt = Spoilt::new(&place, "x");
    // The second script is the renewal.
    place.asked(before, 2).await;
    drop(spoilt);
    if IS_OLD {
        place.has_ended("x").await;
        assert!(java.unlock("x").is_err());
    } else {
        place.is_renewed("x", 4).await;
        java.unlock("x").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_type_key_stops_other_java_renewals() {
    let place = place_with(watchdog(WATCHDOG_MS)).await;
    let java = place.thread(LockKind::Plain);
    let names: Vec<_> = (0..8).map(|n| format!("x{n}")).collect();
    for name in &names {
        java.lock(name).unwrap();
    }
    let _spoilt = Spoilt::new(&place, "x3");
    if IS_OLD {
        place.is_renewed("x0", 4).await;
        assert!(names.iter().all(|name| place.exists(name)));
    } else {
        // The holds that follow it in the script end.
        let lost = || names.iter().any(|name| !place.exists(name));
        eventually("one has ended", async || lost()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_unlock_leaves_next_java_hold_unrenewed() {
    let place = place_with(watchdog(WATCHDOG_MS)).await;
    let [forced, next] = ["forced", "next"].map(|name| place.other(name, LockKind::Plain));
    let force = async |name| {
        for _ in 0..4 {
            forced.lock(name).unwrap();
        }
        assert!(place.rust.lock(name).force_unlock().await.unwrap());
    };
    force("x").await;
    next.lock("x").unwrap();
    place.has_ended("x").await;
    assert!(next.unlock("x").is_err());
    // The hold is renewed once the client that lost it has unlocked as often as it had locked.
    force("y").await;
    for _ in 0..4 {
        assert!(forced.unlock("y").is_err());
    }
    next.lock("y").unwrap();
    place.is_renewed("y", 4).await;
    next.unlock("y").unwrap();
}
