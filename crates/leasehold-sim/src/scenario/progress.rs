//! Histories in which some holds are renewed only while their work reports progress.

use fastrand::Rng;

use super::{LONG_LEASE_MS, Scenario, Turn, own_rng};

/// The time within which a holder's work must report progress.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The time in ms.
    pub within_ms: u64,
    /// Whether the work reports no progress.
    pub stalls: bool,
}

impl Scenario {
    /// Makes the work in some turns report progress, or fail to, in one history of six. This
    /// function uses a separate random source, so that it does not change the other random choices.
    pub(super) fn draw_progress(&mut self) {
        let mut rng = own_rng(self.seed, 0x9206);
        // A hold whose work has stalled ends with its lease, so leases must be short enough to end
        // during the history.
        let ends = self.lease_ms < LONG_LEASE_MS;
        if rng.u32(0..6) > 0 || !ends || !self.subject.reports_progress() {
            return;
        }
        let lease_ms = self.lease_ms;
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            let is_simple = turn.fixed_lease_ms.or(turn.least_ms).is_none() && !turn.reenters;
            if is_simple && rng.u32(0..3) == 0 {
                turn.may_stall(&mut rng, lease_ms);
            }
        }
    }
}

impl Turn {
    fn may_stall(&mut self, rng: &mut Rng, lease_ms: u64) {
        let within_ms = rng.u64(10..lease_ms);
        let stalls = rng.bool();
        (self.max_hold_ms, self.extends_to_ms) = (None, None);
        // A holder reports eight times. If the holder does not report, the last renewal is sent
        // just before the time limit for progress.
        self.stay_ms = match stalls {
            true => within_ms + lease_ms + rng.u64(500..1500),
            false => rng.u64(within_ms * 2..within_ms * 6),
        };
        self.progress = Some(Progress { within_ms, stalls });
    }

    /// Returns whether the turn's work reports no progress.
    pub(crate) fn stalls(&self) -> bool {
        self.progress.is_some_and(|progress| progress.stalls)
    }
}
