//! Leased permits in use, and their ids.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

use super::steps::PermitHold;
use crate::clock::Timers;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Share;
use crate::loss::LossReason;
use crate::text::Shown;

/// The id of a permit: 16 bytes that no other permit has. It is written as 32 hex digits, as in
/// Redisson.
///
/// ```
/// let id: leasehold::PermitId = "000102030405060708090a0b0c0d0e0f".parse()?;
/// assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0e0f");
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId([u8; 16]);

impl PermitId {
    /// Creates a new id for a permit of `client`. The second half of the new id is the first half
    /// of the client's id, so that an operator can see which client has the permit.
    pub(crate) fn fresh(client: &str) -> Self {
        let client = uuid::Uuid::try_parse(client).unwrap_or_default();
        Self(*client.as_bytes()).reversed().renewed()
    }

    /// Creates another id for the same client.
    pub(crate) fn renewed(self) -> Self {
        // Use random bytes from the operating system, because anyone who guesses an id can give the
        // permit back. The random bytes are in the first half, because the scripts use that half to
        // distinguish permits.
        let mut id = uuid::Uuid::new_v4().into_bytes();
        id[8..].copy_from_slice(&self.0[8..]);
        Self(id)
    }

    /// Returns the id with its halves swapped.
    fn reversed(self) -> Self {
        let mut id = self.0;
        id.rotate_left(8);
        Self(id)
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({self})")
    }
}

impl FromStr for PermitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        // `digits` is checked, too, because `from_str_radix` also accepts a sign and fewer digits.
        match u128::from_str_radix(text, 16) {
            Ok(number) if digits => Ok(Self(number.to_be_bytes())),
            _ => Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "`{}` is not the id of a permit: an id has 32 hex digits",
                    Shown(text)
                ),
            )),
        }
    }
}

/// The guard of one or more permits, returned by
/// [`ExpirableSemaphore::acquire`](crate::ExpirableSemaphore::acquire) and its variants.
///
/// [`release`](Self::release) releases the permits and reports whether they were held until then.
/// Dropping the guard also releases them, but in the background and without a report. Before the
/// program ends, call [`Client::close`](crate::Client::close)`().await`, which waits for these
/// releases. A guard whose permits were lost never holds them again.
#[must_use = "the permits are released as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct ExpirablePermit {
    share: Share,
}

impl ExpirablePermit {
    pub(crate) fn new(share: Share) -> Self {
        Self { share }
    }

    pub(crate) fn into_share(self) -> Share {
        self.share
    }

    /// Releases the permits, and reports whether they were held until then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if a permit was no longer held: the work with it
    /// may have overlapped with the work of another holder. `Unavailable` or `OutcomeUnknown` if no
    /// server answered. In that case the client sends the release again in the background, and the
    /// permits are free no later than one lease after their last renewal. `OutcomeUnknown` also if
    /// the first request was not answered and the next one did not find the permits. Either the
    /// first request gave them back, or a permit had been lost before.
    ///
    /// # Cancel safety
    ///
    /// Once `release` has been called, the permits are released even if the future is dropped.
    pub async fn release(self) -> Result<()> {
        self.share.release().await
    }

    /// Resolves with the reason when a permit is lost. If the server answers, its reply to the next
    /// renewal reports the loss. If no server answers, the future resolves no later than
    /// [`valid_until`](Self::valid_until). If the permits are released before they are lost, the
    /// future never resolves.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        self.share.lost()
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    #[cfg_attr(not(feature = "blocking"), expect(dead_code))]
    pub(crate) fn timers(&self) -> &Timers {
        &self.share.context().timers
    }

    /// Returns why a permit was lost; `None` while all of them are held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.share.hold().report_loss()
    }

    /// Returns whether the permits are held, as far as this process and its clock know. Sends no
    /// request to the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Runs `work` until it is done or a permit is lost, whichever is first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if a permit is lost. In that case `work` has
    /// been dropped.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `work`.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.share.protect(work).await
    }

    /// Returns the instant until which the permits are certainly held. This is the time just before
    /// the last confirmed request was sent, plus the lease, minus the
    /// [drift](crate::ClientBuilder::drift_fraction) and 2 ms. Each renewal moves this instant
    /// forward.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        let context = self.share.context();
        context.clock.to_instant(self.share.valid_until())
    }

    /// Returns the time at which the last confirmed request was sent.
    #[cfg(feature = "testing")]
    pub(crate) fn confirmed_at(&self) -> Instant {
        let context = self.share.context();
        let confirmed_at = self.share.hold().confirmed_at();
        context.clock.to_instant(confirmed_at)
    }

    /// Returns why renewals have been failing since the last one that succeeded. Unless a renewal
    /// succeeds before [`valid_until`](Self::valid_until), the permits are lost at that time for
    /// this reason. `None` while the server answers each renewal within a twentieth of the lease.
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        self.share.hold().renewal_failure()
    }

    /// Extends the lease of the permits, so that it ends `lease` from now or later. The call never
    /// shortens the lease. `lease` is at least 10 ms and at most 2^53 ms.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if a permit is no longer held. `Misuse` for a
    /// `lease` out of its range. `Unavailable` or `OutcomeUnknown` if no server answered: the
    /// permits are still held until [`valid_until`](Self::valid_until).
    ///
    /// # Cancel safety
    ///
    /// The server may carry out the request even if the future is dropped before the answer.
    #[doc(alias = "updateLeaseTime")]
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.share.extend(lease).await
    }

    /// Ends the guard without releasing the permits. The client no longer renews them, so they are
    /// free when their lease ends. Any client that has their ids can release them earlier.
    pub fn forget(self) {
        self.share.forget();
    }

    /// Returns how long the acquire took.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.share.waited()
    }

    /// Returns the number of this hold, which is unique within this process. The [history
    /// checker](crate::testing::history) identifies holds by it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.share.hold().number
    }

    /// Returns the id of the permit, or of the first permit if there are several.
    #[must_use]
    pub fn id(&self) -> PermitId {
        // The first id exists: an acquire of zero permits is refused.
        self.ids()[0]
    }

    /// Returns the ids of all permits.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        let steps: &dyn Any = &*self.share.hold().steps;
        // These are always a `PermitHold`: `acquire.rs` makes no other steps.
        let permits = steps.downcast_ref::<PermitHold>();
        permits.map_or(&[], |permits| &permits.ids)
    }

    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.share.hold().key.given()
    }
}

impl fmt::Debug for ExpirablePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirablePermit")
            .field("name", &self.name())
            .field("ids", &self.ids())
            .field("loss", &self.share.hold().loss())
            .finish_non_exhaustive()
    }
}
