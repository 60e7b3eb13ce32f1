//! Watches names: reports their changes to code that does not hold them.

mod all;
mod change;
mod channels;
mod hub;

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};

pub use self::all::{NamedChange, WatchAll};
pub use self::change::{Change, Party};
use self::hub::{Hub, Membership, News, Report, Target};
use crate::backend::NameKind;
use crate::backend::failure::{Failure, Outcome};
use crate::client::Client;
use crate::config;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::operate::name::NameInfo;
use crate::sync::Mutex;

/// The default of [`Watch::poll_interval`].
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl Client {
    /// Watches a name, without holding it or waiting for it. Returns a stream of [`Change`]s, which
    /// begins with the current state. A name can be a lock or a synchronizer of any kind, including
    /// Redisson's. Nothing is sent until the watch is read.
    ///
    /// The watch asks the server once in each [poll interval](Watch::poll_interval), when a message
    /// reports a release, and when a lease ends. It reports
    ///
    /// - each state that lasted for a poll interval, if the watch is read all the time,
    /// - the last state in any case, when the watch is read.
    ///
    /// So a hold that begins and ends between two requests may be missed. Acquires publish no
    /// message, so they are seen at the next request. If the user is not allowed to use the name's
    /// channels, changes are seen only at the poll interval.
    ///
    /// All watches of a name in one client share one subscription and their requests.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::watch::Change;
    ///
    /// let client = leasehold::Client::embedded();
    /// let guard = client.lock("orders:42").acquire().await?;
    /// let mut watch = client.watch("orders:42");
    /// while let Some(change) = watch.next().await {
    ///     match change? {
    ///         Change::Held(holder) => {
    ///             println!("held by {}", holder.id);
    ///             guard.release().await?;
    ///             break;
    ///         }
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "addListener")]
    pub fn watch(&self, name: impl AsRef<str>) -> Watch {
        Watch::new(self.context(), name.as_ref())
    }

    /// Watches all names that match `pattern`, which is written as in [`list`](Self::list). Returns
    /// a stream of [`NamedChange`]s. Nothing is sent until the stream is read. See [`WatchAll`] for
    /// its limits.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// let guard = client.lock("orders:42").acquire().await?;
    /// let mut watch = client.watch_all("orders:*");
    /// let first = watch.next().await.expect("it does not end")?;
    /// assert_eq!(first.name, "orders:42");
    /// # guard.release().await
    /// # }
    /// ```
    pub fn watch_all(&self, pattern: impl AsRef<str>) -> WatchAll {
        WatchAll::new(self, pattern.as_ref())
    }
}

/// The changes of a name: see [`Client::watch`].
///
/// It is a stream of [`Change`]s. With [`next`](Self::next), you can read it without the `Stream`
/// trait. Once the watch has been read, and until it is dropped, its client asks the server about
/// the name. A dropped watch unsubscribes, unless another watch or a waiter of this client needs
/// the subscription.
///
/// For other clients, the subscription looks like the subscription of a waiter. So while a lock is
/// watched, a process that uses it all the time pauses briefly from time to time, as if another
/// process were waiting.
#[must_use = "no request is sent until the watch is read"]
pub struct Watch {
    source: Source,
    changes: Option<BoxStream<'static, Result<Change>>>,
    /// The state up to which all changes have been reported.
    reported: Arc<Mutex<Option<Arc<NameInfo>>>>,
}

/// A watched name, with the settings.
#[derive(Clone)]
struct Source {
    context: Arc<Context>,
    name: String,
    every: Duration,
    with_clients: bool,
}

impl Watch {
    fn new(context: &Arc<Context>, name: &str) -> Self {
        Self {
            source: Source {
                context: Arc::clone(context),
                name: name.to_owned(),
                every: POLL_INTERVAL,
                with_clients: false,
            },
            changes: None,
            reported: Arc::default(),
        }
    }

    /// Sets how often the client asks the server while no message arrives. 1 s by default, at least
    /// 1 ms. Watches of one name with different intervals do not share their requests. The setting
    /// has no effect once the watch has been read.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.source.every = interval;
        self
    }

    /// Also looks up the clients of holders and waiters: their label, host and process. Then
    /// [`Party::client`] is known for clients that announce themselves, [`Change::Announced`] is
    /// reported, and more waiters are known. For this, the watch reads the announcements of up to
    /// 200 clients: after a change of a holder or a waiter, in each poll interval of the next 3 s,
    /// and later every 5 s. The setting has no effect once the watch has been read.
    pub fn with_clients(mut self) -> Self {
        self.source.with_clients = true;
        self
    }

    /// Returns the next change, as soon as there is one. Returns `None` once the client has been
    /// [closed](Client::close). After an error, the watch ends. An outage is not an error, but is
    /// reported as [`Change::Away`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] if the server refuses the request. `Misuse` for a bad name, for a poll
    /// interval out of its range, if the client's runtime has ended, and in a forked process.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues at the same place.
    pub async fn next(&mut self) -> Option<Result<Change>> {
        StreamExt::next(self).await
    }

    /// Returns the last state of the name; `None` until the first reply. All changes up to this
    /// state have been returned by [`next`](Self::next), or will be returned without waiting.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::inspect::Found;
    ///
    /// let client = leasehold::Client::embedded();
    /// client.count_down_latch("import").try_set_count(3).await?;
    /// let mut watch = client.watch("import");
    /// watch.next().await.expect("it does not end")?;
    /// let state = watch.state().expect("a reply has arrived");
    /// assert_eq!(state.found, Found::Latch { left: 3 });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> Option<NameInfo> {
        self.reported.lock().as_deref().cloned()
    }
}

impl Stream for Watch {
    type Item = Result<Change>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let changes = this.changes.get_or_insert_with(|| {
            let reader = Reader::new(this.source.clone(), Arc::clone(&this.reported));
            stream::unfold(reader, Reader::read).fuse().boxed()
        });
        changes.as_mut().poll_next(task)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("name", &self.source.name)
            .field("poll_interval", &self.source.every)
            .field("with_clients", &self.source.with_clients)
            .finish_non_exhaustive()
    }
}

/// The part of a watch that compares states.
struct Reader {
    source: Source,
    membership: Option<Membership>,
    reported: Arc<Mutex<Option<Arc<NameInfo>>>>,
    /// Changes that were found but not returned yet.
    pending: VecDeque<Change>,
    is_away: bool,
    is_over: bool,
}

impl Reader {
    fn new(source: Source, reported: Arc<Mutex<Option<Arc<NameInfo>>>>) -> Self {
        Self {
            source,
            membership: None,
            reported,
            pending: VecDeque::new(),
            is_away: false,
            is_over: false,
        }
    }

    async fn read(mut self) -> Option<(Result<Change>, Self)> {
        match self.next().await {
            Ok(Some(change)) => Some((Ok(change), self)),
            Ok(None) => None,
            Err(error) => {
                self.is_over = true;
                // This ends the task, if no other watch needs it.
                self.leave();
                Some((Err(error), self))
            }
        }
    }

    async fn next(&mut self) -> Result<Option<Change>> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(Some(change));
            }
            if self.is_over {
                return Ok(None);
            }
            let report = self.report().await?;
            self.take(report)?;
        }
    }

    /// Waits for a report that this watch has not seen.
    async fn report(&mut self) -> Result<Report> {
        let Source {
            context,
            name,
            every,
            with_clients,
        } = &self.source;
        let key = context.key(name, NameKind::Other)?;
        context.check_process(&key)?;
        if *every < MIN_POLL_INTERVAL || *every > config::MAX_SPAN {
            let message = format!(
                "a poll interval of {every:?} for `{key}` is not between 1 ms and 2^53 ms; set one that is"
            );
            return Err(Error::new(ErrorKind::Misuse, message).with_key(&key));
        }
        let membership = match &mut self.membership {
            Some(membership) => membership,
            none => none.insert(Hub::join(
                context,
                Target {
                    key: key.clone(),
                    every: *every,
                    with_clients: *with_clients,
                },
            )),
        };
        loop {
            // The task may have ended after a last report.
            let changed = membership.reports.changed().await;
            let report = membership.reports.borrow_and_update().clone();
            let is_last = matches!(report.news, News::Closed | News::Failed(_));
            if is_last || (changed.is_ok() && report.covers >= membership.number) {
                return Ok(report);
            }
            if changed.is_err() {
                let address = context.backend.address();
                let ended = Failure::runtime_ended(Outcome::DidNotRun, address);
                return Err(ended.into_error(&key));
            }
        }
    }

    fn take(&mut self, report: Report) -> Result<()> {
        match report.news {
            News::Nothing => {}
            News::Closed => {
                self.is_over = true;
                self.leave();
            }
            News::Failed(error) => return Err(error),
            News::Away(error) => {
                if !std::mem::replace(&mut self.is_away, true) {
                    self.pending.push_back(Change::Away(error));
                }
            }
            News::State(now) => {
                if std::mem::take(&mut self.is_away) {
                    self.pending.push_back(Change::Back);
                }
                let before = self.reported.lock().replace(Arc::clone(&now));
                self.pending
                    .extend(change::changes(before.as_deref(), &now));
            }
        }
        Ok(())
    }

    fn leave(&mut self) {
        let membership = self.membership.take();
        if self.source.context.is_forked() {
            // Dropping the membership would wake the task, and would take locks of a runtime whose
            // threads do not exist in this process.
            std::mem::forget(membership);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.leave();
    }
}
