//! Histories in which replicas must confirm holds.

use fastrand::Rng;

use super::{Fault, LONG_LEASE_MS, Scenario, own_rng};
use crate::faults::Kind;

impl Scenario {
    /// In some histories, makes a replica confirm the holds of some or all workers, and makes it
    /// fail to do so for a while. This function uses a separate random source, so that it does not
    /// change the other random choices.
    pub(super) fn draw_replicas(&mut self) {
        let mut rng = own_rng(self.seed, 0xAC4);
        if rng.u32(0..4) > 0 {
            return;
        }
        let all = rng.u32(0..3) > 0;
        for worker in &mut self.workers {
            worker.acknowledged = all || rng.bool();
        }
        // In a failover, holds that do not need a replica's confirmation may be lost. So a failover
        // is drawn only if all holds need it.
        let kind = if all && rng.bool() {
            Kind::FailedOver
        } else {
            Kind::Unconfirmed
        };
        let count = rng.usize(0..=2);
        if count > 0 && kind == Kind::FailedOver {
            self.let_leases_end(&mut rng);
        }
        let mut at = 0;
        for _ in 0..count {
            // These faults happen one after the other, because they affect the same replicas.
            at += rng.u64(5..250);
            let span_ms = rng.u64(10..self.lease_ms.min(3000) * 2);
            self.faults.push(Fault {
                kind,
                machine: 0,
                server: 0,
                at,
                span_ms,
                step: "",
            });
            at += span_ms;
        }
    }

    /// Makes leases short. In a failover, releases are lost, so a lock may become locked again
    /// without any client knowing this.
    fn let_leases_end(&mut self, rng: &mut Rng) {
        if self.lease_ms == LONG_LEASE_MS {
            self.lease_ms = rng.u64(300..3500);
        }
        self.poll_cap_ms = 1000;
    }
}
