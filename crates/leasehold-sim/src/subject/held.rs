//! The answers to an acquire: a hold of a lock, a turn or a term, or none.

use std::ops::Deref;

use leasehold::slot::{Turn, TurnInfo};
use leasehold::{LockGuard, Term};

/// The hold that a turn has acquired.
pub(crate) enum Held {
    Lock(LockGuard),
    Turn(Box<Turn>),
    Term(Term),
}

impl Deref for Held {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        match self {
            Self::Lock(guard) => guard,
            Self::Turn(turn) => turn,
            Self::Term(term) => term,
        }
    }
}

/// The answer to an acquire.
#[allow(clippy::large_enum_variant, reason = "there is one per turn")]
pub(crate) enum Answer {
    Held(Held),
    /// Another client has the lock.
    Busy,
    /// The turn for this slot or this id has already ended.
    Over(TurnInfo),
}

impl From<Option<LockGuard>> for Answer {
    fn from(guard: Option<LockGuard>) -> Self {
        guard.map_or(Self::Busy, |guard| Self::Held(Held::Lock(guard)))
    }
}
