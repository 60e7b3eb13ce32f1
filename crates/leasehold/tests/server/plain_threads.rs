//! The async API on a thread without a runtime, where the executor of another framework polls the
//! futures.

use std::path::Path;
use std::time::Duration;

use leasehold::slot::{Begin, Turn};
use leasehold::{Client, Embedded, MultiLock, Owner, RedLock, Result};
use leasehold_testkit::RedisServer;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::support::HOUR;
use crate::support::executor::block_on;
use crate::support::sources::rust_files;

/// The time for which another client holds the lock. It is longer than a nap of the client's
/// timers.
const HELD: Duration = Duration::from_millis(300);
/// A lease that lasts longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// A limit for waits that must end without success.
const SHORT: Duration = Duration::from_millis(30);

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// Two clients. The first is used without a runtime.
struct Two {
    ours: Client,
    theirs: Client,
    runtime: Runtime,
}

impl Two {
    fn of_server(server: &RedisServer) -> Self {
        let runtime = runtime();
        // A `RedLock` does not count a server that was started less than a lease ago.
        let builder = Client::builder().lease(Duration::from_secs(3));
        let client = || runtime.block_on(builder.connect(&server.url())).unwrap();
        Self {
            ours: client(),
            theirs: client(),
            runtime,
        }
    }

    fn embedded() -> Self {
        let runtime = runtime();
        let keyspace = Embedded::new();
        let client = || runtime.block_on(async { keyspace.client() });
        Self {
            ours: client(),
            theirs: client(),
            runtime,
        }
    }

    /// Runs `ours` while `theirs` acquires something, which is then held for a while.
    fn beside<G: Send + 'static, T>(
        &self,
        theirs: impl Future<Output = Result<G>> + Send + 'static,
        ours: impl Future<Output = T>,
    ) -> T {
        let held = self.runtime.block_on(theirs).unwrap();
        self.runtime.spawn(async move {
            tokio::time::sleep(HELD).await;
            drop(held);
        });
        block_on(ours)
    }
}

/// Accepts any result of an attempt with a short time limit, except for an unexpected error. On a
/// busy machine, the attempt may not get a reply, or may arrive so late that it is granted.
fn tried<T>(result: Result<T>) {
    if let Err(error) = result {
        assert!(error.is_transient(), "{error}");
    }
}

/// Returns the turn that a request got.
fn begun(begin: Begin) -> Turn {
    match begin {
        Begin::Run(turn) => turn,
        other => panic!("{other:?}"),
    }
}

fn turns(two: &Two) -> Result<()> {
    let lock = two.ours.lock("turns");
    let rival = two.theirs.lock("turns").once_for("1");
    let held = async move { rival.try_begin().await };
    two.beside(held, async {
        let turns = lock.once_for("1").retry_failed(true);
        tried(turns.begin_for(SHORT).await);
        // The other client drops its turn, so it has failed.
        begun(turns.begin().await?).failed().await?;
        begun(turns.try_begin().await?).exited(3).await?;
        begun(turns.try_begin().await?).decline().await?;
        begun(turns.try_begin().await?).done().await?;
        assert!(lock.last_turn().await?.is_some());
        Ok(())
    })
}

/// Holds that pass to other clients.
fn tickets(two: &Two) -> Result<()> {
    let lock = two.ours.lock("ticket");
    let permits = two.ours.expirable_semaphore("permits of a ticket");
    block_on(async {
        let ticket = lock.acquire().await?.into_ticket(LONG).await?;
        let ticket = two.theirs.resume(&ticket).await?.into_ticket(LONG).await?;
        let ticket = lock.resume(&ticket).await?.into_ticket(LONG).await?;
        two.theirs.release_ticket(&ticket).await?;
        permits.try_set_permits(1).await?;
        let ticket = permits.acquire().await?.into_ticket(LONG).await?;
        permits.resume(&ticket).await?.release().await
    })
}

fn elections(two: &Two) -> Result<()> {
    let ours = two.ours.election("election").poll_interval(SHORT);
    let rival = two.theirs.election("election");
    two.beside(async move { rival.stand().await }, async {
        tried(ours.try_stand().await);
        let mut terms = ours.observe();
        terms.next().await.expect("it is open")?;
        let term = ours.stand().await?;
        assert_eq!(ours.leader().await?.unwrap().token, Some(term.token()));
        term.resign().await?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut stop = Some(stop);
        ours.lead_until(stopped, async |_| drop(stop.take())).await
    })
}

fn locks(two: &Two) -> Result<()> {
    let (ours, theirs) = (&two.ours, &two.theirs);
    let (lock, rival) = (ours.lock("a"), theirs.lock("a"));
    let held = {
        let rival = rival.clone();
        async move { rival.acquire().await }
    };
    two.beside(held, async {
        tried(lock.try_acquire().await);
        tried(lock.try_acquire_for(SHORT).await);
        let until = Instant::now() + SHORT;
        tried(lock.try_acquire_until(until).await);
        lock.is_locked().await?;
        lock.inspect().await?;
        lock.remaining_ttl().await?;
        let guard = lock.acquire().await?;
        guard.extend(HOUR).await?;
        guard.protect(tokio::task::yield_now()).await?;
        assert!(guard.fencing_token().await? > 0);
        guard.release().await?;
        lock.run(async |_| ()).await?;
        let owner = Owner::new();
        let owned = lock.clone().owned_by(&owner);
        let guard = owned.acquire().await?;
        assert!(lock.is_held_by(&owner).await?);
        let id = guard.holder_id().to_owned();
        assert!(ours.force_release("a", &id).await?);
        drop(guard);
        let guard = lock.acquire().await?;
        assert!(lock.force_unlock().await?);
        drop(guard);
        lock.acquire().await?.keep_for(SHORT).await?;
        let short = lock.clone().fixed_lease(HELD + SHORT).acquire().await?;
        short.lost().await;
        assert!(short.protect(std::future::pending::<()>()).await.is_err());
        Ok(())
    })
}

fn other_locks(two: &Two) -> Result<()> {
    let (ours, theirs) = (&two.ours, &two.theirs);
    let (fenced, rival) = (ours.fenced_lock("b"), theirs.fenced_lock("b"));
    two.beside(async move { rival.acquire().await }, async {
        fenced.acquire().await?.release().await?;
        assert!(fenced.last_token().await?.is_some());
        Ok(())
    })?;
    let (fair, rival) = (ours.fair_lock("c"), theirs.fair_lock("c"));
    two.beside(async move { rival.acquire().await }, async {
        tried(fair.try_acquire_for(SHORT).await);
        fair.waiters().await?;
        fair.acquire().await?.release().await
    })?;
    let (group, rival) = (
        ours.group_lock("d", ["1", "2"]),
        theirs.group_lock("d", ["2"]),
    );
    two.beside(async move { rival.acquire().await }, async {
        group.acquire().await?.release().await
    })?;
    let rw = ours.rw_lock("e");
    let rival = theirs.rw_lock("e");
    let writes = rival.clone();
    two.beside(async move { writes.write().await }, async {
        tried(rw.try_read().await);
        tried(rw.try_read_for(SHORT).await);
        tried(rw.try_read_until(Instant::now() + SHORT).await);
        let (one, other) = tokio::join!(rw.read(), rw.read());
        one?.release().await?;
        other?.release().await
    })?;
    two.beside(async move { rival.read().await }, async {
        tried(rw.try_write().await);
        tried(rw.try_write_for(SHORT).await);
        tried(rw.try_write_until(Instant::now() + SHORT).await);
        let read = rw.write().await?.downgrade().await?;
        let write = read.try_upgrade().await.unwrap();
        write.release().await
    })?;
    let multi = MultiLock::new([ours.lock("f"), ours.lock("g")])?;
    let rival = theirs.lock("g");
    two.beside(async move { rival.acquire().await }, async {
        let guard = multi.acquire().await?;
        guard.extend(HOUR).await?;
        guard.release().await
    })
}

fn counts(two: &Two) -> Result<()> {
    let (ours, theirs) = (&two.ours, &two.theirs);
    let (permits, rival) = (ours.semaphore("h"), theirs.semaphore("h"));
    block_on(async {
        assert!(permits.try_set_permits(2).await?);
        permits.add_permits(1).await?;
        permits.add_permits(-1).await?;
        assert!(!permits.try_set_permits_for(2, HOUR).await?);
        assert_eq!(permits.available_permits().await?, 2);
        Ok::<_, leasehold::Error>(())
    })?;
    two.beside(async move { rival.acquire_many(2).await }, async {
        let until = Instant::now() + SHORT;
        tried(permits.try_acquire().await);
        tried(permits.try_acquire_for(SHORT).await);
        tried(permits.try_acquire_until(until).await);
        tried(permits.try_acquire_many(2).await);
        tried(permits.try_acquire_many_for(2, SHORT).await);
        tried(permits.try_acquire_many_until(2, until).await);
        permits.acquire().await?.release().await?;
        permits.acquire_many(2).await?.forget();
        permits.release(1).await?;
        assert!(permits.release_if_exists(1).await?);
        permits.drain().await?;
        assert!(permits.delete().await?);
        Ok::<_, leasehold::Error>(())
    })?;
    let (permits, rival) = (
        ours.expirable_semaphore("i"),
        theirs.expirable_semaphore("i"),
    );
    block_on(async {
        assert!(permits.try_set_permits(1).await?);
        permits.set_permits(2).await?;
        permits.add_permits(1).await?;
        permits.add_permits(-1).await?;
        assert_eq!(permits.permits().await?, 2);
        assert_eq!(permits.capacity().await?, Some(2));
        Ok::<_, leasehold::Error>(())
    })?;
    two.beside(async move { rival.acquire_many(2).await }, async {
        let until = Instant::now() + SHORT;
        tried(permits.try_acquire().await);
        tried(permits.try_acquire_for(SHORT).await);
        tried(permits.try_acquire_until(until).await);
        tried(permits.try_acquire_many(2).await);
        tried(permits.try_acquire_many_for(2, SHORT).await);
        tried(permits.try_acquire_many_until(2, until).await);
        permits.acquired_permits().await?;
        let permit = permits.acquire().await?;
        permit.extend(HOUR).await?;
        permit.release().await?;
        let both = permits.acquire_many(2).await?;
        let ids = both.ids().to_vec();
        assert!(permits.update_lease(ids[0], HOUR).await?);
        permits.remaining_ttl(ids[0]).await?;
        both.forget();
        assert!(permits.release(ids[0]).await?);
        assert!(permits.release_many(&ids[1..]).await?);
        let short = permits.clone().fixed_lease(HELD).acquire().await?;
        short.lost().await;
        assert!(short.protect(std::future::pending::<()>()).await.is_err());
        drop(short);
        assert!(permits.delete().await?);
        Ok::<_, leasehold::Error>(())
    })?;
    let (latch, rival) = (ours.count_down_latch("j"), theirs.count_down_latch("j"));
    block_on(async {
        assert!(latch.try_set_count(3).await?);
        tried(latch.wait_for(SHORT).await);
        tried(latch.wait_until(Instant::now() + SHORT).await);
        assert_eq!(latch.count_down().await?, 2);
        assert_eq!(latch.count_down_by(1).await?, 1);
        assert_eq!(latch.count().await?, 1);
        Ok::<_, leasehold::Error>(())
    })?;
    two.runtime.spawn(async move {
        tokio::time::sleep(HELD).await;
        rival.count_down().await.unwrap();
    });
    block_on(async {
        latch.wait().await?;
        latch.try_set_count(1).await?;
        assert!(latch.delete().await?);
        Ok(())
    })
}

fn looks(two: &Two) -> Result<()> {
    let (ours, theirs) = (&two.ours, &two.theirs);
    let rival = theirs.lock("k");
    two.beside(async move { rival.acquire().await }, async {
        ours.inspect("k").await?;
        ours.peek("k").await?;
        ours.examine("k").await?;
        let mut names = ours.list("*");
        while let Some(name) = names.next().await {
            name?;
        }
        ours.lock("k").acquire().await?.release().await
    })?;
    block_on(ours.close());
    Ok(())
}

fn everything(two: &Two) {
    assert!(tokio::runtime::Handle::try_current().is_err());
    locks(two).unwrap();
    turns(two).unwrap();
    elections(two).unwrap();
    tickets(two).unwrap();
    other_locks(two).unwrap();
    counts(two).unwrap();
    looks(two).unwrap();
}

#[test]
fn whatever_waits_for_a_server_needs_no_runtime_of_its_caller() {
    let server = RedisServer::start().unwrap();
    everything(&Two::of_server(&server));
}

#[test]
fn whatever_waits_for_a_keyspace_needs_no_runtime_of_its_caller() {
    everything(&Two::embedded());
}

#[test]
fn a_majority_needs_no_runtime_of_its_caller() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let clients: Vec<_> = servers.iter().map(Two::of_server).collect();
    let red = |ours: fn(&Two) -> &Client| {
        RedLock::new(clients.iter().map(|two| ours(two).lock("a"))).unwrap()
    };
    let (lock, rival) = (red(|two| &two.ours), red(|two| &two.theirs));
    let done = clients[0].beside(async move { rival.acquire().await }, async {
        tried(lock.try_acquire_for(SHORT).await);
        let guard = lock.acquire().await?;
        guard.extend(SHORT).await?;
        assert!(guard.fencing_token().await? > 0);
        guard.protect(tokio::task::yield_now()).await?;
        let reason = async { guard.lost().await };
        for client in &clients {
            client.theirs.lock("a").force_unlock().await?;
        }
        assert!(guard.extend(SHORT).await.is_err());
        reason.await;
        drop(guard);
        Ok::<_, leasehold::Error>(())
    });
    done.unwrap();
}

#[test]
fn a_hold_is_lost_in_time_after_its_clients_runtime_has_ended() {
    let two = Two::embedded();
    let lock = two.ours.lock("a").fixed_lease(HELD * 3);
    let guard = block_on(lock.acquire()).unwrap();
    drop(two.runtime);
    let work = std::future::pending::<()>();
    assert!(block_on(guard.protect(work)).is_err());
    assert!(Instant::now() >= guard.valid_until());
}

#[test]
fn runtime_without_timers_waits_as_any_executor() {
    let server = RedisServer::start().unwrap();
    for two in [Two::of_server(&server), Two::embedded()] {
        let callers = Builder::new_current_thread().build().unwrap();
        let held = two
            .runtime
            .block_on(two.theirs.lock("a").acquire())
            .unwrap();
        let waited = callers.block_on(two.ours.lock("a").try_acquire_for(HELD));
        assert!(waited.unwrap().is_none());
        drop(held);
        let lock = two.ours.lock("b").fixed_lease(HELD);
        callers.block_on(async { lock.acquire().await.unwrap().lost().await });
    }
}

/// The task that would renew the hold is blocked, too, so the hold is lost.
#[test]
fn watcher_is_told_while_its_clients_runtime_is_blocked() {
    let server = RedisServer::start().unwrap();
    let clients = Builder::new_current_thread().enable_all().build().unwrap();
    clients.block_on(async {
        let builder = Client::builder().lease(Duration::from_secs(1));
        let client = builder.connect(&server.url()).await.unwrap();
        for with_runtime in [false, true] {
            let guard = client.lock("a").acquire().await.unwrap();
            let lost = guard.lost();
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                match with_runtime {
                    false => block_on(lost),
                    true => runtime().block_on(lost),
                };
                tell.send(()).unwrap();
            });
            // Blocks the runtime until the watcher learns of the loss.
            told.recv_timeout(Duration::from_secs(60)).unwrap();
            drop(guard);
        }
    });
}

/// Checks that each async method of the library is called above.
#[test]
fn no_async_method_is_left_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let here = include_str!("plain_threads.rs");
    // This function makes a client, which belongs to the runtime that makes it.
    let exempt = ["connect"];
    let mut missing = Vec::new();
    for path in rust_files(&root) {
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            let Some(rest) = line.trim().strip_prefix("pub async fn ") else {
                continue;
            };
            let name = rest.split(['(', '<']).next().unwrap();
            if !exempt.contains(&name) && !here.contains(&format!(".{name}(")) {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
