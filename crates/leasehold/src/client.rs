//! The client: connects, then hands out primitives by name.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::Backend;
use crate::backend::memory::Embedded;
#[cfg(feature = "testing")]
use crate::backend::network::{Linked, Network};
#[cfg(feature = "redis")]
use crate::backend::redis::{Endpoint, Redis};
use crate::config::{self, Peers};
use crate::context::Context;
use crate::credentials::{Credentials, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::SafetyMargin;
use crate::primitives::expirable::ExpirableSemaphore;
use crate::primitives::fair::{Fair, FairLock};
use crate::primitives::fenced::{Fenced, FencedLock};
use crate::primitives::latch::CountDownLatch;
use crate::primitives::lock::{GroupLock, Lock, Plain};
use crate::primitives::name::{self, NameInfo};
use crate::primitives::rw::RwLock;
use crate::primitives::semaphore::Semaphore;

/// A connection to a server, or to an embedded keyspace. Cheap to clone; clones
/// share the connection, the watchdog and the identity.
///
/// Its tasks run on the tokio runtime in which it was made. If that runtime is blocked, leases are
/// not renewed, and guards say so at their [`valid_until`](crate::LockGuard::valid_until). When the
/// runtime has ended, every call that needs it fails at once with [`ErrorKind::Misuse`].
///
/// # When the program ends
///
/// End it with [`close`](Self::close)`().await`, which waits until everything that was dropped is
/// given back. Without it, as when `main` returns early with `?`, guards, waits and tasks still
/// send what they have to give back while the runtime is dropped. They do so once:
///
/// - A server that can't be reached at that time, or has forgotten the scripts, is not asked again.
/// - The drop of the runtime waits for each server's answer for 250 ms at most. If the client or a
///   guard outlives the runtime, nothing waits.
/// - A runtime that is ended by `shutdown_background` may not get to send them.
/// - A guard that is dropped after its runtime, or never (`std::process::exit`, a leak, a
///   kill), sends nothing.
///
/// A hold that was not given back ends with its lease; permits of a [`Semaphore`] have no lease.
/// The hold of a leaked guard is renewed until [`close`](Self::close) or the end of the runtime.
#[derive(Clone)]
pub struct Client {
    context: Arc<Context>,
}

impl Client {
    /// Connects to the server at `url`, with default settings.
    ///
    /// | URL | meaning |
    /// |---|---|
    /// | `redis://USER:PASSWORD@HOST:PORT/DB` | TCP; port 6379 and database 0 by default |
    /// | `rediss://…` | the same over TLS (feature `tls`) |
    /// | `redis+unix:///PATH?db=N&user=U&pass=P` | a unix socket |
    /// | `memory://` | a new [`Embedded`] keyspace |
    ///
    /// `?protocol=resp3` speaks RESP3. `valkey` may be written for `redis`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a bad URL, `Unavailable` when no server answers
    /// there, `Denied` for a wrong password. No message shows credentials.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the attempt.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// A client with an embedded keyspace of its own. For examples and for tests.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn embedded() -> Self {
        Embedded::new().client()
    }

    /// Settings for a client, before it connects.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The lock called `name`. Nothing is sent. A bad name is reported when the lock is used.
    #[doc(alias = "getLock")]
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock {
        Lock::named(Arc::clone(&self.context), name, Plain)
    }

    /// The lock on all of these `values` of a group at once. Nothing is sent. A bad name is
    /// reported when the lock is used.
    #[doc(alias = "getMultiLock")]
    #[must_use]
    pub fn group_lock<V: Into<String>>(
        &self,
        group: &str,
        values: impl IntoIterator<Item = V>,
    ) -> GroupLock {
        GroupLock::of_group(Arc::clone(&self.context), group, values)
    }

    /// The lock called `name`, with a fencing token for each hold.
    #[doc(alias = "getFencedLock")]
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        Lock::named(Arc::clone(&self.context), name, Fenced)
    }

    /// The fair lock called `name`: its waiters get it in the order in which they came.
    #[doc(alias = "getFairLock")]
    #[doc(alias = "getNonReentrantFairLock")]
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        Lock::named(Arc::clone(&self.context), name, Fair::new())
    }

    /// The read-write lock called `name`.
    #[doc(alias = "getReadWriteLock")]
    #[must_use]
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock::named(&self.context, name)
    }

    /// The semaphore called `name`. Nothing is sent. A bad name is reported when the semaphore is
    /// used.
    #[doc(alias = "getSemaphore")]
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(Arc::clone(&self.context), name)
    }

    /// The semaphore called `name` whose permits have leases. Nothing is sent. A bad name is
    /// reported when the semaphore is used.
    #[doc(alias = "getPermitExpirableSemaphore")]
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(Arc::clone(&self.context), name)
    }

    /// The latch called `name`. Nothing is sent. A bad name is reported when the latch is used.
    #[doc(alias = "getCountDownLatch")]
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(Arc::clone(&self.context), name)
    }

    /// What kind of lock or synchronizer `name` is, and who has it. For operators: the answer may
    /// be out of date when it arrives. A kind is recognised by its keys, so kinds with the same
    /// keys are reported as one: see [`Found`](crate::inspect::Found).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when no server answered, `Denied` when the server refuses,
    /// `Misuse` for a bad name. A key of another kind is no error but an answer:
    /// [`Found::Unknown`](crate::inspect::Found::Unknown).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::inspect::Found;
    ///
    /// let client = leasehold::Client::embedded();
    /// assert_eq!(client.inspect("orders:42").await?.found, Found::Nothing);
    /// let guard = client.lock("orders:42").acquire().await?;
    /// let Found::Lock(hold) = client.inspect("orders:42").await?.found else {
    ///     panic!("it is held");
    /// };
    /// assert!(hold.id.starts_with(client.id()));
    /// # guard.release().await
    /// # }
    /// ```
    pub async fn inspect(&self, name: &str) -> Result<NameInfo> {
        name::inspect(&self.context, name).await
    }

    /// This client's id: the part before the colon in the id of each of its holds.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.context.client_id
    }

    /// The server's address, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        self.context.backend.address()
    }

    /// Refuses new acquires, stops renewing, and waits until dropped guards and waits have given
    /// everything back. Call it before the program ends: then everything that was dropped is free
    /// for others.
    ///
    /// A guard that is still alive, or was leaked, keeps its lock until its lease ends. It can be
    /// released and extended, but is no longer renewed. It is told
    /// [`LossReason::Closed`](crate::LossReason::Closed) at its
    /// [`valid_until`](crate::LockGuard::valid_until). The return value says how many such locks
    /// are left.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// drop(client.lock("a").acquire().await?);
    /// std::mem::forget(client.lock("b").acquire().await?);
    /// let closed = client.close().await;
    /// assert_eq!(closed.holds_left, 1); // `b`, until its lease ends
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If a server refuses to take something back, the request is sent again while that can help:
    /// for a lock until its lease is over, for plain permits for up to ten minutes. Give the call a
    /// time limit where that is too long.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, new acquires are refused and nothing is renewed. The rest
    /// goes on in the background.
    #[doc(alias = "shutdown")]
    pub async fn close(&self) -> Closed {
        // Closed first: an acquire that is still let in could leave clean-up behind that the next
        // line does not wait for.
        self.context.close();
        self.context.cleanup.done().await;
        // Counted behind the wait, which can last for a lease: some of these holds have ended
        // meanwhile.
        Closed {
            holds_left: self.context.standing.good(),
        }
    }

    /// What this client has under way. For tests that check that nothing is left behind.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let (lines, owners) = self.context.locals.activity();
        Activity {
            renewed_holds: self.context.watchdog.len(),
            lines,
            owners,
            channels: self.context.backend.channels().len(),
            releases: self.context.cleanup.pending(),
        }
    }

    fn over(backend: Backend, builder: &ClientBuilder) -> Self {
        // Moments are compared across the two, for one when a server was started. So the client
        // needs the clock of its backend: for the embedded one that of the keyspace, whose leases
        // end on it.
        let clock = match &backend {
            Backend::Memory(memory) => memory.clock(),
            #[cfg(feature = "testing")]
            Backend::Network(linked) => linked.clock(),
            #[cfg(feature = "redis")]
            Backend::Redis(_) => crate::clock::Clock::Boot,
        };
        let margin = SafetyMargin {
            drift: builder.drift,
        };
        Self {
            context: Context::new(
                backend,
                clock,
                margin,
                builder.lease,
                builder.peers,
                // Kept for the client's life: a guard may be dropped on a thread without a runtime,
                // and its release needs a task.
                &Handle::current(),
            ),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            // Not the URL, which may have a password.
            .field("address", &self.address())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Embedded {
    /// A client of this keyspace, with default settings.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::over(Backend::Memory(self.memory()), &ClientBuilder::default())
    }

    /// A client of this keyspace behind a network that the test can disturb: see
    /// [`Network`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a setting out of its range.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[cfg(feature = "testing")]
    pub fn client_over_network(&self, builder: &ClientBuilder) -> Result<(Client, Network)> {
        builder.check()?;
        let linked = Linked::new(&self.memory(), builder.reply_timeout);
        let network = linked.network();
        let client = Client::over(Backend::Network(Arc::new(linked)), builder);
        Ok((client, network))
    }

    /// The keys that exist now. For tests that check that nothing is left behind.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.memory().keys()
    }
}

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    lease: Duration,
    drift: f64,
    peers: Peers,
    credentials: Option<Source>,
    connect_timeout: Duration,
    reply_timeout: Duration,
    #[cfg(feature = "tls")]
    authorities: Vec<Vec<u8>>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            lease: config::DEFAULT_LEASE,
            drift: 0.01,
            peers: Peers::All,
            credentials: None,
            connect_timeout: Duration::from_secs(3),
            reply_timeout: Duration::from_secs(2),
            #[cfg(feature = "tls")]
            authorities: Vec::new(),
        }
    }
}

impl ClientBuilder {
    /// Sets the lease of renewed holds: how long a lock outlives a killed process. 30 s by default,
    /// at least 100 ms, at most 2^53 ms. Redisson calls it `lockWatchdogTimeout`.
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how much clock drift to allow for, as a fraction of the lease: by how much the clocks
    /// of this machine and of the server may drift apart within one lease. 0.01 by default, 0 to
    /// 0.25. Holders stop that much earlier.
    #[must_use]
    pub fn drift_fraction(mut self, fraction: f64) -> Self {
        self.drift = fraction;
        self
    }

    /// Sets who shares the client's names. [`Peers::All`] by default. Where Redisson does not share
    /// them, keys that only Redisson needs to keep forever get an expiry.
    #[must_use]
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Asks `credentials` for user and password each time that the client connects, instead of
    /// taking them from the URL. For passwords that change while the client lives.
    ///
    /// A client has two connections, and opens the second one when it first waits. A change of the
    /// password does not touch an open connection. When a connection is lost, the client asks
    /// `credentials` anew, and goes on about once a second for as long as it lives. It also goes on
    /// when the server refuses what `credentials` returned, and when `credentials` fails or has not
    /// answered within the [`connect_timeout`](Self::connect_timeout). So a hold outlives the
    /// change of a password if `credentials` knows the new one before the lease of the hold is
    /// over.
    ///
    /// The values that `credentials` returns are never shown. The text of its error is shown, as
    /// part of [`ErrorKind::Unavailable`].
    ///
    /// ```no_run
    /// use leasehold::Client;
    /// use leasehold::settings::Credentials;
    ///
    /// # async fn example() -> leasehold::Result<()> {
    /// let client = Client::builder()
    ///     .credentials(|| async {
    ///         let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///         Ok(Credentials::user("app", password.trim()))
    ///     })
    ///     .connect("rediss://redis.internal")
    ///     .await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn credentials<F, C>(mut self, credentials: F) -> Self
    where
        F: Fn() -> C + Send + Sync + 'static,
        C: Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        self.credentials = Some(Source::new(credentials));
        self
    }

    /// Sets how long connecting may take, handshake included. 3 s by default, at least 1 ms. If a
    /// server has been loading its data for longer than that, the client leaves it and looks up its
    /// name again.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long to wait for a reply before the outcome of the request counts as unknown. 2 s
    /// by default, at least 1 ms.
    #[must_use]
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// Adds certificate authorities, as PEM, to the system's own for `rediss://`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(pem.into());
        self
    }

    /// Connects to the server at `url`; see [`Client::connect`].
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], and `Misuse` for a setting out of its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the attempt.
    pub async fn connect(&self, url: &str) -> Result<Client> {
        self.check()?;
        if url.trim() == "memory://" {
            return self.embedded(&Embedded::new());
        }
        self.connect_to_server(url).await
    }

    /// A client of the server at `url` that connects in the background, and keeps trying for as
    /// long as it lives. For a server that may be down now, such as one of several under a
    /// [`RedLock`](crate::RedLock).
    ///
    /// Until the first attempt has ended, requests wait for it. After that they fail at once while
    /// there is no connection. A wrong address or password is reported by the requests, with the
    /// errors that [`connect`](Self::connect) has for it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a bad URL or a setting out of its range.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn connect_in_background(&self, url: &str) -> Result<Client> {
        self.check()?;
        // Looked at before it is an address: this works in a build without servers, too.
        if url.trim() == "memory://" {
            return self.embedded(&Embedded::new());
        }
        self.start_to_server(url)
    }

    /// A client of a keyspace in this process.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::{Client, Embedded};
    ///
    /// let short = Client::builder().lease(std::time::Duration::from_secs(2));
    /// let client = short.embedded(&Embedded::new())?;
    /// # client.lock("orders").acquire().await?.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a setting out of its range.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn embedded(&self, keyspace: &Embedded) -> Result<Client> {
        self.check()?;
        Ok(Client::over(Backend::Memory(keyspace.memory()), self))
    }

    #[cfg(feature = "redis")]
    async fn connect_to_server(&self, url: &str) -> Result<Client> {
        let (endpoint, steps) = (self.endpoint(url), crate::primitives::steps());
        let redis = Redis::connect(endpoint, &steps, crate::clock::Clock::Boot).await?;
        Ok(Client::over(Backend::Redis(Arc::new(redis)), self))
    }

    #[cfg(feature = "redis")]
    fn start_to_server(&self, url: &str) -> Result<Client> {
        let (endpoint, steps) = (self.endpoint(url), crate::primitives::steps());
        let redis = Redis::start(endpoint, &steps, crate::clock::Clock::Boot)?;
        Ok(Client::over(Backend::Redis(Arc::new(redis)), self))
    }

    #[cfg(feature = "redis")]
    fn endpoint(&self, url: &str) -> Endpoint {
        Endpoint {
            url: url.to_owned(),
            credentials: self.credentials.clone(),
            connect_timeout: self.connect_timeout,
            reply_timeout: self.reply_timeout,
            #[cfg(feature = "tls")]
            authorities: self.authorities.clone(),
        }
    }

    #[cfg(not(feature = "redis"))]
    async fn connect_to_server(&self, url: &str) -> Result<Client> {
        self.start_to_server(url)
    }

    #[cfg(not(feature = "redis"))]
    fn start_to_server(&self, _url: &str) -> Result<Client> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this build has no servers; build leasehold with the feature `redis`, or use memory://",
        ))
    }

    fn check(&self) -> Result<()> {
        let limits = [
            ("lease", self.lease, 100),
            ("connect timeout", self.connect_timeout, 1),
            ("reply timeout", self.reply_timeout, 1),
        ];
        for (what, span, least_ms) in limits {
            if span < Duration::from_millis(least_ms) || span > config::MAX_SPAN {
                return Err(Error::new(
                    ErrorKind::Misuse,
                    format!(
                        "a client's {what} of {span:?} is not between {least_ms} ms and 2^53 ms; set one that is"
                    ),
                ));
            }
        }
        // Not two comparisons: no range has NaN in it, so this refuses that as well. With it every
        // deadline would be a panic in `mul_f64`.
        if !(0.0..=0.25).contains(&self.drift) {
            return Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "a client's drift of {} is not between 0 and 0.25; 0.01 is a good one",
                    self.drift
                ),
            ));
        }
        Ok(())
    }
}

/// What is left after [`Client::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Holds that are still valid, of guards that are alive or were leaked. They end with their
    /// leases. Permits of a [`Semaphore`] have no lease and are not counted.
    pub holds_left: usize,
}

/// What a client has under way: see [`Client::activity`]. All numbers are zero when nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Holds that the watchdog renews or ends.
    pub renewed_holds: usize,
    /// Names for which somebody of this client waits.
    pub lines: usize,
    /// Names that an [`Owner`](crate::Owner) holds or asks for.
    pub owners: usize,
    /// Channels that are listened to, or were until just now.
    pub channels: usize,
    /// Releases in the background.
    pub releases: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;

    #[tokio::test]
    async fn holds_that_are_over_are_forgotten() {
        let client = Client::embedded();
        let owner = Owner::new();
        // A hold ends in several ways without a release: by a drop, as a downgrade, left to its
        // lease and then broken by force. Each way has to take it out of the table, or a client
        // that lives for months grows with each hold.
        for _ in 0..100 {
            drop(client.lock("x").acquire().await.expect("free"));
            let lock = client.rw_lock("y").owned_by(&owner);
            let guard = lock.write().await.expect("free");
            let guards = (guard.downgrade().await, lock.read().await);
            drop(guards);
            client.lock("z").acquire().await.expect("free").forget();
            client.lock("z").force_unlock().await.expect("answered");
        }
        assert_eq!(client.context.standing.len(), 0);
    }
}
