//! An `Interrupt` ends waits of other threads, of every kind and at any point, and an interrupted
//! wait leaves nothing behind.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{AnyLock, Client, Interrupt, MultiLock, RedLock};
use leasehold::inspect::Activity;
use leasehold::testing::history::Recorder;
use leasehold::watch::Change;
use leasehold::{ErrorKind, Owner, Result};
use leasehold_testkit::{Proxy, RedisServer, Reply, eventually};

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(20);

/// A wait of a thread, by name.
type Wait = (&'static str, Box<dyn Fn() -> Result<()> + Send + Sync>);

/// A read of a watch, by name.
type Read = (&'static str, Box<dyn FnMut() -> Result<()> + Send>);

/// Returns each call that waits for a lock.
fn waits_for(lock: AnyLock) -> Vec<Wait> {
    let lock = lock.poll_interval(HOUR);
    let [limited, until] = [(); 2].map(|()| lock.clone());
    vec![
        ("acquire", Box::new(move || lock.acquire().map(drop))),
        (
            "try_acquire_for",
            Box::new(move || limited.try_acquire_for(HOUR).map(drop)),
        ),
        (
            "try_acquire_until",
            Box::new(move || until.try_acquire_until(Instant::now() + HOUR).map(drop)),
        ),
    ]
}

/// Interrupts each of these waits while its thread waits, and checks that nothing is left.
fn interrupt_each(clients: &[Client], name: &str, waits: Vec<Wait>) {
    let client = &clients[0];
    let before = client.as_async().activity();
    for (method, wait) in waits {
        let interrupt = Interrupt::new();
        let error = thread::scope(|threads| {
            let waiter = threads.spawn(|| interrupt.scope(&wait));
            eventually("it waits", SOON, || {
                client.as_async().activity().lines > before.lines
            });
            interrupt.interrupt();
            let limit = Instant::now() + SOON;
            while !waiter.is_finished() && Instant::now() < limit {
                thread::sleep(Duration::from_millis(1));
            }
            if !waiter.is_finished() {
                // This ends the wait, so that the test fails and does not hang.
                for client in clients {
                    let _ = client.close();
                }
            }
            waiter.join().unwrap().unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{name}: {method}");
        assert!(!error.is_transient());
        eventually("nothing of the wait is left", SOON, || {
            let mut now = client.as_async().activity();
            // A subscription lasts a while longer, for the next wait.
            now.channels = before.channels;
            now == before
        });
    }
}

#[test]
fn waits_of_every_kind_are_interrupted() {
    let server = RedisServer::start().unwrap();
    let holder = Client::connect(&server.url()).unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let locks = |client: &Client| -> Vec<AnyLock> {
        let rw = client.rw_lock("rw");
        let members = || ["m1", "m2", "m3"].map(|name| client.lock(name));
        vec![
            client.lock("plain").into(),
            client.fenced_lock("fenced").into(),
            client.fair_lock("fair").into(),
            rw.write_lock().into(),
            client.group_lock("group", ["a", "b"]).into(),
            MultiLock::new(members()).unwrap().into(),
        ]
    };
    for (held, lock) in locks(&holder).into_iter().zip(locks(&client)) {
        let guard = held.acquire().unwrap();
        let keys = server.keys();
        let name = lock.name().to_owned();
        interrupt_each(std::slice::from_ref(&client), &name, waits_for(lock));
        eventually("its place in the queue is given back", SOON, || {
            server.keys() == keys
        });
        guard.release().unwrap();
    }
    let guard = holder.rw_lock("rw").write().unwrap();
    let readers = client.rw_lock("rw").read_lock();
    interrupt_each(
        std::slice::from_ref(&client),
        "read",
        waits_for(readers.into()),
    );
    guard.release().unwrap();
    eventually("no lock and no subscription is left", SOON, || {
        server.channels().is_empty() && server.keys().iter().all(|key| key.contains("token"))
    });
}

#[test]
fn waits_of_an_election_are_interrupted() {
    let server = RedisServer::start().unwrap();
    let holder = Client::connect(&server.url()).unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let term = holder.election("x").stand().unwrap();
    let candidate = client.election("x").poll_interval(HOUR);
    let stands: Wait = ("stand", Box::new(move || candidate.stand().map(drop)));
    interrupt_each(std::slice::from_ref(&client), "x", vec![stands]);
    let interrupt = Interrupt::new();
    let mut terms = client.election("x").poll_interval(HOUR).observe();
    assert!(terms.next().unwrap().unwrap().is_some());
    let error = thread::scope(|threads| {
        let observer = threads.spawn(|| interrupt.scope(|| terms.next().unwrap()));
        eventually("it listens", SOON, || {
            client.as_async().activity().channels > 0
        });
        interrupt.interrupt();
        observer.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    // The next call continues.
    let token = term.token();
    term.resign().unwrap();
    assert_eq!(terms.next().unwrap().unwrap(), None);
    let next = client.election("x").stand().unwrap();
    assert!(next.token() > token);
}

#[test]
fn waits_of_a_watch_are_interrupted() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let mut watch = client.watch("x").poll_interval(HOUR);
    assert!(matches!(watch.next(), Some(Ok(Change::Freed))));
    let mut all = client.watch_all("x*").rescan_every(HOUR);
    let mut nexts: [Read; 2] = [
        (
            "of a name",
            Box::new(move || watch.next().unwrap().map(drop)),
        ),
        (
            "of all names",
            Box::new(move || all.next().unwrap().map(drop)),
        ),
    ];
    for (which, next) in &mut nexts {
        let interrupt = Interrupt::new();
        let error = thread::scope(|threads| {
            let reader = threads.spawn(|| {
                loop {
                    // The watch first reports what it knows already.
                    if let Err(error) = interrupt.scope(&mut *next) {
                        return error;
                    }
                }
            });
            interrupt.interrupt();
            reader.join().unwrap()
        });
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{which}");
    }
}

#[test]
fn waits_of_a_majority_are_interrupted() {
    let servers = [(); 3].map(|()| leasehold::Embedded::new());
    let holders = servers.each_ref().map(Client::of);
    let clients = servers.each_ref().map(Client::of);
    let red = |clients: &[Client; 3]| {
        RedLock::new(clients.each_ref().map(|client| client.lock("r"))).unwrap()
    };
    let guard = red(&holders).acquire().unwrap();
    interrupt_each(&clients, "red", waits_for(red(&clients).into()));
    guard.release().unwrap();
    red(&clients).acquire().unwrap().release().unwrap();
}

#[test]
fn waits_for_permits_and_latches_are_interrupted() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let semaphore = client.semaphore("s").poll_interval(HOUR);
    semaphore.try_set_permits(1).unwrap();
    let expirable = client.expirable_semaphore("e").poll_interval(HOUR);
    expirable.try_set_permits(1).unwrap();
    let latch = client.count_down_latch("l").poll_interval(HOUR);
    latch.try_set_count(1).unwrap();
    let soon = Instant::now() + HOUR;
    let held = (semaphore.acquire().unwrap(), expirable.acquire().unwrap());
    let (s, e, l) = (&semaphore, &expirable, &latch);
    macro_rules! waits {
        ($($handle:ident.$method:ident($($value:expr),*)),+ $(,)?) => {
            vec![$({
                let handle = $handle.clone();
                let wait: Wait = (
                    stringify!($method),
                    Box::new(move || handle.$method($($value),*).map(drop)),
                );
                wait
            }),+]
        };
    }
    let waits = waits![
        s.acquire(),
        s.try_acquire_for(HOUR),
        s.try_acquire_until(soon),
        s.acquire_many(1),
        s.try_acquire_many_for(1, HOUR),
        s.try_acquire_many_until(1, soon),
        e.acquire(),
        e.try_acquire_for(HOUR),
        e.try_acquire_until(soon),
        e.acquire_many(1),
        e.try_acquire_many_for(1, HOUR),
        e.try_acquire_many_until(1, soon),
        l.wait(),
        l.wait_for(HOUR),
        l.wait_until(soon),
    ];
    interrupt_each(std::slice::from_ref(&client), "counts", waits);
    drop(held);
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    assert_eq!(expirable.available_permits().unwrap(), 1);
    assert_eq!(latch.count().unwrap(), 1);
}

/// Each round interrupts one of two threads at another moment: before its request, while the
/// request or the reply is on its way, while it waits, or while it holds the lock.
#[test]
fn interrupts_at_any_point_let_one_thread_in_and_leave_nothing() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let recorder = Recorder::new();
    let interrupted = AtomicUsize::new(0);
    for round in 0..300 {
        let interrupt = Interrupt::new();
        let lock = client.lock("hot").poll_interval(HOUR);
        thread::scope(|threads| {
            for number in 0..2 {
                let (interrupt, lock) = (&interrupt, &lock);
                let (recorder, interrupted) = (&recorder, &interrupted);
                let work = move || {
                    let asked = recorder.ask("hot", &format!("thread {number}"));
                    let guard = lock.acquire()?;
                    let hold = asked.acquired(guard.as_async());
                    thread::yield_now();
                    hold.releasing(guard.as_async());
                    guard.release()
                };
                threads.spawn(move || match number {
                    0 => work().unwrap(),
                    _ => match interrupt.scope(work) {
                        Ok(()) => (),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {
                            interrupted.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    },
                });
            }
            let pause = Duration::from_micros(round * 5);
            let started = Instant::now();
            while started.elapsed() < pause {
                thread::yield_now();
            }
            interrupt.interrupt();
        });
    }
    recorder.report().judge().unwrap();
    let interrupted = interrupted.into_inner();
    assert!((1..300).contains(&interrupted), "{interrupted} of 300");
    eventually("nothing is left", SOON, || {
        server.keys().is_empty() && client.as_async().activity() == Activity::default()
    });
}

#[test]
fn grant_whose_reply_is_late_is_released_after_an_interrupt() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let client = Client::connect(&proxy.url()).unwrap();
    client.lock("x").acquire().unwrap().release().unwrap();
    let interrupt = Interrupt::new();
    proxy.hold_replies(true);
    thread::scope(|threads| {
        let waiter = threads.spawn(|| interrupt.scope(|| client.lock("x").try_acquire().map(drop)));
        eventually("the server has granted it", SOON, || server.keys() == ["x"]);
        interrupt.interrupt();
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    });
    proxy.hold_replies(false);
    eventually("the grant is given back", SOON, || server.keys().is_empty());
}

#[test]
fn interrupted_upgrade_leaves_the_read_hold() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let client = Client::connect(&proxy.url()).unwrap();
    // A guard of an owner may move to another thread.
    let lock = client.rw_lock("x").owned_by(&Owner::new());
    let reading = lock.read().unwrap();
    let interrupt = Interrupt::new();
    proxy.hold_replies(true);
    let refused = thread::scope(|threads| {
        let upgrade = threads.spawn(|| interrupt.scope(|| reading.try_upgrade()));
        eventually("the server has granted it", SOON, || {
            server.command(&["HGET", "x", "mode"]).unwrap() == Reply::Text("write".into())
        });
        interrupt.interrupt();
        upgrade.join().unwrap().unwrap_err()
    });
    proxy.hold_replies(false);
    assert_eq!(refused.error().unwrap().kind(), ErrorKind::Interrupted);
    let reading = refused.into_guard();
    eventually("only the read hold is left", SOON, || {
        server.command(&["HGET", "x", "mode"]).unwrap() == Reply::Text("read".into())
    });
    assert!(reading.is_held());
    reading.extend(HOUR).unwrap();
    // In an interrupted scope, nothing is sent.
    let refused = interrupt.scope(|| reading.try_upgrade()).unwrap_err();
    assert_eq!(refused.error().unwrap().kind(), ErrorKind::Interrupted);
    let writing = refused.into_guard().try_upgrade().unwrap();
    writing.release().unwrap();
    eventually("nothing is left", SOON, || server.keys().is_empty());
}

#[test]
fn interrupted_scope_sends_nothing() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    client.lock("x").acquire().unwrap().release().unwrap();
    let interrupt = Interrupt::new();
    interrupt.interrupt();
    assert!(interrupt.is_interrupted() && interrupt.clone().is_interrupted());
    let scripts = server.scripts();
    for _ in 0..2 {
        let error = interrupt
            .scope(|| client.lock("x").try_acquire())
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
    assert_eq!(server.scripts(), scripts);
    // Outside of the scope the thread acquires as before.
    client.lock("x").acquire().unwrap().release().unwrap();
}

#[test]
fn calls_whose_outcome_matters_are_not_interrupted() {
    let client = Client::embedded();
    let semaphore = client.semaphore("s");
    let latch = client.count_down_latch("l");
    let guard = client.lock("x").acquire().unwrap();
    let interrupt = Interrupt::new();
    interrupt.interrupt();
    interrupt.scope(|| {
        assert!(client.lock("x").is_locked().unwrap());
        guard.extend(HOUR).unwrap();
        guard.release().unwrap();
        assert!(semaphore.try_set_permits(2).unwrap());
        semaphore.release(1).unwrap();
        assert!(latch.try_set_count(2).unwrap());
        assert_eq!(latch.count_down().unwrap(), 1);
    });
    assert!(!client.lock("x").is_locked().unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
}

#[test]
fn scopes_end_with_their_work_and_nest() {
    let client = Client::embedded();
    let (outer, inner) = (Interrupt::new(), Interrupt::default());
    outer.scope(|| {
        outer.interrupt();
        // The handle of the outer scope interrupts inside the inner one too.
        let error = inner.scope(|| client.lock("x").acquire()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    });
    inner.interrupt();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        inner.scope(|| panic!("the work fails"))
    }));
    assert!(panicked.is_err());
    client.lock("x").acquire().unwrap().release().unwrap();
    // Another thread is in no scope.
    inner.scope(|| {
        thread::scope(|threads| {
            let other = threads.spawn(|| client.lock("x").acquire().unwrap().release());
            other.join().unwrap().unwrap();
        });
    });
}

#[test]
fn connecting_is_interrupted() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let builder = leasehold::Client::builder().connect_timeout(HOUR);
    let interrupt = Interrupt::new();
    thread::scope(|threads| {
        let waiter = threads.spawn(|| interrupt.scope(|| Client::connect_with(&builder, &url)));
        // The handshake has begun, and gets no answer.
        let _connection = silent.accept().unwrap();
        interrupt.interrupt();
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    });
}
