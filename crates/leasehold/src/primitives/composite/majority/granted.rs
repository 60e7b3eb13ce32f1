//! The hold that is made of the servers' votes.

use std::sync::Arc;

use tokio::time::Instant;

use super::ballot::Ballot;
use super::rejoin::Rejoin;
use crate::backend::failure::{Failure, Outcome};
use crate::clock::Moment;
use crate::primitives::any::AnyLock;
use crate::primitives::composite::quorum::{Members, Quorum};
use crate::primitives::lock::LockGuard;

impl Ballot<'_> {
    /// Returns the hold, if it is valid for long enough to be useful. The ballot began at `began`.
    pub(super) fn hold(
        &self,
        granted: Vec<(&AnyLock, LockGuard)>,
        began: Moment,
    ) -> Result<LockGuard, Failure> {
        let members = granted.iter().map(|(member, _)| (*member).clone());
        let members = members.collect();
        let quorum = Quorum::new(self.key, granted, self.quorum, self.longest.is_some());
        let members_state = Arc::clone(&quorum.members);
        let guard = LockGuard::of_quorum(quorum);
        let left = guard
            .valid_until()
            .saturating_duration_since(Instant::now());
        // A hold that the owner already has is accepted, however little of its lease remains.
        let is_new = guard.hold_count() == 1;
        let lasts = left >= self.terms.settings.lease() / 3 || !is_new;
        if guard.is_held() && lasts && !self.is_too_late(began) {
            self.rejoin_after_restarts(members, members_state);
            return Ok(guard);
        }
        // This drops the guard, which undoes all votes.
        Err(Failure::no_answer(
            Outcome::MayHaveRun,
            "a majority granted it, but so late that little of the lease is left; set a longer lease",
            self.masters(self.quorum),
        ))
    }

    /// Returns whether a ballot that began at `began` took too long, and so is void: on a server
    /// that was restarted after that moment, another holder may have rejoined (`rejoin.rs`).
    fn is_too_late(&self, began: Moment) -> bool {
        let limit = self.longest.map(|longest| longest.ballot_limit());
        let took = self.timers.now().saturating_sub(began);
        limit.is_some_and(|limit| took > limit)
    }

    /// Lets members rejoin after restarts of their servers, if the hold is renewed. A hold with a
    /// fixed lease ends by itself.
    fn rejoin_after_restarts(&self, members: Vec<AnyLock>, members_state: Arc<Members>) {
        let settings = self.terms.settings;
        if let (Some(longest), None) = (self.longest, settings.fixed_lease) {
            let rejoin = Rejoin {
                members,
                settings: settings.clone(),
                owner: self.terms.owner.cloned(),
                limit: self.limit,
                longest: Arc::clone(longest),
            };
            rejoin.begin(members_state);
        }
    }
}
