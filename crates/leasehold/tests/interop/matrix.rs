//! The content of two pages. `docs/interop.md` shows each primitive beside Redisson 3.16.8, beside
//! 4.7.0 and beside both at once; `docs/interop-tests.md` shows the tests of each cell. A cell
//! names its tests, or says why it has none. `scripts/interop` runs the tests and writes both
//! pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::weaknesses;

/// The environment variable that names the file with the output of the test run, set by
/// `scripts/interop`.
const LOG: &str = "LEASEHOLD_INTEROP_LOG";

/// The columns, and the module that has the tests of each.
const COLUMNS: [(&str, &str); 3] = [
    ("3.16.8", "with_3_16_8::"),
    ("4.7.0", "with_4_7_0::"),
    ("both at once", "with_both::"),
];

/// A topology that the tests run on.
struct Place {
    name: &'static str,
    /// The prefixes of a test's name in the log, one for each run on this topology.
    runs: &'static [&'static str],
}

const PLACES: [Place; 3] = [
    Place {
        name: "single",
        runs: &[""],
    },
    Place {
        name: CLUSTER,
        runs: &["cluster:"],
    },
    Place {
        name: "sentinels",
        runs: &["sentinels:", "sentinels-after-failover:"],
    },
];
const CLUSTER: &str = "cluster";

/// The part of a name that marks tests of every primitive, which run on every topology. Other tests
/// run on one server.
const EACH: &str = "::each_";

/// The checks for which each primitive has a row. A primitive may have further rows.
const COMMON: [&str; 9] = [
    TRY, TIMED, WOKEN, FORCE, EXPIRY, KILLED, WATCHDOGS, MANY, STATE,
];
const TRY: &str = "an attempt that does not wait is refused while the other side is the holder";
const TIMED: &str =
    "an attempt with a time limit ends at its limit, or succeeds when the other side releases";
const WOKEN: &str = "a waiter is woken when the other side releases";
const FORCE: &str = "a forced unlock lets a waiter in, and the former holder learns of its loss";
const EXPIRY: &str = "the other side gets in when the lease of the holder ends";
const KILLED: &str = "a killed process keeps the others out only until its lease ends";
const WATCHDOGS: &str = "each side's watchdog renews its own hold, and the other sides stay out";
const MANY: &str = "when threads and processes of all sides compete, no two recorded holds overlap, and no update is lost";
const STATE: &str = "each call of Leasehold leaves the same state in Redis as a live Redisson did when its calls were recorded";

const FAILOVER: &str =
    "holds and waiters of all sides outlive a failover of a master behind sentinels";

/// The beginning of a cell that has no test.
const NOT: &str = "not: ";

struct Row {
    check: &'static str,
    /// Tests, separated by spaces, or `not: ` and the reason.
    cells: [&'static str; 3],
}

#[derive(Default)]
struct Primitive {
    name: &'static str,
    redisson: &'static str,
    /// A further sentence for the page of the tests, or nothing.
    note: &'static str,
    /// Facts that qualify an `ok`, by column.
    but: [&'static str; 3],
    /// Further facts about a cluster, by column.
    but_on_cluster: [&'static str; 3],
    rows: Vec<Row>,
}

const ONE_AT_A_TIME: &str =
    "not: a recording covers one version, so each version is compared on its own";
const BY_ITSELF: &str = "not: each version is tested on its own";
const MIXED_ONLY: &str = "not: tested with both versions at once, which is the harder case";
const MEASURED: &str = "not: leasehold-bench runs this load with Redisson, and tests/server/synchronizers tests Leasehold alone";

/// Makes a row with the same cell in each column.
fn same(check: &'static str, cell: &'static str) -> Row {
    row(check, [cell; 3])
}

/// Makes a row with the same cell for each single version, and another one for both at once.
fn each(check: &'static str, alone: &'static str, both: &'static str) -> Row {
    row(check, [alone, alone, both])
}

fn row(check: &'static str, cells: [&'static str; 3]) -> Row {
    Row { check, cells }
}

/// The rows that `each_check!` makes tests for, with the other tests of the same check.
macro_rules! rows_of {
    ($module:literal, $([$check:expr, $test:literal, $more:literal]),+) => {
        vec![$(
            row($check, [
                concat!($module, "::", $test, " ", $more),
                concat!($module, "::", $test, " ", $more),
                concat!($module, "::", $test),
            ]),
        )+]
    };
}

/// Like [`rows_of`], for the names in `lock_rows`.
macro_rules! lock_rows {
    ($module:literal, $try:literal, $timed:literal, $woken:literal, $expiry:literal, $killed:literal, $watchdogs:literal) => {
        rows_of!(
            $module,
            [TRY, "a_try_is_refused_while_another_side_holds", $try],
            [
                TIMED,
                "a_timed_try_is_refused_in_its_time_or_served",
                $timed
            ],
            [WOKEN, "all_waiters_are_woken_in_turn", $woken],
            [EXPIRY, "a_lease_that_ends_lets_the_other_side_in", $expiry],
            [
                KILLED,
                "a_killed_process_holds_up_the_others_for_its_lease_only",
                $killed
            ],
            [
                WATCHDOGS,
                "each_watchdog_keeps_a_hold_that_is_still_refused_to_the_others",
                $watchdogs
            ]
        )
    };
}

fn with(mut rows: Vec<Row>, more: impl IntoIterator<Item = Row>) -> Vec<Row> {
    rows.extend(more);
    rows
}

fn plain() -> Primitive {
    let rows = lock_rows!(
        "each_lock::plain",
        "lock::what_java_holds_is_refused_to_us lock::what_we_hold_is_refused_to_java",
        "",
        "lock::our_waiter_is_woken_by_javas_release lock::javas_waiter_is_woken_by_our_release",
        "lock::expired_lease_frees_lock_for_other_side lock::stalled_work_of_ours_lets_javas_waiter_in_once_we_know",
        "lock::killed_holder_frees_lock_for_other_side",
        "lock::each_watchdog_renews_only_its_own_hold"
    );
    Primitive {
        name: "Lock",
        redisson: "`getLock`",
        rows: with(
            rows,
            [
                each(
                    FORCE,
                    "each_lock::plain::a_forced_unlock_wakes_who_waits_and_is_told_the_holder lock::java_forced_unlock_is_seen_by_rust lock::our_forced_unlock_is_seen_by_java",
                    "each_lock::plain::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                each(
                    MANY,
                    MIXED_ONLY,
                    "together::plain_lock_loses_no_count_beside_redissons stress::plain_claims_stay_unique_despite_kills",
                ),
                each(
                    FAILOVER,
                    MIXED_ONLY,
                    "failovers::plain_holds_and_waiters_outlive_a_failover",
                ),
                each(
                    STATE,
                    "golden::our_state_is_redissons_after_every_step",
                    ONE_AT_A_TIME,
                ),
                each(
                    "a turn of a job begins when Java's hold ends, keeps Java out, and runs once",
                    "recipes::turns::turn_does_not_begin_while_java_has_the_lock recipes::turns::turn_that_waits_begins_when_java_unlocks recipes::turns::java_gets_in_when_a_turn_ends recipes::turns::turn_that_java_ends_by_force_has_failed recipes::turns::id_runs_once_beside_threads_of_java",
                    BY_ITSELF,
                ),
                each(
                    "a hold that is passed on with a ticket keeps Java out until the last process ends the hold",
                    "recipes::tickets::resumed_ticket_keeps_java_out_until_its_release recipes::tickets::released_ticket_lets_java_in recipes::tickets::ticket_that_java_ends_by_force_is_refused recipes::tickets::hold_that_passes_on_is_never_free_for_java",
                    BY_ITSELF,
                ),
            ],
        ),
        ..Primitive::default()
    }
}

fn spin() -> Primitive {
    let rows = lock_rows!(
        "each_lock::spin",
        "lock::what_java_holds_is_refused_to_us lock::what_we_hold_is_refused_to_java",
        "",
        "lock::spin_waiters_get_lock_across_sides",
        "",
        "",
        ""
    );
    Primitive {
        name: "Lock with back-off",
        redisson: "`getSpinLock`",
        note: "A spin lock of Redisson publishes nothing, so its release does not wake waiters. The waiters of both sides try again after a pause.",
        rows: with(
            rows,
            [
                same(
                    FORCE,
                    "each_lock::spin::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                same(
                    MANY,
                    "not: a spin lock uses the same key and scripts as the lock, which has this check",
                ),
                each(
                    STATE,
                    "golden::our_state_is_redissons_after_every_step",
                    ONE_AT_A_TIME,
                ),
            ],
        ),
        ..Primitive::default()
    }
}

fn fenced() -> Primitive {
    let rows = lock_rows!("each_lock::fenced", "", "", "", "", "", "");
    let tokens = "each_lock::tokens_grow_over_the_holds_of_all";
    Primitive {
        name: "Fenced lock",
        redisson: "`getFencedLock`",
        note: "3.16.8 has no fenced lock. In its place, the tests use `getLock`, which has the same key and takes no token.",
        but: [
            "3.16.8 has no fenced lock; the tests use `getLock` of 3.16.8, which takes no token",
            "",
            "a hold of Redisson 3.16.8 has no token",
        ],
        rows: with(
            rows,
            [
                same(
                    FORCE,
                    "each_lock::fenced::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                row(
                    "the tokens of all sides rise in one sequence",
                    [
                        tokens,
                        "each_lock::tokens_grow_over_the_holds_of_all fenced::tokens_go_on_from_each_other fenced::java_tokens_continue_after_other_kinds",
                        tokens,
                    ],
                ),
                each(
                    MANY,
                    MIXED_ONLY,
                    "together::fenced_lock_loses_no_count_beside_redissons stress::fenced_claims_stay_unique_despite_kills",
                ),
                each(
                    "a candidate in an election and a Java client hold the lock in turn, and tokens rise from term to term",
                    "recipes::elections::candidate_and_java_lead_in_turn recipes::elections::leader_that_java_ends_by_force_is_told_and_its_token_is_not_used_again recipes::elections::work_of_a_leader_ends_when_java_breaks_in",
                    BY_ITSELF,
                ),
                row(
                    STATE,
                    [
                        "not: 3.16.8 has no fenced lock",
                        "fenced::tokens_go_on_from_each_other",
                        ONE_AT_A_TIME,
                    ],
                ),
            ],
        ),
        ..Primitive::default()
    }
}

fn fair() -> Primitive {
    let rows = lock_rows!(
        "each_lock::fair",
        "fair::each_side_is_refused_what_the_other_holds",
        "fair::each_side_is_refused_what_the_other_holds",
        "",
        "fair::expired_lease_hands_fair_lock_across",
        "fair::our_waiter_wakes_sleeping_java_head",
        ""
    );
    Primitive {
        name: "Fair lock",
        redisson: "`getFairLock`",
        rows: with(
            rows,
            [
                each(
                    FORCE,
                    "each_lock::fair::a_forced_unlock_wakes_who_waits_and_is_told_the_holder fair::forced_unlock_wakes_other_sides_queue_head",
                    "each_lock::fair::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                each(
                    "the waiters of both sides share one queue and are served in the order of the queue",
                    "fair::messages_serve_mixed_queue_in_order",
                    "each_lock::fair::all_waiters_are_woken_in_turn",
                ),
                each(
                    "a waiter that gives up leaves the queue, in Leasehold and in Redisson",
                    "each_lock::fair_waiter_that_gives_up_leaves_queue fair::our_aborted_head_lets_java_waiter_in fair::java_head_timeout_lets_our_waiter_in",
                    "each_lock::fair_waiter_that_gives_up_leaves_queue",
                ),
                each(
                    "a killed waiter is passed over, in Leasehold and in Redisson",
                    "each_lock::killed_fair_waiter_is_skipped_after_timeout fair::killed_rust_waiter_does_not_block_java fair::killed_java_waiter_leaves_at_redissons_timeout",
                    "each_lock::killed_fair_waiter_is_skipped_after_timeout",
                ),
                each(
                    "passing a hold on with a ticket leaves the queue as it is",
                    "recipes::tickets::line_of_a_fair_lock_waits_for_the_last_process_of_a_ticket",
                    BY_ITSELF,
                ),
                each(
                    MANY,
                    MIXED_ONLY,
                    "together::fair_lock_loses_no_count_beside_redissons stress::fair_claims_stay_unique_despite_kills",
                ),
                each(
                    FAILOVER,
                    MIXED_ONLY,
                    "failovers::fair_holds_and_waiters_outlive_a_failover",
                ),
                each(
                    STATE,
                    "golden_fair::fair_lock_state_matches_redisson_recordings",
                    ONE_AT_A_TIME,
                ),
            ],
        ),
        ..Primitive::default()
    }
}

fn read_write() -> Primitive {
    let rows = lock_rows!(
        "each_lock::write",
        "rw::readers_share_and_writers_exclude_across_sides",
        "",
        "rw::a_release_of_one_side_wakes_the_other",
        "",
        "rw::killed_rw_holder_lets_other_side_in",
        ""
    );
    Primitive {
        name: "Read-write lock",
        redisson: "`getReadWriteLock`",
        note: "The checks that all primitives have in common use the write side.",
        but: [
            "",
            "",
            "Redisson's versions break each other's holds: the watchdog of a 3.16.8 reader shortens the longer hold of a 4.7.0 reader",
        ],
        rows: with(
            rows,
            [
                each(
                    FORCE,
                    "each_lock::write::a_forced_unlock_wakes_who_waits_and_is_told_the_holder rw::forced_rw_unlock_is_seen_across_sides",
                    "each_lock::write::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                each(
                    "readers of all sides share the lock, and the last reader to leave lets a writer in",
                    "each_lock::last_shared_reader_lets_writer_in rw::readers_share_and_writers_exclude_across_sides",
                    "each_lock::last_shared_reader_lets_writer_in",
                ),
                each(
                    "a downgrade by Leasehold wakes Java's readers",
                    "each_lock::our_downgrade_wakes_the_readers_of_all rw::our_downgrade_wakes_only_java_readers",
                    "each_lock::our_downgrade_wakes_the_readers_of_all",
                ),
                each(
                    "Leasehold can read while a Java thread that has downgraded still reads",
                    "rw::downgraded_java_thread_lets_our_reader_in",
                    "not: one Java thread downgrades, so each version is tested on its own",
                ),
                each(
                    "one release by a writer lets all readers in",
                    "rw::our_write_release_wakes_all_java_readers",
                    "each_lock::our_downgrade_wakes_the_readers_of_all",
                ),
                each(
                    "no reader's watchdog ends the longer hold of another reader",
                    "rw::java_reader_watchdog_keeps_our_longer_hold rw::our_renewal_changes_no_java_read_lease",
                    "not: Redisson's two versions break each other's holds: the watchdog of a 3.16.8 reader shortens the longer hold of a 4.7.0 reader",
                ),
                each(
                    MANY,
                    MIXED_ONLY,
                    "together::write_lock_loses_no_count_beside_redissons stress::write_claims_stay_unique_despite_kills",
                ),
                each(
                    FAILOVER,
                    MIXED_ONLY,
                    "failovers::write_holds_and_waiters_outlive_a_failover",
                ),
                each(
                    STATE,
                    "golden_rw::rw_lock_state_matches_redisson_recordings golden_rw::rw_renewals_match_redisson_or_keep_longer",
                    ONE_AT_A_TIME,
                ),
            ],
        ),
        ..Primitive::default()
    }
}

const MEMBERS_FORCED: &str =
    "not: neither side can force-unlock the whole lock, only one member after the other";
const MEMBERS_STATE: &str = "not: each member is a lock, which has this check";

fn multi() -> Primitive {
    Primitive {
        name: "Multi-lock",
        redisson: "`getMultiLock(locks...)`",
        rows: with(
            lock_rows!(
                "each_lock::multi",
                "members::multi_locks_exclude_java_member_by_member",
                "members::multi_locks_exclude_java_member_by_member",
                "members::multi_locks_of_both_sides_wake_each_other",
                "",
                "",
                ""
            ),
            [
                same(FORCE, MEMBERS_FORCED),
                each(
                    MANY,
                    MIXED_ONLY,
                    "together::multi_lock_loses_no_count_beside_redissons",
                ),
                same(STATE, MEMBERS_STATE),
            ],
        ),
        ..Primitive::default()
    }
}

fn red() -> Primitive {
    Primitive {
        name: "Lock of a majority",
        redisson: "`RedissonRedLock`",
        rows: with(
            lock_rows!(
                "each_lock::red",
                "members::majorities_of_both_sides_exclude_each_other",
                "members::majorities_of_both_sides_exclude_each_other",
                "members::majorities_of_both_sides_wake_each_other",
                "",
                "",
                ""
            ),
            [
                same(FORCE, MEMBERS_FORCED),
                each(
                    MANY,
                    MIXED_ONLY,
                    "together::red_lock_loses_no_count_beside_redissons",
                ),
                same(STATE, MEMBERS_STATE),
            ],
        ),
        ..Primitive::default()
    }
}

fn group() -> Primitive {
    const OLD: &str = "not: 3.16.8 has no groups";
    let new = |check, test| row(check, [OLD, test, OLD]);
    Primitive {
        name: "Group lock",
        redisson: "`getMultiLock(group, values)`",
        rows: vec![
            new(
                TRY,
                "each_group::group::a_try_is_refused_while_another_side_holds group::groups_exclude_java_value_by_value",
            ),
            new(
                TIMED,
                "each_group::group::a_timed_try_is_refused_in_its_time_or_served group::groups_exclude_java_value_by_value",
            ),
            new(
                WOKEN,
                "each_group::group::all_waiters_are_woken_in_turn group::groups_of_both_sides_wake_each_other",
            ),
            new(
                EXPIRY,
                "each_group::group::a_lease_that_ends_lets_the_other_side_in",
            ),
            new(
                KILLED,
                "each_group::group::a_killed_process_holds_up_the_others_for_its_lease_only",
            ),
            new(
                WATCHDOGS,
                "each_group::group::each_watchdog_keeps_a_hold_that_is_still_refused_to_the_others",
            ),
            new(
                FORCE,
                "each_group::group::a_forced_unlock_wakes_who_waits_and_is_told_the_holder group::forced_group_unlock_is_seen_across_sides",
            ),
            new(
                "a release of a value wakes the waiter for that value",
                "group::group_release_wakes_matching_java_waiter",
            ),
            new(MANY, "together::group_lock_loses_no_count_beside_redisson"),
            new(STATE, "group::our_state_is_redissons_after_every_step"),
        ],
        ..Primitive::default()
    }
}

fn semaphore() -> Primitive {
    const NO_LEASE: &str = "not: these permits have no lease";
    Primitive {
        name: "Semaphore",
        redisson: "`getSemaphore`",
        rows: vec![
            same(
                TRY,
                "each_count::counted::exhausted_semaphore_refuses_within_wait_limit",
            ),
            same(
                TIMED,
                "each_count::counted::exhausted_semaphore_refuses_within_wait_limit",
            ),
            each(
                WOKEN,
                "each_count::counted::all_waiters_are_woken_in_turn synchronizers::a_release_of_ours_wakes_a_java_waiter synchronizers::a_release_of_java_wakes_our_waiter synchronizers::dropped_permit_wakes_java_waiter",
                "each_count::counted::all_waiters_are_woken_in_turn",
            ),
            each(
                "both sides count permits alike when they set, add and drain them",
                "synchronizers::permits_are_counted_alike_and_exclude_both_sides",
                "not: the permits are one number in Redis, so each version is tested on its own",
            ),
            same(
                FORCE,
                "not: a permit has no holder, and any client may release it",
            ),
            same(EXPIRY, NO_LEASE),
            same(KILLED, NO_LEASE),
            same(
                "any process can return the permit of a killed process",
                "each_count::counted::the_permit_of_a_killed_process_is_given_back_by_any_other",
            ),
            same(WATCHDOGS, NO_LEASE),
            same(MANY, MEASURED),
            each(
                STATE,
                "counts::semaphore_and_latch_state_matches_redisson_recordings",
                ONE_AT_A_TIME,
            ),
        ],
        ..Primitive::default()
    }
}

fn expirable() -> Primitive {
    Primitive {
        name: "Expirable semaphore",
        redisson: "`getPermitExpirableSemaphore`",
        but: [
            "3.16.8 can't release a permit of Leasehold by the permit's id",
            "",
            "neither version of Redisson can release a permit of the other version by the permit's id, and 3.16.8 can't release a permit of Leasehold in this way",
        ],
        rows: vec![
            same(
                TRY,
                "each_count::leased::exhausted_semaphore_refuses_within_wait_limit",
            ),
            same(
                TIMED,
                "each_count::leased::exhausted_semaphore_refuses_within_wait_limit",
            ),
            each(
                WOKEN,
                "each_count::leased::all_waiters_are_woken_in_turn synchronizers::permits_with_leases_wake_both_ways",
                "each_count::leased::all_waiters_are_woken_in_turn",
            ),
            each(
                "Leasehold releases Java's permits by their ids, Redisson 4.7.0 also releases Leasehold's permits by their ids, and Redisson 3.16.8 can't, because it stores ids in another way",
                "synchronizers::java_permits_without_lease_work_by_id synchronizers::new_java_releases_our_permits_by_id",
                "not: an id passes between two sides, so each version is tested on its own; 3.16.8 writes and recognises ids only as hex digits, and does not recognise the ids of Leasehold and 4.7.0",
            ),
            same(
                FORCE,
                "not: neither side has a forced release; a permit is released by its id",
            ),
            each(
                EXPIRY,
                "synchronizers::leased_permits_exclude_and_expire_across_sides",
                "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
            ),
            same(
                KILLED,
                "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
            ),
            same(
                WATCHDOGS,
                "each_count::renewed_permit_stays_refused_to_java",
            ),
            same(MANY, MEASURED),
            each(
                STATE,
                "counts::semaphore_and_latch_state_matches_redisson_recordings",
                ONE_AT_A_TIME,
            ),
        ],
        ..Primitive::default()
    }
}

fn latch() -> Primitive {
    const NOBODY: &str = "not: a latch has no holder";
    const NO_LEASE: &str = "not: a latch has no lease";
    Primitive {
        name: "Count-down latch",
        redisson: "`getCountDownLatch`",
        rows: vec![
            same(TRY, NOBODY),
            each(
                TIMED,
                "synchronizers::latch_waiters_see_javas_reset_after_zero",
                "not: a wait with a time limit involves only two sides, so each version is tested on its own",
            ),
            each(
                WOKEN,
                "each_count::last_count_down_wakes_latch_waiters_everywhere synchronizers::latch_counts_and_wakes_across_sides",
                "each_count::last_count_down_wakes_latch_waiters_everywhere",
            ),
            each(
                "Leasehold's waiters return when Java deletes the latch",
                "synchronizers::java_latch_deletion_wakes_our_waiter",
                BY_ITSELF,
            ),
            same(FORCE, NOBODY),
            same(EXPIRY, NO_LEASE),
            same(KILLED, NOBODY),
            same(WATCHDOGS, NO_LEASE),
            same(MANY, MEASURED),
            each(
                STATE,
                "counts::semaphore_and_latch_state_matches_redisson_recordings",
                ONE_AT_A_TIME,
            ),
        ],
        ..Primitive::default()
    }
}

const DOCUMENTS: &str = "Documentation";

/// Returns the rows of the pages that are checked against live Redissons, which belong to no
/// primitive.
fn documents() -> Primitive {
    Primitive {
        name: DOCUMENTS,
        redisson: "its keys, messages and methods",
        note: "Each row compares the behaviour of a live Redisson with what a page says about it.",
        rows: vec![
            row(
                "Redisson writes to Redis and publishes exactly what [wire-format.md](wire-format.md) says",
                [
                    "wire::locks_match_documented_wire_format wire::fair_lock_matches_documented_wire_format wire::rw_lock_matches_documented_wire_format wire::semaphore_matches_documented_wire_format wire::leased_permits_match_documented_wire_format wire::latch_matches_documented_wire_format",
                    "wire::locks_match_documented_wire_format wire::fair_lock_matches_documented_wire_format wire::rw_lock_matches_documented_wire_format wire::group_matches_documented_wire_format wire::semaphore_matches_documented_wire_format wire::leased_permits_match_documented_wire_format wire::latch_matches_documented_wire_format",
                    BY_ITSELF,
                ],
            ),
            each(
                "[from-redisson.md](from-redisson.md) names every method of Redisson",
                "methods::every_method_of_redissons_stands_in_the_page",
                BY_ITSELF,
            ),
        ],
        ..Primitive::default()
    }
}

fn primitives() -> Vec<Primitive> {
    vec![
        plain(),
        spin(),
        fenced(),
        fair(),
        read_write(),
        multi(),
        red(),
        group(),
        semaphore(),
        expirable(),
        latch(),
        documents(),
    ]
}

/// Returns the tests of a cell by their full names.
fn tests(cell: &str, module: &str, known: &BTreeSet<String>) -> Vec<String> {
    let whole = |name: &str| match known.contains(&format!("{module}{name}")) {
        true => format!("{module}{name}"),
        false => name.to_owned(),
    };
    cell.split_whitespace().map(whole).collect()
}

/// Returns the names of all tests of this binary.
pub(crate) fn known() -> BTreeSet<String> {
    let binary = std::env::current_exe().unwrap();
    let output = Command::new(binary).arg("--list").output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(ToOwned::to_owned).collect()
}

/// Returns `ok` if all of these tests passed, else the outcome of the first that did not.
fn word(tests: &[String], outcomes: &BTreeMap<String, String>) -> String {
    let bad = tests
        .iter()
        .find(|test| outcomes.get(*test).is_none_or(|outcome| outcome != "ok"));
    match bad.map(|test| outcomes.get(test)) {
        None => "ok".to_owned(),
        Some(None) => "**not run**".to_owned(),
        Some(Some(outcome)) => format!("**{outcome}**"),
    }
}

/// Returns the names that these tests have in the log of the runs on this topology.
fn there(tests: &[String], place: &Place) -> Vec<String> {
    let everywhere = tests.iter().filter(|test| test.contains(EACH));
    let run = |run: &&str| match *run {
        "" => tests.to_vec(),
        run => (everywhere.clone())
            .map(|test| format!("{run}{test}"))
            .collect(),
    };
    place.runs.iter().flat_map(run).collect()
}

/// Notes to which the short table refers by number.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    /// Returns the number of a note, which is added if it is new.
    fn number(&mut self, said: &str) -> String {
        let at = self.0.iter().position(|note| note == said);
        let at = at.unwrap_or_else(|| {
            self.0.push(said.to_owned());
            self.0.len() - 1
        });
        format!(" ({})", at + 1)
    }

    fn shown(&self) -> String {
        let lines = (1..).zip(&self.0);
        let lines: Vec<_> = lines
            .map(|(number, note)| format!("{number}. {note}"))
            .collect();
        lines.join("\n")
    }
}

/// Returns the short table's cell of a primitive in one column and on one topology: `ok`, or
/// `none`, with its notes.
fn verdict(
    primitive: &Primitive,
    column: usize,
    place: &Place,
    outcomes: &BTreeMap<String, String>,
    notes: &mut Notes,
) -> String {
    let (_, module) = COLUMNS[column];
    let known = outcomes.keys().cloned().collect();
    let cells = primitive.rows.iter().map(|row| row.cells[column]);
    let (untested, tested): (Vec<&str>, Vec<&str>) = cells.partition(|cell| cell.starts_with(NOT));
    if tested.is_empty() {
        return "none".to_owned() + &notes.number(&untested[0].replacen(NOT, "", 1));
    }
    let tests = there(&tests(&tested.join(" "), module, &known), place);
    if tests.is_empty() {
        return "none".to_owned() + &notes.number("these tests need only a single server");
    }
    let mut said = word(&tests, outcomes);
    let on_cluster = primitive.but_on_cluster[column];
    let on_cluster = (place.name == CLUSTER).then_some(on_cluster);
    for but in [Some(primitive.but[column]), on_cluster] {
        if let Some(but) = but.filter(|but| !but.is_empty()) {
            said += &notes.number(but);
        }
    }
    said
}

/// Returns the table with a row for each primitive, and the notes below it.
fn table(primitives: &[Primitive], outcomes: &BTreeMap<String, String>) -> String {
    let columns = COLUMNS.map(|(column, _)| {
        let places = PLACES.map(|place| format!("{column}, {}", place.name));
        places.join(" | ")
    });
    let mut table = format!(
        "| Leasehold | Redisson | {} |\n|---|---|",
        columns.join(" | ")
    );
    table += &"---|".repeat(COLUMNS.len() * PLACES.len());
    let mut notes = Notes::default();
    for primitive in primitives {
        let Primitive { name, redisson, .. } = primitive;
        let anchor = name.to_lowercase().replace(' ', "-");
        let mut cells = Vec::new();
        for column in 0..COLUMNS.len() {
            for place in &PLACES {
                cells.push(verdict(primitive, column, place, outcomes, &mut notes));
            }
        }
        let cells = cells.join(" | ");
        let _ = write!(
            table,
            "\n| [{name}](interop-tests.md#{anchor}) | {redisson} | {cells} |"
        );
    }
    format!("{table}\n\n{}", notes.shown())
}

/// Returns the checks that not every primitive has.
fn special(primitives: &[Primitive]) -> String {
    let mut list = Vec::new();
    for Primitive { name, rows, .. } in primitives {
        let checks = rows.iter().map(|row| row.check);
        let checks: Vec<_> = checks.filter(|check| !COMMON.contains(check)).collect();
        if !checks.is_empty() {
            list.push(format!("- **{name}**: {}.", checks.join("; ")));
        }
    }
    list.join("\n")
}

/// Returns the text of `docs/interop.md`.
fn summary(outcomes: &BTreeMap<String, String>, run: &str) -> String {
    let primitives = primitives();
    let common = COMMON.map(|check| format!("- {check}"));
    let page = include_str!("matrix_head.md")
        .replace("{table}", &table(&primitives, outcomes))
        .replace("{run}", run)
        .replace("{common}", &common.join("\n"))
        .replace("{special}", &special(&primitives));
    page + &weaknesses::part(outcomes)
}

/// Returns the text of a cell on the page of the tests. `outcomes` has the outcome of each test.
fn shown(cell: &str, module: &str, outcomes: &BTreeMap<String, String>) -> String {
    if let Some(reason) = cell.strip_prefix(NOT) {
        return format!("none: {reason}");
    }
    let known = outcomes.keys().cloned().collect();
    let tests = tests(cell, module, &known);
    let mut said = word(&tests, outcomes);
    for place in &PLACES[1..] {
        let there = there(&tests, place);
        if !there.is_empty() {
            let _ = write!(said, ", {} {}", place.name, word(&there, outcomes));
        }
    }
    // The column shows which mount of the test is meant.
    let short = tests
        .iter()
        .map(|test| test.strip_prefix(module).unwrap_or(test));
    let tests: Vec<_> = short.map(|test| format!("`{test}`")).collect();
    format!("{said}: {}", tests.join(", "))
}

/// Returns a row as lines of the page of the tests. Columns with the same tests share a line.
fn lines(row: &Row, outcomes: &BTreeMap<String, String>) -> String {
    let mut lines: Vec<(Vec<&str>, String)> = Vec::new();
    for (cell, (column, module)) in row.cells.iter().zip(COLUMNS) {
        let shown = shown(cell, module, outcomes);
        match lines.iter_mut().find(|(_, other)| *other == shown) {
            Some((columns, _)) => columns.push(column),
            None => lines.push((vec![column], shown)),
        }
    }
    let mut check = row.check;
    let mut text = String::new();
    for (columns, shown) in lines {
        let _ = writeln!(text, "| {check} | {} | {shown} |", columns.join(", "));
        // The check is only named in the first line.
        check = "";
    }
    text
}

const DETAILS_HEAD: &str = "\
# The tests behind the table

This page lists the tests for each cell of the table in [interop.md](interop.md), check by check.
`scripts/interop` runs the tests and writes both pages; interop.md has the date of the run. The
tests are in `crates/leasehold/tests/interop`. `ok` means that each test in the row passed. `none`
is followed by the reason why a check has no test.

The tests in `each_lock`, `each_group` and `each_count` run on one server, on a cluster of three
masters, and behind sentinels. Behind sentinels they run twice: once without a failover, and once
with a failover before the check. In most tests, all clients are already connected when the failover
happens. The other tests run on one server.

Most tests run once with 3.16.8, once with 4.7.0 and once with both. The names on this page omit the
module for this: `with_3_16_8::`, `with_4_7_0::` or `with_both::`.
";

/// Returns the text of `docs/interop-tests.md`.
fn details(outcomes: &BTreeMap<String, String>) -> String {
    let mut page = DETAILS_HEAD.to_owned();
    for primitive in primitives() {
        let Primitive { name, redisson, .. } = primitive;
        let about = format!("Redisson: {redisson}. {}", primitive.note);
        let _ = writeln!(page, "\n## {name}\n\n{}\n", about.trim_end());
        page.push_str("| check | Redisson | tests |\n|---|---|---|\n");
        for row in &primitive.rows {
            page.push_str(&lines(row, outcomes));
        }
    }
    page.push_str(&weaknesses::details(outcomes));
    page
}

/// Returns both pages, each with its file.
fn pages(outcomes: &BTreeMap<String, String>, run: &str) -> [(PathBuf, String); 2] {
    [
        (file("interop.md"), summary(outcomes, run)),
        (file("interop-tests.md"), details(outcomes)),
    ]
}

fn file(name: &str) -> PathBuf {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    docs.join(name)
}

/// Returns the line that says when the pages were written.
fn run_of(text: &str) -> &str {
    let run = text.lines().find(|line| line.starts_with("Last run: "));
    run.expect("it says when it was written")
}

#[test]
fn matrix_cells_name_tests_or_give_reason() {
    let known = known();
    for Primitive { name, rows, .. } in primitives() {
        for check in COMMON.into_iter().filter(|_| name != DOCUMENTS) {
            let there = rows.iter().filter(|row| row.check == check).count();
            assert_eq!(there, 1, "{name}: {check}");
        }
        for row in rows {
            for (cell, (column, module)) in row.cells.iter().zip(COLUMNS) {
                let place = format!("{name}, {}, {column}", row.check);
                assert!(!cell.trim().is_empty(), "empty: {place}");
                if let Some(reason) = cell.strip_prefix(NOT) {
                    assert!(reason.len() > 10, "no reason: {place}");
                    continue;
                }
                for test in tests(cell, module, &known) {
                    assert!(known.contains(&test), "no test `{test}`: {place}");
                    let other = COLUMNS.iter().filter(|(_, other)| *other != module);
                    let of_other = other.map(|(_, other)| test.starts_with(other));
                    assert!(!of_other.into_iter().any(|is| is), "{test}: {place}");
                }
            }
        }
    }
}

/// A change of the tables or of the names of tests fails this, until `scripts/interop` has run.
#[test]
fn interop_pages_match_generated_pages() {
    let known: Vec<_> = known().into_iter().collect();
    let all = PLACES.iter().flat_map(|place| there(&known, place));
    let all_ok = all.map(|test| (test, "ok".to_owned())).collect();
    let summary = std::fs::read_to_string(file("interop.md")).unwrap();
    for (file, expected) in pages(&all_ok, run_of(&summary)) {
        let there = std::fs::read_to_string(&file).unwrap();
        for (there, expected) in there.lines().zip(expected.lines()) {
            assert_eq!(there, expected, "{}: run scripts/interop", file.display());
        }
        assert_eq!(there.lines().count(), expected.lines().count());
    }
}

/// The job that `scripts/interop` runs with the log of a run. When run as a test, this does
/// nothing.
#[test]
fn write_the_pages() {
    let Ok(log) = std::env::var(LOG) else {
        return;
    };
    let log = std::fs::read_to_string(log).unwrap();
    let outcomes: BTreeMap<_, _> = log
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .map(|(test, outcome)| (test.to_owned(), outcome.to_owned()))
        .collect();
    for (file, page) in pages(&outcomes, run_of(&log)) {
        std::fs::write(file, page).unwrap();
    }
}
