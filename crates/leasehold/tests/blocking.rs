//! The blocking facade: renewal while the caller computes, re-entrance per thread, and a clear
//! error where it must not be called.
#![cfg(feature = "blocking")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "blocking/asleep.rs"]
mod asleep;
#[path = "blocking/ends.rs"]
mod ends;
#[path = "blocking/interrupt.rs"]
mod interrupt;
#[path = "blocking/non_reentrant.rs"]
mod non_reentrant;
#[path = "blocking/rw.rs"]
mod rw;
#[path = "blocking/settings.rs"]
mod settings;
#[path = "blocking/tickets.rs"]
mod tickets;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{AnyLock, Client, MultiLock, RedLock};
use leasehold::testing::history::Recorder;
use leasehold::{ErrorKind, LossReason};
use leasehold_testkit::{Proxy, RedisServer, eventually};

const LEASE: Duration = Duration::from_millis(1000);
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_lock_is_renewed_while_its_thread_computes() {
    let server = RedisServer::start().unwrap();
    let builder = leasehold::Client::builder().lease(LEASE * 3);
    let client = Client::connect_with(&builder, &server.url()).unwrap();
    let guard = client.lock("x").acquire().unwrap();
    let started = Instant::now();
    // The thread computes beyond its lease and never yields.
    let mut sum = 0u64;
    while started.elapsed() < LEASE * 4 {
        sum = sum.wrapping_mul(31).wrapping_add(7);
    }
    assert!(guard.is_held(), "{sum}: {:?}", guard.loss());
    guard.release().unwrap();
    assert!(server.keys().is_empty());
}

#[test]
fn a_thread_enters_again_and_another_does_not() {
    let client = Client::embedded();
    let lock = client.lock("x");
    let outer = lock.acquire().unwrap();
    let inner = lock.try_acquire().unwrap().unwrap();
    assert_eq!(inner.hold_count(), 2);
    assert!(lock.is_held_by_current_thread().unwrap());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(!lock.is_held_by_current_thread().unwrap());
            assert!(lock.try_acquire().unwrap().is_none());
            let wait = Duration::from_millis(50);
            assert!(lock.try_acquire_for(wait).unwrap().is_none());
            let deadline = Instant::now() + wait;
            assert!(lock.try_acquire_until(deadline).unwrap().is_none());
        });
        other.join().unwrap();
    });
    outer.release().unwrap();
    assert!(lock.is_locked().unwrap());
    inner.release().unwrap();
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn release_wakes_the_waiting_thread() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.lock("x").acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = client.lock("x").poll_interval(Duration::from_secs(3600));
            lock.acquire().unwrap().release().unwrap();
        });
        eventually("it listens", SOON, || !server.channels().is_empty());
        guard.release().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn owners_guard_is_sent_between_threads() {
    let client = Client::embedded();
    let owner = leasehold::Owner::new();
    let lock = client.lock("x").owned_by(&owner);
    let guard = lock.acquire().unwrap();
    thread::spawn(move || guard.release().unwrap())
        .join()
        .unwrap();
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn a_threads_holds_have_tokens_that_rise() {
    let client = Client::embedded();
    let both = MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    let first = both.acquire().unwrap();
    let token = first.fencing_token().unwrap();
    first.release().unwrap();
    let second = client.lock("y").acquire().unwrap();
    assert!(second.fencing_token().unwrap() > token);
    second.release().unwrap();
}

#[test]
fn any_lock_is_owned_by_its_thread() {
    let client = Client::embedded();
    let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let several = [
        AnyLock::from(client.lock("x")),
        client.fair_lock("fair").into(),
        client.rw_lock("w").write_lock().into(),
        both.into(),
    ];
    for lock in &several {
        let outer = lock.acquire().unwrap();
        let inner = lock.try_acquire().unwrap().expect("a re-entry");
        assert!(lock.is_held_by_current_thread() && lock.is_locked().unwrap());
        thread::scope(|scope| {
            let refused = scope.spawn(|| lock.try_acquire().unwrap().is_none());
            assert!(refused.join().unwrap());
        });
        assert_eq!(inner.name(), lock.name());
        assert_eq!(inner.members().len(), lock.members().len());
        inner.release().unwrap();
        outer.release().unwrap();
        assert!(!lock.is_held_by_current_thread());
    }
    assert_eq!(several[3].members().len(), 2);
    let three = MultiLock::new(&several[..3]).unwrap();
    three.acquire().unwrap().release().unwrap();
}

#[test]
fn threads_under_one_lock_never_overlap() {
    let server = RedisServer::start().unwrap();
    let recorder = Recorder::new();
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..6 {
            let (recorder, server, inside) = (&recorder, &server, &inside);
            scope.spawn(move || {
                let client = Client::connect(&server.url()).unwrap();
                let lock = client.lock("hot");
                for _ in 0..20 {
                    let asked = recorder.ask("hot", &format!("thread {number}"));
                    let guard = lock.acquire().unwrap();
                    let hold = asked.acquired(guard.as_async());
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    hold.releasing(guard.as_async());
                    guard.release().unwrap();
                }
            });
        }
    });
    recorder.report().judge().unwrap();
}

#[test]
fn guard_drop_blocks_until_released() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    drop(client.lock("x").acquire().unwrap());
    assert!(server.keys().is_empty());
    let panicked = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let _guard = client.lock("x").acquire().unwrap();
            panic!("the work fails");
        });
        worker.join()
    });
    assert!(panicked.is_err());
    assert!(server.keys().is_empty());
    // A guard that is dropped after the client is released too.
    let guard = client.lock("x").acquire().unwrap();
    drop(client);
    drop(guard);
    assert!(server.keys().is_empty());
}

#[test]
fn thread_waits_for_the_loss_reason() {
    let client = Client::embedded();
    let guard = client.lock("x").fixed_lease(LEASE).acquire().unwrap();
    assert_eq!(guard.lost_within(Duration::from_millis(1)), None);
    assert_eq!(guard.lost_within(SOON), Some(LossReason::Expired));
    assert_eq!(guard.extend(LEASE).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
}

/// /// A thread re-enters its lock without creating an [`Owner`](leasehold::Owner).
#[test]
fn thread_reentry_gets_its_own_lease() {
    let client = Client::embedded();
    let lock = client.lock("x").fixed_lease(LEASE);
    let outer = lock.acquire().unwrap();
    let first_end = outer.valid_until();
    while first_end > Instant::now() + LEASE / 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let asked = Instant::now();
    let inner = lock.acquire().unwrap();
    assert!(inner.valid_until() > asked + LEASE * 9 / 10);
    assert_eq!(inner.hold_count(), 2);
    inner.release().unwrap();
    let long = client.lock("x").fixed_lease(LEASE * 100);
    long.acquire().unwrap().release().unwrap();
    assert!(outer.valid_until() <= first_end + LEASE / 10);
    assert_eq!(outer.lost_within(SOON), Some(LossReason::Expired));
    // The server frees the lock at this time, and not at the end of the re-entry's longer lease.
    let lost = Instant::now();
    while lock.is_locked().unwrap() {
        assert!(lost.elapsed() < SOON, "it is kept for the re-entry");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_rest_of_the_methods_forward() {
    let client = Client::embedded();
    let lock = client.lock("x");
    assert!(lock.run(|guard| guard.is_held()).unwrap());
    let guard = lock.acquire().unwrap();
    guard.extend(Duration::from_secs(100)).unwrap();
    assert!(guard.valid_until() > Instant::now() + Duration::from_secs(90));
    assert_eq!(lock.inspect().unwrap().holders.len(), 1);
    assert!(lock.force_unlock().unwrap());
    drop(guard);
    lock.clone().fixed_lease(LEASE).acquire().unwrap().forget();
    assert!(lock.is_locked().unwrap());
    client.close();
    assert_eq!(lock.acquire().unwrap_err().kind(), ErrorKind::Misuse);
}

#[test]
fn blocking_in_an_async_task_panics() {
    let client = Client::embedded();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let task = {
        let lock = client.lock("x");
        runtime.spawn(async move { lock.acquire().map(drop) })
    };
    let panic = runtime.block_on(task).unwrap_err().into_panic();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("`leasehold::Lock::acquire`"), "{text}");
    assert!(text.contains("spawn_blocking"), "{text}");
    assert!(!client.lock("x").is_locked().unwrap());
}

#[test]
fn inside_spawn_blocking_it_works() {
    let client = Client::embedded();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = client.lock("x");
    let work = runtime.spawn(async move {
        tokio::task::spawn_blocking(move || lock.acquire().unwrap().release().unwrap()).await
    });
    runtime.block_on(work).unwrap().unwrap();
}

#[test]
fn a_guard_may_be_dropped_inside_a_runtime() {
    let client = Client::embedded();
    let owner = leasehold::Owner::new();
    let guard = client.lock("x").owned_by(&owner).acquire().unwrap();
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.spawn(async move {
        drop(guard);
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(SOON).unwrap();
    eventually("it is released", SOON, || {
        !client.lock("x").is_locked().unwrap()
    });
}

#[test]
fn fair_lock_serves_threads_in_order() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let guard = client.fair_lock("x").acquire().unwrap();
    let (sender, served) = mpsc::channel();
    for number in 0..6 {
        let (waiter, sender) = (client.clone(), sender.clone());
        thread::spawn(move || {
            let lock = waiter.fair_lock("x").waiter_timeout(SOON * 6);
            let guard = lock.acquire().unwrap();
            sender.send(number).unwrap();
            guard.release().unwrap();
        });
        eventually("it stands in line", SOON, || {
            client.fair_lock("x").waiters().unwrap().len() == number + 1
        });
    }
    let again = client.fair_lock("x").acquire().unwrap();
    assert_eq!(
        again.hold_count(),
        2,
        "a thread enters again past those who wait"
    );
    again.release().unwrap();
    guard.release().unwrap();
    for number in 0..6 {
        assert_eq!(served.recv_timeout(SOON), Ok(number));
    }
}

#[test]
fn composite_locks_are_reentrant_per_thread() {
    let servers = [(); 3].map(|()| leasehold::Embedded::new());
    let clients = servers.each_ref().map(Client::of);
    let multi = MultiLock::new(clients.each_ref().map(|client| client.lock("m"))).unwrap();
    let red = RedLock::new(clients.each_ref().map(|client| client.lock("r"))).unwrap();
    let group = clients[0].group_lock("g", ["a", "b"]);
    let outer = (
        multi.acquire().unwrap(),
        red.acquire().unwrap(),
        group.acquire().unwrap(),
    );
    assert!(multi.is_held_by_current_thread() && red.is_held_by_current_thread());
    let inner = (
        multi.try_acquire().unwrap().unwrap(),
        red.try_acquire().unwrap().unwrap(),
        group.try_acquire().unwrap().unwrap(),
    );
    assert_eq!(
        (
            inner.0.hold_count(),
            inner.1.hold_count(),
            inner.2.hold_count()
        ),
        (2, 2, 2)
    );
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(multi.try_acquire().unwrap().is_none());
            assert!(red.try_acquire().unwrap().is_none());
            assert!(group.try_acquire().unwrap().is_none());
        });
    });
    outer.0.release().unwrap();
    outer.1.release().unwrap();
    outer.2.release().unwrap();
    assert!(clients[0].lock("m").is_locked().unwrap());
    drop(inner);
    assert!(servers.iter().all(|server| server.keys().is_empty()));
    let none = MultiLock::new(Vec::<leasehold::blocking::Lock>::new());
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Misuse);
}

#[test]
fn threads_never_exceed_the_semaphores_permits() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = client.semaphore("x");
    assert!(semaphore.try_set_permits(3).unwrap());
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let permit = semaphore.acquire().unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3);
    // A permit that a thread drops is released before the drop returns.
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    let mut two = semaphore.try_acquire_many(2).unwrap().unwrap();
    two.split(1).unwrap().release().unwrap();
    assert_eq!((two.permits(), semaphore.drain().unwrap()), (1, 2));
    two.forget();
    assert_eq!(semaphore.available_permits().unwrap(), 0);
}

#[test]
fn permits_with_leases_are_held_by_threads() {
    let client = Client::embedded();
    let semaphore = client.expirable_semaphore("x");
    semaphore.set_permits(4).unwrap();
    let permits = semaphore.acquire_many(3).unwrap();
    assert!(permits.is_held() && permits.valid_until() > std::time::Instant::now());
    permits.extend(Duration::from_secs(60)).unwrap();
    assert!(semaphore.try_acquire_many(2).unwrap().is_none());
    assert!(semaphore.release(permits.ids()[0]).unwrap());
    assert!(
        permits.release().is_err(),
        "one of them was not held any more"
    );
    drop(semaphore.acquire().unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 4);
}

#[test]
fn a_latch_lets_threads_go_on_together() {
    let client = Client::embedded();
    let latch = client.count_down_latch("x");
    assert!(latch.try_set_count(3).unwrap());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| latch.wait());
        for left in [2, 1] {
            assert_eq!(latch.count_down().unwrap(), left);
        }
        assert!(!latch.wait_for(Duration::from_millis(20)).unwrap());
        assert_eq!(latch.count_down().unwrap(), 0);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(latch.count().unwrap(), 0);
}

/// Starts three servers, and one client for each.
fn masters() -> ([RedisServer; 3], [Client; 3]) {
    let servers = [(); 3].map(|()| RedisServer::start().unwrap());
    // The lease is shorter than the test waits: a hold that remains was renewed.
    let builder = leasehold::Client::builder().lease(LEASE * 3);
    let clients = servers
        .each_ref()
        .map(|server| Client::connect_with(&builder, &server.url()).unwrap());
    (servers, clients)
}

#[test]
fn composite_locks_keep_all_client_threads_alive() {
    let (servers, clients) = masters();
    let multi = MultiLock::new(clients.each_ref().map(|client| client.lock("m"))).unwrap();
    let red = RedLock::new(clients.each_ref().map(|client| client.lock("r")))
        .unwrap()
        .distrust_restarted(false);
    drop(clients);
    let guards = (multi.acquire().unwrap(), red.acquire().unwrap());
    // A guard keeps the clients open too.
    drop((multi, red));
    thread::sleep(LEASE * 4);
    assert!(guards.0.is_held(), "{:?}", guards.0.loss());
    assert!(guards.1.is_held(), "{:?}", guards.1.loss());
    // On a busy machine one vote may be too late to be counted.
    let members = guards.1.as_async().members();
    assert!(members.iter().all(leasehold::LockGuard::is_held));
    guards.0.release().unwrap();
    drop(guards.1);
    for server in &servers {
        assert!(server.keys().is_empty());
    }
}

#[test]
fn group_lock_keeps_its_clients_thread_alive() {
    let server = RedisServer::start().unwrap();
    let builder = leasehold::Client::builder().lease(LEASE * 3);
    let client = Client::connect_with(&builder, &server.url()).unwrap();
    let group = client.group_lock("g", ["a", "b"]);
    drop(client);
    let guard = group.acquire().unwrap();
    drop(group);
    thread::sleep(LEASE * 4);
    assert!(guard.is_held());
    drop(guard);
    assert!(server.keys().is_empty());
}

/// The network delays requests for a while, and the test checks the server right after the drop.
#[test]
fn every_blocking_drop_releases_before_it_returns() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let builder = leasehold::Client::builder().reply_timeout(SOON * 6);
    let client = Client::connect_with(&builder, &proxy.url()).unwrap();
    let (semaphore, expirable) = (client.semaphore("s"), client.expirable_semaphore("e"));
    semaphore.try_set_permits(2).unwrap();
    expirable.set_permits(2).unwrap();
    let others = Client::connect(&server.url()).unwrap();
    let is_free = |name: &str| {
        let semaphore = others.semaphore("s").available_permits().unwrap();
        let expirable = others.expirable_semaphore("e").available_permits();
        let kept = ["s", "e", "{s}", "{e}", "leasehold:", "redisson_lock_token:"];
        let mut keys = server.keys();
        keys.retain(|key| !kept.iter().any(|kept| key.starts_with(kept)));
        assert_eq!(keys, [""; 0], "{name}");
        assert_eq!((semaphore, expirable.unwrap()), (2, 2), "{name}");
    };
    let drop_slowly = |name: &str, drop: &mut dyn FnMut()| {
        proxy.hold_requests(true);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                proxy.hold_requests(false);
            });
            drop();
            is_free(name);
        });
    };
    macro_rules! drops {
        ($($name:literal $acquire:expr;)+) => {
            $(
                let mut guard = Some($acquire.unwrap());
                drop_slowly($name, &mut || drop(guard.take()));
            )+
        };
    }
    let both = MultiLock::new([client.lock("g"), others.lock("h")]).unwrap();
    let red = RedLock::new([client.lock("i")]).unwrap();
    let red = red.distrust_restarted(false);
    let owner = leasehold::Owner::new();
    drops! {
        "lock" client.lock("a").acquire();
        "owned" client.lock("a").owned_by(&owner).acquire();
        "fenced" client.fenced_lock("b").acquire();
        "fair" client.fair_lock("c").acquire();
        "read" client.rw_lock("d").read();
        "write" client.rw_lock("d").write();
        "downgraded" client.rw_lock("d").write().unwrap().downgrade();
        "group" client.group_lock("f", ["v", "w"]).acquire();
        "multi" both.acquire();
        "red" red.acquire();
        "permits" semaphore.acquire_many(2);
        "permits with leases" expirable.acquire_many(2);
    }
}
