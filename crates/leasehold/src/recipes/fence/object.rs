use std::error::Error as StdError;
use std::fmt;

use super::Stale;

/// The failure of a fenced write to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError<E> {
    /// The object was already written with a greater token. This write has not changed it.
    Stale(Stale),
    /// The store failed: one of the two functions returned an error.
    Store(E),
}

impl<E: fmt::Display> fmt::Display for WriteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(stale) => stale.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for WriteError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Stale(_) => None,
            Self::Store(error) => error.source(),
        }
    }
}

/// Writes an object, unless a later holder has written it. Two functions reach the store:
///
/// - `read` returns the version of the object (its `ETag` or generation) and the fence in its
///   metadata, 0 if it has none. It returns `None` if the object does not exist.
/// - `write_if` writes the object with the token as the new fence, on the condition that the object
///   still has this version, or still does not exist (`If-Match`, `If-None-Match: *`). It returns
///   `false` if the condition failed (412).
///
/// If another client has written in between, the check is repeated with the new version.
///
/// # Errors
///
/// [`WriteError::Stale`] if the fence is greater than the token, `Store` if one of the functions
/// fails.
///
/// # Cancel safety
///
/// Dropping the future drops the request in progress. If this is the write, the store may have
/// carried it out, but only if no later holder had written before.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::fence::object::WriteError<std::io::Error>> {
/// use std::cell::Cell;
///
/// use leasehold::fence::object;
///
/// // A store with one object: its version, its fence and its content.
/// let stored = Cell::new((1, 5, "old"));
/// let read = async || {
///     let (version, fence, _) = stored.get();
///     Ok(Some((version, fence)))
/// };
/// let token = 7;
/// let write_if = async |expected: Option<u32>| {
///     let (version, ..) = stored.get();
///     let is_same = expected == Some(version);
///     if is_same {
///         stored.set((version + 1, token, "new"));
///     }
///     Ok(is_same)
/// };
/// object::write(token, read, write_if).await?;
/// assert_eq!(stored.get(), (2, 7, "new"));
/// # Ok(())
/// # }
/// ```
pub async fn write<V, E, Reading, Writing>(
    token: u64,
    mut read: impl FnMut() -> Reading,
    mut write_if: impl FnMut(Option<V>) -> Writing,
) -> Result<(), WriteError<E>>
where
    Reading: Future<Output = Result<Option<(V, u64)>, E>>,
    Writing: Future<Output = Result<bool, E>>,
{
    loop {
        let version = match read().await.map_err(WriteError::Store)? {
            Some((_, fence)) if fence > token => {
                return Err(WriteError::Stale(Stale::new(token).with_fence(fence)));
            }
            found => found.map(|(version, _)| version),
        };
        if write_if(version).await.map_err(WriteError::Store)? {
            return Ok(());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use tokio::task::{JoinSet, yield_now};

    use super::*;
    use crate::sync::Mutex;

    /// An object with its version and its fence. Each write is recorded.
    #[derive(Default)]
    struct Store {
        object: Option<(u64, u64)>,
        written: Vec<u64>,
    }

    async fn write_to(store: &Mutex<Store>, token: u64) -> Result<(), WriteError<Infallible>> {
        let read = || async {
            yield_now().await;
            Ok(store.lock().object)
        };
        let write_if = |expected: Option<u64>| async move {
            yield_now().await;
            let mut store = store.lock();
            let version = store.object.map(|(version, _)| version);
            if version != expected {
                return Ok(false);
            }
            store.object = Some((version.unwrap_or(0) + 1, token));
            store.written.push(token);
            Ok(true)
        };
        write(token, read, write_if).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn late_writers_change_nothing_in_ten_thousand_interleavings() {
        let store = Arc::new(Mutex::new(Store::default()));
        let mut writers = JoinSet::new();
        for _ in 0..4 {
            let store = Arc::clone(&store);
            writers.spawn(async move {
                let mut refused = 0;
                for round in 0..2_500 {
                    let token = round + fastrand::u64(0..8);
                    match write_to(&store, token).await {
                        Ok(()) => {}
                        Err(WriteError::Stale(stale)) => {
                            assert!(stale.fence().unwrap() > token);
                            refused += 1;
                        }
                    }
                }
                refused
            });
        }
        let refused: usize = writers.join_all().await.into_iter().sum();
        let written = &store.lock().written;
        assert!(written.is_sorted(), "a late write came through");
        assert_eq!(written.len() + refused, 10_000);
        assert!(refused > 0);
    }

    #[tokio::test]
    async fn failures_of_the_store_are_returned() {
        let read = async || Err::<Option<(u8, u64)>, _>("no store");
        let failed = write(1, read, async |_| Ok(true)).await;
        assert_eq!(failed, Err(WriteError::Store("no store")));
        let read = async || Ok(None::<(u8, u64)>);
        let failed = write(1, read, async |_| Err("full")).await;
        assert_eq!(failed, Err(WriteError::Store("full")));
    }
}
