//! A wait for a semaphore that does not exist causes a warning.

use std::time::Duration;

use leasehold::{Client, Embedded};

use crate::server::warnings::Warnings;

const SECOND: Duration = Duration::from_secs(1);
const TOLD: &str = "there is no semaphore of this name";

/// Counts the warnings from two waits, of which one asks the server many times and the other asks
/// once.
async fn warnings_of(client: &Client) -> usize {
    let warnings = Warnings::listen();
    let short = Duration::from_millis(10);
    let semaphore = client.semaphore("the name").poll_interval(short);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    assert_eq!(warnings.count(TOLD), 0, "it did not wait");
    let permit = semaphore.try_acquire_for(SECOND).await.unwrap();
    assert!(permit.is_none());
    let plain = warnings.count(TOLD);
    let expirable = client.expirable_semaphore("the name").poll_interval(short);
    assert!(expirable.try_acquire().await.unwrap().is_none());
    assert_eq!(warnings.count(TOLD), plain, "it did not wait");
    assert!(expirable.try_acquire_for(SECOND).await.unwrap().is_none());
    assert_eq!(warnings.count("the name"), warnings.count(TOLD));
    assert_eq!(warnings.count("try_set_permits"), warnings.count(TOLD));
    warnings.count(TOLD)
}

#[tokio::test(start_paused = true)]
async fn wait_for_missing_semaphore_warns_once() {
    let server = Embedded::new();
    assert_eq!(warnings_of(&server.client()).await, 2);
    // A semaphore that exists and has no permits causes no warning.
    let semaphore = server.client().semaphore("the name");
    assert!(semaphore.try_set_permits(0).await.unwrap());
    assert_eq!(warnings_of(&server.client()).await, 0);
}
