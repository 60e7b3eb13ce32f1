//! Histories in which some tasks keep the lock with `keep_for`, or for a minimum time.

use super::{End, LONG_LEASE_MS, Scenario, Turn, own_rng};
use crate::faults::Kind;

impl Scenario {
    /// Makes some turns end with `keep_for`, in one history of six. This function uses a separate
    /// random source, so that it does not change the other random choices.
    pub(super) fn draw_kept(&mut self) {
        let mut rng = own_rng(self.seed, 0x4B45);
        if rng.u32(0..6) > 0 || !self.may_keep() {
            return;
        }
        let subject = self.subject;
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            if turn.end == End::Release && subject.can_be_kept(turn) && rng.u32(0..4) == 0 {
                turn.end = End::Keep(rng.u64(10..300));
            }
        }
    }

    /// Gives some holds a minimum time, in one history of six, which is chosen independently.
    pub(super) fn draw_least(&mut self) {
        let mut rng = own_rng(self.seed, 0x4C45);
        if rng.u32(0..6) > 0 || !self.may_keep() {
            return;
        }
        let subject = self.subject;
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            let passes_on = matches!(turn.end, End::Ticket(_));
            if subject.can_be_kept(turn) && !passes_on && rng.u32(0..3) == 0 {
                // The minimum time may be shorter or longer than the lease.
                turn.least_ms = Some(rng.u64(10..1500));
                (turn.fixed_lease_ms, turn.max_hold_ms) = (None, None);
            }
        }
    }

    /// Returns whether tasks may keep locks. If no server answers, a lock remains locked until its
    /// lease ends, so leases must be short enough to end during the history.
    fn may_keep(&self) -> bool {
        let kinds = self.kinds();
        let is_disturbed = kinds.iter().any(|kind| kind.disturbs_calls());
        let ends = self.lease_ms < LONG_LEASE_MS || !is_disturbed;
        ends && !kinds.contains(&Kind::Closed)
    }

    /// Returns the longest duration for which a task keeps the lock, in ms.
    pub(crate) fn longest_kept_ms(&self) -> u64 {
        let turns = self.workers.iter().flat_map(|worker| &worker.turns);
        turns.filter_map(Turn::kept_ms).max().unwrap_or(0)
    }
}

impl Turn {
    fn kept_ms(&self) -> Option<u64> {
        match self.end {
            End::Keep(span_ms) => Some(span_ms),
            _ => self.least_ms,
        }
    }
}
