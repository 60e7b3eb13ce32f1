//! [`Client`]: connects and hands out primitives.

use super::lock::{Lock, PerThread};
use super::runtime::Runtime;
use crate::backend::memory::Embedded;
use crate::client::{Activity, ClientBuilder};
use crate::error::Result;
use crate::owner::Owner;

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
    /// As its async twin.
    pub fn connect(url: &str) -> Result<Self> {
        Self::connect_with(&ClientBuilder::default(), url)
    }

    /// Connects with settings; see [`ClientBuilder::connect`].
    ///
    /// # Errors
    ///
    /// As its async twin.
    pub fn connect_with(builder: &ClientBuilder, url: &str) -> Result<Self> {
        let runtime = Runtime::start()?;
        let inner = runtime.block_on("ClientBuilder::connect", builder.connect(url))?;
        Ok(Self { inner, runtime })
    }

    /// A client of an embedded keyspace of its own; see
    /// [`Client::embedded`](crate::Client::embedded).
    ///
    /// # Panics
    ///
    /// When the client's thread can't be started.
    #[must_use]
    pub fn embedded() -> Self {
        Self::of(&Embedded::new())
    }

    /// A client of this embedded keyspace; see [`Embedded::client`].
    ///
    /// # Panics
    ///
    /// When the client's thread can't be started.
    #[must_use]
    pub fn of(embedded: &Embedded) -> Self {
        let runtime = Runtime::start().expect("a thread for the client can be started");
        let entered = runtime.handle().enter();
        let inner = embedded.client();
        drop(entered);
        Self { inner, runtime }
    }

    /// The lock called `name`; see [`Client::lock`](crate::Client::lock).
    #[must_use]
    pub fn lock(&self, name: &str) -> Lock<PerThread> {
        Lock::per_thread(self.inner.lock(name), self.runtime.clone())
    }

    /// A new owner, for re-entrance that is not tied to a thread.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new()
    }

    /// The async client, which shares the connection and the watchdog.
    #[must_use]
    pub fn as_async(&self) -> &crate::Client {
        &self.inner
    }

    /// What this client has under way; see [`Client::activity`](crate::Client::activity).
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.inner.activity()
    }

    /// Refuses new acquires and waits for what is under way; see
    /// [`Client::close`](crate::Client::close).
    pub fn close(&self) {
        self.runtime.block_on("Client::close", self.inner.close());
    }
}
