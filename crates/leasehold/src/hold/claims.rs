//! The claims of the guards of one hold. Each guard has its own claim. A re-entry adds a claim to
//! the hold, and the claim is removed when its guard leaves.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::{Terms, check_longest};
use crate::error::Result;
use crate::key::Key;

/// The time at which a guard's maximum hold time ends, and the length of that maximum.
pub(crate) type Limit = (Moment, Duration);

/// The id of a guard's claim within its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimId(u64);

impl ClaimId {
    /// The claim of the guard for which the hold was acquired.
    pub(crate) const FIRST: Self = Self(0);
}

struct Claim {
    id: ClaimId,
    terms: Terms,
    /// The end of its lease, if the lease is fixed.
    end: Moment,
    limit: Option<Limit>,
    /// The end of the minimum time that its guard has added to the hold.
    kept_until: Option<Moment>,
    /// Whether the end of the guard's maximum hold time was announced.
    announced: bool,
    /// Whether the guard was forgotten: it has left without giving the claim up.
    forgotten: bool,
}

impl Claim {
    fn new(id: ClaimId, terms: Terms, now: Moment) -> Self {
        Self {
            id,
            terms,
            end: now + terms.lease,
            limit: terms.max_hold.map(|limit| (now + limit, limit)),
            kept_until: None,
            announced: false,
            forgotten: false,
        }
    }

    /// Merges two forgotten claims, which are both renewed or both fixed.
    fn and(self, other: Self) -> Self {
        let (one, two) = (self.terms, other.terms);
        Self {
            terms: one.and(two),
            end: self.end.max(other.end),
            kept_until: self.kept_until.max(other.kept_until),
            // The limits were for the guards of these claims, which have left.
            limit: None,
            ..self
        }
    }

    /// Returns how long the hold must last for this claim if a request is sent now.
    fn wanted_lease(&self, now: Moment) -> Duration {
        // A renewed lease starts again with each request. A fixed lease has an end, which no
        // request may move.
        match self.terms.renew_every {
            Some(_) => self.terms.lease,
            None => self.end.saturating_sub(now),
        }
    }
}

/// The claims of a hold. Never empty: the last guard's claim is needed until the hold is released.
pub(super) struct Claims {
    list: Vec<Claim>,
    next: u64,
    /// The time until which the lock must stay locked, even if the guard that asked for this has
    /// left.
    kept_at_least_until: Option<Moment>,
}

impl Claims {
    pub(super) fn new(terms: Terms, now: Moment) -> Self {
        Self {
            list: vec![Claim::new(ClaimId::FIRST, terms, now)],
            next: 1,
            kept_at_least_until: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn add(&mut self, terms: Terms, now: Moment) -> ClaimId {
        let id = ClaimId(self.next);
        self.next += 1;
        self.list.push(Claim {
            kept_until: terms.min_hold.map(|least| now + least),
            ..Claim::new(id, terms, now)
        });
        id
    }

    /// Notes that the hold was granted at `now`, from which its minimum time counts.
    pub(super) fn granted(&mut self, now: Moment) {
        let end = self.terms().min_hold.map(|least| now + least);
        self.kept_at_least_until = self.kept_at_least_until.max(end);
    }

    /// Ends the minimum time of the hold.
    pub(super) fn end_min_hold(&mut self) {
        self.kept_at_least_until = None;
        for claim in &mut self.list {
            claim.kept_until = None;
        }
    }

    /// Ends the minimum time that this guard has added.
    pub(super) fn end_min_hold_of(&mut self, id: ClaimId) {
        if let Some(claim) = self.find(id) {
            claim.kept_until = None;
        }
    }

    /// Returns the rest of the hold's minimum time.
    pub(super) fn rest(&self, now: Moment) -> Option<Duration> {
        let each = self.list.iter().map(|claim| claim.kept_until);
        let end = each.fold(self.kept_at_least_until, Option::max);
        let rest = end?.saturating_sub(now);
        (!rest.is_zero()).then_some(rest)
    }

    /// Returns whether the hold has a single claim, on these terms, that the watchdog can continue
    /// to renew for the next holder.
    pub(super) fn is_only_claim(&self, terms: Terms) -> bool {
        let [claim] = &self.list[..] else {
            return false;
        };
        let plain = claim.terms.renew_every.is_some() && claim.limit.is_none();
        let free = claim.terms.longest_lease.is_none() && claim.terms.min_hold.is_none();
        plain && free && !claim.forgotten && claim.terms == terms
    }

    /// Returns whether all guards have asked for the hold on these terms.
    pub(super) fn all_have(&self, terms: Terms) -> bool {
        // Readers that share a hold are independent: one must not report progress for another.
        let is_free =
            |claim: &Claim| claim.limit.is_none() && claim.terms.progress_within.is_none();
        let alike = |claim: &Claim| !claim.forgotten && is_free(claim) && claim.terms == terms;
        self.list.iter().all(alike)
    }

    /// Makes all claims count from `now`, because nothing has been granted yet.
    pub(super) fn start_again(&mut self, now: Moment) {
        for claim in &mut self.list {
            *claim = Claim::new(claim.id, claim.terms, now);
        }
        self.kept_at_least_until = None;
    }

    /// Raises a guard's claim: the hold must last at least `lease` from now.
    pub(super) fn raise(&mut self, id: ClaimId, lease: Duration, now: Moment) {
        if let Some(claim) = self.find(id) {
            // A claim never falls: the guard relies on its earlier claim.
            claim.terms.lease = claim.terms.lease.max(lease);
            claim.end = claim.end.max(now + lease);
        }
    }

    /// Returns the end and the length of this guard's maximum hold time.
    pub(super) fn limit_of(&self, id: ClaimId) -> Option<Limit> {
        self.list.iter().find(|claim| claim.id == id)?.limit
    }

    /// Limits this guard's hold to `limit` from `since`.
    pub(super) fn limit(&mut self, id: ClaimId, limit: Duration, since: Moment) {
        if let Some(claim) = self.find(id) {
            claim.limit = Some((since + limit, limit));
        }
    }

    /// Returns the maximum hold time that ends first and has not been announced yet.
    pub(super) fn unannounced_limit(&self) -> Option<Limit> {
        let first = self.first_limit()?;
        let is_unannounced = |claim: &Claim| claim.limit == Some(first) && !claim.announced;
        self.list.iter().any(is_unannounced).then_some(first)
    }

    /// Notes that the end of this maximum hold time was announced.
    pub(super) fn announced(&mut self, limit: Limit) {
        for claim in &mut self.list {
            claim.announced |= claim.limit == Some(limit);
        }
    }

    /// Returns the shortest time within which one of the guards expects a report of progress.
    pub(super) fn progress_within(&self) -> Option<Duration> {
        let each = self.list.iter();
        each.filter_map(|claim| claim.terms.progress_within).min()
    }

    /// Makes the hold depend, from now on, on the progress that one guard reports.
    pub(super) fn want_progress(&mut self, id: ClaimId, within: Duration) {
        if let Some(claim) = self.find(id) {
            claim.terms.progress_within = Some(within);
        }
    }

    /// Removes a guard with its claim. Returns `false` and changes nothing if no other guard
    /// remains.
    pub(super) fn remove(&mut self, id: ClaimId) -> bool {
        let others_remain = self.has_guard_besides(id);
        if others_remain {
            let left = self.list.extract_if(.., |claim| claim.id == id);
            let kept = left.map(|claim| claim.kept_until).max().flatten();
            self.kept_at_least_until = self.kept_at_least_until.max(kept);
        }
        others_remain
    }

    /// Removes a guard but keeps its claim. Returns `false` if no other guard remains.
    pub(super) fn forget(&mut self, id: ClaimId) -> bool {
        let others_remain = self.has_guard_besides(id);
        if let Some(claim) = self.find(id) {
            claim.forgotten = true;
            claim.limit = None;
            claim.terms.progress_within = None;
        }
        // A hold that is entered and forgotten again and again must not grow each time.
        self.fold_forgotten();
        others_remain
    }

    /// Merges the claims without a guard into at most two, whatever their number.
    fn fold_forgotten(&mut self) {
        // Renewed and fixed claims are merged separately: in a single claim, a fixed lease would be
        // renewed forever, or a renewed lease would end.
        for renewed in [true, false] {
            let alike =
                |claim: &mut Claim| claim.forgotten && claim.terms.renew_every.is_some() == renewed;
            let folded = self.list.extract_if(.., alike).reduce(Claim::and);
            self.list.extend(folded);
        }
    }

    fn has_guard_besides(&self, id: ClaimId) -> bool {
        let mut others = self.list.iter().filter(|claim| claim.id != id);
        others.any(|claim| !claim.forgotten)
    }

    fn find(&mut self, id: ClaimId) -> Option<&mut Claim> {
        self.list.iter_mut().find(|claim| claim.id == id)
    }

    pub(super) fn has(&self, id: ClaimId) -> bool {
        self.list.iter().any(|claim| claim.id == id)
    }

    /// Returns the number of claims that have a guard.
    pub(super) fn guards(&self) -> usize {
        self.list.iter().filter(|claim| !claim.forgotten).count()
    }

    pub(super) fn any_forgotten(&self) -> bool {
        self.list.iter().any(|claim| claim.forgotten)
    }

    /// Returns the terms that one guard asked for.
    pub(super) fn terms_of(&self, id: ClaimId) -> Terms {
        let claim = self.list.iter().find(|claim| claim.id == id);
        claim.map_or_else(|| self.terms(), |claim| claim.terms)
    }

    /// Returns how often the watchdog must act on the hold for any of the claims.
    pub(super) fn watch_every(&self) -> Option<Duration> {
        let each = self
            .list
            .iter()
            .filter_map(|claim| claim.terms.watch_every());
        each.min()
    }

    /// Returns terms that satisfy all claims.
    pub(super) fn terms(&self) -> Terms {
        let each = self.list.iter().map(|claim| claim.terms);
        let all = each.reduce(Terms::and).expect("there is always one");
        Terms {
            // Each guard has its own limit: see `first_limit`.
            max_hold: None,
            ..all
        }
    }

    /// Fails if a guard of the hold belongs to a `RedLock`, and the hold would last longer than the
    /// longest lease on which other clients rely.
    pub(super) fn check(
        &self,
        lease: Duration,
        longest: Option<Duration>,
        key: &Key,
    ) -> Result<()> {
        // Both directions are checked: a guard of a `RedLock` may enter a longer hold, and another
        // guard may enter or extend the hold of a `RedLock`.
        let all = self.terms();
        check_longest(lease.max(all.lease), longest.max(all.longest_lease), key)
    }

    /// Returns how long the hold must last if a request for it is sent now.
    pub(super) fn wanted_lease(&self, now: Moment) -> Duration {
        let each = self.list.iter().map(|claim| claim.wanted_lease(now));
        each.chain(self.rest(now)).max().unwrap_or_default()
    }

    /// Returns the longest lease of the renewed claims.
    pub(super) fn renewed_lease(&self) -> Option<Duration> {
        let renewed = self
            .list
            .iter()
            .filter(|claim| claim.terms.renew_every.is_some());
        renewed.map(|claim| claim.terms.lease).max()
    }

    /// Returns the maximum hold time that ends first.
    pub(super) fn first_limit(&self) -> Option<Limit> {
        self.list.iter().filter_map(|claim| claim.limit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acknowledgement::Acknowledgement;

    const SECOND: Duration = Duration::from_secs(1);

    fn terms(lease: Duration, renew_every: Option<Duration>) -> Terms {
        Terms {
            lease,
            renew_every,
            remind_every: None,
            max_hold: None,
            min_hold: None,
            progress_within: None,
            longest_lease: None,
            acknowledged: Acknowledgement::master(),
        }
    }

    #[test]
    fn forgotten_claims_take_constant_space() {
        let now = Moment::from_millis(1000);
        let mut claims = Claims::new(terms(SECOND, None), now);
        for n in 1..=1000 {
            let renewed = (n % 2 == 0).then_some(SECOND * n);
            let id = claims.add(terms(SECOND * n, renewed), now);
            assert!(claims.forget(id), "the first one has its guard");
        }
        assert_eq!(claims.list.len(), 3);
        assert_eq!(claims.guards(), 1);
        assert_eq!(
            claims.wanted_lease(now),
            SECOND * 1000,
            "of those that are renewed"
        );
        assert_eq!(claims.wanted_lease(now + SECOND * 5), SECOND * 1000);
        let all = claims.terms();
        assert_eq!(
            (all.lease, all.renew_every),
            (SECOND * 1000, Some(SECOND * 2))
        );
        assert!(!claims.forget(ClaimId::FIRST), "no guard remains");
        assert_eq!(claims.list.len(), 2);
    }
}
