//! Semaphores and latches in histories drawn at random. The command plays more of them:
//! `cargo run --release -p leasehold-sim -- --subject semaphore,expirable,latch`.

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
fn permits_stay_within_their_number_and_none_is_lost() {
    play_some(Synchronizer::Semaphore);
}

#[test]
fn permits_with_leases_stay_within_their_number_and_come_back_from_the_dead() {
    play_some(Synchronizer::Expirable);
}

#[test]
fn a_latch_opens_for_everybody_after_the_last_count_and_never_before() {
    play_some(Synchronizer::Latch);
}

#[test]
fn the_same_seed_gives_the_same_history_of_permits() {
    for seed in 1..20 {
        let play = || Synchronizer::Semaphore.play(seed);
        let (one, other) = (play(), play());
        assert_eq!(one.requests, other.requests, "seed {seed}");
        assert_eq!(one.report.faults, other.report.faults, "seed {seed}");
    }
}
