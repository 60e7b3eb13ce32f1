//! What becomes of a ballot that a majority has granted.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ballot::Ballot;
use super::longest::Longest;
use super::rejoin::Rejoin;
use crate::backend::failure::{Failure, Outcome};
use crate::primitives::any::AnyLock;
use crate::primitives::composite::quorum::{Members, Quorum};
use crate::primitives::lock::LockGuard;

impl Ballot<'_> {
    /// The hold, if it is valid for long enough to be of use. `began`: when the ballot did.
    pub(super) async fn hold(
        &self,
        granted: Vec<(&AnyLock, LockGuard)>,
        began: Instant,
    ) -> Result<LockGuard, Failure> {
        let members = granted.iter().map(|(member, _)| (*member).clone());
        let members = members.collect();
        let quorum = Quorum::new(self.key, granted, self.quorum, self.longest.is_some());
        let whole = Arc::clone(&quorum.members);
        let guard = LockGuard::of_quorum(quorum);
        let lease = self.terms.settings.lease();
        if self.is_too_late(whole.confirmed_at()) && !self.is_too_late(began) {
            // Its owner has held some of it before, or others share it, and the servers have not
            // confirmed that lately. If this fails, the guard is too late still.
            let _ = Box::pin(guard.extend(lease)).await;
        }
        let left = guard
            .valid_until()
            .saturating_duration_since(Instant::now());
        // A hold that the owner has already is good, however little of it is left.
        let is_new = guard.hold_count() == 1;
        let is_too_late = self.is_too_late(whole.confirmed_at());
        if guard.is_held() && !is_too_late && (left >= lease / 3 || !is_new) {
            self.outlives_restarts(members, whole);
            return Ok(guard);
        }
        // The guard is dropped with this, so all votes go back.
        Err(Failure::no_answer(
            Outcome::MayHaveRun,
            "a majority granted it, but so late that little of the lease is left; set a longer lease",
            self.masters(self.quorum),
        ))
    }

    /// Whether a ballot that began then, or what was confirmed then, may no longer make a hold: a
    /// server that was restarted since may have been set again by another holder (`rejoin.rs`).
    fn is_too_late(&self, began: Instant) -> bool {
        let limit = self.longest.map(|longest| longest.ballot_limit());
        let took = Instant::now().saturating_duration_since(began);
        limit.is_some_and(|limit: Duration| took > limit)
    }

    /// A hold that is renewed may meet restarts. One with a fixed lease ends by itself.
    fn outlives_restarts(&self, members: Vec<AnyLock>, whole: Arc<Members>) {
        let longest: Option<&Arc<Longest>> = self.longest;
        let settings = self.terms.settings;
        if let (Some(longest), None) = (longest, settings.fixed_lease) {
            let rejoin = Rejoin {
                members,
                settings: settings.clone(),
                owner: self.terms.owner.cloned(),
                limit: self.limit,
                longest: Arc::clone(longest),
            };
            rejoin.begin(whole);
        }
    }
}
