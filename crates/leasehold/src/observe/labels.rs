//! The label values for the results of acquires and for losses, in metrics and spans.

use super::{End, Entry};
use crate::error::ErrorKind;
use crate::loss::LossReason;

/// Returns the label value for the result of an acquire.
pub(super) fn result(end: End) -> &'static str {
    match end {
        End::Got(Entry::Granted) => "granted",
        End::Got(Entry::Joined) => "entered",
        End::Busy => "busy",
        End::Cancelled => "cancelled",
        End::Failed(kind) => failed(kind),
    }
}

/// Returns the label value for a failure.
pub(super) fn failed(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::OutcomeUnknown => "outcome_unknown",
        ErrorKind::Denied => "denied",
        ErrorKind::WrongKind => "wrong_kind",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Misuse => "misuse",
        ErrorKind::Deadlock => "deadlock",
        ErrorKind::Lost => "lost",
        ErrorKind::Interrupted | ErrorKind::Unsupported => "other",
    }
}

/// Returns the label value for the loss of a hold.
pub(super) fn reason(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::Taken { .. } => "taken",
        LossReason::Deleted => "deleted",
        LossReason::Forced { .. } => "forced",
        LossReason::HandedOver => "handed_over",
        LossReason::RenewalFailed { .. } => "renewal_failed",
        LossReason::Member { .. } => "member",
        LossReason::Closed => "closed",
        LossReason::MaxHold { .. } => "max_hold",
        LossReason::Stalled { .. } => "stalled",
    }
}
