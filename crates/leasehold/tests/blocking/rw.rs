//! The read-write lock for threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::ErrorKind;
use leasehold::blocking::Client;
use leasehold_testkit::{RedisServer, eventually};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_thread_that_writes_reads_inside_and_downgrades() {
    let client = Client::embedded();
    let lock = client.rw_lock("x");
    let writing = lock.write().unwrap();
    let reading = lock.read().unwrap();
    assert!(lock.write_lock().is_held_by_current_thread().unwrap());
    assert!(lock.read_lock().is_held_by_current_thread().unwrap());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(lock.try_read().unwrap().is_none());
            assert!(lock.try_write().unwrap().is_none());
        });
        other.join().unwrap();
        writing.release().unwrap();
        let other = scope.spawn(|| lock.try_read().unwrap().expect("it only reads").release());
        other.join().unwrap().unwrap();
    });
    let error = lock.write().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    let writing = reading.try_upgrade().unwrap();
    let reading = writing.downgrade().unwrap();
    assert!(lock.try_write().unwrap().is_none());
    reading.release().unwrap();
    eventually("nothing is left", SOON, || {
        client.activity() == leasehold::inspect::Activity::default()
    });
}

#[test]
fn a_guard_that_was_not_upgraded_comes_back() {
    let client = Client::embedded();
    let lock = client.rw_lock("x").fixed_lease(Duration::from_secs(20));
    let (owner, other) = (leasehold::Owner::new(), leasehold::Owner::new());
    let beside = lock.owned_by(&other).read().unwrap();
    let reading = lock.owned_by(&owner).read().unwrap();
    let refused = reading.try_upgrade().unwrap_err();
    assert!(refused.error().is_none());
    let reading = refused.into_guard();
    assert!(reading.is_held());
    // Guards with an owner can be sent to another thread.
    thread::spawn(move || drop(beside)).join().unwrap();
    let writing = reading.try_upgrade().unwrap();
    thread::spawn(move || writing.downgrade().unwrap().release())
        .join()
        .unwrap()
        .unwrap();
}

#[test]
fn threads_read_together_and_write_alone() {
    let server = RedisServer::start().unwrap();
    let clients = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let (readers, writers) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let most = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..8 {
            let lock = clients[n % 2].rw_lock("x");
            let (readers, writers, most) = (&readers, &writers, &most);
            scope.spawn(move || {
                for turn in 0..20 {
                    if (turn + n) % 4 == 0 {
                        let guard = lock.write().unwrap();
                        assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        thread::yield_now();
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        writers.fetch_sub(1, Ordering::SeqCst);
                        guard.release().unwrap();
                    } else {
                        let deadline = Instant::now() + SOON;
                        let guard = lock.try_read_until(deadline).unwrap().unwrap();
                        let inside = readers.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(inside, Ordering::SeqCst);
                        assert_eq!(writers.load(Ordering::SeqCst), 0);
                        thread::sleep(Duration::from_millis(2));
                        assert_eq!(writers.load(Ordering::SeqCst), 0);
                        readers.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                }
            });
        }
    });
    assert!(most.into_inner() > 1, "nobody read together");
    eventually("nothing is left", SOON, || server.keys().is_empty());
}
