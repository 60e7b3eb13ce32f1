//! The primitives. Each has a file with its promise and its API. Its steps and the rest of its code
//! are in the folder of the same name.

// Keep `lock` before the other modules: the page of `Lock` shows methods in the order of the
// modules, and this one has the most common methods.
pub(crate) mod lock;

mod absence;
pub(crate) mod any;
pub(crate) mod composite;
mod enlistment;
pub(crate) mod expirable;
pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod group;
pub(crate) mod guards;
pub(crate) mod hash_kind;
pub(crate) mod latch;
pub(crate) mod request;
pub(crate) mod rw;
pub(crate) mod semaphore;
pub(crate) mod setters;
mod shared_keys;
pub(crate) mod twin;

use crate::backend::step::Step;

/// Returns the steps of all primitives. The script of a call is assembled from them.
pub(crate) fn steps() -> Vec<&'static Step> {
    [
        &lock::steps::ALL[..],
        &group::steps::ALL,
        &fenced::steps::ALL,
        &fair::steps::ALL,
        &rw::steps::ALL,
        &semaphore::steps::ALL,
        &expirable::steps::ALL,
        &latch::steps::ALL,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use crate::backend::memory::Keyspace;
    // `recipes::steps` also returns the steps of the operators and the recipes.
    use crate::recipes::steps;

    #[test]
    fn step_for_holders_gives_a_stranger_nothing() {
        for step in steps().iter().filter(|step| step.for_holders) {
            assert!(step.grants, "{}", step.name);
            let mut keyspace = Keyspace::default();
            // A number with the length of a permit id.
            let id = b"1000000000000016".to_vec();
            let count = if step.many { 3 } else { step.parameters.len() };
            let parts = std::iter::repeat_n(&id, count).collect();
            let reply = (step.twin)(&mut keyspace, &parts);
            assert!(keyspace.dump().is_empty(), "{}: {reply:?}", step.name);
        }
    }

    /// The list of guarded steps. A new step that grants something must be added here.
    #[cfg(feature = "redis")]
    #[test]
    fn acquires_are_guarded() {
        let guarded = steps().into_iter().filter(|step| step.is_guarded());
        let names: Vec<_> = guarded.map(|step| step.name).collect();
        assert_eq!(
            names,
            [
                "lock.acquire",
                "lock.acquire_and_enlist",
                "group.acquire",
                "fenced.acquire",
                "fair.acquire",
                "rw.acquire_read",
                "rw.acquire_write",
                "rw.upgrade",
                "semaphore.acquire",
                "semaphore.drain",
                "expirable.acquire",
                "slot.begin",
                "election.lead",
            ]
        );
    }
}
