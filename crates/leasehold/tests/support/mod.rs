//! The places where tests run, and the checks at their end.
#![allow(dead_code, reason = "each test binary uses its part of it")]

pub(crate) mod asleep;
pub(crate) mod busy;
#[cfg(unix)]
pub(crate) mod child;
pub(crate) mod company;
pub(crate) mod ended;
pub(crate) mod executor;
#[cfg(unix)]
pub(crate) mod guarded;
pub(crate) mod metrics;
#[cfg(unix)]
mod place;
mod poll;
pub(crate) mod sources;
pub(crate) mod spans;
pub(crate) mod told;
pub(crate) mod users;
#[cfg(unix)]
pub(crate) mod wire;

use std::time::Duration;

use leasehold::inspect::Activity;
use leasehold::kind::Kind;
use leasehold::{Client, Error, ErrorKind, FairLock, FencedLock, Lock, LockGuard, LossReason};
#[cfg(unix)]
#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub(crate) use place::*;
#[allow(unused_imports, reason = "each test binary uses its part of it")]
pub(crate) use poll::drop_after;

/// Returns the reason of a hold that a client without a label of its own ended by force.
pub(crate) fn forced() -> LossReason {
    let program = std::env::current_exe().expect("the program has a path");
    let program = program.file_name().expect("it is a file");
    let label = std::env::var("LEASEHOLD_LABEL");
    LossReason::Forced {
        by: Some(label.unwrap_or_else(|_| program.to_string_lossy().into_owned())),
    }
}

/// Acquires the lock, which must be free in the end, and releases it.
pub(crate) async fn acquire_and_release<K: Kind>(lock: &Lock<K>) {
    let guard: LockGuard = lock.acquire().await.unwrap().into();
    guard.release().await.unwrap();
}

/// Checks the errors of all calls of a synchronizer whose key is a hash.
pub(crate) fn all_refuse_a_hash(errors: impl IntoIterator<Item = Error>) {
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
        assert!(error.to_string().contains("a hash"), "{error}");
    }
}

/// Makes the lock with which a module of tests is run.
pub(crate) fn plain_lock(client: &Client, name: &str) -> Lock {
    client.lock(name)
}

pub(crate) fn fenced_lock(client: &Client, name: &str) -> FencedLock {
    client.fenced_lock(name)
}

/// Makes a fair lock whose waiters keep their place without further requests. Only a message or the
/// end of a lease makes them send another request.
pub(crate) fn fair_lock(client: &Client, name: &str) -> FairLock {
    client.fair_lock(name).waiter_timeout(HOUR)
}

/// Waits until no key, channel, subscription, line, owner or renewal is left.
pub(crate) async fn is_clean(
    keys: impl Fn() -> Vec<String>,
    channels: impl Fn() -> Vec<String>,
    clients: &[&Client],
) {
    let mut last = String::new();
    for _ in 0..2000 {
        let (keys, channels) = (keys(), channels());
        let busy = clients
            .iter()
            .map(|client| client.activity())
            .find(|activity| *activity != Activity::default());
        if keys.is_empty() && channels.is_empty() && busy.is_none() {
            return;
        }
        last = format!("keys {keys:?}, channels {channels:?}, {busy:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("left behind: {last}");
}

/// Polls until `condition` holds. The limit only ends a hopeless wait.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..4000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
