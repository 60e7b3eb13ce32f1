//! Why a lock was lost, as the holder is told.

use std::fmt;
use std::time::Duration;

use crate::text::Shown;

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// Its lease ran out: a fixed lease was not extended, or the process was stopped for too long
    /// to renew it.
    Expired,
    /// Somebody else holds it now.
    Taken {
        /// The new holder's id on the wire.
        by: String,
    },
    /// Its key was removed on the server before its lease was over: a restart
    /// without data, a flush, a deletion, a forced unlock by another kind of client.
    Deleted,
    /// It was ended by [`force_unlock`](crate::Lock::force_unlock).
    Forced,
    /// It could not be renewed before its lease ran out.
    RenewalFailed {
        /// How long renewal had been failing when the lock was given up.
        since: Duration,
        /// The last failure, after the server's address.
        cause: String,
    },
    /// A part of it was lost, and the rest is not enough: a member of a
    /// [`MultiLock`](crate::MultiLock), the last one that made up the majority of a
    /// [`RedLock`](crate::RedLock), a value of a [`GroupLock`](crate::GroupLock).
    Member {
        /// Which part: its name and its server, or its value.
        member: String,
        /// Why that part was lost.
        reason: Box<LossReason>,
    },
    /// Its client was [closed](crate::Client::close), so it was no longer renewed, and its lease
    /// ran out.
    Closed,
    /// Its maximum hold time is over, and it has been released.
    MaxHold {
        /// The maximum hold time that was set.
        limit: Duration,
    },
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ran out"),
            Self::Closed => f.write_str("its client was closed, and then its lease ran out"),
            // Whoever writes to the key chooses that id, and it goes into logs and to a terminal.
            Self::Taken { by } => write!(f, "it is held by {} now", Shown(by)),
            Self::Deleted => f.write_str("its key was removed on the server"),
            Self::Forced => f.write_str("it was unlocked by force"),
            Self::RenewalFailed { since, cause } => {
                write!(f, "renewing it has failed for {since:.1?} ({cause})")
            }
            Self::Member { member, reason } => write!(f, "{member} is lost: {reason}"),
            Self::MaxHold { limit } => write!(f, "its maximum hold time of {limit:?} is over"),
        }
    }
}
