//! The longest lease of a `RedLock`: the time for which a restarted server has no vote, because it
//! may have forgotten a hold.
//!
//! A hold that a server has forgotten can't be looked up, so the length of holds is bounded in
//! advance. All clients that share the lock should set the same bound. In case they do not, a bound
//! that is longer than the default is noted on every member before the first hold. Every client
//! reads the notes of the servers that grant the lock, and applies the greatest.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use crate::config::{DEFAULT_LONGEST_LEASE, wire_ms};
use crate::error::{Error, Result};
use crate::primitives::any::AnyLock;

/// The longest lease, as known to a handle and its clones.
pub(super) struct LongestLease {
    /// The setting of this handle.
    own: Duration,
    /// The greatest note that this handle has read.
    read_ms: AtomicU64,
    /// Whether each member has noted this handle's setting.
    noted: Box<[AtomicBool]>,
}

impl LongestLease {
    pub(super) fn new(own: Duration, members: usize) -> Self {
        let noted = std::iter::repeat_with(AtomicBool::default);
        Self {
            own,
            read_ms: AtomicU64::new(0),
            noted: noted.take(members).collect(),
        }
    }

    /// Returns the limit for every lease of this handle.
    pub(super) fn own(&self) -> Duration {
        self.own
    }

    /// Returns the longest lease of any client's hold, as far as this handle knows.
    pub(super) fn of_all_clients(&self) -> Duration {
        let read = Duration::from_millis(self.read_ms.load(Ordering::SeqCst));
        self.own.max(read)
    }

    /// Returns the longest time that a ballot may take. It depends on the handle's own setting, or
    /// on the default if that is shorter, and not on notes: a holder with the same setting uses
    /// only that setting when it rejoins, if it has not read the note that this handle has read.
    pub(super) fn ballot_limit(&self) -> Duration {
        self.own.min(DEFAULT_LONGEST_LEASE) * 2 / 5
    }

    /// Returns how long a restarted server must have been up before a holder rejoins on it. This
    /// time is longer than a ballot may take, even if the clocks drift.
    pub(super) fn rejoin_after(&self) -> Duration {
        self.of_all_clients() / 2
    }

    /// Reads the member's note. If this handle knows a longest lease above the default, notes it on
    /// the member.
    pub(super) async fn exchange_notes(&self, member: &AnyLock) -> Result<()> {
        let known = self.of_all_clients();
        let announced = if known > DEFAULT_LONGEST_LEASE {
            known
        } else {
            // With zero, the request only reads. Every client assumes the default anyway, and a
            // note would remain forever.
            Duration::ZERO
        };
        let noted = member.note_longest(announced).await?;
        // Never lower this value: a hold with the longer lease may still be valid.
        self.read_ms.fetch_max(wire_ms(noted), Ordering::SeqCst);
        Ok(())
    }

    /// Makes all members note this handle's longest lease, if it is above the default. Then every
    /// majority of the members includes a member that still knows the note, as long as only a
    /// minority of the members lose their data. Returns the errors of the members that have not
    /// noted it.
    pub(super) async fn note_on_all(&self, members: &[AnyLock], limit: Duration) -> Vec<Error> {
        if self.own <= DEFAULT_LONGEST_LEASE {
            return Vec::new();
        }
        let missing = members.iter().zip(&self.noted);
        let missing = missing.filter(|(_, noted)| !noted.load(Ordering::SeqCst));
        let notes = missing.map(|(member, noted)| async move {
            member
                .with_timeout(limit, self.exchange_notes(member))
                .await?;
            noted.store(true, Ordering::SeqCst);
            Ok(())
        });
        let notes = join_all(notes).await.into_iter();
        notes.filter_map(Result::err).collect()
    }
}

impl fmt::Debug for LongestLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.own.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings from the shortest to the longest.
    const SETTINGS: [Duration; 6] = [
        Duration::from_millis(10),
        Duration::from_secs(1),
        DEFAULT_LONGEST_LEASE,
        Duration::from_millis(30_001),
        Duration::from_secs(3600),
        Duration::from_secs(365 * 24 * 3600),
    ];
    /// Notes that a handle may have read. A setting that is not above the default is not noted.
    const NOTES: [Duration; 3] = [
        Duration::ZERO,
        Duration::from_millis(30_001),
        Duration::from_secs(365 * 24 * 3600),
    ];
    /// The greatest `drift_fraction` of a client.
    const MOST_DRIFT: f64 = 0.25;

    fn all() -> impl Iterator<Item = LongestLease> {
        let pairs = SETTINGS
            .into_iter()
            .flat_map(|own| NOTES.map(|note| (own, note)));
        pairs.map(|(own, note)| {
            let longest = LongestLease::new(own, 3);
            longest.read_ms.store(wire_ms(note), Ordering::SeqCst);
            longest
        })
    }

    /// Pairs each holder with each ballot of the same setting. Holders that know a longest lease of
    /// at least the default are also paired with ballots of every setting.
    fn pairs() -> impl Iterator<Item = (LongestLease, LongestLease)> {
        all().flat_map(|holder| {
            let (own, known) = (holder.own, holder.of_all_clients());
            let ballots =
                all().filter(move |ballot| ballot.own == own || known >= DEFAULT_LONGEST_LEASE);
            ballots.map(move |ballot| {
                let holder = LongestLease::new(own, 3);
                holder.read_ms.store(wire_ms(known), Ordering::SeqCst);
                (holder, ballot)
            })
        })
    }

    #[test]
    fn each_ballot_is_over_before_a_member_rejoins() {
        let mut seen = 0;
        for (holder, ballot) in pairs() {
            let lasts = ballot.ballot_limit().mul_f64(1.0 + MOST_DRIFT);
            assert!(
                lasts <= holder.rejoin_after(),
                "{lasts:?} {holder:?} {ballot:?}"
            );
            seen += 1;
        }
        assert!(seen > 100, "{seen}");
    }

    #[test]
    fn member_rejoins_before_its_server_votes_again() {
        for (holder, ballot) in pairs().filter(|(holder, ballot)| {
            // Both have read the same note, because each majority has it.
            holder.of_all_clients() == ballot.of_all_clients()
        }) {
            assert!(
                holder.rejoin_after() < ballot.of_all_clients(),
                "{holder:?} {ballot:?}"
            );
        }
    }

    #[test]
    fn ballot_has_time_for_an_answer_of_each_server() {
        for longest in all() {
            assert!(longest.ballot_limit() > Duration::ZERO, "{longest:?}");
        }
    }
}
