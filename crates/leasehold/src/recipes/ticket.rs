//! Tickets: a hold that passes from one process to another, without a moment in which the lock is
//! free.

mod hand_out;
mod resume;
pub(crate) mod steps;
mod text;

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::expirable::ExpirablePermit;
use crate::primitives::fenced::FencedGuard;
use crate::primitives::lock::LockGuard;
use crate::primitives::rw::{ReadGuard, WriteGuard};
pub use text::{Ticket, TicketKind};

impl LockGuard {
    /// Turns the hold into a [`Ticket`], a line of text with which another process can
    /// [resume](crate::Client::resume) it. The lock stays locked in the meantime. The client no
    /// longer renews the hold, which ends `lease` from now unless a process resumes it. `lease` is
    /// at least 10 ms and at most 2^53 ms, and may be shorter than the current lease.
    ///
    /// Pending futures of [`lost`](Self::lost) resolve with
    /// [`LossReason::HandedOver`](crate::LossReason::HandedOver). A [maximum hold
    /// time](crate::Lock::max_hold) ends with the guard.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lock was no longer held. `Unavailable` or
    /// `OutcomeUnknown` if no server answered.
    ///
    /// `Misuse`:
    ///
    /// - if `lease` is out of its range, or longer than the client's [failover
    ///   guard](crate::ClientBuilder::failover_guard),
    /// - for a [`GroupLock`](crate::GroupLock), a [`MultiLock`](crate::MultiLock) or a
    ///   [`RedLock`](crate::RedLock),
    /// - if other guards of an [`Owner`](crate::Owner), or other readers of this process, share the
    ///   hold, and
    /// - if the owner holds the other side of the read-write lock, too.
    ///
    /// After an error this guard holds nothing: the client releases the lock in the background,
    /// unless other guards share the hold.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::embedded();
    /// let lock = client.lock("export:7");
    /// let guard = lock.acquire().await?;
    /// let ticket = guard.into_ticket(Duration::from_secs(60)).await?;
    /// let line = ticket.to_string(); // send it with the job
    ///
    /// // ... in the worker:
    /// assert!(lock.try_acquire().await?.is_none());
    /// let guard = client.resume(&line.parse()?).await?; // renewed again
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn into_ticket(self, lease: Duration) -> Result<Ticket> {
        match self.one() {
            Some(_) => hand_out::hand_out(self.into_share(), lease).await,
            None => Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "`{}` is several locks, and a ticket is for one; make a ticket from a guard of \
                     one lock",
                    self.name()
                ),
            )),
        }
    }
}

macro_rules! into_ticket {
    ($($guard:ident),+) => {
        $(impl $guard {
            /// Turns the hold into a [`Ticket`], with which another process can resume it: see
            /// [`LockGuard::into_ticket`].
            ///
            /// # Errors
            ///
            /// Same as [`LockGuard::into_ticket`].
            ///
            /// # Cancel safety
            ///
            /// Same as [`LockGuard::into_ticket`].
            pub async fn into_ticket(self, lease: Duration) -> Result<Ticket> {
                LockGuard::from(self).into_ticket(lease).await
            }
        })+
    };
}

into_ticket!(FencedGuard, ReadGuard, WriteGuard);

impl ExpirablePermit {
    /// Turns the permits into a [`Ticket`], with which another process can
    /// [resume](crate::ExpirableSemaphore::resume) them: see [`LockGuard::into_ticket`]. The
    /// process that resumes them gets new ids.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if a permit was no longer held. `Misuse` for a
    /// `lease` out of its range. `Unavailable` or `OutcomeUnknown` if no server answered. After an
    /// error this guard holds nothing: the client releases the permits in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the permits in the background.
    pub async fn into_ticket(self, lease: Duration) -> Result<Ticket> {
        hand_out::hand_out(self.into_share(), lease).await
    }
}

fn misuse(key: &Key, what: &str) -> Error {
    Error::new(ErrorKind::Misuse, format!("`{key}`: {what}")).with_key(key)
}

/// Returns the key of the notes about a name's tickets that were resumed.
fn taken(key: &Key) -> String {
    format!("leasehold:{}:taken", key.as_tag())
}
