//! Watches all names that match a pattern: repeats a listing from time to time, and watches each
//! name that it finds.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::oneshot;

use super::{Change, MIN_POLL_INTERVAL, POLL_INTERVAL};
use crate::client::Client;
use crate::clock::Moment;
use crate::config;
use crate::error::{Error, ErrorKind, Result};
use crate::operate::name::{Found, Listing, NameInfo};
use crate::sync::Mutex;

/// The default of [`WatchAll::rescan_every`].
const RESCAN_EVERY: Duration = Duration::from_secs(5);
/// The most names that are watched at a time.
const MOST_NAMES: usize = 1000;
/// Number of names that are polled once a second. The poll interval of each further name grows with
/// the number of names before it, so 1000 names cause about 520 polls per second.
const POLLED_FULLY: u32 = 200;
/// The pause after a scan is at least the duration of the scan times this number, so that scans
/// take only a part of the server's time.
const PAUSE_FACTOR: u32 = 4;

/// A change of one of several watched names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NamedChange {
    /// The name. For [`Change::Away`] and [`Change::Back`], this is the pattern if the list of
    /// names can't be read.
    pub name: String,
    /// The change.
    pub change: Change,
}

/// The changes of all names that match a pattern: see [`Client::watch_all`].
///
/// It is a stream of [`NamedChange`]s. With [`next`](Self::next), you can read it without the
/// `Stream` trait. It lists the names, as [`Client::list`] does, and watches each name that it
/// finds. It repeats the listing to find new names, and stops watching names that are free.
///
/// - The first listing that runs while a name is held finds the name. So a name that is held only
///   between two listings is not reported.
/// - At most 1000 names are watched at a time. [`left_out`](Self::left_out) is the number of
///   further names.
/// - The poll interval is 1 s for the first 200 names, and grows for each further name, up to 5 s.
///   So 1000 names cause about 520 polls per second. Messages and the ends of leases cause further
///   requests.
/// - The pause between two listings is at least four times as long as a listing takes, because a
///   listing reads all keys of the server.
/// - An outage is reported for each name, because the names of a cluster are on several servers.
#[must_use = "no request is sent until it is read"]
pub struct WatchAll {
    client: Client,
    pattern: String,
    rescan_every: Duration,
    changes: Option<BoxStream<'static, Result<NamedChange>>>,
    left_out: Arc<AtomicU64>,
}

impl WatchAll {
    pub(super) fn new(client: &Client, pattern: &str) -> Self {
        Self {
            client: client.clone(),
            pattern: pattern.to_owned(),
            rescan_every: RESCAN_EVERY,
            changes: None,
            left_out: Arc::default(),
        }
    }

    /// Sets the pause between two listings. 5 s by default, at least 1 ms. The setting has no
    /// effect once the watch has been read.
    pub fn rescan_every(mut self, pause: Duration) -> Self {
        self.rescan_every = pause;
        self
    }

    /// Returns how many names the last listing has found beyond the first 1000.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Returns the next change, as soon as there is one. Returns `None` once the client has been
    /// [closed](Client::close). After an error, the watch ends. An outage is not an error, but is
    /// reported as [`Change::Away`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] if the server refuses a request. `Misuse` for a bad pattern, for a
    /// pause out of its range, if the client's runtime has ended, and in a forked process.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues at the same place.
    pub async fn next(&mut self) -> Option<Result<NamedChange>> {
        StreamExt::next(self).await
    }
}

impl Stream for WatchAll {
    type Item = Result<NamedChange>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let changes = this.changes.get_or_insert_with(|| {
            let reader = Reader {
                client: this.client.clone(),
                pattern: this.pattern.clone(),
                rescan_every: this.rescan_every,
                watched: HashMap::new(),
                streams: SelectAll::new(),
                scan: Scan::Due(Moment::default()),
                is_away: false,
                is_over: false,
                left_out: Arc::clone(&this.left_out),
            };
            stream::unfold(reader, Reader::read).fuse().boxed()
        });
        changes.as_mut().poll_next(task)
    }
}

impl fmt::Debug for WatchAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchAll")
            .field("pattern", &self.pattern)
            .field("left_out", &self.left_out())
            .finish_non_exhaustive()
    }
}

struct Reader {
    client: Client,
    pattern: String,
    rescan_every: Duration,
    watched: HashMap<String, Watched>,
    streams: SelectAll<BoxStream<'static, Result<NamedChange>>>,
    scan: Scan,
    /// Whether the last listing had no reply.
    is_away: bool,
    is_over: bool,
    left_out: Arc<AtomicU64>,
}

/// A name that is watched.
struct Watched {
    /// The last state that its watch has reported.
    reported: Arc<Mutex<Option<Arc<NameInfo>>>>,
    /// Dropped to end the watch.
    _ends: oneshot::Sender<()>,
}

enum Scan {
    /// The next listing begins at this time.
    Due(Moment),
    Runs {
        listing: Listing,
        since: Moment,
        found: HashSet<String>,
        left_out: u64,
    },
}

/// An event of a scan.
enum Scanned {
    Began,
    Found(String),
    /// The listing has ended.
    End,
    Failed(Error),
}

impl Reader {
    async fn read(mut self) -> Option<(Result<NamedChange>, Self)> {
        loop {
            if self.is_over || self.client.context().is_closed() {
                return None;
            }
            let scanned = tokio::select! {
                biased;
                Some(change) = self.streams.next() => {
                    self.is_over = change.is_err();
                    return Some((change, self));
                }
                scanned = self.scan.next(&self.client, &self.pattern) => scanned,
            };
            match self.on(scanned) {
                Ok(None) => {}
                Ok(Some(change)) => {
                    let name = self.pattern.clone();
                    return Some((Ok(NamedChange { name, change }), self));
                }
                Err(error) => {
                    self.is_over = true;
                    return Some((Err(error), self));
                }
            }
        }
    }

    /// Handles an event of a scan.
    fn on(&mut self, scanned: Scanned) -> Result<Option<Change>> {
        match scanned {
            Scanned::Began => self.check()?,
            Scanned::Found(name) => self.found(name),
            Scanned::End => {
                self.forget_free_names();
                self.pause();
                return Ok(std::mem::take(&mut self.is_away).then_some(Change::Back));
            }
            Scanned::Failed(error) if error.is_transient() => {
                self.pause();
                let was_away = std::mem::replace(&mut self.is_away, true);
                return Ok((!was_away).then_some(Change::Away(error)));
            }
            Scanned::Failed(error) => return Err(error),
        }
        Ok(None)
    }

    fn check(&self) -> Result<()> {
        let span = self.rescan_every;
        if span >= MIN_POLL_INTERVAL && span <= config::MAX_SPAN {
            return Ok(());
        }
        let message = format!(
            "a pause of {span:?} between two listings is not between 1 ms and 2^53 ms; set one that is"
        );
        Err(Error::new(ErrorKind::Misuse, message))
    }

    fn found(&mut self, name: String) {
        let is_known = self.watched.contains_key(&name);
        let is_full = self.watched.len() >= MOST_NAMES;
        if let Scan::Runs {
            found, left_out, ..
        } = &mut self.scan
        {
            match is_known || !is_full {
                true => _ = found.insert(name.clone()),
                false => *left_out += 1,
            }
        }
        if is_known || is_full {
            return;
        }
        let names = u32::try_from(self.watched.len() + 1).unwrap_or(u32::MAX);
        let every = POLL_INTERVAL.max(Duration::from_secs(1) * names / POLLED_FULLY);
        let watch = self.client.watch(&name).poll_interval(every);
        let reported = Arc::clone(&watch.reported);
        let (ends, end) = oneshot::channel();
        self.watched.insert(
            name.clone(),
            Watched {
                reported,
                _ends: ends,
            },
        );
        let named = watch.map(move |change| {
            let name = name.clone();
            Ok(NamedChange {
                name,
                change: change?,
            })
        });
        self.streams.push(named.take_until(end).boxed());
    }

    /// Ends the watches of names that the listing has not found, if they are free according to the
    /// last report. A name that was free only for a moment is still watched.
    fn forget_free_names(&mut self) {
        let Scan::Runs {
            found, left_out, ..
        } = &self.scan
        else {
            return;
        };
        self.left_out.store(*left_out, Ordering::Relaxed);
        self.watched.retain(|name, watched| {
            let reported = watched.reported.lock();
            let is_free = reported
                .as_ref()
                .is_some_and(|state| state.found == Found::Nothing && state.waiting.is_empty());
            found.contains(name) || !is_free
        });
    }

    /// Schedules the next listing.
    fn pause(&mut self) {
        let now = self.client.context().timers.now();
        let took = match &self.scan {
            Scan::Runs { since, .. } => now.saturating_sub(*since),
            Scan::Due(_) => Duration::ZERO,
        };
        self.scan = Scan::Due(now + self.rescan_every.max(took * PAUSE_FACTOR));
    }
}

impl Scan {
    /// Waits for the next event. Dropping the future loses nothing.
    async fn next(&mut self, client: &Client, pattern: &str) -> Scanned {
        let timers = &client.context().timers;
        match self {
            Self::Due(at) => {
                timers.sleep_until(*at).await;
                *self = Self::Runs {
                    listing: client.list(pattern),
                    since: timers.now(),
                    found: HashSet::new(),
                    left_out: 0,
                };
                Scanned::Began
            }
            Self::Runs { listing, .. } => match listing.next().await {
                Some(Ok(listed)) => Scanned::Found(listed.name),
                Some(Err(error)) => Scanned::Failed(error),
                None => Scanned::End,
            },
        }
    }
}
