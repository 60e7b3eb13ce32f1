//! Histories of recipes, whose holds end in special ways.

use fastrand::Rng;

use super::{Ask, End, Scenario, Turn, own_rng};
use crate::subject::Subject;

impl Scenario {
    /// Replaces the actions that are impossible for the holds of a recipe. This function uses a
    /// separate random source, so that it does not change the other random choices.
    pub(super) fn fit_recipes(&mut self) {
        let fit = match self.subject {
            Subject::Slot => fit_slot,
            Subject::Election => fit_election,
            Subject::Ticket => fit_ticket,
            _ => return,
        };
        let mut rng = own_rng(self.seed, 0x2EC1);
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            // The holds of recipes do not have an owner.
            turn.reenters = false;
            fit(turn, &mut rng);
        }
    }

    /// Returns the interval at which observers of an election poll, in ms.
    pub(crate) fn observer_poll_ms(&self) -> u64 {
        self.poll_cap_ms.min(super::LONG_LEASE_MS / 60)
    }

    /// Returns the longest lease of a ticket, in ms.
    pub(crate) fn longest_ticket_ms(&self) -> u64 {
        let turns = self.workers.iter().flat_map(|worker| &worker.turns);
        turns.filter_map(Turn::ticket_ms).max().unwrap_or(0)
    }
}

impl Turn {
    pub(super) fn ticket_ms(&self) -> Option<u64> {
        match self.end {
            End::Ticket(lease_ms) => Some(lease_ms),
            _ => None,
        }
    }
}

fn fit_slot(turn: &mut Turn, _: &mut Rng) {
    // A turn has no `forget()`.
    if turn.end == End::Forget {
        turn.end = End::Drop;
    }
}

fn fit_election(turn: &mut Turn, rng: &mut Rng) {
    (turn.fixed_lease_ms, turn.max_hold_ms) = (None, None);
    // `stand()` has no limit.
    if matches!(turn.ask, Ask::For(_)) {
        turn.ask = if rng.bool() { Ask::Acquire } else { Ask::Try };
    }
}

fn fit_ticket(turn: &mut Turn, rng: &mut Rng) {
    if turn.end == End::Release && rng.u32(0..3) > 0 {
        turn.end = End::Ticket(rng.u64(100..2500));
    }
}
