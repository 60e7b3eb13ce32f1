//! The servers that must confirm a grant or a renewal before it counts.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// The servers that must confirm a grant, and each renewal, before it counts: the setting of
/// [`Lock::acknowledged_by`](crate::Lock::acknowledged_by).
///
/// If a master fails, data that its replicas have not received yet is lost. A hold that `n`
/// replicas have confirmed is not lost if one of these `n` replicas is promoted. So if you set the
/// number of all replicas that can be promoted, no failover loses a hold. The price: no client can
/// acquire such a lock while one of these replicas is down.
///
/// The number is not detected automatically, because a master that has lost its replicas can't know
/// how many it should have.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Acknowledgement;
///
/// let client = leasehold::Client::embedded();
/// let lock = client.lock("orders:42").acknowledged_by(Acknowledgement::replicas(2));
/// let guard = lock.acquire().await?; // two replicas have confirmed it
/// # guard.release().await
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acknowledgement {
    // Small types, because each queued operation has such a setting.
    within_ms: u16,
    replicas: u8,
    on_disk: bool,
}

impl Default for Acknowledgement {
    fn default() -> Self {
        Self::master()
    }
}

impl Acknowledgement {
    const DEFAULT_MS: u16 = 500;
    const MAX_MS: u16 = 60_000;
    /// The reply timeout must exceed the limit for the confirmations by at least this time: a
    /// server may end a `WAIT` up to 100 ms late.
    const REPLY_MARGIN: Duration = Duration::from_millis(200);

    /// Requires only the master's confirmation (the default).
    #[must_use]
    pub const fn master() -> Self {
        Self::replicas(0)
    }

    /// Requires the confirmation of this number of replicas (`WAIT`).
    #[must_use]
    pub const fn replicas(replicas: u8) -> Self {
        Self {
            within_ms: Self::DEFAULT_MS,
            replicas,
            on_disk: false,
        }
    }

    /// Also requires that the master and these replicas have written the change to their disks
    /// (`WAITAOF`), so that it survives a power loss of all these servers. With
    /// [`master`](Self::master), only the master's disk counts. This needs Redis 7.2 with
    /// `appendonly yes`. Use `appendfsync always` for speed: with `everysec` each acquire takes up
    /// to a second, so set a longer [`within`](Self::within).
    #[must_use = "the setting is only in the returned value"]
    pub const fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    /// Sets how long the server waits for the confirmations of a request. 500 ms by default, at
    /// least 1 ms, at most 60 s. The limit must also be at least 200 ms less than the client's
    /// [`reply_timeout`](crate::ClientBuilder::reply_timeout), because a server may answer up to
    /// 100 ms late.
    #[must_use = "the setting is only in the returned value"]
    pub const fn within(mut self, limit: Duration) -> Self {
        // The limit is checked when it is used, like all settings. A limit that is too long for
        // `u16` is cut to its maximum, which the check also refuses.
        let ms = limit.as_millis();
        self.within_ms = if ms > u16::MAX as u128 {
            u16::MAX
        } else {
            ms as u16
        };
        self
    }

    /// Returns whether this setting requires more than the master's reply.
    pub(crate) fn is_needed(self) -> bool {
        self.replicas > 0 || self.on_disk
    }

    #[cfg(feature = "redis")]
    pub(crate) fn needed_replicas(self) -> u8 {
        self.replicas
    }

    #[cfg(feature = "redis")]
    pub(crate) fn needs_disk(self) -> bool {
        self.on_disk
    }

    #[cfg(any(feature = "redis", feature = "testing"))]
    pub(crate) fn limit_ms(self) -> u16 {
        self.within_ms
    }

    /// Returns why these confirmations are too few; `None` if they are enough. `own_disk` says
    /// whether the master has the data on its own disk.
    #[cfg(any(feature = "redis", feature = "testing"))]
    pub(crate) fn too_few(self, replicas: i64, own_disk: bool) -> Option<String> {
        let (needed, within) = (i64::from(self.replicas), self.within_ms);
        if self.on_disk && !own_disk {
            return Some(format!(
                "the server did not have it on its disk within {within} ms, and {replicas} of {needed} replicas had it"
            ));
        }
        let confirmed = match self.on_disk {
            true => "had it on their disks",
            false => "confirmed it",
        };
        (replicas < needed)
            .then(|| format!("only {replicas} of {needed} replicas {confirmed} within {within} ms"))
    }

    /// Returns a setting whose confirmations satisfy both `self` and `other`.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self.is_needed(), other.is_needed()) {
            (true, false) => self,
            (false, true) => other,
            _ => Self {
                within_ms: self.within_ms.max(other.within_ms),
                replicas: self.replicas.max(other.replicas),
                on_disk: self.on_disk || other.on_disk,
            },
        }
    }

    /// Returns the confirmations that both settings require.
    pub(crate) fn common(self, other: Self) -> Self {
        match (self.covers(other), other.covers(self)) {
            (true, _) => other,
            (false, true) => self,
            (false, false) => Self::master(),
        }
    }

    /// Returns whether confirmations that satisfy `self` always satisfy `other`, too.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.replicas >= other.replicas && (self.on_disk || !other.on_disk)
    }

    /// Checks the limit for the confirmations. `reply_timeout` is the limit for a reply, if there
    /// is a server.
    pub(crate) fn check(self, key: &Key, reply_timeout: Option<Duration>) -> Result<()> {
        if !self.is_needed() {
            return Ok(());
        }
        let within = Duration::from_millis(self.within_ms.into());
        let most = Duration::from_millis(Self::MAX_MS.into());
        let most = reply_timeout.map_or(most, |reply| {
            most.min(reply.saturating_sub(Self::REPLY_MARGIN))
        });
        if (Duration::from_millis(1)..=most).contains(&within) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Misuse,
            format!(
                "the limit for acknowledging `{key}` is {within:?}, which is not between 1 ms and {most:?}: \
                 set another limit, or a client's reply timeout that is at least 200 ms longer than the limit"
            ),
        )
        .with_key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stronger_of_two_is_enough_for_both() {
        let (none, one) = (Acknowledgement::master(), Acknowledgement::replicas(1));
        let disk = none.on_disk().within(Duration::from_secs(1));
        assert_eq!(none.and(one), one);
        assert_eq!(one.and(none.within(Duration::from_secs(9))), one);
        assert_eq!(none.common(one), none);
        assert_eq!(one.common(Acknowledgement::replicas(2)), one);
        assert!(!one.common(disk).is_needed());
        let both = one.and(disk);
        assert_eq!(both, one.on_disk().within(Duration::from_secs(1)));
        assert!(both.covers(one) && both.covers(disk) && one.covers(none));
        assert!(
            !one.covers(disk) && !disk.covers(one) && !one.covers(Acknowledgement::replicas(2))
        );
    }

    #[test]
    fn time_for_the_confirmations_has_a_range() {
        let key = Key::parse("x").expect("a name");
        let check = |ms, reply_ms: Option<u64>| {
            let within = Acknowledgement::replicas(1).within(Duration::from_millis(ms));
            within
                .check(&key, reply_ms.map(Duration::from_millis))
                .is_ok()
        };
        assert!(check(1, None) && check(60_000, None) && check(1_800, Some(2_000)));
        assert!(!check(0, None) && !check(60_001, None) && !check(1 << 40, None));
        assert!(!check(1_801, Some(2_000)) && !check(1, Some(100)));
        let unused = Acknowledgement::master().within(Duration::ZERO);
        assert!(unused.check(&key, Some(Duration::from_millis(1))).is_ok());
    }
}
