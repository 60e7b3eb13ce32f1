//! [`Listing`]: the names on a server, for threads.

use super::runtime::Runtime;
use crate::error::Result;
use crate::operate::name::{self, LeftOut, Listed};

/// An iterator over the names on a server; see [`Listing`](crate::inspect::Listing).
#[derive(Debug)]
#[must_use = "no request is sent until the listing is read"]
pub struct Listing {
    inner: name::Listing,
    runtime: Runtime,
}

impl Listing {
    pub(super) fn new(inner: name::Listing, runtime: Runtime) -> Self {
        Self { inner, runtime }
    }

    /// Returns roughly how many keys have been read so far, and how many there are; see
    /// [`Listing::progress`](crate::inspect::Listing::progress).
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        self.inner.progress()
    }

    /// Returns how many keys have been left out so far; see
    /// [`Listing::left_out`](crate::inspect::Listing::left_out).
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.inner.left_out()
    }

    /// Returns the first names that were left out because they are not UTF-8; see
    /// [`Listing::not_utf8`](crate::inspect::Listing::not_utf8).
    #[must_use]
    pub fn not_utf8(&self) -> Vec<Vec<u8>> {
        self.inner.not_utf8()
    }
}

impl Iterator for Listing {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.inner.next();
        self.runtime.block_on("inspect::Listing::next", next)
    }
}
