//! The reasons for the loss of a lock, as reported to its holder.

use std::fmt;
use std::time::Duration;

use crate::text::{Shown, clean_label};

/// The reason for the loss of a lock, or of a permit with a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ended: it was a fixed lease, or the process was stopped for too long to renew it.
    Expired,
    /// Another client now holds the lock.
    Taken {
        /// The id of the new holder, as [`Holder::id`](crate::inspect::Holder::id) shows it.
        by: String,
    },
    /// The lock or permit was removed on the server before its lease ended: by a restart without
    /// data, a flush, a deletion, or a forced unlock by a client of another library.
    Deleted,
    /// Another caller ended the hold with [`force_unlock`](crate::Lock::force_unlock) or
    /// [`force_release`](crate::Client::force_release).
    Forced {
        /// The [label](crate::ClientBuilder::label) of the client that ended the hold. `None` if
        /// the client did not note its label, as in earlier versions, or its label is empty or `1`.
        by: Option<String>,
    },
    /// No attempt to renew the lock succeeded before its lease ended.
    RenewalFailed {
        /// The time for which renewals had been failing when the holder learned of the loss.
        since: Duration,
        /// The server's address and the last failure.
        cause: String,
    },
    /// A part of the lock was lost, and the other parts are not enough to hold it. The part is a
    /// member of a [`MultiLock`](crate::MultiLock), a member without which a
    /// [`RedLock`](crate::RedLock) has no majority, or a value of a
    /// [`GroupLock`](crate::GroupLock).
    Member {
        /// The part that was lost: its name and its server, or its value.
        member: String,
        /// The reason for the loss of that part.
        reason: Box<LossReason>,
    },
    /// The holder gave the hold away with a [`Ticket`](crate::ticket::Ticket), so another process
    /// has it or may take it.
    HandedOver,
    /// The client was [closed](crate::Client::close), so it no longer renewed the lock, and the
    /// lease ended.
    Closed,
    /// The [maximum hold time](crate::Lock::max_hold) has passed, and the lock has been released.
    MaxHold {
        /// The maximum hold time that was set.
        limit: Duration,
    },
    /// The holder's work reported no progress within the [time
    /// limit](crate::Lock::progress_within), so the lock was no longer renewed, and has been
    /// released.
    Stalled {
        /// The time since the last report of progress when the holder learned of the loss.
        since: Duration,
    },
}

impl LossReason {
    /// Returns the loss reason for a hold that was ended by force, from the note for its holder.
    pub(crate) fn forced(note: &[u8]) -> Self {
        // The label is cleaned again, because any program can write the note.
        let by = clean_label(&String::from_utf8_lossy(note));
        // Earlier versions note `1` instead of a label.
        let by = Some(by).filter(|by| !by.is_empty() && by != "1");
        Self::Forced { by }
    }

    /// Returns whether the hold was ended by force.
    pub(crate) fn is_forced(&self) -> bool {
        matches!(self, Self::Forced { .. })
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ran out"),
            Self::Closed => f.write_str("its client was closed, and then its lease ran out"),
            // The id is escaped, because the client that writes the key chooses it, and it appears
            // in logs and on terminals.
            Self::Taken { by } => write!(f, "it is held by {} now", Shown(by)),
            Self::Deleted => f.write_str("it was removed on the server"),
            Self::HandedOver => f.write_str("it was handed over with a ticket"),
            Self::Forced { by: None } => f.write_str("it was unlocked by force"),
            Self::Forced { by: Some(by) } => {
                write!(f, "it was unlocked by force, by {}", Shown(by))
            }
            Self::RenewalFailed { since, cause } => {
                write!(f, "renewing it has failed for {since:.1?} ({cause})")
            }
            Self::Member { member, reason } => write!(f, "{member} is lost: {reason}"),
            Self::Stalled { since } => write!(f, "its work made no progress for {since:.1?}"),
            Self::MaxHold { limit } => write!(f, "its maximum hold time of {limit:?} has passed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(note: &[u8]) -> String {
        LossReason::forced(note).to_string()
    }

    #[test]
    fn note_without_a_label_names_no_client() {
        for note in ["1", "", " ", "\n"] {
            let reason = LossReason::forced(note.as_bytes());
            assert_eq!(reason, LossReason::Forced { by: None }, "{note:?}");
            assert_eq!(told(note.as_bytes()), "it was unlocked by force");
        }
    }

    #[test]
    fn label_in_a_note_is_made_safe() {
        assert_eq!(told(b"batch"), "it was unlocked by force, by batch");
        assert_eq!(
            told(b" a\x1b[2J\nb\xff"),
            "it was unlocked by force, by a [2J b\u{fffd}"
        );
        let LossReason::Forced { by: Some(by) } = LossReason::forced(&[b'x'; 100_000]) else {
            panic!("the label is missing");
        };
        assert_eq!(by.len(), 200);
    }
}
