//! The list of names: a walk over all keys of the server, a page at a time.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};

use super::reading::{items, number};
use super::{ClientCache, Found, NameInfo, holders, query, steps};
use crate::backend::step::Value;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{ExtraKey, Key, as_pattern};
use crate::pattern;
use crate::sync::Mutex;
use crate::text::Shown;

/// Number of keys that the server scans for a page. All other requests wait during the scan.
const PAGE: u64 = 500;
/// Number of names that are inspected concurrently.
const CONCURRENCY: usize = 32;
/// Largest number of holds, of permits and of waiters that are shown for each name.
const MOST_LISTED: usize = 10;
/// Largest number of names that are kept although they are not UTF-8.
const MOST_NOT_UTF8: usize = 10;

/// One entry of a [`Listing`]: a name, with its kind and state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The name, for [`Client::lock`](crate::Client::lock) and similar methods.
    pub name: String,
    /// The kind and the state of the name, with at most ten holds or permits and at most ten
    /// waiters.
    pub info: NameInfo,
}

/// The names on a server: see [`Client::list`](crate::Client::list).
///
/// It is a stream of [`Listed`]. With [`next`](Self::next), you can read it without the `Stream`
/// trait.
#[must_use = "no request is sent until the listing is read"]
pub struct Listing {
    walk: Pin<Box<dyn Stream<Item = Result<Listed>> + Send>>,
    progress: Arc<Progress>,
}

/// Numbers of keys that may be names, but that a listing has left out: see [`Listing::left_out`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOut {
    /// Number of keys, of any type, that the user is not allowed to read.
    pub denied: u64,
    /// Number of names longer than 1000 bytes. [`Client::inspect`](crate::Client::inspect) can read
    /// such a name.
    pub too_long: u64,
    /// Number of names that are not UTF-8. Names of this library are always UTF-8; Redisson's can
    /// be anything.
    pub not_utf8: u64,
}

#[derive(Default)]
struct Progress {
    scanned: AtomicU64,
    total: AtomicU64,
    denied: AtomicU64,
    too_long: AtomicU64,
    not_utf8: AtomicU64,
    /// The first names that are not UTF-8.
    not_utf8_names: Mutex<Vec<Vec<u8>>>,
}

impl Listing {
    /// Returns the next name, or `None` at the end. After an error, the listing ends.
    ///
    /// # Errors
    ///
    /// Same as [`Client::inspect`](crate::Client::inspect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues at the same place.
    pub async fn next(&mut self) -> Option<Result<Listed>> {
        StreamExt::next(self).await
    }

    /// Returns roughly how many keys have been read so far, and how many keys the server has. Both
    /// are 0 before the first page. The second number stays 0 if the server does not report it.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let total = self.progress.total.load(Ordering::Relaxed);
        let scanned = self.progress.scanned.load(Ordering::Relaxed);
        (scanned, total)
    }

    /// Returns how many keys have been left out so far. If the user is not allowed to read any key,
    /// the listing is empty, and only this method shows that it is incomplete.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let client = leasehold::Client::embedded();
    /// let guard = client.lock(&"x".repeat(2000)).acquire().await?;
    /// let mut names = client.list("*");
    /// assert!(names.next().await.is_none());
    /// assert_eq!(names.left_out().too_long, 1);
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        let progress = &self.progress;
        let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LeftOut {
            denied: counted(&progress.denied),
            too_long: counted(&progress.too_long),
            not_utf8: counted(&progress.not_utf8),
        }
    }

    /// Returns the first ten names that were left out because they are not UTF-8, with the prefix
    /// of the client. No handle of this library can use such a name. To read its key, use another
    /// program, such as `redis-cli`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let mut names = leasehold::Client::embedded().list("*");
    /// while let Some(name) = names.next().await {
    ///     println!("{}", name?.name);
    /// }
    /// for name in names.not_utf8() {
    ///     println!("\"{}\"", name.escape_ascii());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn not_utf8(&self) -> Vec<Vec<u8>> {
        self.progress.not_utf8_names.lock().clone()
    }
}

impl Stream for Listing {
    type Item = Result<Listed>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Self::Item>> {
        self.walk.as_mut().poll_next(task)
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}

/// Lists the names that match `wanted`.
pub(crate) fn list(context: &Arc<Context>, wanted: &str) -> Listing {
    let progress = Arc::<Progress>::default();
    if let Some(fault) = pattern::fault(wanted) {
        let error = Error::new(
            ErrorKind::Misuse,
            format!(
                "the pattern `{}` {fault}; write * for all names",
                Shown(wanted)
            ),
        );
        let walk = Box::pin(stream::iter([Err(error)]));
        return Listing { walk, progress };
    }
    let walk = Walk {
        shared: Arc::new(SharedWalk {
            context: Arc::clone(context),
            cache: ClientCache::default(),
            progress: Arc::clone(&progress),
        }),
        // The prefix is escaped, because it is not a pattern.
        wanted: format!("{}{wanted}", as_pattern(&context.prefix)),
        masters: None,
        cursor: 0,
    };
    let found = pages(walk)
        .map_ok(|(walk, found)| {
            stream::iter(found).map(move |found| Ok((Arc::clone(&walk), found)))
        })
        .try_flatten()
        .map_ok(|(shared, found)| async move { found.resolve(&shared).await })
        .try_buffered(CONCURRENCY)
        .try_filter_map(|listed| async { Ok(listed) });
    Listing {
        walk: Box::pin(found),
        progress,
    }
}

/// The state that the inspections of all names share.
struct SharedWalk {
    context: Arc<Context>,
    cache: ClientCache,
    progress: Arc<Progress>,
}

struct Walk {
    shared: Arc<SharedWalk>,
    wanted: String,
    /// The servers that the walk has not finished. The walk is at the first of them. `None` until
    /// the servers are known.
    masters: Option<VecDeque<usize>>,
    cursor: u64,
}

type Candidates = (Arc<SharedWalk>, Vec<NameCandidate>);

fn pages(walk: Walk) -> impl Stream<Item = Result<Candidates>> + Send {
    stream::try_unfold(walk, |mut walk| async move {
        let Some(master) = walk.master().await? else {
            return Ok(None);
        };
        let candidates = walk.page(master).await?;
        let shared = Arc::clone(&walk.shared);
        Ok(Some(((shared, candidates), walk)))
    })
}

impl Walk {
    /// Returns the server that the walk currently reads; `None` at the end.
    async fn master(&mut self) -> Result<Option<usize>> {
        let masters = match self.masters.take() {
            Some(masters) => masters,
            None => {
                let masters = self.shared.context.backend.masters().await;
                masters
                    .map_err(|failure| failure.into_error_of_listing())?
                    .into()
            }
        };
        Ok(self.masters.insert(masters).front().copied())
    }

    async fn page(&mut self, master: usize) -> Result<Vec<NameCandidate>> {
        // The auxiliary keys of a name have the name in the middle.
        let pattern = format!("*{}*", self.wanted);
        let backend = &self.shared.context.backend;
        let page = steps::page(self.cursor, &pattern, PAGE);
        let reply = backend.submit_to(master, page).await;
        let reply = reply.map_err(|failure| failure.into_error_of_listing())?;
        let page = NamePage::read(&reply).ok_or_else(|| {
            let failure = backend.malformed();
            failure.into_error_of_listing()
        })?;
        let progress = &self.shared.progress;
        for (count, more) in [
            (&progress.denied, page.denied),
            (&progress.too_long, page.too_long),
            (&progress.not_utf8, page.not_utf8.len() as u64),
        ] {
            count.fetch_add(more, Ordering::Relaxed);
        }
        let mut names = progress.not_utf8_names.lock();
        let room = MOST_NOT_UTF8.saturating_sub(names.len());
        names.extend(page.not_utf8.into_iter().take(room));
        drop(names);
        let (sum, scanned) = (&progress.total, &progress.scanned);
        if self.cursor == 0 {
            sum.fetch_add(page.total, Ordering::Relaxed);
        }
        self.cursor = page.cursor;
        if page.cursor == 0 {
            self.masters.as_mut().map(VecDeque::pop_front);
        }
        match self.masters.as_ref().is_some_and(VecDeque::is_empty) {
            false => scanned.fetch_add(PAGE, Ordering::Relaxed),
            true => scanned.swap(sum.load(Ordering::Relaxed), Ordering::Relaxed),
        };
        Ok(self.candidates(page.keys))
    }

    fn candidates(&self, keys: Vec<Typed>) -> Vec<NameCandidate> {
        let mut seen = BTreeSet::new();
        let found = keys
            .into_iter()
            .filter_map(|(key, kind)| candidate(key, &kind));
        let found = found.filter(|found| {
            pattern::matches(self.wanted.as_bytes(), found.name.as_bytes())
                // The server may return a key twice while it resizes its table.
                && seen.insert(found.clone())
        });
        let found: VecDeque<_> = found.collect();
        found.into()
    }
}

/// A key and its type.
type Typed = (String, String);

/// One page of the walk.
#[derive(Default)]
struct NamePage {
    /// The position at which the walk continues.
    cursor: u64,
    /// Number of keys that the server has.
    total: u64,
    keys: Vec<Typed>,
    denied: u64,
    too_long: u64,
    /// Keys that may be names but are not UTF-8.
    not_utf8: Vec<Vec<u8>>,
}

impl NamePage {
    fn read(reply: &Value) -> Option<Self> {
        let [Value::Text(cursor), total, keys, denied, too_long] = items(reply)? else {
            return None;
        };
        let count = |value: &Value| Some(u64::try_from(number(value)?).unwrap_or(0));
        let mut page = Self {
            cursor: std::str::from_utf8(cursor).ok()?.parse().ok()?,
            total: count(total)?,
            denied: count(denied)?,
            too_long: count(too_long)?,
            ..Self::default()
        };
        for item in items(keys)? {
            let [Value::Text(key), Value::Text(kind)] = items(item)? else {
                return None;
            };
            let kind = String::from_utf8_lossy(kind).into_owned();
            match String::from_utf8(key.clone()) {
                Ok(key) => page.keys.push((key, kind)),
                // Auxiliary keys of a name have other types.
                Err(_) if kind == "hash" || kind == "string" => page.not_utf8.push(key.clone()),
                Err(_) => {}
            }
        }
        Some(page)
    }
}

/// A name that may be one of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NameCandidate {
    name: String,
    /// The auxiliary key by which the name was found, if any.
    beside: Option<ExtraKey>,
}

/// Returns the name that a key of this type belongs to.
fn candidate(key: String, kind: &str) -> Option<NameCandidate> {
    match (Key::parse_extra(&key), kind) {
        (Some((ExtraKey::Queue, name)), "list")
        | (Some((ExtraKey::Leases, name)), "zset")
        | (Some((ExtraKey::Opening, name)), "string") => {
            let beside = Key::parse_extra(&key).map(|(beside, _)| beside);
            let name = name.to_owned();
            Some(NameCandidate { name, beside })
        }
        (None | Some((ExtraKey::Leases, _)), "hash" | "string") => Some(NameCandidate {
            name: key,
            beside: None,
        }),
        _ => None,
    }
}

impl NameCandidate {
    async fn resolve(self, walk: &SharedWalk) -> Result<Option<Listed>> {
        let Ok(key) = Key::parse(&self.name) else {
            return Ok(None);
        };
        let context = &walk.context;
        let mut info = match query(context, &key, MOST_LISTED).await {
            Ok(info) => info,
            // A user who is not allowed to read this key still gets the other names.
            Err(error) if error.kind() == ErrorKind::Denied => {
                walk.progress.denied.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if !self.is_listed_by(&info) {
            return Ok(None);
        }
        holders::add_clients(context, &walk.cache, &self.name, &mut info).await;
        let name = self.name.strip_prefix(context.prefix.as_str());
        let name = name.unwrap_or(&self.name).to_owned();
        Ok(Some(Listed { name, info }))
    }

    /// Returns whether the name is listed because of this key. Other keys of the same name must not
    /// list it a second time.
    fn is_listed_by(&self, info: &NameInfo) -> bool {
        match (&self.beside, &info.found) {
            (Some(ExtraKey::Queue), Found::Nothing) => !info.waiting.is_empty(),
            (Some(ExtraKey::Leases), Found::Leases { free: None, .. })
            | (Some(ExtraKey::Opening), Found::Latch { left: 0 }) => true,
            (Some(_), _) | (None, Found::Nothing | Found::Unknown { .. }) => false,
            (None, Found::Leases { free, .. }) => free.is_some(),
            (None, _) => true,
        }
    }
}
