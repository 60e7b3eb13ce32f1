//! Handles through which a thread does not enter its own holds again.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::blocking::{AnyLock, Client, MultiLock, RedLock};
use leasehold::inspect::Activity;
use leasehold::{ErrorKind, Owner};
use leasehold_testkit::eventually;

const SOON: Duration = Duration::from_secs(20);

/// Runs `work` in a thread, and fails if that thread waits for itself.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    result.recv_timeout(SOON).expect("it is done in time")
}

fn kinds(clients: &[Client]) -> Vec<AnyLock> {
    let client = &clients[0];
    let members = clients.iter().map(|client| client.lock("red"));
    vec![
        client.lock("plain").into(),
        client.fenced_lock("fenced").into(),
        client.fair_lock("fair").into(),
        client.rw_lock("write").non_reentrant().write_lock().into(),
        client.group_lock("group", ["a", "b"]).into(),
        MultiLock::new([client.lock("c"), client.lock("d")])
            .unwrap()
            .into(),
        RedLock::new(members)
            .unwrap()
            .distrust_restarted(false)
            .into(),
    ]
}

#[test]
fn thread_is_kept_out_by_its_own_hold_of_each_kind() {
    let clients: Vec<_> = (0..3).map(|_| Client::embedded()).collect();
    for lock in kinds(&clients) {
        let lock = lock.non_reentrant();
        in_time(move || {
            let guard = lock.acquire().unwrap();
            assert!(lock.is_held_by_current_thread(), "{lock:?}");
            assert!(lock.try_acquire().unwrap().is_none(), "{lock:?}");
            let limited = lock.try_acquire_for(Duration::from_millis(20)).unwrap();
            assert!(limited.is_none(), "{lock:?}");
            let error = lock.acquire().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            guard.release().unwrap();
            lock.acquire().unwrap().release().unwrap();
        });
    }
    for client in clients {
        eventually("nothing is left", SOON, || {
            client.activity() == Activity::default()
        });
    }
}

#[test]
fn thread_waits_for_another_thread_and_not_for_an_error() {
    let client = Client::embedded();
    let lock = client.lock("x").non_reentrant();
    let guard = lock.acquire().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| lock.acquire().unwrap().release().unwrap());
        eventually("it waits", SOON, || client.activity().lines == 1);
        guard.release().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn explicit_owner_is_kept_out_too() {
    let client = Client::embedded();
    let lock = client.lock("x").owned_by(&Owner::new()).non_reentrant();
    let guard = lock.acquire().unwrap();
    // On any thread: the hold belongs to the owner.
    let error = in_time(move || lock.acquire().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    guard.release().unwrap();
}
