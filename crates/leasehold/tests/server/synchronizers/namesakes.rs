//! `x` and `{x}` share their additional keys: a client that uses both logs a warning.

use std::time::Duration;

use leasehold::{Client, Embedded};

use crate::server::warnings::Warnings;

const TOLD: &str = "share their additional keys";

/// Uses a name in one of four ways.
async fn use_of(client: &Client, name: &str, way: usize) {
    match way % 4 {
        0 => drop(client.fair_lock(name).try_acquire().await),
        1 => drop(client.semaphore(name).try_acquire().await),
        2 => drop(client.expirable_semaphore(name).try_acquire().await),
        _ => {
            let wait = Duration::from_millis(1);
            drop(client.count_down_latch(name).wait_for(wait).await);
        }
    }
    // By this time, the requests that were sent at the same time have been answered.
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test(start_paused = true)]
async fn braced_name_beside_namesake_warns_once() {
    for way in 0..4 {
        let server = Embedded::new();
        let warnings = Warnings::listen();
        let other = server.client();
        assert!(other.semaphore("x").try_set_permits(2).await.unwrap());
        let lock = other.lock("y").acquire().await.unwrap();
        let client = server.client();
        for name in ["a{x}", "{x}a", "x", "{z}", "{{x}}"] {
            use_of(&client, name, way).await;
        }
        assert_eq!(warnings.count(TOLD), 0);
        for _ in 0..3 {
            use_of(&client, "{y}", way).await;
        }
        assert_eq!(warnings.count("key={y} other=y"), 1, "{way}");
        for _ in 0..3 {
            use_of(&client, "{x}", way).await;
        }
        assert_eq!(warnings.count("key={x} other=x"), 1, "{way}");
        assert_eq!(warnings.count(TOLD), 2);
        lock.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_uses_both_is_told_once() {
    for way in 0..4 {
        let server = Embedded::new();
        let warnings = Warnings::listen();
        let client = server.client();
        use_of(&client, "{x}", way).await;
        assert_eq!(warnings.count(TOLD), 0);
        for _ in 0..3 {
            use_of(&client, "x", way).await;
        }
        assert_eq!(warnings.count(TOLD), 1, "{way}");
    }
}
