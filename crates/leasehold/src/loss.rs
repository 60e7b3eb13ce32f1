//! The reasons for the loss of a lock, as reported to its holder.

use std::fmt;
use std::time::Duration;

use crate::text::Shown;

/// The reason why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out: a fixed lease was not extended, or the process was stopped for too long
    /// to renew it.
    Expired,
    /// Another client holds the lock now.
    Taken {
        /// The new holder's id on the wire.
        by: String,
    },
    /// The lock or permit was removed on the server before its lease was over, by a restart without
    /// data, a flush, a deletion, or a forced unlock by another kind of client.
    Deleted,
    /// The hold was ended by [`force_unlock`](crate::Lock::force_unlock).
    Forced,
    /// The lock could not be renewed before its lease ran out.
    RenewalFailed {
        /// The time for which renewal had been failing when the lock was given up.
        since: Duration,
        /// The last failure, after the server's address.
        cause: String,
    },
    /// A part of the lock was lost, and the rest is not enough. The part is a member of a
    /// [`MultiLock`](crate::MultiLock), the last member that made up the majority of a
    /// [`RedLock`](crate::RedLock), or a value of a [`GroupLock`](crate::GroupLock).
    Member {
        /// The part that was lost: its name and its server, or its value.
        member: String,
        /// The reason for the loss of that part.
        reason: Box<LossReason>,
    },
    /// The client was [closed](crate::Client::close), so the lock was no longer renewed, and its
    /// lease ran out.
    Closed,
    /// The maximum hold time is over, and the lock has been released.
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
            // The client that writes to the key chooses that id, which ends up in logs and on
            // terminals.
            Self::Taken { by } => write!(f, "it is held by {} now", Shown(by)),
            Self::Deleted => f.write_str("it was removed on the server"),
            Self::Forced => f.write_str("it was unlocked by force"),
            Self::RenewalFailed { since, cause } => {
                write!(f, "renewing it has failed for {since:.1?} ({cause})")
            }
            Self::Member { member, reason } => write!(f, "{member} is lost: {reason}"),
            Self::MaxHold { limit } => write!(f, "its maximum hold time of {limit:?} is over"),
        }
    }
}
