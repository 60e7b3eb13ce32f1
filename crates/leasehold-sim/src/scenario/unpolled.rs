//! Histories of tasks that are sometimes too busy to poll their waits.

use fastrand::Rng;

use super::{Ask, End, Fault, LONG_LEASE_MS, Scenario, Turn, Worker, own_rng};
use crate::faults::Kind;
use crate::subject::Subject;

impl Scenario {
    /// Draws a scenario in which tasks do not poll their acquires for a while, give up many of
    /// them, and hold the lock only for a moment. Requests may be lost or duplicated.
    #[must_use]
    pub fn draw_unpolled(subject: Subject, seed: u64) -> Self {
        let mut rng = own_rng(seed, 0x0F01);
        let faults: &[Kind] = match rng.u32(0..4) {
            0 => &[Kind::RequestLost, Kind::ReplyLost],
            1 => &[Kind::RequestDoubled],
            _ => &[],
        };
        let needs_end = faults.iter().any(|kind| kind.needs_leases_to_end());
        let machines = rng.usize(1..=2);
        let mut scenario = Self {
            subject,
            seed,
            machines,
            servers: subject.servers(seed),
            latency_ms: *rng.choice([1, 3, 10, 20].iter()).unwrap_or(&1),
            lease_ms: if needs_end {
                rng.u64(1000..3500)
            } else {
                LONG_LEASE_MS
            },
            poll_cap_ms: match subject {
                // The servers of a `RedLock` do not notify waiters when a hold ends.
                Subject::Red if needs_end => 1000,
                _ => LONG_LEASE_MS,
            },
            workers: Vec::new(),
            faults: Vec::new(),
            rolls_gently: false,
            unpolled: true,
        };
        let unpolled_percent = *rng.choice([2, 10, 30].iter()).unwrap_or(&10);
        for machine in 0..machines {
            for _ in 0..rng.usize(1..=4) {
                let turns = (0..rng.usize(4..=12)).map(|_| draw_turn(&mut rng, unpolled_percent));
                scenario.workers.push(Worker {
                    machine,
                    acknowledged: false,
                    turns: turns.collect(),
                });
            }
        }
        for kind in faults {
            for _ in 0..rng.usize(1..=4) {
                scenario.faults.push(Fault {
                    kind: *kind,
                    machine: rng.usize(0..machines),
                    server: rng.usize(0..scenario.servers),
                    at: rng.u64(0..40),
                    span_ms: rng.u64(1..100),
                    step: "",
                });
            }
        }
        scenario.fit_recipes();
        scenario
    }
}

fn draw_turn(rng: &mut Rng, unpolled_percent: u8) -> Turn {
    Turn {
        think_ms: rng.u64(0..20),
        way: rng.u8(..),
        ask: match rng.u32(0..12) {
            0 => Ask::Try,
            1 => Ask::For(rng.u64(1..400)),
            _ => Ask::Acquire,
        },
        fixed_lease_ms: None,
        max_hold_ms: None,
        reenters: rng.u32(0..12) == 0,
        extends_to_ms: None,
        least_ms: None,
        progress: None,
        unpolled_percent,
        dropped_at_poll: (rng.u32(0..10) == 0).then(|| rng.u32(1..=8)),
        stay_ms: rng.u64(0..6),
        end: match rng.u32(0..20) {
            0 => End::ReleaseDropped(rng.u32(1..=3)),
            1..=5 => End::Drop,
            _ => End::Release,
        },
    }
}
