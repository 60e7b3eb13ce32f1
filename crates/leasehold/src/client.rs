//! The client, which connects to a server and creates primitives by name.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::acknowledgement::Acknowledgement;
use crate::address_map::AddressMap;
use crate::backend::Backend;
use crate::backend::facts::ServerFacts;
use crate::backend::memory::Embedded;
#[cfg(feature = "testing")]
use crate::backend::network::{Network, NetworkBackend};
#[cfg(feature = "redis")]
use crate::backend::redis::{Endpoint, Redis};
use crate::config::{self, Peers};
use crate::context::{Context, Naming};
use crate::credentials::{Credentials, CredentialsSource};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::SafetyMargin;
use crate::observe::{Acquired, Ending, Hooks, Lost, Observer, Stalling, Waiting};
use crate::operate::holds::{self, HeldInfo};
use crate::operate::name::{self, Listing, NameInfo};
use crate::operate::presence;
use crate::primitives::expirable::ExpirableSemaphore;
use crate::primitives::fair::{Fair, FairLock};
use crate::primitives::fenced::{Fenced, FencedLock};
use crate::primitives::group::GroupLock;
use crate::primitives::latch::CountDownLatch;
use crate::primitives::lock::{Lock, Plain};
use crate::primitives::rw::RwLock;
use crate::primitives::semaphore::Semaphore;
use crate::text::clean_label;
#[cfg(feature = "tls")]
use crate::tls::{Identity, IdentitySource, TlsSettings};

/// A connection to a server, or to an embedded keyspace. It is cheap to clone, and clones share the
/// connection, the watchdog (the task that renews leases) and the client id.
///
/// The client's tasks run on the tokio runtime in which the client was made. If that runtime is
/// blocked, leases are not renewed, and guards report the loss at their
/// [`valid_until`](crate::LockGuard::valid_until). When the runtime has ended, every call that
/// needs it fails at once with [`ErrorKind::Misuse`].
///
/// # When the program ends
///
/// Call [`close`](Self::close)`().await` before the program ends. It waits until the holds of all
/// dropped guards have been released. Without this call, for example if `main` returns early with
/// `?`, guards, waiting acquires and background tasks still send their releases while the runtime
/// is dropped, but only once, and with these limits:
///
/// - If a server can't be reached at that time, or no longer has the library's scripts, the request
///   is not sent again.
/// - Dropping the runtime waits at most 250 ms for the reply of each server. If the client or a
///   guard is dropped after the runtime, there is no wait for a reply.
/// - A runtime that is ended by `shutdown_background` might not send the releases.
/// - A guard that is dropped after its runtime, or is never dropped (`std::process::exit`, a leak,
///   a kill), sends nothing.
///
/// A hold that was not released ends with its lease. Permits of a [`Semaphore`] have no lease, so
/// they are not free until a client [adds them again](Semaphore::add_permits). The hold of a leaked
/// guard is renewed until [`close`](Self::close) or the end of the runtime.
///
/// # After a fork
///
/// A client, with its holds and its connections, belongs to the process that made it. In a forked
/// child of that process, every call of the client, its locks and its guards that could reach a
/// server fails with [`ErrorKind::Misuse`], and nothing is sent. A drop in the child releases
/// nothing: the holds of the parent remain, and only the parent renews them. So connect after the
/// fork, in a runtime that the child has made itself.
///
/// The child does not renew the holds of its guards. A guard's
/// [`is_held`](crate::LockGuard::is_held) reports the state at the fork, until
/// [`valid_until`](crate::LockGuard::valid_until). If the parent ends and the child continues, as a
/// daemon does, the lock is free one lease later.
///
/// A tokio runtime with several threads can be neither used nor dropped in the child, because its
/// threads belong to the parent. Dropping a blocking client in the child is fine, because it leaves
/// its runtime alone there.
///
/// A process is identified by its process id. A child that has the same process id as its parent is
/// not recognised as a child, and releases the holds of the parent. This can happen if PID 1 forks
/// a child into a new PID namespace.
#[derive(Clone)]
pub struct Client {
    pub(crate) context: Arc<Context>,
}

impl Client {
    /// Connects to the server at `url`, with default settings.
    ///
    /// | URL | meaning |
    /// |---|---|
    /// | `redis://USER:PASSWORD@HOST:PORT/DB` | TCP; port 6379 and database 0 by default |
    /// | `rediss://…` | like `redis://`, over TLS (feature `tls`) |
    /// | `redis+unix:///PATH?db=N&user=U&pass=P` | a Unix socket (not on Windows) |
    /// | `redis-cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | a cluster, found through some of its nodes |
    /// | `rediss-cluster://…` | like `redis-cluster://`, over TLS |
    /// | `redis-sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB` | the master of that name, found through its sentinels; port 26379 by default |
    /// | `rediss-sentinel://…` | like `redis-sentinel://`, over TLS |
    /// | `memory://` | a new [`Embedded`] keyspace |
    ///
    /// `?protocol=resp3` selects RESP3. `valkey` may replace `redis` in every scheme. `?db=N` sets
    /// the database in every URL that can have one. The client refuses other parameters, a
    /// `#fragment`, and a host in the URL of a socket.
    ///
    /// In a user or a password, percent-encode `/`, `?`, `#`, `@`, `:` and `%` (`%2F`, `%3F`,
    /// `%23`, `%40`, `%3A`, `%25`), and in a parameter also `&` (`%26`). If the URL has a user but
    /// no password, the client logs in with an empty password. The server accepts this for a user
    /// with `nopass`.
    ///
    /// In a cluster, at least one of the nodes in the URL must answer. It reports the addresses of
    /// the other nodes. The client uses the same user, password and certificate authorities for all
    /// nodes. A lock's name is refused if Redisson and the servers would not put all its keys on
    /// one node. Only names with braces can have this problem.
    ///
    /// With sentinels, a majority of the sentinels in the URL must answer, so name all of them. The
    /// user and the password in the URL are for the master. `?sentinel_user=U&sentinel_pass=P` are
    /// for the sentinels, where the user needs `+sentinel|master +sentinel|get-master-addr-by-name
    /// +subscribe +ping &+switch-master`. When the sentinels announce another server as the master,
    /// the client closes its connection to the old one at once. From then on it renews holds on the
    /// new master.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a bad URL, `Unavailable` if no server answers there, `Denied` for
    /// a wrong password. No message shows credentials.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the attempt.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Returns a client with its own embedded keyspace, for examples and tests.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime.
    #[must_use]
    pub fn embedded() -> Self {
        Embedded::new().client()
    }

    /// Returns the settings of a client that is not connected yet.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Returns the lock called `name`. Nothing is sent. A bad name is reported when the lock is
    /// used.
    #[doc(alias = "getLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::named(Arc::clone(&self.context), name.as_ref(), Plain)
    }

    /// Returns a lock that holds all of these `values` of a group at once. Nothing is sent. A bad
    /// name is reported when the lock is used.
    #[doc(alias = "getMultiLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn group_lock<V: Into<String>>(
        &self,
        group: impl AsRef<str>,
        values: impl IntoIterator<Item = V>,
    ) -> GroupLock {
        GroupLock::of_group(Arc::clone(&self.context), group.as_ref(), values)
    }

    /// Returns the lock called `name`, which gives each hold a fencing token.
    #[doc(alias = "getFencedLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        Lock::named(Arc::clone(&self.context), name.as_ref(), Fenced)
    }

    /// Returns the fair lock called `name`. Its waiters acquire it in the order of their requests.
    #[doc(alias = "getFairLock")]
    #[doc(alias = "getNonReentrantFairLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        Lock::named(Arc::clone(&self.context), name.as_ref(), Fair::new())
    }

    /// Returns the read-write lock called `name`.
    #[doc(alias = "getReadWriteLock")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::named(&self.context, name.as_ref())
    }

    /// Returns the semaphore called `name`. Nothing is sent. A bad name is reported when the
    /// semaphore is used.
    #[doc(alias = "getSemaphore")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(Arc::clone(&self.context), name.as_ref())
    }

    /// Returns the semaphore called `name` whose permits have leases. Nothing is sent. A bad name
    /// is reported when the semaphore is used.
    #[doc(alias = "getPermitExpirableSemaphore")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::new(Arc::clone(&self.context), name.as_ref())
    }

    /// Returns the latch called `name`. Nothing is sent. A bad name is reported when the latch is
    /// used.
    #[doc(alias = "getCountDownLatch")]
    #[must_use = "a handle does nothing until it is used"]
    pub fn count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch::new(Arc::clone(&self.context), name.as_ref())
    }

    /// Asks the server which kind of lock or synchronizer `name` is, and which clients hold it.
    /// This is for operators: the answer may be out of date when it arrives. A kind is recognised
    /// by its keys, so kinds with the same keys are reported as one: see
    /// [`Found`](crate::inspect::Found).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if no server answered, `Denied` if the server refuses the
    /// request, `Misuse` for a bad name. A key of any other kind is not an error, but is returned
    /// as [`Found::Unknown`](crate::inspect::Found::Unknown).
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
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<NameInfo> {
        name::inspect(&self.context, name.as_ref()).await
    }

    /// Like [`inspect`](Self::inspect), but does not read what clients announce about themselves
    /// (see [`ClientBuilder::presence`](crate::ClientBuilder::presence)). Each `client`, `held_for`
    /// and `guards` is `None`, and waiters that are known only from announcements are left out. The
    /// call costs one request, however many clients there are.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect).
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
    /// client.count_down_latch("import").try_set_count(3).await?;
    /// let found = client.peek("import").await?.found;
    /// assert_eq!(found, Found::Latch { left: 3 });
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, name: impl AsRef<str>) -> Result<NameInfo> {
        name::peek(&self.context, name.as_ref()).await
    }

    /// Lists the names on this server that match `pattern`, with the kind and state of each. This
    /// is for operators. The list has locks and synchronizers of every kind, including locks of
    /// Redisson, and no other keys. In a pattern, `*` matches any text, `?` any byte and `[a-c]`
    /// one byte of a range. `*` alone matches all names.
    ///
    /// The client reads all keys of the server with `SCAN`, a page at a time. On a large server
    /// this takes a long time, but it needs little memory and does not block other clients for
    /// long. A name that is held during the whole scan is in the list. A name that is created or
    /// removed during the scan might be in the list or not. A name may appear twice if the server
    /// moves its keys during the scan.
    ///
    /// Some keys do not show which primitive they belong to. A key that contains only a number is
    /// listed as [`Found::Count`], whatever it belongs to. A free lock has no key, so it is listed
    /// only if a waiter is in its queue. [`Listing::left_out`] counts keys that may be names but
    /// are not listed: keys that the user is not allowed to read, names of more than 1000 bytes,
    /// and names that are not UTF-8.
    ///
    /// [`Found::Count`]: crate::inspect::Found::Count
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// let guard = client.lock("orders:42").acquire().await?;
    /// let mut names = client.list("orders:*");
    /// while let Some(listed) = names.next().await {
    ///     assert_eq!(listed?.name, "orders:42");
    /// }
    /// # guard.release().await
    /// # }
    /// ```
    pub fn list(&self, pattern: impl AsRef<str>) -> Listing {
        name::list(&self.context, pattern.as_ref())
    }

    /// Asks each server that has keys about its version, memory, disk, replicas and clock, and
    /// whether a waiter for `name` could subscribe. This is for tools that check whether locks are
    /// safe on these servers, such as `leasehold doctor`. Nothing is changed. The result also lists
    /// the requests that a server refused. For an embedded keyspace the result is empty.
    ///
    /// The call takes a quarter of a second per server.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if a server did not answer, `Misuse` for a bad name.
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
    /// let client = leasehold::Client::embedded();
    /// for server in client.examine("orders:42").await? {
    ///     println!("{} has {:?}", server.address, server.info.get("redis_version"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn examine(&self, name: impl AsRef<str>) -> Result<Vec<ServerFacts>> {
        name::examine(&self.context, name.as_ref()).await
    }

    /// Ends one hold of the lock or semaphore `name` by force, whatever its kind. This is for
    /// operators. `hold` is the id of the hold, as [`inspect`](Self::inspect) shows it. For a
    /// group, all values of that hold are unlocked. For a semaphore with leases, `hold` is the id
    /// of a permit. Returns whether the hold existed.
    ///
    /// No other hold is affected, even if the lock has a new holder when the request arrives. There
    /// are two limits:
    ///
    /// * For the first second after its grant, a hold may be [handed
    ///   over](crate::Lock::local_hand_over) to the next waiter of the same client, under the same
    ///   id. So an id that was read in that second may belong to another task a moment later. After
    ///   that second it belongs to one task until the hold ends.
    /// * Readers of one client may share a hold, and then all of them lose it.
    ///   [`HoldInfo::guards`](crate::inspect::HoldInfo::guards) is the number of these readers. No
    ///   reader joins the hold after the first second.
    ///
    /// A holder that uses this library learns of the loss
    /// ([`LossReason::Forced`](crate::LossReason::Forced)) at its next renewal, and continues to
    /// work until then. A holder that uses Redisson is not notified.
    ///
    /// # Errors
    ///
    /// Same as [`inspect`](Self::inspect), and also `WrongKind` for a name that is not a lock or a
    /// semaphore with leases, and `OutcomeUnknown` if no reply arrived.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the hold may or may not have been ended.
    pub async fn force_release(&self, name: impl AsRef<str>, hold: &str) -> Result<bool> {
        name::force_release(&self.context, name.as_ref(), hold).await
    }

    /// Returns this client's id: the part before the colon in the id of each of its holds.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.context.client_id
    }

    /// Returns the server's address, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        self.context.backend.address()
    }

    /// Refuses new acquires, stops the renewal of leases, and waits until all holds of dropped
    /// guards and dropped waits have been released. Call it before the program ends, so that these
    /// locks are free for other clients.
    ///
    /// A guard that still exists, or was leaked, holds its lock until the lease ends. It can be
    /// released and extended, but is no longer renewed. At its
    /// [`valid_until`](crate::LockGuard::valid_until) it reports the loss
    /// ([`LossReason::Closed`](crate::LossReason::Closed)). The return value has the number of such
    /// holds.
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
    /// If a server refuses a release, the client sends the request again: for a lock until its
    /// lease expires, for permits without a lease for up to ten minutes. If that is too long, limit
    /// the call, for example with `tokio::time::timeout`.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, new acquires are refused and no lease is renewed. If the
    /// future is dropped, the releases continue in the background.
    #[doc(alias = "shutdown")]
    pub async fn close(&self) -> Closed {
        if self.context.is_forked() {
            return Closed { holds_left: 0 };
        }
        // Close the client first: a later acquire could leave clean-up that the wait below would
        // miss.
        self.context.close();
        self.context.say_goodbye();
        self.context.cleanup.done().await;
        // Count the holds after the wait: the wait can last for a lease, and some of these holds
        // end during it.
        Closed {
            holds_left: self.context.live_holds.count_valid(),
        }
    }

    /// Returns the holds of this client, the oldest first: locks of every kind, and permits with
    /// leases. Sends no request to the server. A lock over several names has one entry for each
    /// name. Permits of a [`Semaphore`] have no lease and are not included.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// let guard = client.lock("orders:42").acquire().await?;
    /// let [held] = &client.holds()[..] else { panic!("one is held") };
    /// assert_eq!((&*held.name, &*held.id), ("orders:42", guard.holder_id()));
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn holds(&self) -> Vec<HeldInfo> {
        holds::of(&self.context)
    }

    /// Returns how much work this client has in progress. This is for tests that check that nothing
    /// is left behind.
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

    /// Returns the state that the client shares with its primitives.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Announces the client, even to an embedded keyspace.
    #[cfg(test)]
    pub(crate) fn announced(&self, label: &str) {
        presence::start(&self.context, label.to_owned());
    }

    fn with_backend(backend: Backend, builder: &ClientBuilder) -> Self {
        // The client compares moments with its backend, for example the start of a server. So both
        // need the same clock. For an embedded keyspace that is the clock on which its leases end.
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
                Naming {
                    peers: builder.peers,
                    prefix: builder.prefix.clone(),
                    failover_guard: builder.failover_guard,
                    observer: Observer::new(builder.hooks.clone(), &builder.metric_names),
                    label: builder.clean_label(),
                },
                (builder.lease, builder.acknowledged),
                // The client keeps the runtime's handle: a guard may be dropped on a thread without
                // a runtime, and its release needs a task.
                &Handle::current(),
            ),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            // Don't show the URL, which may have a password.
            .field("address", &self.address())
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Embedded {
    /// Returns a client of this keyspace, with default settings.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::with_backend(Backend::Memory(self.memory()), &ClientBuilder::default())
    }

    /// Returns a client of this keyspace, and the simulated network between the two, which the test
    /// can disturb: see [`Network`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a setting out of its range.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime.
    #[cfg(feature = "testing")]
    pub fn client_over_network(&self, builder: &ClientBuilder) -> Result<(Client, Network)> {
        builder.check()?;
        let linked = NetworkBackend::new(&self.memory(), builder.reply_timeout);
        let network = linked.network();
        let client = Client::with_backend(Backend::Network(Arc::new(linked)), builder);
        Ok((client, network))
    }

    /// Returns the keys that exist now, for tests that check that nothing is left behind.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.memory().keys()
    }
}

/// The settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    lease: Duration,
    acknowledged: Acknowledgement,
    drift: f64,
    peers: Peers,
    prefix: String,
    declare_keys: bool,
    failover_guard: Option<Duration>,
    credentials: Option<CredentialsSource>,
    label: Option<String>,
    hooks: Hooks,
    metric_names: Vec<String>,
    presence: bool,
    addresses: AddressMap,
    connect_timeout: Duration,
    reply_timeout: Duration,
    credentials_every: Duration,
    #[cfg(feature = "tls")]
    tls: TlsSettings,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            lease: config::DEFAULT_LEASE,
            acknowledged: Acknowledgement::master(),
            drift: 0.01,
            peers: Peers::All,
            prefix: String::new(),
            declare_keys: false,
            failover_guard: None,
            credentials: None,
            label: None,
            hooks: Hooks::default(),
            metric_names: Vec::new(),
            presence: true,
            addresses: AddressMap::default(),
            connect_timeout: Duration::from_secs(3),
            reply_timeout: Duration::from_secs(2),
            credentials_every: Duration::from_secs(10),
            #[cfg(feature = "tls")]
            tls: TlsSettings::default(),
        }
    }
}

impl ClientBuilder {
    /// Sets the lease of renewed holds. It is the longest time for which a lock outlives a killed
    /// process. 30 s by default, at least 100 ms, at most 2^53 ms. Redisson calls it
    /// `lockWatchdogTimeout`.
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use = "the setting is only in the returned value"]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets which servers must confirm the holds of this client's locks: the master alone, or also
    /// replicas. A lock can have [its own setting](crate::Lock::acknowledged_by).
    /// [`Acknowledgement::master`] by default. The setting does not apply to semaphores and
    /// latches.
    #[must_use = "the setting is only in the returned value"]
    pub fn acknowledged_by(mut self, acknowledgement: Acknowledgement) -> Self {
        self.acknowledged = acknowledgement;
        self
    }

    /// Sets by how much the clocks of this machine and of the server may drift apart within one
    /// lease, as a fraction of the lease. 0.01 by default, 0 to 0.25. A hold's
    /// [`valid_until`](crate::LockGuard::valid_until) is earlier by this fraction of the lease.
    #[must_use = "the setting is only in the returned value"]
    pub fn drift_fraction(mut self, fraction: f64) -> Self {
        self.drift = fraction;
        self
    }

    /// Sets which other clients use the same names as this client. [`Peers::All`] by default. If
    /// Redisson does not use these names, keys that are kept forever only for Redisson get an
    /// expiry.
    ///
    /// In a cluster, this also sets how clients publish the messages that wake waiters. Redisson 3
    /// publishes to all nodes (`PUBLISH`). Redisson 4 publishes to the nodes of the slot
    /// (`SPUBLISH`), which costs the other nodes nothing. With `All`, a client uses `PUBLISH` and
    /// `SPUBLISH`. With `Redisson3` it uses only `PUBLISH`, and with `Redisson4` and `RustOnly`
    /// only `SPUBLISH`. Use the same setting for all clients of a name: a waiter that misses a
    /// message learns of a release only at its next poll.
    #[must_use = "the setting is only in the returned value"]
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Sets a prefix for all names of this client. By default there is none. On the server, the
    /// name `orders` is `PREFIXorders`, and all its keys and channels are derived from that. A
    /// `NameMapper` of Redisson that adds the same prefix uses the same keys (from Redisson 3.52.0
    /// on for every kind). Guards, handles, [`Client::list`] and [`Client::holds`] show names
    /// without the prefix. Error messages and logs show names with the prefix.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::{Client, Embedded};
    ///
    /// let server = Embedded::new();
    /// let client = Client::builder().prefix("billing:").embedded(&server)?;
    /// let guard = client.lock("orders").acquire().await?;
    /// assert_eq!((guard.name(), &server.keys()[0][..]), ("orders", "billing:orders"));
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use = "the setting is only in the returned value"]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets whether each operation in a cluster is sent in a request of its own that declares its
    /// keys to the server. `false` by default. A single server always gets all keys declared.
    ///
    /// By default, the client combines operations for the same node into one request, even if their
    /// names are in different slots, and does not declare their keys. Each operation itself checks
    /// that its keys are on the node. If a node refuses this, the client notices and declares the
    /// keys. But a proxy may send a request without declared keys to any node. So set this to
    /// `true` behind a proxy that chooses the node by the declared keys. Each operation then costs
    /// several times as much.
    #[must_use = "the setting is only in the returned value"]
    pub fn declare_keys(mut self, declare: bool) -> Self {
        self.declare_keys = declare;
        self
    }

    /// Sets a failover guard: no client is granted anything for `span` after a failover or a
    /// restart of the server. No guard by default. `span` must be at least as long as every lease
    /// of the client, and at most a year.
    ///
    /// A promoted replica might not have received the last grants of its master, and a restarted
    /// server may have forgotten all of them. Without a guard, the next client that requests the
    /// lock gets it, although the earlier holder continues to work until its lease expires. With a
    /// guard, the first acquire finds that the server's replication id differs from the id in the
    /// guard's key, or that the key is missing. The acquire writes the id and the time to this key.
    /// From then on the server grants nothing for `span`, and after that every earlier hold has
    /// expired. During `span`, waits continue and `try_acquire` returns `None`. Existing holds are
    /// renewed, extended and released as always.
    ///
    /// The guard protects under these conditions:
    ///
    /// - Every client of these names has the same guard.
    /// - [`peers`](Self::peers) is [`Peers::RustOnly`], because Redisson does not know about
    ///   guards.
    /// - No lease is longer than `span`. An acquire, an extension or a client with a longer lease
    ///   is refused ([`ErrorKind::Misuse`]). Permits of a [`Semaphore`] have no lease: no permit is
    ///   granted during `span`, but afterwards a permit can be granted twice.
    /// - The old master is dead. If it still runs after a replica was promoted, holders that can
    ///   reach it can renew their holds there, and the guard of the new master does not know of
    ///   these holds.
    ///
    /// The cost: nothing is granted for `span` after each failover, each restart and each
    /// `FLUSHALL`, and after the first use of the guard. The same is true when a master gets its
    /// first replica, and when it has had no replica for an hour (`repl-backlog-ttl`), because
    /// these events change its replication id. During `span`, a fair lock may lose its queue, and
    /// its waiters join the queue again in any order.
    ///
    /// The guard's key is `leasehold:guard`, whatever the client's [`prefix`](Self::prefix). A user
    /// of the server needs `~leasehold:guard +info +get +set +time`. A cluster refuses a guard,
    /// because slots move between its servers ([`ErrorKind::Unsupported`]). For an embedded
    /// keyspace, which has no failover, the builder only checks these settings.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::settings::Peers;
    /// use leasehold::{Client, Embedded};
    /// use std::time::Duration;
    ///
    /// let builder = Client::builder()
    ///     .peers(Peers::RustOnly)
    ///     .lease(Duration::from_secs(10))
    ///     .failover_guard(Duration::from_secs(10));
    /// let client = builder.embedded(&Embedded::new())?;
    /// # client.lock("orders").acquire().await?.release().await
    /// # }
    /// ```
    #[must_use = "the setting is only in the returned value"]
    pub fn failover_guard(mut self, span: Duration) -> Self {
        self.failover_guard = Some(span);
        self
    }

    /// Sets a function that returns the user and the password. The client calls it each time that
    /// it connects, instead of using the user and password in the URL. Use it for passwords that
    /// change while the client lives.
    ///
    /// A client has two connections to each server, and opens the second one when it first waits.
    /// For holds that [replicas must confirm](Self::acknowledged_by), it opens a third one. While
    /// it is connected, the client also calls `credentials` every 10 s
    /// ([`credentials_every`](Self::credentials_every)). If the result has changed, it logs in
    /// again (`AUTH`) on its open connections for requests. If the server then closes all
    /// connections that logged in with the old credentials, this has no effect on holds. This
    /// requires that both the old and the new credentials are valid until the client has logged in
    /// again.
    ///
    /// When a connection is lost, the client connects again with the result of another call of
    /// `credentials`. It retries about once a second for as long as it lives, also when the server
    /// refuses the returned credentials, and when `credentials` fails or does not return within the
    /// [`connect_timeout`](Self::connect_timeout). So a hold survives a change of the password if
    /// `credentials` returns the new password before the hold's lease expires.
    ///
    /// The values that `credentials` returns are never shown. If it returns an error, the message
    /// of that error is shown, as part of an error with [`ErrorKind::Unavailable`].
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
    #[must_use = "the setting is only in the returned value"]
    pub fn credentials<F, C>(mut self, credentials: F) -> Self
    where
        F: Fn() -> C + Send + Sync + 'static,
        C: Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        self.credentials = Some(CredentialsSource::new(credentials));
        self
    }

    /// Sets a function that translates the addresses that servers announce into addresses that this
    /// client can reach. Use it for servers behind NAT, port forwarding or a container's network,
    /// whose own addresses are not reachable from here. If `map` returns `None`, the address is
    /// used as announced. Redisson calls it `natMapper`.
    ///
    /// The client maps the nodes that a cluster announces, and the master that sentinels announce.
    /// It uses the addresses in the URL as they are. If a node announces no host, the client passes
    /// to `map` the host of the node that reported it, and the announced port. The server's
    /// certificate must be valid for the host that `map` returns, unless
    /// [`tls_server_name`](Self::tls_server_name) sets another name.
    ///
    /// The client calls `map` whenever servers announce addresses, in the task that maintains the
    /// connection. `map` must be quick, and must return the same result for the same address. If it
    /// panics, the client logs this once and uses the announced address.
    ///
    /// ```
    /// let builder = leasehold::Client::builder().map_address(|host, port| match (host, port) {
    ///     ("10.0.3.7", 6379) => Some(("redis.example.org".into(), 7001)),
    ///     ("10.0.3.8", 6379) => Some(("redis.example.org".into(), 7002)),
    ///     _ => None,
    /// });
    /// # drop(builder);
    /// ```
    #[doc(alias = "natMapper")]
    #[must_use = "the setting is only in the returned value"]
    pub fn map_address<F>(mut self, map: F) -> Self
    where
        F: Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    {
        self.addresses = AddressMap::new(map);
        self
    }

    /// Sets how often the client calls [`credentials`](Self::credentials) while it is connected. 10
    /// s by default, at least 1 ms.
    #[must_use = "the setting is only in the returned value"]
    pub fn credentials_every(mut self, period: Duration) -> Self {
        self.credentials_every = period;
        self
    }

    /// Sets the label that operators see for this client, for example the name of the job or
    /// service. By default it is `$LEASEHOLD_LABEL`, or else the program's name. Control characters
    /// become spaces, and the label is cut after 200 bytes. The server also shows it as the name of
    /// the connection (`CLIENT LIST`). If the client ends a hold by force, the holder learns the
    /// label ([`LossReason::Forced`](crate::LossReason::Forced)).
    ///
    /// ```
    /// let builder = leasehold::Client::builder().label("nightly billing");
    /// # drop(builder);
    /// ```
    #[must_use = "the setting is only in the returned value"]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets whether the client announces itself on the server. `true` by default. The announcement
    /// is a separate key. It has the label, machine, process, version and address of the client,
    /// its holds and waits, and their durations ([`ClientInfo`](crate::inspect::ClientInfo)). Waits
    /// of less than half a second are left out.
    ///
    /// The client announces itself a second after it was made, every 20 s from then on, and
    /// whenever an announced wait ends. During the first second, it also announces itself as soon
    /// as one of its holds has lasted for 10 ms. An acquire never waits for an announcement.
    ///
    /// [`Client::close`] removes the key, and waits at most a second for the server's reply. When
    /// the last clone of the client is dropped, the key is also removed, in the background. The key
    /// of a process that was killed expires within a minute. If the user is not allowed to write
    /// `leasehold:client*`, nothing is announced, and the setting need not be changed.
    ///
    /// Clients of an embedded keyspace make no announcements.
    #[must_use = "the setting is only in the returned value"]
    pub fn presence(mut self, presence: bool) -> Self {
        self.presence = presence;
        self
    }

    /// Sets a function that is called after each successful acquire. It runs in the task that
    /// acquires, so it must be quick. The acquire of a lock over several names calls it once for
    /// each name. If the function panics, the panic is caught and changes nothing else. It is
    /// logged the first, second, fourth, eighth time and so on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::{Client, Embedded};
    ///
    /// let client = Client::builder()
    ///     .on_acquired(|acquired| println!("{} after {:?}", acquired.name, acquired.waited))
    ///     .embedded(&Embedded::new())?;
    /// # client.lock("orders").acquire().await?.release().await
    /// # }
    /// ```
    #[must_use = "the setting is only in the returned value"]
    pub fn on_acquired(mut self, hook: impl Fn(&Acquired<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_acquired(Box::new(hook));
        self
    }

    /// Sets a function that is called once for each hold that is lost, as soon as this client
    /// learns of the loss. The client learns of it from a renewal, or from the reply that a
    /// `release`, `keep_for` or `downgrade` waits for. It notices the end of a fixed lease when the
    /// guard is checked or dropped. If only the release of a dropped guard finds out that the hold
    /// was lost, the function is not called.
    ///
    /// The function must not block, because it may run in the task that renews the other holds. It
    /// may also run inside a call on the guard, on the thread of the caller: in `is_held`, `loss`,
    /// `extend`, in a call that ends the guard, and in its drop. If the function locks a mutex that
    /// this caller has already locked, the function waits forever. A panic is caught, as in
    /// [`on_acquired`](Self::on_acquired).
    #[must_use = "the setting is only in the returned value"]
    pub fn on_lost(mut self, hook: impl Fn(&Lost<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_lost(Box::new(hook));
        self
    }

    /// Sets a function that is called when the work under a hold has made no progress for half of
    /// the time [in which it must report progress](crate::Lock::progress_within). It is called
    /// again only after progress was reported.
    ///
    /// The function must not block, because it runs in the task that renews the other holds. A
    /// panic is caught, as in [`on_acquired`](Self::on_acquired).
    #[must_use = "the setting is only in the returned value"]
    pub fn on_stalling(mut self, hook: impl Fn(&Stalling<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_stalling(Box::new(hook));
        self
    }

    /// Sets a function that is called when at most `before` is left of the [maximum hold
    /// time](crate::Lock::max_hold) of a hold, once for each maximum hold time. If the maximum hold
    /// time is shorter than `before`, the function is called soon after the grant. Any duration is
    /// allowed.
    ///
    /// The function must not block, because it runs in the task that renews the other holds. A
    /// panic is caught, as in [`on_acquired`](Self::on_acquired).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    /// use leasehold::{Client, Embedded};
    ///
    /// let client = Client::builder()
    ///     .max_hold_warning(Duration::from_secs(60), |ending| {
    ///         println!("{} ends in {:?}", ending.name, ending.left);
    ///     })
    ///     .embedded(&Embedded::new())?;
    /// let lock = client.lock("orders").max_hold(Duration::from_secs(3600));
    /// # lock.acquire().await?.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn max_hold_warning(
        mut self,
        before: Duration,
        hook: impl Fn(&Ending<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.max_hold_ending(before, Box::new(hook));
        self
    }

    /// Sets a function that is called once for each acquire that still waits after `longest`. It
    /// runs in the task that acquires, so it must be quick. Any duration is allowed. A panic is
    /// caught, as in [`on_acquired`](Self::on_acquired).
    #[must_use]
    pub fn on_waiting_longer_than(
        mut self,
        longest: Duration,
        hook: impl Fn(&Waiting<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_waiting(longest, Box::new(hook));
        self
    }

    /// Sets the patterns by which metrics are grouped. By default there are none, and metrics have
    /// no label `name`. With patterns, the label `name` of a metric is the first pattern that the
    /// name of the lock matches, or `other`. So the number of patterns limits the number of series.
    /// Patterns are written as in [`Client::list`]. They have no effect without the feature
    /// `metrics`.
    #[must_use = "the setting is only in the returned value"]
    pub fn metric_names<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.metric_names = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long an attempt to connect may take, including the handshake. 3 s by default, at
    /// least 1 ms. If a server is still loading its data after this time, the client disconnects,
    /// and looks up the server's host name again for the next attempt.
    ///
    /// With sentinels, the client spends up to half of this time on asking them for the master's
    /// address. It asks them once more after it has connected to the master.
    #[must_use = "the setting is only in the returned value"]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long the client waits for the reply to a request. After this time, the outcome of
    /// the request is unknown ([`ErrorKind::OutcomeUnknown`]). 2 s by default, at least 1 ms.
    #[must_use = "the setting is only in the returned value"]
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// Adds certificate authorities, as PEM, to the authorities of the system for `rediss://`. If
    /// `pem` contains no certificate, the builder fails ([`ErrorKind::Misuse`]).
    ///
    /// A server may also present one of these certificates itself, byte for byte, if that
    /// certificate is self-signed or its authority is not known. The certificate must not have
    /// expired. If the certificate names any host (as `subjectAltName`), it must be valid for the
    /// name of the server. It may be a CA certificate. A certificate of X.509 version 1 is refused.
    #[cfg(feature = "tls")]
    #[must_use = "the setting is only in the returned value"]
    pub fn tls_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.authorities.push(pem.into());
        self
    }

    /// Sets a function that returns the client's certificate and its key, for servers that require
    /// one. The client calls it each time that it connects, so the certificate can be renewed while
    /// the client lives. The builder makes the first call itself. All later calls run on one of the
    /// runtime's threads for blocking work, one at a time, so the function may block in them.
    ///
    /// If the first call fails or panics, or returns no valid certificate, the builder fails. If
    /// this happens in a later call, the attempt to connect fails, and the client tries again.
    ///
    /// ```no_run
    /// use leasehold::Client;
    /// use leasehold::settings::Identity;
    ///
    /// # async fn example() -> leasehold::Result<()> {
    /// let client = Client::builder()
    ///     .tls_identity(|| {
    ///         let certificate = std::fs::read("/run/secrets/redis.crt")?;
    ///         Ok(Identity::from_pem(certificate, std::fs::read("/run/secrets/redis.key")?))
    ///     })
    ///     .connect("rediss://redis.internal")
    ///     .await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    #[must_use = "the setting is only in the returned value"]
    pub fn tls_identity<F>(mut self, identity: F) -> Self
    where
        F: Fn() -> Result<Identity, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    {
        self.tls.identity = Some(IdentitySource::new(identity));
        self
    }

    /// Sets the name for which the server's certificate must be valid, and which is sent to the
    /// server (SNI). By default it is the host in the URL.
    #[cfg(feature = "tls")]
    #[must_use = "the setting is only in the returned value"]
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.server_name = Some(name.into());
        self
    }

    /// Connects to the server at `url`; see [`Client::connect`].
    ///
    /// # Errors
    ///
    /// Same as [`Client::connect`], and also `Misuse` for a setting out of its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the attempt.
    pub async fn connect(&self, url: &str) -> Result<Client> {
        self.check()?;
        if url.trim() == "memory://" {
            return self.embedded(&Embedded::new());
        }
        self.connect_to_server(url).await
    }

    /// Returns a client of the server at `url` that connects in the background, and keeps trying
    /// for as long as it lives. Use it for a server that may be down now, such as one of several
    /// under a [`RedLock`](crate::RedLock). [`connect`](Self::connect) makes only one attempt, and
    /// fails with it. With this method, a wait for a lock continues for the lock's [outage
    /// timeout](crate::Lock::outage_timeout) while the server does not answer.
    ///
    /// Until the first attempt has ended, requests wait for it. After that, requests fail at once
    /// while there is no connection. For a wrong address or password, they fail with the same
    /// errors as [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] for a bad URL or a setting out of its range.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime.
    pub fn connect_in_background(&self, url: &str) -> Result<Client> {
        self.check()?;
        // Check for `memory://` before parsing the URL, so that it also works in a build without
        // servers.
        if url.trim() == "memory://" {
            return self.embedded(&Embedded::new());
        }
        self.start_in_background(url)
    }

    /// Returns a client of a keyspace in this process.
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
    /// Panics if it is called outside a tokio runtime.
    pub fn embedded(&self, keyspace: &Embedded) -> Result<Client> {
        self.check()?;
        Ok(Client::with_backend(
            Backend::Memory(keyspace.memory()),
            self,
        ))
    }

    #[cfg(feature = "redis")]
    async fn connect_to_server(&self, url: &str) -> Result<Client> {
        let (endpoint, steps) = (self.endpoint(url), Self::steps());
        let redis = Redis::connect(endpoint, &steps, crate::clock::Clock::Boot).await?;
        Ok(self.client_of_server(redis))
    }

    #[cfg(feature = "redis")]
    fn start_in_background(&self, url: &str) -> Result<Client> {
        let (endpoint, steps) = (self.endpoint(url), Self::steps());
        let redis = Redis::start(endpoint, &steps, crate::clock::Clock::Boot)?;
        Ok(self.client_of_server(redis))
    }

    #[cfg(feature = "redis")]
    fn client_of_server(&self, redis: Redis) -> Client {
        let client = Client::with_backend(Backend::Redis(Arc::new(redis)), self);
        if self.presence {
            presence::start(&client.context, client.context.label.clone());
        }
        client
    }

    fn clean_label(&self) -> String {
        let label = self.label.clone().unwrap_or_else(presence::default_label);
        clean_label(&label)
    }

    #[cfg(feature = "redis")]
    fn endpoint(&self, url: &str) -> Endpoint {
        Endpoint {
            url: url.to_owned(),
            label: self.clean_label(),
            credentials: self.credentials.clone(),
            addresses: self.addresses.clone(),
            connect_timeout: self.connect_timeout,
            reply_timeout: self.reply_timeout,
            credentials_every: self.credentials_every,
            peers: self.peers,
            declare_keys: self.declare_keys,
            failover_guard: self.failover_guard,
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
        }
    }

    #[cfg(not(feature = "redis"))]
    async fn connect_to_server(&self, url: &str) -> Result<Client> {
        self.start_in_background(url)
    }

    #[cfg(not(feature = "redis"))]
    fn start_in_background(&self, _url: &str) -> Result<Client> {
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
        // A range, and not two comparisons, so that NaN is refused, too: no range contains it. NaN
        // would make `mul_f64` panic at every deadline.
        if !(0.0..=0.25).contains(&self.drift) {
            return Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "a client's drift of {} is not between 0 and 0.25; 0.01 is a good value",
                    self.drift
                ),
            ));
        }
        match self.failover_guard {
            Some(span) => config::check_failover_guard(span, self.lease, self.peers),
            None => Ok(()),
        }
    }
}

/// The result of [`Client::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Number of holds that are still valid, because their guards still exist or were leaked. They
    /// end with their leases. Permits of a [`Semaphore`] have no lease and are not counted.
    pub holds_left: usize,
}

/// The work that a client has in progress: see [`Client::activity`]. All numbers are zero if the
/// client has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Number of holds that the client renews, or ends after their maximum hold time.
    pub renewed_holds: usize,
    /// Number of names that tasks of this client wait for.
    pub lines: usize,
    /// Number of names that an [`Owner`](crate::Owner) holds or is acquiring.
    pub owners: usize,
    /// Number of channels to which the client is subscribed, or was until a moment ago.
    pub channels: usize,
    /// Number of releases in progress in the background.
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
        // A hold can end in several ways without a call of `release`. Each of them must remove the
        // hold from the table, or a client that lives for months grows with each hold.
        for _ in 0..100 {
            drop(client.lock("x").acquire().await.expect("free"));
            let lock = client.rw_lock("y").owned_by(&owner);
            let guard = lock.write().await.expect("free");
            let guards = (guard.downgrade().await, lock.read().await);
            drop(guards);
            client.lock("z").acquire().await.expect("free").forget();
            client.lock("z").force_unlock().await.expect("answered");
        }
        assert_eq!(client.context.live_holds.len(), 0);
    }
}
