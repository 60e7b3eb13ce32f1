//! The client: connects, then hands out primitives by name.

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
use crate::backend::network::{Linked, Network};
#[cfg(feature = "redis")]
use crate::backend::redis::{Endpoint, Redis};
use crate::config::{self, Peers};
use crate::context::{Context, Naming};
use crate::credentials::{Credentials, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::SafetyMargin;
use crate::observe::{Acquired, Hooks, Lost, Observer, Waiting};
use crate::primitives::expirable::ExpirableSemaphore;
use crate::primitives::fair::{Fair, FairLock};
use crate::primitives::fenced::{Fenced, FencedLock};
use crate::primitives::holds::{self, HeldInfo};
use crate::primitives::latch::CountDownLatch;
use crate::primitives::lock::{GroupLock, Lock, Plain};
use crate::primitives::name::{self, Listing, NameInfo};
#[cfg(any(feature = "redis", test))]
use crate::primitives::presence;
use crate::primitives::rw::RwLock;
use crate::primitives::semaphore::Semaphore;
#[cfg(feature = "tls")]
use crate::tls::{Identity, IdentitySource, TlsSettings};

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
///
/// # After a fork
///
/// A client belongs to the process that made it, with its holds and its connections. In a child that
/// was forked from that process, every call of the client, its locks and its guards that could reach
/// a server fails with [`ErrorKind::Misuse`], and nothing is sent. A drop in the child gives nothing
/// back: what the parent holds stays held, and is renewed by the parent alone. So connect after the
/// fork, in a runtime that the child has made itself.
///
/// A guard in the child is not renewed there. Its [`is_held`](crate::LockGuard::is_held) says what
/// was known at the fork, until [`valid_until`](crate::LockGuard::valid_until). If the parent ends
/// and the child goes on, as a daemon does, the lock is free one lease later.
///
/// A tokio runtime with several threads can be neither used nor dropped in the child, because its
/// threads are the parent's. The runtime of a blocking client is left alone there, and dropping that
/// client is fine.
///
/// A process is known by its number. A child that has the number of its parent goes unnoticed, and gives
/// back what the parent holds: PID 1 can fork such a child into a new PID namespace.
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
    /// | `redis-cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | a cluster, by some of its nodes |
    /// | `rediss-cluster://…` | the same over TLS |
    /// | `redis-sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB` | the master of that name, by its sentinels; port 26379 by default |
    /// | `rediss-sentinel://…` | the same over TLS |
    /// | `memory://` | a new [`Embedded`] keyspace |
    ///
    /// `?protocol=resp3` speaks RESP3. `valkey` may be written for `redis`. `?db=N` names the database
    /// in every URL that can have one. Anything else in a URL is refused: another parameter, a
    /// `#fragment`, the host of a socket.
    ///
    /// In a user or a password write `/`, `?`, `#`, `@`, `:` and `%` percent-encoded (`%2F`, `%3F`, `%23`,
    /// `%40`, `%3A`, `%25`), in a parameter also `&` (`%26`). A user without a password logs in with an
    /// empty one, which a user with `nopass` accepts.
    ///
    /// Of a cluster one node has to answer; it says where the others are. All are reached with the
    /// same user, password and certificate authorities. A name is refused there if Redisson and the
    /// servers would not put all its keys on one node, which only names with braces can be.
    ///
    /// Of the sentinels that the URL names a majority has to answer, so name all of them. User and
    /// password are the master's; `?sentinel_user=U&sentinel_pass=P` are those of the sentinels, whose user
    /// needs `+sentinel|master +sentinel|get-master-addr-by-name +subscribe +ping &+switch-master`. When
    /// the sentinels name another server as the master, the connection to the old one ends at once,
    /// and each renewed hold is renewed at the new one.
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

    /// The names on this server that fit `pattern`, with what stands under each: locks and
    /// synchronizers of every kind, also those of Redisson, and no keys of other people. For
    /// operators. In a pattern `*` is any text, `?` any byte, `[a-c]` one of some; `*` alone is all
    /// names.
    ///
    /// It walks over all keys of the server a page at a time (`SCAN`), and so it takes long on a
    /// large one, but nobody else waits for long and the memory is bounded. A name that is held
    /// from the beginning to the end of the walk is in it. One that comes or goes meanwhile may be,
    /// and one may be there twice if the server moves its keys meanwhile.
    ///
    /// Some keys say too little. A number alone is listed as [`Found::Count`], whoever it belongs
    /// to. A lock that is free has no key, and is listed only if somebody waits in its line.
    /// [`Listing::left_out`] counts what is not listed although it may be a name: keys that the user
    /// may not look at, names of more than 1000 bytes, and names that are not UTF-8.
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
    pub fn list(&self, pattern: &str) -> Listing {
        name::list(&self.context, pattern)
    }

    /// Asks each server that has keys about itself: its version, memory, disk, replicas and clock, and
    /// whether a waiter for `name` could listen. For those who judge whether locks are safe there, as
    /// `leasehold doctor` does. Nothing is changed. What a server refuses to tell is among the facts.
    /// Of an embedded keyspace there are none.
    ///
    /// It takes a quarter of a second for each server.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when a server did not answer, `Misuse` for a bad name.
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
    pub async fn examine(&self, name: &str) -> Result<Vec<ServerFacts>> {
        name::examine(&self.context, name).await
    }

    /// Ends one hold by force, whatever kind of lock it is a hold of: for operators. `hold` is its
    /// id, as [`inspect`](Self::inspect) shows it; of a group, all values of that hold are freed; of
    /// a semaphore with leases, it is the id of a permit. The result says whether it was held.
    ///
    /// No other hold is touched, not even if the lock changes hands meanwhile. There are two limits:
    ///
    /// * For the first second after its grant, a hold may pass to the next waiter of the same client
    ///   under the same id ([`local_hand_over`](crate::Lock::local_hand_over), and along the waiters of
    ///   a fair lock). An id that was seen in that second may be another task's a moment later. From
    ///   then on it belongs to one task until it is gone.
    /// * Readers of one client may share a hold, and lose it together:
    ///   [`HoldInfo::guards`](crate::inspect::HoldInfo::guards) says how many they are. None joins them
    ///   after that second.
    ///
    /// A holder of this library is told [`LossReason::Forced`](crate::LossReason::Forced) at its next renewal, and
    /// believes in its lock until then; a holder of Redisson is not told.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect), `WrongKind` for a name that nobody can hold, and
    /// `OutcomeUnknown` when no answer came.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the hold ended or not.
    pub async fn force_release(&self, name: &str, hold: &str) -> Result<bool> {
        name::force_release(&self.context, name, hold).await
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
        if self.context.is_forked() {
            return Closed { holds_left: 0 };
        }
        // Closed first: an acquire that is still let in could leave clean-up behind that the next
        // line does not wait for.
        self.context.close();
        self.context.say_goodbye();
        self.context.cleanup.done().await;
        // Counted behind the wait, which can last for a lease: some of these holds have ended
        // meanwhile.
        Closed {
            holds_left: self.context.standing.good(),
        }
    }

    /// What this client holds now, the oldest hold first: locks of every kind, and permits with
    /// leases. Makes no call to the server. Locks of several names are told one by one. Permits of a
    /// [`Semaphore`] have no lease and are not among them.
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

    /// Says who it is, also to an embedded keyspace.
    #[cfg(test)]
    pub(crate) fn announced(&self, label: &str) {
        presence::start(&self.context, label.to_owned());
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
                Naming {
                    peers: builder.peers,
                    prefix: builder.prefix.clone(),
                    failover_guard: builder.failover_guard,
                    observer: Observer::new(builder.hooks.clone(), &builder.metric_names),
                },
                (builder.lease, builder.acknowledged),
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
    acknowledged: Acknowledgement,
    drift: f64,
    peers: Peers,
    prefix: String,
    declare_keys: bool,
    failover_guard: Option<Duration>,
    credentials: Option<Source>,
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
    /// Sets the lease of renewed holds: how long a lock outlives a killed process. 30 s by default,
    /// at least 100 ms, at most 2^53 ms. Redisson calls it `lockWatchdogTimeout`.
    #[doc(alias = "lockWatchdogTimeout")]
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets who has to confirm the holds of this client's locks, unless a lock has
    /// [its own setting](crate::Lock::acknowledged_by). [`Acknowledgement::master`] by default. It does
    /// not apply to semaphores and latches.
    #[must_use]
    pub fn acknowledged_by(mut self, acknowledgement: Acknowledgement) -> Self {
        self.acknowledged = acknowledgement;
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
    ///
    /// In a cluster this also sets by which messages clients wake each other: Redisson 3 publishes to
    /// all nodes (`PUBLISH`), and Redisson 4 to those of the slot (`SPUBLISH`), which costs the other
    /// nodes nothing. `All` publishes and hears both, `Redisson3` the first, `Redisson4` and
    /// `RustOnly` the second. Set the same for all clients of a name: one that is not woken finds out
    /// with its next poll.
    #[must_use]
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Sets a prefix for all names of this client, none by default. On the server `orders` is
    /// `PREFIXorders`, and all keys and channels beside it are named by that, as with a `NameMapper`
    /// of Redisson that puts the same prefix in front (from Redisson 3.52.0 on for every kind).
    /// Guards, handles, [`Client::list`] and [`Client::holds`] have the names without it; messages
    /// have those on the server.
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
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// In a cluster, sends each operation alone and declares its keys to the server. `false` by
    /// default; a single server is always told all keys.
    ///
    /// By default the operations that wait for a node travel together, whatever slots their names
    /// are in. They look for themselves whether their keys are there. A node that refuses this is
    /// found out by itself, but a proxy may send such a request to any node. Set this behind a proxy
    /// that chooses the node by the declared keys. It costs several times as much per operation.
    #[must_use]
    pub fn declare_keys(mut self, declare: bool) -> Self {
        self.declare_keys = declare;
        self
    }

    /// Lets nobody get anything for `span` after a failover or a restart of the server. None by default;
    /// at least as long as every lease of the client, at most a year.
    ///
    /// A replica that takes over may not have heard of the last grants of its master, and a server that
    /// was started again may have forgotten all of them. Without a guard the next who asks gets the
    /// lock, although its holder believes in it until its lease is over. With a guard the first acquire
    /// finds that the server's replication id is another one than before, or that the server has never
    /// noted one, and notes it with the time. From then on nobody is granted anything for `span`, and by
    /// then every earlier hold is over. Waits go on meanwhile, and `try_acquire` returns `None`. What is
    /// held is renewed, extended and released as always.
    ///
    /// For it to hold:
    ///
    /// - Every client of these names has the same guard.
    /// - [`peers`](Self::peers) is [`Peers::RustOnly`], because Redisson knows no guard.
    /// - No lease is longer than `span`. An acquire, an extension or a client with a longer one is refused
    ///   ([`ErrorKind::Misuse`]). Permits of a [`Semaphore`] have no lease: they are not granted during
    ///   the span either, but after it they can be granted twice.
    /// - The old master is dead. If it lives on beside the new one, its holders can renew for as long as
    ///   they reach it, and the guard of the new master does not know.
    ///
    /// What it costs: for `span` nothing is granted after each failover, each restart and each `FLUSHALL`,
    /// when it is used first, when a master gets its first replica, and when it has had none any more for
    /// an hour (`repl-backlog-ttl`), because the id is another one then. A fair lock may forget its line
    /// meanwhile, and whoever stood in it lines up anew.
    ///
    /// The note is the key `leasehold:guard` of the database, whatever the client's
    /// [`prefix`](Self::prefix). A user of the server needs `~leasehold:guard +info +get +set +time`. A
    /// cluster refuses a guard, because slots move between its servers ([`ErrorKind::Unsupported`]). An
    /// embedded keyspace has no failover: there the settings are checked, and nothing else is done.
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
    #[must_use]
    pub fn failover_guard(mut self, span: Duration) -> Self {
        self.failover_guard = Some(span);
        self
    }

    /// Asks `credentials` for user and password each time that the client connects, instead of
    /// taking them from the URL. For passwords that change while the client lives.
    ///
    /// A client has two connections to each server, and opens the second one when it first waits. Every 10 s
    /// ([`credentials_every`](Self::credentials_every)) the client asks `credentials` beside that,
    /// and logs in again on its open connections for calls when the answer is a new one (`AUTH`). So
    /// a server that ends the connections of an old password or user ends none that holds a lock, if
    /// both are good for as long as that takes. When a connection is lost, the client asks
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

    /// Asks `map` where a server is reached that other servers announce at a host and a port: for
    /// servers behind NAT, port forwarding or a container's network, whose own addresses lead nowhere
    /// from here. `None` leaves an address as it is. Redisson calls it `natMapper`.
    ///
    /// Mapped are the nodes that a cluster names, and the master that sentinels name. The addresses in
    /// the URL are used as they are. A node that announces no host is announced at the host of the node
    /// that was asked, with its own port. The host that `map` returns is also the one that the server's
    /// certificate has to be for, unless [`tls_server_name`](Self::tls_server_name) sets another.
    ///
    /// `map` is called whenever servers say where they are, in the task that keeps a connection. It has
    /// to be quick, and to return the same for the same address. If it panics, that is logged once, and
    /// the announced address is used.
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
    #[must_use]
    pub fn map_address<F>(mut self, map: F) -> Self
    where
        F: Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    {
        self.addresses = AddressMap::new(map);
        self
    }

    /// Sets how often [`credentials`](Self::credentials) are asked for while the client is connected.
    /// 10 s by default, at least 1 ms.
    #[must_use]
    pub fn credentials_every(mut self, period: Duration) -> Self {
        self.credentials_every = period;
        self
    }

    /// Sets what operators see of this client: the name of the job or service, for example. By default
    /// it is `$LEASEHOLD_LABEL`, or else the program's name. Control characters become spaces, and
    /// 200 bytes are kept. The server also has it as the name of the connection (`CLIENT LIST`).
    ///
    /// ```
    /// let builder = leasehold::Client::builder().label("nightly billing");
    /// # drop(builder);
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets whether the client says on the server who it is. Yes by default. It does so when its first
    /// hold has lasted for 10 ms, a second after it was made, every 20 s from then on, and when a wait has ended that it has told of, in a
    /// key of its own: label, machine, process, version, address, and what it holds and waits for
    /// since when ([`ClientInfo`](crate::inspect::ClientInfo)). No acquire waits for that. A wait of
    /// less than half a second is not told. [`Client::close`] removes the key and waits for that, for
    /// a second at most; so does dropping the last handle, in the background. Behind a process that
    /// was killed the key ends by itself within a minute. A user of the server who may not write
    /// `leasehold:client*` needs not switch it off.
    ///
    /// Clients of an embedded keyspace say nothing.
    #[must_use]
    pub fn presence(mut self, presence: bool) -> Self {
        self.presence = presence;
        self
    }

    /// Sets a function that is called after each acquire that got what it wanted. It runs in the task
    /// that acquires, so it has to be quick. Locks over several names call it for each of them. A hook
    /// that panics changes nothing else: the panic is caught, and logged the first, second, fourth,
    /// eighth time and so on.
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
    #[must_use]
    pub fn on_acquired(mut self, hook: impl Fn(&Acquired<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_acquired(Box::new(hook));
        self
    }

    /// Sets a function that is called once for each hold that is lost, as soon as this client knows
    /// of it: when a renewal finds it, or the request that ends the hold, which the guard's release,
    /// `keep_for` or downgrade waits for. That a fixed lease has run out, it knows when the guard is
    /// asked or dropped. What only the release of a dropped guard finds, it does not tell.
    ///
    /// The function must not block: it may run in the task that renews the other holds. It may also
    /// run inside a call on the guard, on the thread of the caller: `is_held`, `loss`, `extend`, the
    /// guard's end and its drop. A function that takes a mutex which that caller has locked waits for
    /// ever. A panic is caught, as that of [`on_acquired`](Self::on_acquired).
    #[must_use]
    pub fn on_lost(mut self, hook: impl Fn(&Lost<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.on_lost(Box::new(hook));
        self
    }

    /// Sets a function that is called once for each acquire that has lasted for `longest` and goes
    /// on waiting. It runs in the task that acquires, so it has to be quick. Any span is allowed. A
    /// panic is caught, as that of [`on_acquired`](Self::on_acquired).
    #[must_use]
    pub fn on_waiting_longer_than(
        mut self,
        longest: Duration,
        hook: impl Fn(&Waiting<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_waiting(longest, Box::new(hook));
        self
    }

    /// Sets patterns for names whose metrics are kept apart, none by default. The metrics of a name
    /// have the first pattern that it fits as their label `name`, or `other`; without patterns they
    /// have no such label. So the user decides how many series there are. Patterns are those of
    /// [`Client::list`]. They change nothing without the feature `metrics`.
    #[must_use]
    pub fn metric_names<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.metric_names = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long connecting may take, handshake included. 3 s by default, at least 1 ms. If a
    /// server has been loading its data for longer than that, the client leaves it and looks up its
    /// name again.
    ///
    /// Sentinels are asked for up to half of that before the master is connected to, and again behind
    /// it.
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

    /// Adds certificate authorities, as PEM, to the system's own for `rediss://`. A text without a
    /// certificate makes the builder fail ([`ErrorKind::Misuse`]).
    ///
    /// A server may also show one of these certificates itself, byte for byte: one that is self-signed,
    /// or whose authority is not known. It must not have expired, and it must be for the name of the
    /// server, if it names any host (as `subjectAltName`); it may be a certificate for authorities. One
    /// of version 1 is refused.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_authorities(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.authorities.push(pem.into());
        self
    }

    /// Asks `identity` for a certificate of the client and its key each time that the client
    /// connects, for a server that wants one. So a certificate can be renewed while the client
    /// lives. An `identity` that fails or panics, or is no certificate, makes the builder fail at first,
    /// and later an attempt to connect, which is repeated.
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
    #[must_use]
    pub fn tls_identity<F>(mut self, identity: F) -> Self
    where
        F: Fn() -> Result<Identity, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    {
        self.tls.identity = Some(IdentitySource::new(identity));
        self
    }

    /// Sets the name that the server's certificate has to be for, and that is sent to the server
    /// (SNI). By default it is the host in the URL.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.server_name = Some(name.into());
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
    /// [`RedLock`](crate::RedLock). A wait for a lock bears a server that does not answer yet for its
    /// outage timeout, while [`connect`](Self::connect) makes one attempt.
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
        Ok(self.client_of_server(redis))
    }

    #[cfg(feature = "redis")]
    fn start_to_server(&self, url: &str) -> Result<Client> {
        let (endpoint, steps) = (self.endpoint(url), crate::primitives::steps());
        let redis = Redis::start(endpoint, &steps, crate::clock::Clock::Boot)?;
        Ok(self.client_of_server(redis))
    }

    #[cfg(feature = "redis")]
    fn client_of_server(&self, redis: Redis) -> Client {
        let client = Client::over(Backend::Redis(Arc::new(redis)), self);
        if self.presence {
            presence::start(&client.context, self.clean_label());
        }
        client
    }

    #[cfg(feature = "redis")]
    fn clean_label(&self) -> String {
        let label = self.label.clone().unwrap_or_else(presence::default_label);
        presence::clean_label(&label)
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
        match self.failover_guard {
            Some(span) => config::check_failover_guard(span, self.lease, self.peers),
            None => Ok(()),
        }
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
