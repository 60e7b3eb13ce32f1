//! The types and futures that may cross threads, and the code that the compiler must refuse.

use leasehold::inspect::LockInfo;
use leasehold::{
    AnyLock, Client, ClientBuilder, Embedded, Error, Lock, LockGuard, LossReason, Owner,
};

const fn is_send_sync<T: Send + Sync>() {}
const fn is_unpin<T: Unpin>() {}
fn future_is_send<T: Send>(_: &T) {}

#[test]
fn types_cross_threads() {
    is_send_sync::<(Client, ClientBuilder, Embedded, Error)>();
    is_send_sync::<(Lock, LockGuard, LockInfo, LossReason, Owner)>();
    is_send_sync::<AnyLock>();
    is_unpin::<(Client, Lock, AnyLock, LockGuard, Error)>();
}

#[cfg(feature = "blocking")]
#[test]
fn blocking_types_are_send_and_sync() {
    use leasehold::blocking;
    is_send_sync::<(blocking::Client, blocking::Lock, blocking::AnyLock)>();
    is_send_sync::<blocking::Lock<blocking::Explicit>>();
    is_send_sync::<blocking::LockGuard<blocking::Explicit>>();
    // `PerThread` refuses it: the compile-fail example of its docs shows this.
}

#[tokio::test]
async fn futures_are_send() {
    let client = Client::embedded();
    let lock = client.lock("x");
    let owner = leasehold::Owner::new();
    let wait = std::time::Duration::from_secs(1);
    future_is_send(&lock.acquire());
    future_is_send(&lock.try_acquire());
    future_is_send(&lock.try_acquire_for(wait));
    future_is_send(&lock.try_acquire_until(std::time::Instant::now() + wait));
    future_is_send(&lock.run(async |_| ()));
    future_is_send(&lock.inspect());
    future_is_send(&lock.is_locked());
    future_is_send(&lock.is_held_by(&owner));
    future_is_send(&lock.remaining_ttl());
    future_is_send(&lock.force_unlock());
    let any = AnyLock::from(&lock);
    future_is_send(&any.acquire());
    future_is_send(&any.inspect());
    future_is_send(&any.is_locked());
    future_is_send(&client.close());
    future_is_send(&Client::connect("redis://127.0.0.1"));
    let guard = lock.acquire().await.unwrap();
    future_is_send(&guard.lost());
    future_is_send(&guard.extend(wait));
    future_is_send(&guard.fencing_token());
    future_is_send(&guard.protect(async {}));
    future_is_send(&guard.release());
}
