//! Runtimes, clients and programs that end while they hold something.

use std::pin::Pin;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::{
    Acknowledgement, Client, ErrorKind, LossReason, MultiLock, Owner, RedLock, Result,
};
use leasehold_testkit::{RedisServer, Replicas, eventually as soon};
use tokio::runtime::Runtime;

use super::scene::NAME;
use crate::support::child::{Child, job};
use crate::support::company::{Company, stays_at_the_end};
use crate::support::ended::{self, current_thread};
use crate::support::guarded::{guarded, is_known, is_promoted};
use crate::support::users::Users;
use crate::support::{HOUR, eventually};

const SOON: Duration = Duration::from_secs(20);

/// Returns a builder whose leases are an hour long, so that anything left behind remains.
fn for_an_hour() -> leasehold::ClientBuilder {
    Client::builder().lease(HOUR)
}

fn both_flavors() -> [Runtime; 2] {
    [current_thread(), Runtime::new().unwrap()]
}

/// A hold of any kind.
type Any = Box<dyn Send>;
type Held = Pin<Box<dyn Future<Output = Result<Any>> + Send>>;

fn any(guard: impl Send + 'static) -> Any {
    Box::new(guard)
}

/// Returns an acquire of each kind. Semaphores have their permits already.
fn each_kind(client: &Client) -> Vec<(&'static str, Held)> {
    let ours = client.clone();
    macro_rules! kinds {
        ($($kind:literal $acquire:expr;)+) => {
            vec![$(($kind, {
                let client = ours.clone();
                let acquire: fn(Client) -> Held = $acquire;
                acquire(client)
            })),+]
        };
    }
    kinds! {
        "lock" |c| Box::pin(async move { c.lock("a").acquire().await.map(any) });
        "owned" |c| Box::pin(async move {
            c.lock("b").owned_by(&Owner::new()).acquire().await.map(any)
        });
        "fenced" |c| Box::pin(async move { c.fenced_lock("c").acquire().await.map(any) });
        "fair" |c| Box::pin(async move { c.fair_lock("d").acquire().await.map(any) });
        "read" |c| Box::pin(async move { c.rw_lock("e").read().await.map(any) });
        "write" |c| Box::pin(async move { c.rw_lock("f").write().await.map(any) });
        "group" |c| Box::pin(async move {
            c.group_lock("g", ["v", "w"]).acquire().await.map(any)
        });
        "multi" |c| Box::pin(async move {
            let members = ["h", "i", "j"].map(|name| c.lock(name));
            MultiLock::new(members)?.acquire().await.map(any)
        });
        "semaphore" |c| Box::pin(async move { c.semaphore("k").acquire_many(2).await.map(any) });
        "expirable" |c| Box::pin(async move {
            c.expirable_semaphore("l").acquire_many(2).await.map(any)
        });
    }
}

async fn make_permits(client: &Client) {
    client.semaphore("k").try_set_permits(2).await.unwrap();
    client
        .expirable_semaphore("l")
        .set_permits(2)
        .await
        .unwrap();
}

/// Asserts that a new client can acquire everything.
fn everything_is_free(server: &RedisServer) {
    let runtime = current_thread();
    runtime.block_on(async {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        for (kind, acquire) in each_kind(&client) {
            let held = tokio::time::timeout(SOON, acquire).await;
            held.unwrap_or_else(|_| panic!("{kind} was not given back"))
                .unwrap();
        }
        client.close().await;
    });
}

/// Runs `work` in a runtime of each flavor, and `check` after the runtime has ended.
fn at_runtime_end(server: &RedisServer, work: impl AsyncFn(), check: fn(&RedisServer)) {
    ended::at_runtime_end(work, |()| check(server), || empty(server));
}

fn empty(server: &RedisServer) {
    server.command(&["FLUSHALL"]).unwrap();
}

#[test]
fn runtime_end_releases_dropped_guards() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        make_permits(&client).await;
        let mut held = Vec::new();
        for (_, acquire) in each_kind(&client) {
            held.push(acquire.await.unwrap());
        }
    };
    at_runtime_end(&server, work, everything_is_free);
}

#[test]
fn runtime_end_releases_guards_of_its_tasks() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        make_permits(&client).await;
        for (_, acquire) in each_kind(&client) {
            let (tell, told) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let _held = acquire.await.unwrap();
                tell.send(()).unwrap();
                std::future::pending::<()>().await;
            });
            told.await.unwrap();
        }
    };
    at_runtime_end(&server, work, everything_is_free);
}

/// Permits that are returned while other tasks of the process wait are sent in one request. The
/// task that sends it has not been polled when the runtime ends.
#[test]
fn runtime_end_returns_permits_that_were_about_to_be_sent() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        make_permits(&client).await;
        let permits = client.semaphore("k").acquire_many(2).await.unwrap();
        // The waiter wants more permits than there are, so these permits are not passed on to it.
        let waits = client.semaphore("k");
        tokio::spawn(async move { waits.acquire_many(3).await });
        eventually("it waits", async || client.activity().channels > 0).await;
        drop(permits);
    };
    at_runtime_end(&server, work, |server| {
        soon("the permits are back", SOON, || {
            let free = server.command(&["GET", "k"]).unwrap();
            free.as_text() == Some("2")
        });
    });
}

/// Asserts that the company's holds and waits have ended with its runtime.
fn company_has_ended(server: &RedisServer) {
    soon("nothing is left", SOON, || {
        server.keys().iter().all(|key| stays_at_the_end(key))
    });
    let free = server.command(&["GET", "permits"]).unwrap();
    assert_eq!(free.as_text(), Some("1"));
}

/// The runtime's tasks hold locks and wait for locks with every feature.
#[test]
fn runtime_end_leaves_nothing_of_any_feature() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let company = Company::connect(&for_an_hour(), &server.url()).await;
        company.settles().await;
    };
    at_runtime_end(&server, work, company_has_ended);
}

/// After a client's runtime has ended, an operator no longer sees the client's announcement.
#[test]
fn runtime_end_removes_what_its_clients_said_about_themselves() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let company = Company::connect(&for_an_hour(), &server.url()).await;
        company.settles().await;
        // A client announces its waits only after it has waited for a while.
        eventually("the clients are announced", async || {
            announced(&server) == 2
        })
        .await;
    };
    at_runtime_end(&server, work, |server| {
        soon("no client is announced", SOON, || announced(server) == 0);
        company_has_ended(server);
    });
}

/// Returns the number of clients that have announced themselves.
fn announced(server: &RedisServer) -> usize {
    let keys = server.command(&["KEYS", "leasehold:client:*"]).unwrap();
    keys.as_array().expect("a list").len()
}

/// When the runtime ends, the failover guard refuses every grant, but it does not refuse releases.
#[test]
fn runtime_end_leaves_nothing_beside_a_failover_guard() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        is_known(&server);
        let company = Company::connect(&guarded(HOUR), &server.url()).await;
        company.clone().settles().await;
        is_promoted(&server);
        company.is_answered().await;
        let refused = company.theirs.lock("x").try_acquire().await;
        assert!(refused.unwrap().is_none());
    };
    at_runtime_end(&server, work, |server| {
        company_has_ended(server);
        current_thread().block_on(async {
            let client = guarded(HOUR).connect(&server.url()).await.unwrap();
            let refused = client.lock("plain").try_acquire().await;
            assert!(refused.unwrap().is_none(), "the span goes on");
        });
    });
}

/// The runtime ends while its clients, which have logged in again, wait for credentials.
#[test]
fn runtime_end_leaves_nothing_while_clients_ask_for_credentials() {
    let servers = [RedisServer::start().unwrap()];
    let work = async || {
        let users = Users::of(&servers, "first");
        let builder = users.log_in(for_an_hour());
        let company = Company::connect(&builder, &servers[0].url()).await;
        company.settles().await;
        users.change_to("second");
        users.have_moved("first", "second").await;
        users.answer_nothing();
        eventually("both clients wait for credentials", async || {
            users.unanswered() >= 2
        })
        .await;
    };
    at_runtime_end(&servers[0], work, company_has_ended);
}

fn nothing_is_left(server: &RedisServer) {
    let mut keys = server.keys();
    for _ in 0..400 {
        if keys.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
        keys = server.keys();
    }
    panic!("{} locks are left: {keys:?}", keys.len());
}

/// There are more releases than fit into one call.
#[test]
fn runtime_end_releases_thousand_dropped_guards() {
    let server = RedisServer::start().unwrap();
    let work = async || {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        let mut guards = Vec::new();
        for number in 0..1000 {
            let lock = client.lock(number.to_string());
            guards.push(lock.acquire().await.unwrap());
        }
    };
    at_runtime_end(&server, work, nothing_is_left);
}

/// Some acquires have been sent, and some are about to be. None of them may take a lock for which
/// no future waits.
#[test]
fn runtime_end_undoes_acquires_in_flight() {
    let server = RedisServer::start().unwrap();
    for round in 0..20 {
        let work = async || {
            let client = for_an_hour().connect(&server.url()).await.unwrap();
            for number in 0..40 {
                let lock = client.lock(format!("{number}"));
                tokio::spawn(async move {
                    while let Ok(guard) = lock.acquire().await {
                        drop(guard);
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(round)).await;
        };
        at_runtime_end(&server, work, nothing_is_left);
    }
}

/// The server has more to read than it reads at once, and answers the first part. If the socket
/// were already closed at that time, the reply would reset the connection, and the server would
/// drop the rest: the undos.
#[test]
fn runtime_end_waits_for_the_last_read() {
    let server = RedisServer::start().unwrap();
    let names: Vec<_> = (0..300).map(|n| format!("{n}:{:0>300}", "")).collect();
    let leaves_nothing = || {
        let runtime = current_thread();
        runtime.block_on(async {
            let client = for_an_hour().connect(&server.url()).await.unwrap();
            server.pause().unwrap();
            for name in &names {
                let lock = client.lock(name);
                tokio::spawn(async move { lock.acquire().await });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                server.resume().unwrap();
            });
            drop(runtime);
        });
        // This command runs after everything that the server has read.
        server.command(&["PING"]).unwrap();
        let nothing = server.keys().is_empty();
        server.command(&["FLUSHALL"]).unwrap();
        nothing
    };
    // The wait is short: on a busy machine a server sometimes takes longer, but not always.
    assert!((0..10).any(|_| leaves_nothing()), "locks are left");
}

/// While a server waits for its replicas, it does not read from the connection of that request. If
/// the connection were already closed at that time, the server would never read the releases that
/// follow the wait.
#[test]
fn runtime_end_waits_for_confirmations() {
    let servers = Replicas::start(1);
    let leaves_nothing = || {
        let runtime = current_thread();
        runtime.block_on(async {
            let acknowledged = Acknowledgement::replicas(1).within(SOON);
            let client = for_an_hour().reply_timeout(HOUR);
            let client = client.acknowledged_by(acknowledged);
            let client = client.connect(&servers.master().url()).await.unwrap();
            let guard = client.lock("held").acquire().await.unwrap();
            servers.replicas()[0].pause().unwrap();
            tokio::spawn(async move {
                let _never = client.lock("asked for").acquire().await;
            });
            eventually("the server waits", async || {
                let clients = servers.master().command(&["INFO", "clients"]).unwrap();
                clients.as_text().unwrap().contains("blocked_clients:1")
            })
            .await;
            tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                servers.replicas()[0].resume().unwrap();
            });
            drop(runtime);
        });
        let nothing = servers.master().keys().is_empty();
        servers.master().command(&["FLUSHALL"]).unwrap();
        nothing
    };
    // The wait is short: on a busy machine a replica sometimes takes longer, but not always.
    assert!((0..10).any(|_| leaves_nothing()), "locks are left");
}

/// A program that ends early. When run as a test, this does nothing.
#[test]
fn a_program_that_fails() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    let (runtime, url) = match words[..] {
        ["current", url] => (current_thread(), url),
        ["multi", url] => (Runtime::new().unwrap(), url),
        _ => panic!("no such job: {job:?}"),
    };
    let failed: Result<(), &str> = runtime.block_on(async {
        let client = for_an_hour().connect(url).await.unwrap();
        let _guard = client.lock(NAME).acquire().await.unwrap();
        Err("the work failed")?;
        Ok(())
    });
    drop(runtime);
    println!("ends {failed:?}");
    // The program exits at once, as after the end of `main`.
    std::process::exit(0);
}

#[test]
fn a_program_that_fails_early_leaves_no_lock() {
    let server = RedisServer::start().unwrap();
    for flavor in ["current", "multi"].repeat(5) {
        let test = "server::ends::a_program_that_fails";
        let lines = Child::start(test, &format!("{flavor} {}", server.url())).finished();
        assert!(
            lines.iter().any(|line| line.starts_with("ends")),
            "{lines:?}"
        );
        soon("it is free", SOON, || server.keys().is_empty());
    }
}

/// Returns a client whose runtime has ended, and its hold.
fn orphan(server: &RedisServer) -> (Client, leasehold::LockGuard) {
    let runtime = current_thread();
    runtime.block_on(async {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        make_permits(&client).await;
        let guard = client.lock("orphan").acquire().await.unwrap();
        (client, guard)
    })
}

/// Asserts that the error says that the runtime has ended, and does not promise anything.
fn is_told(what: &str, error: &leasehold::Error) {
    assert_eq!(error.kind(), ErrorKind::Misuse, "{what}: {error}");
    let text = error.to_string();
    assert!(text.contains("runtime has ended"), "{what}: {text}");
    assert!(!text.contains("background"), "{what}: {text}");
}

#[test]
fn client_fails_at_once_after_runtime_ends() {
    let server = RedisServer::start().unwrap();
    let (client, guard) = orphan(&server);
    let other = current_thread();
    let answers = async {
        for (kind, acquire) in each_kind(&client) {
            is_told(kind, &acquire.await.map(drop).unwrap_err());
        }
        let lock = client.lock("x").outage_timeout(HOUR);
        is_told("try", &lock.try_acquire().await.unwrap_err());
        is_told("question", &lock.is_locked().await.unwrap_err());
        is_told("extend", &guard.extend(HOUR).await.unwrap_err());
        is_told("release", &guard.release().await.unwrap_err());
        let latch = client.count_down_latch("y");
        is_told("wait", &latch.wait().await.unwrap_err());
        is_told("count down", &latch.count_down().await.unwrap_err());
        let semaphore = client.semaphore("k");
        is_told("add", &semaphore.release(1).await.unwrap_err());
        let majority = RedLock::new([lock]).unwrap().distrust_restarted(false);
        is_told("majority", &majority.acquire().await.unwrap_err());
        assert_eq!(client.close().await.holds_left, 0, "the guard is gone");
    };
    let answered = other.block_on(async { tokio::time::timeout(SOON, answers).await });
    answered.expect("no call waits for the limit of an outage");
}

#[test]
fn unconnected_client_fails_after_its_runtime_ends() {
    let server = RedisServer::start().unwrap();
    let runtime = current_thread();
    let client = {
        let _inside = runtime.enter();
        for_an_hour().connect_in_background(&server.url()).unwrap()
    };
    // The client's tasks never begin.
    drop(runtime);
    current_thread().block_on(async {
        let lock = client.lock(NAME).outage_timeout(HOUR);
        let asks = tokio::time::timeout(SOON, lock.is_locked()).await;
        is_told("question", &asks.expect("it does not hang").unwrap_err());
        let asks = tokio::time::timeout(SOON, lock.acquire()).await;
        is_told("acquire", &asks.expect("it does not hang").unwrap_err());
    });
}

#[test]
fn runtime_end_discards_queued_acquire() {
    let server = RedisServer::start().unwrap();
    let [runtime, other] = [current_thread(), current_thread()];
    let client = runtime.block_on(async {
        let client = for_an_hour().connect(&server.url()).await.unwrap();
        // From now on, the connection is open.
        assert!(!client.lock(NAME).is_locked().await.unwrap());
        client
    });
    let lock = client.lock(NAME);
    let mut asks = Box::pin(async move { lock.acquire().await });
    // The client's runtime is not driven, so the request stays in the queue.
    let unanswered = other.block_on(async {
        let limit = Duration::from_millis(1);
        tokio::time::timeout(limit, &mut asks).await.is_err()
    });
    assert!(unanswered);
    drop(runtime);
    is_told("acquire", &other.block_on(asks).unwrap_err());
    drop(client);
    assert!(server.keys().is_empty());
}

/// The waiter for a lock polls after 10 s at the latest. The waiter for a latch would poll only
/// after an hour.
#[test]
fn runtime_end_fails_waiters_on_other_threads() {
    let server = RedisServer::start().unwrap();
    for runtime in both_flavors() {
        let (client, guard) = runtime.block_on(async {
            let client = for_an_hour().connect(&server.url()).await.unwrap();
            let guard = client.lock(NAME).acquire().await.unwrap();
            client.count_down_latch("y").try_set_count(1).await.unwrap();
            (client, guard)
        });
        guard.forget();
        let asked = server.calls("evalsha");
        let (tell, told) = mpsc::channel();
        let lock = client.lock(NAME).poll_interval(HOUR).outage_timeout(HOUR);
        let latch = client.count_down_latch("y");
        let latch = latch.poll_interval(HOUR).outage_timeout(HOUR);
        let waits: [Box<dyn FnOnce() -> leasehold::Error + Send>; 2] = [
            Box::new(move || current_thread().block_on(lock.acquire()).unwrap_err()),
            Box::new(move || current_thread().block_on(latch.wait()).unwrap_err()),
        ];
        let waiters = waits.map(|wait| {
            let tell = tell.clone();
            thread::spawn(move || tell.send(wait()).unwrap())
        });
        runtime.block_on(async {
            // A waiter asks the server, subscribes, asks again and sleeps.
            eventually("both have asked twice", async || {
                server.calls("evalsha") >= asked + 4
            })
            .await;
            // Replies arrive in order, so the second replies of the waiters arrive before this one.
            client.lock("another").is_locked().await.unwrap();
        });
        assert_eq!(client.activity().channels, 2);
        drop(runtime);
        for _ in 0..2 {
            let error = told.recv_timeout(SOON).expect("it is told");
            let text = error.to_string();
            assert!(text.contains("runtime"), "{text}");
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
        server.command(&["DEL", NAME, "y"]).unwrap();
    }
}

#[test]
fn majority_survives_end_of_minority_runtime() {
    let servers = [(); 3].map(|()| RedisServer::start().unwrap());
    let (ended, _guard) = orphan(&servers[0]);
    current_thread().block_on(async {
        let mut members = vec![ended.lock(NAME)];
        for server in &servers[1..] {
            let client = Client::connect(&server.url()).await.unwrap();
            members.push(client.lock(NAME));
        }
        let majority = RedLock::new(members).unwrap();
        let guard = majority.distrust_restarted(false).acquire().await.unwrap();
        guard.release().await.unwrap();
    });
}

/// The test polls the `lost` future of a leaked guard, because the loss belongs to the hold.
#[tokio::test]
async fn closed_client_stops_renewing_and_counts_holds() {
    let server = RedisServer::start().unwrap();
    let lease = Duration::from_secs(2);
    let client = Client::builder()
        .lease(lease)
        .connect(&server.url())
        .await
        .unwrap();
    make_permits(&client).await;
    let mut lost = Vec::new();
    macro_rules! leak {
        ($($guard:expr;)+) => {
            $({
                let guard = $guard.await.unwrap();
                lost.push(Box::pin(guard.lost()) as Pin<Box<dyn Future<Output = _>>>);
                std::mem::forget(guard);
            })+
        };
    }
    let owner = leasehold::Owner::new();
    leak! {
        client.lock("a").acquire();
        client.lock("b").owned_by(&owner).acquire();
        client.fenced_lock("c").acquire();
        client.fair_lock("d").acquire();
        client.rw_lock("e").read();
        client.rw_lock("f").write();
        client.group_lock("g", ["v", "w"]).acquire();
        client.expirable_semaphore("l").acquire();
    }
    let released = client.lock("released").acquire().await.unwrap();
    let dropped = client.lock("dropped").acquire().await.unwrap();
    released.release().await.unwrap();
    drop(dropped);
    assert_eq!(client.activity().renewed_holds, 8);
    let closed = client.close().await;
    assert_eq!(closed.holds_left, 8);
    // Redisson could shorten the leases of read-write locks, so the client still reminds the server
    // of these two holds.
    assert_eq!(client.activity().renewed_holds, 2);
    drop(client);
    for lost in lost {
        let told = tokio::time::timeout(SOON, lost).await;
        assert_eq!(told, Ok(LossReason::Closed));
    }
    let other = Client::connect(&server.url()).await.unwrap();
    for (_, acquire) in each_kind(&other) {
        tokio::time::timeout(SOON, acquire).await.unwrap().unwrap();
    }
}
