//! Permits with leases that are in use, and their ids.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Share;
use crate::key::Shown;
use crate::loss::LossReason;

/// The id of a permit: 16 bytes that no other permit has. Written and read as 32 hex
/// digits, as Redisson's users know it.
///
/// ```
/// let id: leasehold::PermitId = "000102030405060708090a0b0c0d0e0f".parse()?;
/// assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0e0f");
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId([u8; 16]);

impl PermitId {
    pub(crate) fn random() -> Self {
        Self(uuid::Uuid::new_v4().into_bytes())
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
        match u128::from_str_radix(text, 16) {
            Ok(number) if digits => Ok(Self(number.to_be_bytes())),
            _ => Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "`{}` is no permit's id; one is 32 hex digits long",
                    Shown(text)
                ),
            )),
        }
    }
}

/// Proof that permits are held: what
/// [`ExpirableSemaphore::acquire`](crate::ExpirableSemaphore::acquire) and its relatives
/// give.
///
/// [`release`](Self::release) gives them back and says whether they were held until then.
/// Dropping this gives them back too, in the background, and can report nothing; before the
/// program ends, [`Client::close`](crate::Client::close)`().await` waits for it. Once lost,
/// it is never valid again.
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct ExpirablePermit {
    share: Share,
    ids: Arc<[PermitId]>,
}

impl ExpirablePermit {
    pub(super) fn new(share: Share, ids: Arc<[PermitId]>) -> Self {
        Self { share, ids }
    }

    /// The id of the permit; of the first one, when there are several.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.ids[0]
    }

    /// The ids of all permits.
    #[must_use]
    pub fn ids(&self) -> &[PermitId] {
        &self.ids
    }

    /// Gives the permits back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when one was not held any more: what was
    /// done with it may have overlapped with another holder. `Unavailable` or
    /// `OutcomeUnknown` when no server answered; it is tried again in the background, and
    /// the permits come back one lease after their last renewal at the latest.
    ///
    /// # Cancel safety
    ///
    /// Once called, the permits are given back whether the future is dropped or not.
    pub async fn release(self) -> Result<()> {
        self.share.release().await
    }

    /// Resolves with the reason when a permit is lost: at the next renewal if the server
    /// says so, and at [`valid_until`](Self::valid_until) at the latest, without any word
    /// from the server. It never resolves once they were given back in time.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let hold = Arc::clone(self.share.hold());
        async move { hold.lost().await }
    }

    /// Why a permit is lost; `None` while they are held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.share.hold().loss()
    }

    /// Whether the permits are held, by what this process knows and its clock says. No call
    /// to the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Runs `work` until it is done or a permit is lost, whichever comes first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost); `work` has been dropped then.
    ///
    /// # Cancel safety
    ///
    /// That of `work`.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.share.protect(work).await
    }

    /// Until when the permits are held for sure: the instant before the last confirmed
    /// request was sent, plus the lease, less the drift. Renewal moves it on.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        let context = self.share.context();
        context.clock.to_instant(self.share.valid_until())
    }

    /// What renewing has met with since its last confirmation: the loss that comes at
    /// [`valid_until`](Self::valid_until) unless a renewal gets through. `None` while
    /// renewals are answered within a twentieth of the lease.
    #[must_use]
    pub fn renewal_failure(&self) -> Option<LossReason> {
        self.share.hold().renewal_failure()
    }

    /// Makes the permits last `lease` from now at least. Never shortens it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when one is not held any more.
    /// `Unavailable` or `OutcomeUnknown` when no server answered; they are good until
    /// [`valid_until`](Self::valid_until).
    ///
    /// # Cancel safety
    ///
    /// The request may be carried out without its answer being heard.
    #[doc(alias = "updateLeaseTime")]
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        self.share.extend(lease).await
    }

    /// Leaves the permits to their lease: they are neither renewed nor released any more.
    /// Whoever has their ids can release them.
    pub fn forget(self) {
        self.share.forget();
    }

    /// This hold's number, which no other hold of this process has: what the
    /// [history checker](crate::history) knows a hold by.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.share.hold().number
    }

    /// The name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.share.hold().key.as_str()
    }
}

impl fmt::Debug for ExpirablePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirablePermit")
            .field("name", &self.name())
            .field("ids", &self.ids)
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}
