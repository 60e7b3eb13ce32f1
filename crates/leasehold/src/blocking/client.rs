//! [`Client`], which connects and creates primitives.

use super::expirable::ExpirableSemaphore;
use super::fair::FairLock;
use super::fenced::FencedLock;
use super::forward::{calls, reads};
use super::latch::CountDownLatch;
use super::listing::Listing;
use super::lock::{Explicit, Lock, LockGuard, PerThread};
use super::members::GroupLock;
use super::runtime::Runtime;
use super::rw::RwLock;
use super::semaphore::Semaphore;
use crate::backend::facts::ServerFacts;
use crate::backend::memory::Embedded;
use crate::client::{Activity, ClientBuilder, Closed};
use crate::error::Result;
use crate::operate::holds::HeldInfo;
use crate::operate::name::NameInfo;
use crate::recipes::ticket::Ticket;

/// A client for threads; see [`leasehold::Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Client {
    inner: crate::Client,
    runtime: Runtime,
}

impl Client {
    /// Connects to the server at `url`; see [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn connect(url: &str) -> Result<Self> {
        Self::connect_with(&ClientBuilder::default(), url)
    }

    /// Connects with settings; see [`ClientBuilder::connect`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn connect_with(builder: &ClientBuilder, url: &str) -> Result<Self> {
        let runtime = Runtime::start()?;
        let inner = runtime.wait_on("ClientBuilder::connect", builder.connect(url))?;
        Ok(Self { inner, runtime })
    }

    /// Returns a client that connects in the background; see
    /// [`ClientBuilder::connect_in_background`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn connect_in_background_with(builder: &ClientBuilder, url: &str) -> Result<Self> {
        let runtime = Runtime::start()?;
        // A client belongs to the runtime in which it is made, so enter the client's runtime.
        let entered = runtime.handle().enter();
        let inner = builder.connect_in_background(url)?;
        // Drop this explicitly: `entered` borrows the runtime, which moves into the client below.
        drop(entered);
        Ok(Self { inner, runtime })
    }

    /// Returns a client with its own embedded keyspace; see
    /// [`Client::embedded`](crate::Client::embedded).
    ///
    /// # Panics
    ///
    /// Panics if the client's thread can't be started.
    #[must_use]
    pub fn embedded() -> Self {
        Self::of(&Embedded::new())
    }

    /// Returns a client of this embedded keyspace; see [`Embedded::client`].
    ///
    /// # Panics
    ///
    /// Panics if the client's thread can't be started.
    #[must_use]
    pub fn of(embedded: &Embedded) -> Self {
        Self::embedded_with(&ClientBuilder::default(), embedded)
            .expect("a thread for the client can be started")
    }

    /// Returns a client of this embedded keyspace, with settings; see [`ClientBuilder::embedded`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method, and `Unavailable` if the client's thread can't
    /// be started.
    pub fn embedded_with(builder: &ClientBuilder, embedded: &Embedded) -> Result<Self> {
        let runtime = Runtime::start()?;
        let entered = runtime.handle().enter();
        let inner = builder.embedded(embedded)?;
        drop(entered);
        Ok(Self { inner, runtime })
    }

    /// Returns the lock called `name`; see [`Client::lock`](crate::Client::lock).
    #[must_use = "a handle does nothing until it is used"]
    pub fn lock(&self, name: impl AsRef<str>) -> Lock<PerThread> {
        Lock::per_thread(self.inner.lock(name), self.runtime.clone())
    }

    /// Returns a lock on all of these `values` of a group; see
    /// [`Client::group_lock`](crate::Client::group_lock).
    #[must_use = "a handle does nothing until it is used"]
    pub fn group_lock<V: Into<String>>(
        &self,
        group: impl AsRef<str>,
        values: impl IntoIterator<Item = V>,
    ) -> GroupLock {
        Lock::per_thread(self.inner.group_lock(group, values), self.runtime.clone())
    }

    /// Returns the lock called `name`, with a fencing token for each hold; see
    /// [`Client::fenced_lock`](crate::Client::fenced_lock).
    #[must_use = "a handle does nothing until it is used"]
    pub fn fenced_lock(&self, name: impl AsRef<str>) -> FencedLock {
        Lock::per_thread(self.inner.fenced_lock(name), self.runtime.clone())
    }

    /// Returns the fair lock called `name`; see [`Client::fair_lock`](crate::Client::fair_lock).
    #[must_use = "a handle does nothing until it is used"]
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        Lock::per_thread(self.inner.fair_lock(name), self.runtime.clone())
    }

    /// Returns the read-write lock called `name`; see [`Client::rw_lock`](crate::Client::rw_lock).
    #[must_use = "a handle does nothing until it is used"]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::per_thread(self.inner.rw_lock(name), self.runtime.clone())
    }

    /// Returns the semaphore called `name`; see [`Client::semaphore`](crate::Client::semaphore).
    #[must_use = "a handle does nothing until it is used"]
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore::new(self.inner.semaphore(name), self.runtime.clone())
    }

    /// Returns the semaphore called `name` whose permits have leases; see
    /// [`Client::expirable_semaphore`](crate::Client::expirable_semaphore).
    #[must_use = "a handle does nothing until it is used"]
    pub fn expirable_semaphore(&self, name: impl AsRef<str>) -> ExpirableSemaphore {
        ExpirableSemaphore::new(self.inner.expirable_semaphore(name), self.runtime.clone())
    }

    /// Returns the latch called `name`; see
    /// [`Client::count_down_latch`](crate::Client::count_down_latch).
    #[must_use = "a handle does nothing until it is used"]
    pub fn count_down_latch(&self, name: impl AsRef<str>) -> CountDownLatch {
        CountDownLatch::new(self.inner.count_down_latch(name), self.runtime.clone())
    }

    /// Returns an iterator over the names on this server that match `pattern`; see
    /// [`Client::list`](crate::Client::list).
    pub fn list(&self, pattern: impl AsRef<str>) -> Listing {
        Listing::new(self.inner.list(pattern), self.runtime.clone())
    }

    calls! { Client:
        "Returns the kind of lock or synchronizer that `name` is" inspect(name: impl AsRef<str>) -> NameInfo;
        "Returns what `name` is, without its clients, with one request" peek(name: impl AsRef<str>) -> NameInfo;
        "Asks the servers of `name` about themselves" examine(name: impl AsRef<str>) -> Vec<ServerFacts>;
        "Ends one hold by force" force_release(name: impl AsRef<str>, hold: &str) -> bool;
        "Takes over a ticket's hold" resume(ticket: &Ticket) -> LockGuard<Explicit> => wrap;
        "Ends a ticket's hold without resuming it" release_ticket(ticket: &Ticket) -> ();
    }
    reads! { Client:
        "Counts the work that this client has in progress" activity() -> Activity;
        "Returns the holds of this client" holds() -> Vec<HeldInfo>;
        "Returns this client's id" id() -> &str;
        "Returns the server's address, without credentials" address() -> &str;
    }

    fn twin(&self) -> &crate::Client {
        &self.inner
    }

    /// A resumed hold does not belong to a thread: the guard can move to any thread.
    fn wrap(&self, guard: Result<crate::LockGuard>) -> Result<LockGuard<Explicit>> {
        guard.map(|guard| LockGuard::of(guard, self.runtime.clone()))
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the async client, which uses the same connection and the same watchdog. These exist
    /// for as long as this client, one of its locks or one of its guards exists. A clone of the
    /// async client does not keep them alive.
    #[must_use]
    pub fn as_async(&self) -> &crate::Client {
        &self.inner
    }

    /// Refuses new acquires, stops the renewal of leases, and waits for releases in progress; see
    /// [`Client::close`](crate::Client::close).
    pub fn close(&self) -> Closed {
        self.runtime.block_on("Client::close", self.inner.close())
    }
}
