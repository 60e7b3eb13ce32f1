//! Tests of the simulator itself: it repeats histories, covers every fault, and finds violations.

use std::collections::BTreeSet;

use clap::ValueEnum;
use leasehold_sim::faults::Kind;
use leasehold_sim::shrink::shrink;
use leasehold_sim::{Scenario, Subject, play};

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 1..200 {
        let scenario = Scenario::draw(Subject::Lock, seed);
        let (one, other) = (play(&scenario), play(&scenario));
        assert_eq!(one.trace, other.trace, "seed {seed}");
        assert_eq!(one.requests, other.requests, "seed {seed}");
    }
}

#[test]
fn lock_is_safe_under_every_fault_kind() {
    let mut seen = BTreeSet::new();
    let polled = (1..1500).map(|seed| Scenario::draw(Subject::Lock, seed));
    let unpolled = (1..100).map(|seed| Scenario::draw_unpolled(Subject::Lock, seed));
    for scenario in polled.chain(unpolled) {
        let seed = scenario.seed;
        let played = play(&scenario);
        assert_eq!(played.violations, [""; 0], "seed {seed}");
        if played.counts() {
            seen.extend(scenario.kinds());
        }
    }
    let mut all: BTreeSet<_> = Kind::value_variants().iter().copied().collect();
    // Holds become tickets in histories of their own.
    all.remove(&Kind::Ticketed);
    assert_eq!(seen, all);
}

#[test]
fn a_history_without_its_fault_does_not_count() {
    let quiet = (1..)
        .map(|seed| Scenario::draw(Subject::Lock, seed))
        .find(|scenario| scenario.kinds() == [Kind::RequestLost] && scenario.faults.len() == 1);
    let mut scenario = quiet.expect("one of them");
    assert!(play(&scenario).counts() || play(&scenario).violations.is_empty());
    // The thousandth request is never sent.
    scenario.faults[0].at = 1000;
    assert!(!play(&scenario).counts());
}

#[test]
fn what_needs_no_part_shrinks_to_nothing() {
    // No scenario fails, so none of its parts is enough for a failure.
    let scenario = Scenario::draw(Subject::Lock, 7);
    assert_eq!(shrink(&scenario).len(), scenario.parts());
}

#[test]
fn every_kind_of_lock_keeps_the_promise() {
    for subject in Subject::value_variants() {
        let mut counted = 0;
        for seed in 1..300 {
            let played = play(&Scenario::draw(*subject, seed));
            assert_eq!(played.violations, [""; 0], "{subject}, seed {seed}");
            counted += usize::from(played.counts());
        }
        assert!(
            counted > 100,
            "{subject}: {counted} histories show anything"
        );
    }
}

#[test]
fn tasks_that_are_busy_elsewhere_break_no_promise() {
    for subject in Subject::value_variants() {
        let mut counted = 0;
        for seed in 1..60 {
            let scenario = Scenario::draw_unpolled(*subject, seed);
            let played = play(&scenario);
            assert_eq!(played.violations, [""; 0], "{subject}, seed {seed}");
            let stalls = played.report.faults.iter();
            let stalls = stalls.filter(|(fault, _)| fault == "Unpolled").count();
            counted += usize::from(played.counts() && stalls > 0);
        }
        // Tasks that ask for a slot that is over don't wait.
        assert!(counted > 10, "{subject}: {counted} histories show anything");
    }
}
