//! Plays semaphores and latches in random histories. The command plays more of them:
//! `cargo run --release -p leasehold-sim -- --subject semaphore,expirable,latch`.

use clap::ValueEnum;
use leasehold_sim::Synchronizer;

fn play_some(synchronizer: Synchronizer) {
    let mut counted = 0;
    for seed in 1..150 {
        let played = synchronizer.play(seed);
        assert_eq!(played.violations, [""; 0], "{synchronizer}, seed {seed}");
        counted += usize::from(played.counts());
    }
    assert!(
        counted > 75,
        "vacuous: somebody had to wait in {counted} only"
    );
}

#[test]
fn semaphore_permits_are_neither_exceeded_nor_lost() {
    play_some(Synchronizer::Semaphore);
}

#[test]
fn expirable_permits_return_from_dead_holders() {
    play_some(Synchronizer::Expirable);
}

#[test]
fn latch_opens_exactly_at_the_last_count() {
    play_some(Synchronizer::Latch);
}

#[test]
fn semaphore_history_is_reproducible_from_its_seed() {
    for seed in 1..20 {
        let play = || Synchronizer::Semaphore.play(seed);
        let (one, other) = (play(), play());
        assert_eq!(one.requests, other.requests, "seed {seed}");
        assert_eq!(one.report.faults, other.report.faults, "seed {seed}");
    }
}

#[test]
fn waiters_that_are_busy_elsewhere_lose_no_permit_and_miss_no_latch() {
    for synchronizer in Synchronizer::value_variants() {
        for seed in 1..30 {
            let played = synchronizer.play_unpolled(seed);
            assert_eq!(played.violations, [""; 0], "{synchronizer}, seed {seed}");
        }
    }
}
