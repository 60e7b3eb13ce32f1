//! The events in a history, which are drawn from a seed before the history is played.

mod kept;
mod progress;
mod recipes;
mod replicas;
mod unpolled;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;

pub use self::progress::Progress;
use crate::faults::Kind;
use crate::subject::Subject;

/// A whole history before it is played.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scenario {
    /// The kind of lock that is tested.
    pub subject: Subject,
    /// The seed from which the history was drawn.
    pub seed: u64,
    /// Number of clients, each with its own network.
    pub machines: usize,
    /// Number of servers. A `RedLock` has more than one.
    pub servers: usize,
    /// The longest time that a request or a reply takes, in ms.
    pub latency_ms: u64,
    /// The lease of renewed holds, in ms.
    pub lease_ms: u64,
    /// The interval at which a waiter polls when nothing wakes it, in ms.
    pub poll_cap_ms: u64,
    /// The tasks that acquire the lock.
    pub workers: Vec<Worker>,
    /// The faults that happen.
    pub faults: Vec<Fault>,
    /// Whether the only faults are restarts of a `RedLock`'s servers, one after the other. These
    /// restarts must not end any hold.
    pub rolls_gently: bool,
    /// Whether the tasks sometimes do not poll their acquires, so that everything takes longer.
    pub unpolled: bool,
}

/// Returns a separate random source for one part of a history. `salt` distinguishes the parts.
pub(crate) fn own_rng(seed: u64, salt: u64) -> Rng {
    Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt)
}

/// A task on one of the machines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Worker {
    /// The number of the machine on which the task runs.
    pub machine: usize,
    /// Whether a replica must confirm the worker's holds.
    pub acknowledged: bool,
    /// The worker's turns, in the order in which it takes them.
    pub turns: Vec<Turn>,
}

/// One attempt to acquire the lock, and the actions that follow.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Turn {
    /// The time before the attempt, in ms.
    pub think_ms: u64,
    /// A number that chooses one of the subject's ways to use the lock. Any number is valid.
    pub way: u8,
    /// The time limit for the attempt's wait.
    pub ask: Ask,
    /// A fixed lease, or `None` if the hold is renewed.
    pub fixed_lease_ms: Option<u64>,
    /// The maximum duration of the hold, renewed or not, in ms.
    pub max_hold_ms: Option<u64>,
    /// Whether the attempt has an owner, and re-enters while it holds the lock.
    pub reenters: bool,
    /// The lease that the holder requests halfway through the hold, in ms from that point.
    pub extends_to_ms: Option<u64>,
    /// The minimum time for which the lock stays locked, in ms.
    pub least_ms: Option<u64>,
    /// The time within which the holder's work must report progress.
    pub progress: Option<Progress>,
    /// Percentage of the polls of the acquire's future after which the future is not polled for a
    /// while.
    pub unpolled_percent: u8,
    /// The poll of the acquire's future at which the future is dropped.
    pub dropped_at_poll: Option<u32>,
    /// The duration of the hold, in ms.
    pub stay_ms: u64,
    /// The way in which the lock is released.
    pub end: End,
}

/// The time limit for a turn's wait.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "matched by this workspace only")]
pub enum Ask {
    /// Waits without a limit.
    Acquire,
    /// Requests the lock once.
    Try,
    /// Waits at most this number of ms.
    For(u64),
}

/// The end of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "matched by this workspace only")]
pub enum End {
    /// `release().await`.
    Release,
    /// The release's future is dropped at this poll.
    ReleaseDropped(u32),
    /// The guard is dropped.
    Drop,
    /// `forget()`.
    Forget,
    /// `keep_for()` with this duration in ms.
    Keep(u64),
    /// `into_ticket()` with this lease in ms.
    Ticket(u64),
}

/// One fault, and where and when it happens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// The kind of fault.
    pub kind: Kind,
    /// The machine that is affected, if the fault affects a single machine.
    pub machine: usize,
    /// The server that is affected, or whose connection is affected.
    pub server: usize,
    /// The point at which the fault happens: for timed faults, the number of ms from the start; for
    /// faults that affect a request or a message, the number of this request or message.
    pub at: u64,
    /// The duration or the size of the fault, in ms.
    pub span_ms: u64,
    /// A prefix of step names: only requests for these steps are counted.
    pub step: &'static str,
}

/// A lease that does not end during a history.
const LONG_LEASE_MS: u64 = 3_600_000;

/// The longest lease that every client of a `RedLock` expects by default. A longer lease must be
/// set explicitly.
const DEFAULT_LONGEST_MS: u64 = 30_000;

impl Scenario {
    /// Draws a scenario.
    #[must_use]
    pub fn draw(subject: Subject, seed: u64) -> Self {
        let mut rng = own_rng(seed, 0x5851);
        let kinds = draw_kinds(&mut rng);
        let machines = rng.usize(2..=4);
        let needs_end = kinds.iter().any(|kind| kind.needs_leases_to_end());
        let lease_ms = if needs_end || rng.bool() {
            rng.u64(300..3500)
        } else {
            LONG_LEASE_MS
        };
        // The servers of a `RedLock` do not notify waiters when a hold ends.
        let polls =
            kinds.iter().any(|kind| kind.needs_polling()) || (subject == Subject::Red && needs_end);
        let mut scenario = Self {
            subject,
            seed,
            machines,
            servers: subject.servers(seed),
            latency_ms: *rng.choice([0, 1, 3, 10].iter()).unwrap_or(&1),
            lease_ms,
            poll_cap_ms: if polls { 1000 } else { LONG_LEASE_MS },
            workers: Vec::new(),
            faults: Vec::new(),
            rolls_gently: false,
            unpolled: false,
        };
        // If many tasks in one process each want the lock for only a moment, the process hands it
        // over among them.
        let crowded = subject == Subject::Lock && rng.u32(0..3) == 0;
        let (most, longest) = if crowded { (6, 10) } else { (2, 5) };
        for machine in 0..machines {
            for _ in 0..rng.usize(1..=most) {
                let turns = (0..rng.usize(2..=longest))
                    .map(|_| draw_turn(&mut rng, &kinds, lease_ms))
                    .collect();
                scenario.workers.push(Worker {
                    machine,
                    acknowledged: false,
                    turns,
                });
            }
        }
        if crowded {
            scenario.crowd(&mut rng);
        }
        for kind in kinds.into_iter().filter(|kind| !kind.is_conduct()) {
            // Two faults may have the same kind, so that they can coincide.
            for _ in 0..rng.usize(1..=2) {
                let fault = draw_fault(&mut rng, kind, &scenario);
                scenario.faults.push(fault);
            }
        }
        if scenario.distrusts() {
            scenario.bound_the_leases(&mut rng);
        }
        if subject.has_replicas() {
            scenario.draw_replicas();
        }
        scenario.draw_kept();
        scenario.draw_least();
        scenario.draw_progress();
        scenario.fit_recipes();
        scenario
    }

    /// Makes most turns short and similar, and gives the server a low latency.
    fn crowd(&mut self, rng: &mut Rng) {
        self.latency_ms = self.latency_ms.min(1);
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            if rng.u32(0..8) > 0 {
                turn.think_ms = rng.u64(0..2);
                turn.stay_ms = rng.u64(0..3);
                turn.reenters = false;
                (turn.fixed_lease_ms, turn.max_hold_ms) = (None, None);
                turn.extends_to_ms = None;
            }
        }
    }

    /// Returns whether a minority of the servers may forget their grants.
    fn distrusts(&self) -> bool {
        let mut faults = self.faults.iter();
        self.subject == Subject::Red && faults.any(|fault| fault.kind.is_empty_restart())
    }

    /// Limits the leases, because a server that was restarted does not count for the duration of
    /// the longest lease. In some histories, one hold lasts longer than the other clients expect.
    fn bound_the_leases(&mut self, rng: &mut Rng) {
        self.lease_ms = self.lease_ms.min(3000);
        let lease_ms = self.lease_ms;
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            turn.fixed_lease_ms = turn.fixed_lease_ms.map(|lease_ms| lease_ms.min(6000));
        }
        if rng.bool() {
            return self.restart_all(rng);
        }
        // Make a server unreachable for some machines, often for longer than other machines hold
        // the lock.
        for machine in 0..self.machines {
            if rng.bool() {
                self.faults.push(Fault {
                    kind: Kind::Refused,
                    machine,
                    server: rng.usize(0..self.servers),
                    at: 0,
                    span_ms: rng.u64(100..lease_ms * 4),
                    step: "",
                });
            }
        }
        if rng.bool() {
            let worker = rng.usize(0..self.workers.len());
            let turn = &mut self.workers[worker].turns[0];
            let long_ms = rng.u64(DEFAULT_LONGEST_MS + 1..DEFAULT_LONGEST_MS * 3);
            turn.fixed_lease_ms = rng.bool().then_some(long_ms);
            turn.extends_to_ms = Some(long_ms);
            turn.max_hold_ms = None;
            turn.stay_ms = rng.u64(0..long_ms * 3 / 4);
        }
    }

    /// Restarts all servers, one after the other, and makes some tasks hold the lock during all
    /// restarts.
    fn restart_all(&mut self, rng: &mut Rng) {
        self.rolls_gently = rng.bool();
        if self.rolls_gently {
            self.lease_ms = self.lease_ms.max(1000);
            self.faults.clear();
        }
        let (lease_ms, from_ms) = (self.lease_ms, rng.u64(5..250));
        let apart_ms = rng.u64(0..lease_ms * 3 / 2);
        let down_ms = if self.rolls_gently {
            lease_ms / 20
        } else {
            lease_ms
        };
        let mut order: Vec<_> = (0..self.servers).collect();
        rng.shuffle(&mut order);
        for (server, n) in order.into_iter().zip(0..) {
            self.faults.push(Fault {
                kind: Kind::RestartEmpty,
                machine: 0,
                server,
                at: from_ms + n * apart_ms,
                span_ms: rng.u64(0..=down_ms),
                step: "",
            });
        }
        let long_ms = apart_ms * self.servers as u64 + lease_ms * 2;
        for turn in self.workers.iter_mut().flat_map(|worker| &mut worker.turns) {
            if rng.u32(0..4) == 0 {
                turn.stay_ms = rng.u64(0..long_ms);
                turn.max_hold_ms = None;
                turn.fixed_lease_ms = None;
            }
            if self.rolls_gently {
                (turn.fixed_lease_ms, turn.extends_to_ms) = (None, None);
            }
        }
    }

    /// Returns the longest lease to set on a turn's lock, if a minority of the servers may forget
    /// its grants.
    #[must_use]
    pub(crate) fn longest_lease_for(&self, turn: &Turn) -> Option<Duration> {
        self.distrusts().then(|| {
            let turns = self.workers.iter().flat_map(|worker| &worker.turns);
            let usual = turns.filter_map(Turn::longest_lease_ms);
            let usual = usual.filter(|lease_ms| *lease_ms <= DEFAULT_LONGEST_MS);
            let agreed_ms = usual.max().unwrap_or(0).max(self.lease_ms);
            let own_ms = turn.longest_lease_ms().unwrap_or(0);
            Duration::from_millis(agreed_ms.max(own_ms))
        })
    }

    /// Returns the kinds of fault in this history.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.faults.iter().map(|fault| fault.kind).collect();
        for turn in self.workers.iter().flat_map(|worker| &worker.turns) {
            if turn.dropped_at_poll.is_some() {
                kinds.push(Kind::AcquireDropped);
            }
            if turn.unpolled_percent > 0 {
                kinds.push(Kind::Unpolled);
            }
            kinds.extend(match turn.end {
                End::Release => None,
                End::Drop => Some(Kind::GuardDropped),
                End::ReleaseDropped(_) => Some(Kind::ReleaseDropped),
                End::Forget => Some(Kind::Forgotten),
                End::Keep(_) => Some(Kind::Kept),
                End::Ticket(_) => Some(Kind::Ticketed),
            });
            if turn.least_ms.is_some() {
                kinds.push(Kind::Kept);
            }
            if turn.stalls() {
                kinds.push(Kind::Stalled);
            }
            if turn.overstays() {
                kinds.push(Kind::Overstayed);
            }
        }
        kinds.sort();
        kinds.dedup();
        kinds
    }

    /// Returns the longest lease of all holds.
    #[must_use]
    pub fn longest_lease_ms(&self) -> u64 {
        let turns = self.workers.iter().flat_map(|worker| &worker.turns);
        let leases = turns.filter_map(Turn::longest_lease_ms);
        leases.max().unwrap_or(0).max(self.lease_ms)
    }

    /// Returns the number of parts that can be omitted.
    #[must_use]
    pub fn parts(&self) -> usize {
        let turns: usize = self.workers.iter().map(|worker| worker.turns.len()).sum();
        turns + self.faults.len()
    }

    /// Returns the same scenario with only these parts. Parts are numbered: first the turns in
    /// their order, then the faults.
    #[must_use]
    pub fn keeping(&self, parts: &[usize]) -> Self {
        let mut part = 0;
        let mut keep = || {
            part += 1;
            parts.contains(&(part - 1))
        };
        let mut scenario = self.clone();
        for worker in &mut scenario.workers {
            worker.turns.retain(|_| keep());
        }
        scenario.faults.retain(|_| keep());
        scenario
    }
}

impl Turn {
    /// Returns a turn after the history's end, which waits for the lock and releases it.
    pub(crate) fn at_the_end(machine: usize) -> Self {
        Self {
            think_ms: 0,
            way: u8::try_from(machine).unwrap_or(0),
            ask: Ask::Acquire,
            fixed_lease_ms: None,
            max_hold_ms: None,
            reenters: false,
            extends_to_ms: None,
            least_ms: None,
            progress: None,
            unpolled_percent: 0,
            dropped_at_poll: None,
            stay_ms: 0,
            end: End::Release,
        }
    }

    /// Returns the longest lease that the turn requests explicitly.
    fn longest_lease_ms(&self) -> Option<u64> {
        let asked_for = self.fixed_lease_ms.max(self.extends_to_ms);
        asked_for.max(self.ticket_ms())
    }

    /// Returns whether the turn holds the lock for longer than its lease allows.
    #[must_use]
    pub fn overstays(&self) -> bool {
        self.fixed_lease_ms
            .is_some_and(|lease_ms| self.stay_ms * 10 > lease_ms * 8)
    }
}

fn draw_kinds(rng: &mut Rng) -> Vec<Kind> {
    // Most histories have a few faults. Some have none, so that no violation is excused.
    let count = *rng.choice([0, 1, 1, 1, 2, 2, 3, 4].iter()).unwrap_or(&1);
    let all = Kind::value_variants().iter().copied();
    let mut kinds = rng.choose_multiple(all.filter(|kind| kind.is_drawn()), count);
    kinds.sort();
    kinds
}

fn draw_turn(rng: &mut Rng, kinds: &[Kind], lease_ms: u64) -> Turn {
    let has = |rng: &mut Rng, kind, one_in| kinds.contains(&kind) && rng.u32(0..one_in) == 0;
    let overstays = has(rng, Kind::Overstayed, 3);
    let dropped = has(rng, Kind::AcquireDropped, 2);
    let end = if has(rng, Kind::GuardDropped, 2) {
        End::Drop
    } else if has(rng, Kind::ReleaseDropped, 2) {
        End::ReleaseDropped(rng.u32(1..=3))
    } else if has(rng, Kind::Forgotten, 4) {
        End::Forget
    } else {
        End::Release
    };
    let short_lease_ms = lease_ms.min(2000);
    let limited = rng.u32(0..10) == 0;
    let extends = !overstays && rng.u32(0..6) == 0;
    let extends_to_ms = extends.then(|| rng.u64(50..6000));
    let stay_ms = if overstays {
        rng.u64(short_lease_ms..short_lease_ms * 2)
    } else if let Some(longer_ms) = extends_to_ms.filter(|_| rng.bool()) {
        // The hold may last longer than the lease that it requests halfway. Then it must be renewed
        // after this request.
        rng.u64(0..longer_ms * 4)
    } else if rng.u32(0..5) == 0 {
        rng.u64(0..short_lease_ms * 2)
    } else {
        rng.u64(0..40)
    };
    let fixed = overstays || rng.u32(0..4) == 0;
    Turn {
        think_ms: rng.u64(0..30),
        way: rng.u8(..),
        ask: match rng.u32(0..6) {
            0 => Ask::Try,
            1 | 2 => Ask::For(rng.u64(1..400)),
            _ => Ask::Acquire,
        },
        fixed_lease_ms: fixed.then(|| {
            if overstays {
                short_lease_ms
            } else {
                (stay_ms * 2).max(short_lease_ms)
            }
        }),
        max_hold_ms: limited.then(|| rng.u64(50..400)),
        reenters: rng.u32(0..5) == 0,
        extends_to_ms,
        least_ms: None,
        progress: None,
        unpolled_percent: 0,
        dropped_at_poll: dropped.then(|| rng.u32(1..=6)),
        stay_ms,
        end,
    }
}

fn draw_fault(rng: &mut Rng, kind: Kind, scenario: &Scenario) -> Fault {
    use Kind::*;
    let (machines, lease_ms) = (scenario.machines, scenario.lease_ms);
    let at = match kind {
        RequestLost | ReplyLost | ReplyLate | RequestDoubled | RequestLate => rng.u64(0..6),
        MessageLost => rng.u64(0..4),
        MessageLate => 0,
        _ => rng.u64(5..250),
    };
    let span_ms = match kind {
        Paused => rng.u64(lease_ms.min(3000) / 2..lease_ms.min(3000) * 3),
        Frozen | Refused => rng.u64(10..lease_ms.min(3000) * 2),
        ClockAhead | ClockBack => rng.u64(100..20_000),
        RequestDoubled | CutReordered => rng.u64(1..1500),
        RequestLate => rng.u64(1..2500),
        ReplyLate => rng.u64(100..390),
        MessageLate => rng.u64(5..300),
        RolledBack => rng.u64(5..100),
        RestartWithData | RestartEmpty | RestartUntold => rng.u64(0..300),
        _ => 0,
    };
    let steps = scenario.subject.steps();
    // Only a minority of the servers may forget grants.
    let servers = match kind {
        kind if kind.is_empty_restart() => scenario.servers.div_ceil(2).max(2) - 1,
        _ => scenario.servers,
    };
    let machine = rng.usize(0..machines);
    Fault {
        kind,
        machine,
        server: if servers > 1 {
            rng.usize(0..servers)
        } else {
            0
        },
        at,
        span_ms,
        step: steps[rng.usize(0..steps.len())],
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} on {} machines, latency up to {} ms, lease {} ms, poll interval {} ms",
            self.subject, self.machines, self.latency_ms, self.lease_ms, self.poll_cap_ms
        )?;
        for (number, worker) in self.workers.iter().enumerate() {
            let acknowledged = if worker.acknowledged {
                ", acknowledged"
            } else {
                ""
            };
            for turn in &worker.turns {
                let machine = worker.machine;
                writeln!(f, "  worker {number} on {machine}{acknowledged}: {turn:?}")?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "  {fault:?}")?;
        }
        Ok(())
    }
}
