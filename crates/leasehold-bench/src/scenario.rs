//! All scenarios, by name.

use crate::system::System;
use crate::task::What;

/// A scenario. The table has one row for each system that can run the scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// A description for people.
    pub(crate) what: &'static str,
    pub(crate) kind: Kind,
    pub(crate) on: Topology,
    pub(crate) systems: &'static [System],
    /// The systems that `--short` compares. Empty if `--short` leaves the scenario out.
    pub(crate) short: &'static [System],
}

/// The servers on which a scenario is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topology {
    Single,
    /// Three masters.
    Cluster,
    /// A master with two replicas, and sentinels that watch it.
    Replicated,
    /// A server that writes each change to its disk before it answers.
    OnDisk,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Tasks in one process, each with its own name.
    Own {
        tasks: usize,
    },
    /// Tasks in one process that want one name.
    One {
        what: What,
        tasks: usize,
        writes_every: u64,
    },
    /// Like `One` with locks, but in several processes.
    Processes {
        processes: usize,
        tasks: usize,
    },
    /// Like `One` with locks, plus one waiter in another process, which uses the system `waiter`.
    Beside {
        tasks: usize,
        waiter: System,
    },
    /// Two processes that acquire a lock alternately.
    HandOver,
    /// A client gets a lock from another client just after the lock's slot has moved. This is
    /// repeated `times` times.
    Moved {
        times: usize,
    },
    /// Like `Moved`, but just after another node has become the master of the slot.
    FailedOver {
        times: usize,
    },
    Latch {
        tasks: usize,
    },
    Held {
        locks: usize,
    },
    Line {
        tasks: usize,
    },
}

impl Kind {
    /// Returns the system that the waiter in another process uses, if the scenario has one.
    pub(crate) fn waiter(self) -> Option<System> {
        match self {
            Self::Beside { waiter, .. } => Some(waiter),
            _ => None,
        }
    }

    /// Returns the smallest version of the scenario, to see whether it works.
    pub(crate) fn tiny(self) -> Self {
        const FEW: usize = 4;
        match self {
            Self::Own { tasks } => Self::Own {
                tasks: tasks.min(FEW),
            },
            Self::One {
                what,
                tasks,
                writes_every,
            } => Self::One {
                what,
                tasks: tasks.min(FEW),
                writes_every,
            },
            Self::Processes { tasks, .. } => Self::Processes {
                processes: 2,
                tasks: tasks.min(FEW),
            },
            Self::Beside { waiter, .. } => Self::Beside { tasks: FEW, waiter },
            Self::HandOver => self,
            Self::Moved { .. } => Self::Moved { times: FEW },
            Self::FailedOver { .. } => Self::FailedOver { times: FEW },
            Self::Latch { .. } => Self::Latch { tasks: FEW },
            Self::Held { .. } => Self::Held { locks: 100 },
            Self::Line { .. } => Self::Line { tasks: FEW },
        }
    }
}

/// Returns the scenario with this name.
pub(crate) fn named(name: &str) -> Result<&'static Scenario, String> {
    let found = ALL.iter().find(|scenario| scenario.name == name);
    found.ok_or_else(|| format!("no scenario `{name}`; --list has all of them"))
}

const fn one(what: What, tasks: usize) -> Kind {
    Kind::One {
        what,
        tasks,
        writes_every: 1,
    }
}

const fn rw(writes_every: u64) -> Kind {
    Kind::One {
        what: What::Rw,
        tasks: 64,
        writes_every,
    }
}

use System::{
    Bare, Leasehold, NoHandOver, OnDisk, OneReplica, Redisson3, Redisson4, Rslock, RustOnly,
    TwoReplicas,
};

const EVERYBODY: &[System] = &[Leasehold, Bare, Rslock, Redisson3, Redisson4];
const WAITING: &[System] = &[Leasehold, Rslock, Redisson3, Redisson4];
const JAVA: &[System] = &[Leasehold, Redisson3, Redisson4];
const WITH_OFF: &[System] = &[Leasehold, NoHandOver, Rslock, Redisson3, Redisson4];
const OFF: &[System] = &[Leasehold, NoHandOver];
const OURS: &[System] = &[Leasehold];
const BESIDE_BARE: &[System] = &[Leasehold, RustOnly, Bare];
const CONFIRMED: &[System] = &[Leasehold, OneReplica, TwoReplicas, Redisson3, Redisson4];
const WRITTEN: &[System] = &[Leasehold, OnDisk];

const fn scenario(
    name: &'static str,
    what: &'static str,
    kind: Kind,
    systems: &'static [System],
    short: &'static [System],
) -> Scenario {
    Scenario {
        name,
        what,
        kind,
        on: Topology::Single,
        systems,
        short,
    }
}

const fn on_cluster(
    name: &'static str,
    what: &'static str,
    kind: Kind,
    systems: &'static [System],
) -> Scenario {
    Scenario {
        on: Topology::Cluster,
        ..scenario(name, what, kind, systems, &[])
    }
}

/// Returns a scenario in which each task has its own lock, and replicas or a disk may have to
/// confirm the holds.
const fn confirmed(name: &'static str, what: &'static str, tasks: usize, on: Topology) -> Scenario {
    let systems = match on {
        Topology::OnDisk => WRITTEN,
        _ => CONFIRMED,
    };
    Scenario {
        on,
        ..scenario(name, what, Kind::Own { tasks }, systems, &[])
    }
}

/// All scenarios, in the order of the table.
#[rustfmt::skip]
pub(crate) const ALL: &[Scenario] = &[
    scenario("uncontended-1", "1 task that has its lock to itself", Kind::Own { tasks: 1 }, EVERYBODY, &[]),
    scenario("uncontended-64", "64 tasks, each with its own lock", Kind::Own { tasks: 64 }, EVERYBODY, &[Leasehold, Bare]),
    scenario("uncontended-1024", "1,024 tasks, each with its own lock", Kind::Own { tasks: 1024 }, EVERYBODY, &[]),
    scenario("re-entrant", "an owner acquires a lock that it holds already", one(What::Reentrant, 1), JAVA, OURS),
    scenario("embedded", "1 task on the embedded backend, without a server", one(What::Embedded, 1), OURS, &[]),
    scenario("connect", "a new client connects, acquires and releases a lock, and closes", one(What::Connect, 1), EVERYBODY, &[]),
    scenario("hot-2", "2 tasks want one lock", one(What::Lock, 2), WAITING, &[]),
    scenario("hot-8", "8 tasks want one lock", one(What::Lock, 8), WAITING, &[]),
    scenario("hot-64", "64 tasks want one lock", one(What::Lock, 64), WITH_OFF, OFF),
    scenario("hot-1024", "1,024 tasks want one lock", one(What::Lock, 1024), WAITING, &[]),
    scenario("hot-2x8", "2 processes with 8 tasks each want one lock", Kind::Processes { processes: 2, tasks: 8 }, WITH_OFF, OFF),
    scenario("hot-8x8", "8 processes with 8 tasks each want one lock", Kind::Processes { processes: 8, tasks: 8 }, WITH_OFF, &[]),
    scenario("hot-8x1", "8 processes with 1 task each want one lock", Kind::Processes { processes: 8, tasks: 1 }, WAITING, &[]),
    scenario("hot-64-beside-rust", "64 tasks of one process and 1 task of another want one lock", Kind::Beside { tasks: 64, waiter: Leasehold }, OFF, &[]),
    scenario("hot-64-beside-java", "64 tasks of one process and 1 thread of Redisson 4.7.0 want one lock", Kind::Beside { tasks: 64, waiter: Redisson4 }, OFF, &[]),
    scenario("hand-over", "2 processes pass one lock back and forth", Kind::HandOver, JAVA, &[]),
    scenario("rw-95", "64 tasks share one read-write lock; 95 % of their acquires are reads", rw(20), JAVA, OURS),
    scenario("rw-50", "64 tasks share one read-write lock; 50 % of their acquires are reads", rw(2), JAVA, &[]),
    scenario("fair-64", "64 tasks want one fair lock", one(What::Fair, 64), JAVA, OURS),
    scenario("fair-1024", "1,024 tasks want one fair lock", one(What::Fair, 1024), JAVA, &[]),
    scenario("semaphore", "64 tasks want the 8 permits of a semaphore", one(What::Semaphore, 64), JAVA, OURS),
    scenario("expirable", "64 tasks want the 8 permits of a semaphore whose permits have leases", one(What::Expirable, 64), JAVA, OURS),
    scenario("latch", "1,000 tasks wait for one latch", Kind::Latch { tasks: 1000 }, JAVA, &[]),
    scenario("held-1k", "1,000 locks are held", Kind::Held { locks: 1000 }, JAVA, &[]),
    scenario("held-10k", "10,000 locks are held", Kind::Held { locks: 10_000 }, JAVA, &[]),
    scenario("held-100k", "100,000 locks are held", Kind::Held { locks: 100_000 }, JAVA, &[]),
    scenario("waiters-10k", "10,000 tasks wait for one lock", Kind::Line { tasks: 10_000 }, OURS, &[]),
    on_cluster("cluster-64", "3 masters: 64 tasks, each with its own lock", Kind::Own { tasks: 64 }, BESIDE_BARE),
    on_cluster("cluster-1024", "3 masters: 1,024 tasks, each with its own lock", Kind::Own { tasks: 1024 }, BESIDE_BARE),
    on_cluster("cluster-held-100k", "3 masters: 100,000 locks are held", Kind::Held { locks: 100_000 }, OURS),
    on_cluster("cluster-moved", "3 masters: another client gets a lock just after its slot has moved", Kind::Moved { times: 200 }, OURS),
    on_cluster("cluster-failover", "3 masters with 1 replica each: another client gets a lock just after a replica has taken over", Kind::FailedOver { times: 200 }, OURS),
    confirmed("acknowledged-1", "a master with 2 replicas: 1 task", 1, Topology::Replicated),
    confirmed("acknowledged-64", "a master with 2 replicas: 64 tasks, each with its own lock", 64, Topology::Replicated),
    confirmed("acknowledged-1024", "a master with 2 replicas: 1,024 tasks, each with its own lock", 1024, Topology::Replicated),
    confirmed("on-disk-1", "a server that writes each change to its disk: 1 task", 1, Topology::OnDisk),
    confirmed("on-disk-64", "a server that writes each change to its disk: 64 tasks, each with its own lock", 64, Topology::OnDisk),
    confirmed("on-disk-1024", "a server that writes each change to its disk: 1,024 tasks, each with its own lock", 1024, Topology::OnDisk),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_scenario_has_ours() {
        let names: BTreeSet<_> = ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|s| s.systems.contains(&Leasehold)));
        let in_all = |s: &Scenario| s.short.iter().all(|it| s.systems.contains(it));
        assert!(ALL.iter().all(in_all));
        assert!(named("hot-64").is_ok());
        assert!(named("hot-65").is_err());
    }
}
