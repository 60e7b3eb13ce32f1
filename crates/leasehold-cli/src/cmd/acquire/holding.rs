//! The hold under which the command runs.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use leasehold::slot::Turn;
use leasehold::ticket::Ticket;
use leasehold::{ExpirablePermit, LockGuard, LossReason, Progress, Result};
use tokio::time::Instant;

/// The guard of a lock, or a permit.
pub(in crate::cmd) enum Holding {
    Lock(LockGuard),
    Permit(ExpirablePermit),
    /// A turn, and the id of `--once`, if there is one.
    Turn(Box<Turn>, Option<String>),
}

impl Holding {
    pub(in crate::cmd) fn name(&self) -> &str {
        match self {
            Self::Lock(guard) => guard.name(),
            Self::Permit(permit) => permit.name(),
            Self::Turn(turn, _) => turn.name(),
        }
    }

    /// Returns the id of the hold on the server. For several locks together, this is the id of one
    /// of their holds.
    pub(in crate::cmd) fn id(&self) -> String {
        match self {
            Self::Lock(guard) => guard.holder_id().to_owned(),
            Self::Permit(permit) => permit.ids()[0].to_string(),
            Self::Turn(turn, _) => turn.holder_id().to_owned(),
        }
    }

    /// Draws a fencing token, unless the hold already has a token from its grant. If this fails,
    /// declines the hold, because the command will not run.
    pub(in crate::cmd) async fn with_token(self) -> Result<Self> {
        let drawn = match &self {
            Self::Lock(guard) => guard.fencing_token().await,
            Self::Turn(turn, _) => turn.fencing_token().await,
            Self::Permit(_) => return Ok(self),
        };
        match drawn {
            Ok(_) => Ok(self),
            Err(error) => {
                // The program ends with this error, so nothing would release the hold later.
                let _ = self.decline().await;
                Err(error)
            }
        }
    }

    /// Returns the fencing token, if the hold has one.
    pub(in crate::cmd) fn token(&self) -> Option<u64> {
        match self {
            Self::Lock(guard) => guard.token(),
            Self::Permit(_) => None,
            Self::Turn(turn, _) => turn.token(),
        }
    }

    /// Returns the fields of the event `held`, after a wait of this length.
    pub(in crate::cmd) fn told(&self, waited: Duration) -> Vec<(&'static str, serde_json::Value)> {
        let mut told = vec![
            ("id", self.id().into()),
            ("token", self.token().into()),
            ("waited_ms", as_ms(waited)),
        ];
        if let Self::Turn(turn, _) = self {
            told.push(("slot_ms", unix_ms(turn.slot()).into()));
            told.push(("missed", turn.missed().into()));
            told.push(("died", turn.died().map(|died| died.by).into()));
        }
        told
    }

    /// Returns the variables that tell a command about its hold.
    pub(in crate::cmd) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        variables.extend(
            self.token()
                .map(|token| ("LEASEHOLD_TOKEN", token.to_string())),
        );
        if let Self::Turn(turn, id) = self {
            let slot = turn.slot();
            variables.extend(slot.map(|slot| ("LEASEHOLD_SLOT", utc(slot))));
            variables.extend(slot.map(|_| ("LEASEHOLD_MISSED", turn.missed().to_string())));
            variables.extend(id.clone().map(|id| ("LEASEHOLD_ONCE", id)));
        }
        variables
    }

    /// Returns whether the hold is a turn, whose end the server records.
    pub(in crate::cmd) fn is_turn(&self) -> bool {
        matches!(self, Self::Turn(..))
    }

    /// Notes that the command has begun.
    pub(in crate::cmd) fn command_begins(&self) {
        if let Self::Turn(turn, _) = self {
            turn.set_begun(true);
        }
    }

    pub(in crate::cmd) fn valid_until(&self) -> Instant {
        match self {
            Self::Lock(guard) => guard.valid_until(),
            Self::Permit(permit) => permit.valid_until(),
            Self::Turn(turn, _) => turn.valid_until(),
        }
    }

    pub(in crate::cmd) fn loss(&self) -> Option<LossReason> {
        match self {
            Self::Lock(guard) => guard.loss(),
            Self::Permit(permit) => permit.loss(),
            Self::Turn(turn, _) => turn.loss(),
        }
    }

    pub(in crate::cmd) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    pub(in crate::cmd) fn renewal_failure(&self) -> Option<LossReason> {
        match self {
            Self::Lock(guard) => guard.renewal_failure(),
            Self::Permit(permit) => permit.renewal_failure(),
            Self::Turn(turn, _) => turn.renewal_failure(),
        }
    }

    /// Resolves when the hold is lost.
    pub(in crate::cmd) fn lost(&self) -> Pin<Box<dyn Future<Output = LossReason> + Send>> {
        match self {
            Self::Lock(guard) => Box::pin(guard.lost()),
            Self::Permit(permit) => Box::pin(permit.lost()),
            Self::Turn(turn, _) => Box::pin(turn.lost()),
        }
    }

    /// Returns a handle that reports progress of the work under the hold.
    pub(in crate::cmd) fn progress_handle(&self) -> Progress {
        match self {
            Self::Lock(guard) => guard.progress_handle(),
            Self::Permit(permit) => permit.progress_handle(),
            Self::Turn(turn, _) => turn.progress_handle(),
        }
    }

    /// Waits until the work under the hold has stalled. Resolves with the time since the last
    /// progress.
    pub(in crate::cmd) fn stalled(&self) -> Pin<Box<dyn Future<Output = Duration> + Send>> {
        match self {
            Self::Lock(guard) => Box::pin(guard.stalled()),
            Self::Permit(permit) => Box::pin(permit.stalled()),
            Self::Turn(turn, _) => Box::pin(turn.stalled()),
        }
    }

    /// Turns the hold into a ticket.
    pub(in crate::cmd) async fn into_ticket(self, lease: Duration) -> Result<Ticket> {
        match self {
            Self::Lock(guard) => guard.into_ticket(lease).await,
            Self::Permit(permit) => permit.into_ticket(lease).await,
            Self::Turn(..) => unreachable!("`hold` has no turns"),
        }
    }

    /// Releases the hold, or makes the server keep it for the time `keep_for`. The end of a turn
    /// records the exit code.
    pub(in crate::cmd) async fn end(self, keep_for: Option<Duration>, code: u8) -> Result<()> {
        match (self, keep_for) {
            (Self::Lock(guard), Some(span)) => guard.keep_for(span).await,
            // `--min-hold` is refused with `--limit`, so a permit is never kept.
            (Self::Permit(permit), _) => permit.release().await,
            (Self::Lock(guard), None) => guard.release().await,
            // `--min-hold` is refused with turns, too.
            (Self::Turn(turn, _), _) => turn.exited(code.into()).await,
        }
    }

    /// Releases the hold of a command that never began. Another client can get the lock at once.
    pub(in crate::cmd) async fn decline(self) -> Result<()> {
        match self {
            Self::Turn(turn, _) => turn.decline().await,
            Self::Lock(guard) => {
                guard.waive_min_hold();
                guard.release().await
            }
            Self::Permit(permit) => permit.release().await,
        }
    }

    pub(in crate::cmd) async fn release(self) -> Result<()> {
        match self {
            Self::Turn(turn, _) => turn.failed().await,
            other => other.end(None, 0).await,
        }
    }
}

/// The environment variables that a command may have inherited from an outer leasehold. They
/// describe another hold.
pub(in crate::cmd) const VARIABLES: [&str; 4] = [
    "LEASEHOLD_TOKEN",
    "LEASEHOLD_SLOT",
    "LEASEHOLD_MISSED",
    "LEASEHOLD_ONCE",
];

/// Formats a time in UTC, to the millisecond if it is not a whole second.
pub(in crate::cmd) fn utc(time: SystemTime) -> String {
    // The last second that `humantime` can format. A record may have any number.
    const LAST: u64 = 253_402_300_799;
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since.as_secs() <= LAST => humantime::format_rfc3339(time).to_string(),
        Ok(_) => "a time after the year 9999".to_owned(),
        Err(_) => "a time before 1970".to_owned(),
    }
}

/// Returns a time in milliseconds since the Unix epoch, for JSON.
pub(in crate::cmd) fn unix_ms(time: Option<SystemTime>) -> Option<u64> {
    let since = time?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// Returns a time span in milliseconds, for JSON.
pub(in crate::cmd) fn as_ms(span: Duration) -> serde_json::Value {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).into()
}
