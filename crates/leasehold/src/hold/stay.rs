//! One stay under a grant: what its guards want, and what they were given.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Leaving;
use super::claims::Claims;
use crate::clock::Moment;
use crate::config::Terms;
use crate::observe::Told;

/// A number that no other hold of this process has.
pub(crate) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// The next holder of the same grant would begin a new one.
pub(super) struct Stay {
    pub(super) number: u64,
    /// When it began: for a first one, when the request left to which it was granted.
    pub(super) since: Moment,
    /// What its guards want.
    pub(super) claims: Claims,
    /// Its fencing token.
    pub(super) token: Option<u64>,
    /// The token of several locks to which this hold's lock was raised.
    pub(super) raised_to: Option<u64>,
    /// The last guard has gone: nobody joins it any more.
    pub(super) left: bool,
    /// Its guard wants it for itself: nobody shares it any more.
    pub(super) closed: bool,
    /// Its span.
    pub(super) told: Told,
}

impl Stay {
    pub(super) fn new(terms: Terms, now: Moment) -> Self {
        Self {
            number: next_number(),
            since: now,
            claims: Claims::new(terms, now),
            token: None,
            raised_to: None,
            left: false,
            closed: false,
            told: Told::default(),
        }
    }

    /// The last guard goes.
    pub(super) fn nobody_left(&mut self) -> Leaving {
        self.left = true;
        // A guard that was forgotten counts on the hold until its lease ends.
        match self.claims.any_forgotten() {
            true => Leaving::LeftToLease,
            false => Leaving::Last,
        }
    }
}
