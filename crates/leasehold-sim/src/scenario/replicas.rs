//! Histories in which replicas have to confirm holds.

use fastrand::Rng;

use super::{Fault, LONG_LEASE_MS, Scenario};
use crate::faults::Kind;

impl Scenario {
    /// In some histories a replica has to confirm the holds of some workers, or of all, and does not
    /// do so for a while. Drawn from numbers of its own: the others are as they would be without.
    pub(super) fn draw_replicas(&mut self) {
        let mut rng = Rng::with_seed(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xAC4);
        if rng.u32(0..4) > 0 {
            return;
        }
        let all = rng.u32(0..3) > 0;
        for worker in &mut self.workers {
            worker.acknowledged = all || rng.bool();
        }
        // A failover loses the holds that nobody has to confirm.
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
            // One behind the other: they are of the same replicas.
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

    /// A failover loses releases: the lock comes back, and no client knows of it.
    fn let_leases_end(&mut self, rng: &mut Rng) {
        if self.lease_ms == LONG_LEASE_MS {
            self.lease_ms = rng.u64(300..3500);
        }
        self.poll_cap_ms = 1000;
    }
}
