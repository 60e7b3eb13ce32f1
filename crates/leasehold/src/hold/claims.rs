//! What the guards of one hold have asked for, each for itself: a re-entry adds to what
//! the hold is promised, and takes that back when its guard goes.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::{Terms, check_longest};
use crate::error::Result;
use crate::key::Key;

/// When a guard's maximum hold time is over, and what that was.
pub(crate) type Limit = (Moment, Duration);

/// Names a guard's claim within its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimId(u64);

impl ClaimId {
    /// That of the guard for which the hold was acquired.
    pub(crate) const FIRST: Self = Self(0);
}

struct Claim {
    id: ClaimId,
    terms: Terms,
    /// When its lease ends, if that is fixed.
    end: Moment,
    limit: Option<Limit>,
    /// Its guard was forgotten: it has gone, and has not given the claim up.
    forgotten: bool,
}

impl Claim {
    fn new(id: ClaimId, terms: Terms, now: Moment) -> Self {
        Self {
            id,
            terms,
            end: now + terms.lease,
            limit: terms.max_hold.map(|limit| (now + limit, limit)),
            forgotten: false,
        }
    }

    /// One claim for two forgotten ones, which are both renewed or both fixed.
    fn and(self, other: Self) -> Self {
        let (one, two) = (self.terms, other.terms);
        Self {
            terms: one.and(two),
            end: self.end.max(other.end),
            // No guard is there that it could end.
            limit: None,
            ..self
        }
    }

    /// How long a hold whose request leaves now has to last for it.
    fn wants(&self, now: Moment) -> Duration {
        // A renewed lease begins anew with each request. A fixed one has an end, which the
        // request may only confirm.
        match self.terms.renew_every {
            Some(_) => self.terms.lease,
            None => self.end.saturating_sub(now),
        }
    }
}

/// Never empty: what the last guard wanted is needed until the hold is given back.
pub(super) struct Claims {
    list: Vec<Claim>,
    next: u64,
}

impl Claims {
    pub(super) fn new(terms: Terms, now: Moment) -> Self {
        Self {
            list: vec![Claim::new(ClaimId::FIRST, terms, now)],
            next: 1,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn add(&mut self, terms: Terms, now: Moment) -> ClaimId {
        let id = ClaimId(self.next);
        self.next += 1;
        self.list.push(Claim::new(id, terms, now));
        id
    }

    /// Whether one guard has asked for the hold, on these terms, which the watchdog can keep for
    /// the next one as well.
    pub(super) fn are_only(&self, terms: Terms) -> bool {
        let [claim] = &self.list[..] else {
            return false;
        };
        let plain = claim.terms.renew_every.is_some() && claim.limit.is_none();
        plain && !claim.forgotten && claim.terms.longest_lease.is_none() && claim.terms == terms
    }

    /// Whether all guards have asked for the hold on these terms.
    pub(super) fn are_all(&self, terms: Terms) -> bool {
        let alike =
            |claim: &Claim| !claim.forgotten && claim.limit.is_none() && claim.terms == terms;
        self.list.iter().all(alike)
    }

    /// All of them count from now: nothing has been granted yet.
    pub(super) fn start_again(&mut self, now: Moment) {
        for claim in &mut self.list {
            *claim = Claim::new(claim.id, claim.terms, now);
        }
    }

    /// This guard wants the hold to last `lease` from now at least.
    pub(super) fn raise(&mut self, id: ClaimId, lease: Duration, now: Moment) {
        if let Some(claim) = self.find(id) {
            // Never less: the guard counts on what it was promised before.
            claim.terms.lease = claim.terms.lease.max(lease);
            claim.end = claim.end.max(now + lease);
        }
    }

    /// When this guard's maximum hold time is over, and what that is.
    pub(super) fn limit_of(&self, id: ClaimId) -> Option<Limit> {
        self.list.iter().find(|claim| claim.id == id)?.limit
    }

    /// This guard holds for no longer than `limit` from `since`.
    pub(super) fn limit(&mut self, id: ClaimId, limit: Duration, since: Moment) {
        if let Some(claim) = self.find(id) {
            claim.limit = Some((since + limit, limit));
        }
    }

    /// Its guard goes. `false`, and nothing has changed, if no other guard remains.
    pub(super) fn remove(&mut self, id: ClaimId) -> bool {
        let remain = self.remain_without(id);
        if remain {
            self.list.retain(|claim| claim.id != id);
        }
        remain
    }

    /// Its guard goes, and its claim stays. `false` if no other guard remains.
    pub(super) fn forget(&mut self, id: ClaimId) -> bool {
        let remain = self.remain_without(id);
        if let Some(claim) = self.find(id) {
            claim.forgotten = true;
            claim.limit = None;
        }
        // A hold that is entered and forgotten again and again must not grow with each time.
        self.fold_forgotten();
        remain
    }

    /// Makes the claims without a guard into two at most, whatever their number.
    fn fold_forgotten(&mut self) {
        // One renewed and one fixed: as one claim, a fixed lease would be renewed for ever, or a
        // renewed one would end.
        for renewed in [true, false] {
            let alike =
                |claim: &mut Claim| claim.forgotten && claim.terms.renew_every.is_some() == renewed;
            let folded = self.list.extract_if(.., alike).reduce(Claim::and);
            self.list.extend(folded);
        }
    }

    fn remain_without(&self, id: ClaimId) -> bool {
        let mut others = self.list.iter().filter(|claim| claim.id != id);
        others.any(|claim| !claim.forgotten)
    }

    fn find(&mut self, id: ClaimId) -> Option<&mut Claim> {
        self.list.iter_mut().find(|claim| claim.id == id)
    }

    pub(super) fn has(&self, id: ClaimId) -> bool {
        self.list.iter().any(|claim| claim.id == id)
    }

    /// How many have a guard.
    pub(super) fn guards(&self) -> usize {
        self.list.iter().filter(|claim| !claim.forgotten).count()
    }

    pub(super) fn any_forgotten(&self) -> bool {
        self.list.iter().any(|claim| claim.forgotten)
    }

    /// What one guard asked for.
    pub(super) fn terms_of(&self, id: ClaimId) -> Terms {
        let claim = self.list.iter().find(|claim| claim.id == id);
        claim.map_or_else(|| self.terms(), |claim| claim.terms)
    }

    /// How often the watchdog has to act on the hold for one of them.
    pub(super) fn watch_every(&self) -> Option<Duration> {
        let each = self
            .list
            .iter()
            .filter_map(|claim| claim.terms.watch_every());
        each.min()
    }

    /// Terms that are good enough for all of them.
    pub(super) fn terms(&self) -> Terms {
        let each = self.list.iter().map(|claim| claim.terms);
        let all = each.reduce(Terms::and).expect("there is always one");
        Terms {
            // Each guard has its own: `first_limit`.
            max_hold: None,
            ..all
        }
    }

    /// An error if the hold would last longer than others count on, whichever of its guards
    /// belongs to a majority.
    pub(super) fn check(
        &self,
        lease: Duration,
        longest: Option<Duration>,
        key: &Key,
    ) -> Result<()> {
        // Both ways: a guard of a majority may enter a longer hold, and a hold of a majority may
        // be extended or entered by another guard.
        let all = self.terms();
        check_longest(lease.max(all.lease), longest.max(all.longest_lease), key)
    }

    /// How long the hold has to last if a request for it leaves now.
    pub(super) fn want(&self, now: Moment) -> Duration {
        let each = self.list.iter().map(|claim| claim.wants(now));
        each.max().unwrap_or_default()
    }

    /// The longest lease of those that are renewed.
    pub(super) fn renewed_lease(&self) -> Option<Duration> {
        let renewed = self
            .list
            .iter()
            .filter(|claim| claim.terms.renew_every.is_some());
        renewed.map(|claim| claim.terms.lease).max()
    }

    /// Of several maximum hold times the one that is over first counts.
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
        assert_eq!(claims.want(now), SECOND * 1000, "of those that are renewed");
        assert_eq!(claims.want(now + SECOND * 5), SECOND * 1000);
        let all = claims.terms();
        assert_eq!(
            (all.lease, all.renew_every),
            (SECOND * 1000, Some(SECOND * 2))
        );
        assert!(!claims.forget(ClaimId::FIRST), "no guard remains");
        assert_eq!(claims.list.len(), 2);
    }
}
