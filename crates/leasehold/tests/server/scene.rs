//! The common parts of the tests with faults: a server behind a proxy, clients, recorded holds, and
//! the checks at the end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::testing::history::{Inside, Recorder};
use leasehold::{Client, ClientBuilder, Error, ErrorKind, Lock, LockGuard, LossReason, Result};
use leasehold_testkit::proxy::Fault;
use leasehold_testkit::{Proxy, RedisServer};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::support::{eventually, is_clean};

/// The name of most tests. It is acquired once more at the end.
pub(crate) const NAME: &str = "x";
/// A lease for holds that expire.
pub(crate) const LEASE: Duration = Duration::from_millis(600);

/// Returns a lock whose holds are renewed often, and last long enough on a busy machine.
pub(crate) fn steady(client: &Client) -> Lock {
    let lock = client.lock(NAME).lease(LEASE * 8);
    lock.renew_every(LEASE / 3)
}

/// A limit after which a wait is hopeless. A lock that was not freed remains locked for a default
/// lease, which is longer.
const PATIENCE: Duration = Duration::from_secs(20);

// These are complete arguments: the source of the script contains the same words, and each new
// connection sends that source.
pub(crate) const ACQUIRE: &[u8] = b"\r\nlock.acquire\r\n";
pub(crate) const RELEASE: &[u8] = b"\r\nlock.release\r\n";
pub(crate) const RENEW: &[u8] = b"\r\nlock.renew\r\n";
pub(crate) const SUBSCRIBE: &[u8] = b"\r\nSUBSCRIBE\r\n";

/// Returns the builder of a client that soon notices that a reply is missing. Its leases are long,
/// so that in a test only an undo can free a lock soon enough. The client does not announce itself,
/// because an announcement could share a call with other requests.
pub(crate) fn builder() -> ClientBuilder {
    let builder = Client::builder().presence(false);
    builder.reply_timeout(Duration::from_millis(400))
}

/// Returns a server, a proxy in front of it, a client through the proxy and a client without proxy.
pub(crate) async fn through_proxy() -> (RedisServer, Proxy, Client, Client) {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let ours = builder().connect(&proxy.url()).await.unwrap();
    let beside = builder().connect(&server.url()).await.unwrap();
    (server, proxy, ours, beside)
}

/// Waits until a fault has struck.
pub(crate) async fn struck(fault: &Fault) {
    eventually("the fault", async || fault.fired()).await;
}

/// Sends the bytes of a request again, on a new connection. Returns the server's reply.
pub(crate) fn replay(server: &RedisServer, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(request).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// One test's server, proxy, clients, waiters and history.
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
    pub(crate) recorder: Recorder,
    clients: Vec<Client>,
    waiters: JoinSet<()>,
}

/// Accepts the result of a release. If its first request was not answered and the retry did not
/// find the hold, the client can't know whether the lock was still held.
pub(crate) fn given_back(released: Result<()>) {
    if let Err(error) = released {
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(RedisServer::start().unwrap())
    }

    pub(crate) fn with(server: RedisServer) -> Self {
        Self {
            proxy: Proxy::to(server.port()),
            server,
            recorder: Recorder::new(),
            clients: Vec::new(),
            waiters: JoinSet::new(),
        }
    }

    /// Starts a scene with two clients: one through the proxy, and one beside it.
    pub(crate) async fn of_two() -> (Self, Client, Client) {
        let mut scene = Self::new();
        let ours = scene.client(builder()).await;
        let theirs = scene.beside(builder()).await;
        (scene, ours, theirs)
    }

    /// Connects a client through the proxy.
    pub(crate) async fn client(&mut self, builder: ClientBuilder) -> Client {
        let client = builder.connect(&self.proxy.url()).await.unwrap();
        self.clients.push(client.clone());
        client
    }

    /// Connects a client with a connection of its own to the server.
    pub(crate) async fn beside(&mut self, builder: ClientBuilder) -> Client {
        let client = builder.connect(&self.server.url()).await.unwrap();
        self.clients.push(client.clone());
        client
    }

    /// Acquires the lock, and records the hold. The acquire must end before a lease of 30 s would
    /// end.
    pub(crate) async fn hold(&self, lock: &Lock, who: &str) -> Hold {
        let asked = self.recorder.ask(lock.name(), who);
        let acquire = tokio::time::timeout(PATIENCE, lock.acquire());
        let guard = acquire.await.expect("acquired in the end").unwrap();
        Hold {
            inside: asked.acquired(&guard),
            guard,
        }
    }

    /// Starts a waiter that holds the lock for a moment and releases it. At the end every waiter
    /// must have been served.
    pub(crate) fn waiter(&mut self, lock: Lock, who: &str) {
        let asked = self.recorder.ask(lock.name(), who);
        self.waiters.spawn(async move {
            let guard = lock.acquire().await.expect("served in the end");
            let inside = asked.acquired(&guard);
            tokio::time::sleep(Duration::from_millis(1)).await;
            given_back(Hold { guard, inside }.release().await);
        });
    }

    /// Starts a load that acquires and releases the lock until it is stopped.
    pub(crate) fn load(&self, lock: &Lock, who: &str) -> Load {
        let (lock, recorder) = (lock.clone(), self.recorder.clone());
        let who = who.to_owned();
        let (stop, stopped) = watch::channel(());
        let holds = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&holds);
        let task = tokio::spawn(async move {
            let mut errors = Vec::new();
            while !stopped.has_changed().unwrap_or(true) {
                let asked = recorder.ask(lock.name(), &who);
                let released = match lock.acquire().await {
                    Ok(guard) => {
                        count.fetch_add(1, Ordering::Relaxed);
                        let inside = asked.acquired(&guard);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        Hold { guard, inside }.release().await
                    }
                    Err(error) => Err(error),
                };
                errors.extend(released.err());
            }
            errors
        });
        Load { stop, holds, task }
    }

    /// Takes the lock from its holder with `by_force`. The holder must learn of this at its next
    /// renewal, and not only at its deadline. The next holders must exclude each other.
    pub(crate) async fn take_away(mut self, what: &str, by_force: impl FnOnce(&RedisServer)) {
        const LONG: Duration = Duration::from_secs(3);
        const REPLY: Duration = Duration::from_secs(1);
        const WHY: Duration = Duration::from_millis(250);
        let builder = builder().reply_timeout(REPLY).lease(LONG);
        let ours = self.client(builder.clone()).await;
        let theirs = self.beside(builder).await;
        let guard = self.hold(&ours.lock(NAME), "ours").await.without_promise();
        let taken = Instant::now();
        by_force(&self.server);
        for _ in 0..3 {
            let lock = theirs.lock(NAME).poll_interval(Duration::from_millis(50));
            self.waiter(lock, "theirs");
        }
        let reason = guard.lost().await;
        let told_after = taken.elapsed();
        assert!(
            matches!(reason, LossReason::Deleted | LossReason::Taken { .. }),
            "{what}: {reason:?}"
        );
        assert!(
            told_after < LONG / 3 + REPLY + WHY,
            "{what}: {told_after:?}"
        );
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.loss(), Some(&reason), "{what}");
        self.end().await;
    }

    /// Waits until all waiters have been served.
    pub(crate) async fn all_served(&mut self) {
        let all = async {
            while let Some(served) = self.waiters.join_next().await {
                served.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, all)
            .await
            .expect("every waiter is served");
    }

    /// Checks the result of the test: every waiter was served, the lock can still be acquired, no
    /// two holds overlapped, and nothing is left behind.
    pub(crate) async fn end(mut self) {
        self.all_served().await;
        let clients = self.clients.clone();
        let first = self.hold(&steady(&clients[0]), "once more").await;
        for client in &clients {
            self.waiter(steady(client), "once more");
        }
        first.release().await.unwrap();
        self.all_served().await;
        self.recorder.report().judge().unwrap();
        let clients: Vec<_> = clients.iter().collect();
        let server = &self.server;
        is_clean(|| server.keys(), || server.channels(), &clients).await;
    }
}

/// A task that acquires and releases a lock in a loop.
pub(crate) struct Load {
    stop: watch::Sender<()>,
    holds: Arc<AtomicUsize>,
    task: JoinHandle<Vec<Error>>,
}

impl Load {
    /// Returns how often the load has held the lock so far.
    pub(crate) fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }

    /// Stops the load, and returns its errors.
    pub(crate) async fn stop(self) -> Vec<Error> {
        drop(self.stop);
        let stopped = tokio::time::timeout(PATIENCE, self.task).await;
        stopped.expect("whoever asks is served").unwrap()
    }
}

/// A hold in a scene's history.
pub(crate) struct Hold {
    guard: LockGuard,
    inside: Inside,
}

impl Hold {
    pub(crate) async fn release(self) -> Result<()> {
        self.inside.releasing(&self.guard);
        self.guard.release().await
    }

    /// Waits until the holder learns that the lock is lost. The promise ends at that moment, and so
    /// does the recorded hold.
    pub(crate) async fn until_lost(self) -> (LossReason, LockGuard) {
        let reason = self.guard.lost().await;
        self.inside.releasing(&self.guard);
        (reason, self.guard)
    }

    /// Ends the recorded hold, because the promise no longer applies: a test is about to take the
    /// lock by force.
    pub(crate) fn without_promise(self) -> LockGuard {
        self.inside.releasing(&self.guard);
        self.guard
    }

    /// Waits for the watchdog's next renewal of the hold.
    pub(crate) async fn is_renewed(&self) {
        // The margin is larger than the difference between two readings of the two clocks.
        let beyond = self.guard.valid_until() + LEASE / 4;
        eventually("a renewal", async || self.guard.valid_until() > beyond).await;
    }
}

impl Deref for Hold {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}
