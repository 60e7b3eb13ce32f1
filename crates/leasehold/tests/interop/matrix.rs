//! What stands in `docs/interop.md`: each primitive, each check, beside Redisson 3.16.8,
//! beside 4.7.0 and beside both at once. A cell names the tests that show it, or says why
//! there is nothing to show. `scripts/interop` runs the tests and writes the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::weaknesses;

/// Where `scripts/interop` has left what the test run said.
const LOG: &str = "LEASEHOLD_INTEROP_LOG";

/// The columns, and in which module the tests of each are.
const COLUMNS: [(&str, &str); 3] = [
    ("3.16.8", "with_3_16_8::"),
    ("4.7.0", "with_4_7_0::"),
    ("both at once", "with_both::"),
];

/// The checks that each primitive has a row for; it may have more.
const COMMON: [&str; 9] = [
    TRY, TIMED, WOKEN, FORCE, EXPIRY, KILLED, WATCHDOGS, MANY, STATE,
];
const TRY: &str = "a try is refused while the other side holds";
const TIMED: &str = "a timed try is refused in its time, or served";
const WOKEN: &str = "who waits is woken by the other side; it asks once an hour by itself";
const FORCE: &str = "a forced unlock wakes who waits, and the holder finds out";
const EXPIRY: &str = "a lease that ends lets the other side in";
const KILLED: &str = "a killed process holds up the others for its lease only";
const WATCHDOGS: &str = "each watchdog keeps its own hold";
const MANY: &str = "threads and processes of all sides at once, judged by their history";
const STATE: &str = "the state in Redis is what a live Redisson left, step by step";

/// Begins a cell that has no test.
const NOT: &str = "not: ";

struct Row {
    check: &'static str,
    /// Tests, with spaces between, or `not: ` and the reason.
    cells: [&'static str; 3],
}

struct Primitive {
    name: &'static str,
    redisson: &'static str,
    rows: Vec<Row>,
}

const ONE_AT_A_TIME: &str = "not: a recording is of one version; each has its column";
const MIXED_ONLY: &str = "not: run with both versions at once, which is harder";

/// A row with the same tests in each column.
fn same(check: &'static str, tests: &'static str) -> Row {
    row(check, [tests; 3])
}

fn row(check: &'static str, cells: [&'static str; 3]) -> Row {
    Row { check, cells }
}

/// The rows that `each_check!` makes tests for, with what else shows them.
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

/// As [`rows_of`], for the names in that macro.
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
            [WOKEN, "all_who_wait_are_woken_one_after_the_other", $woken],
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
        "lock::an_ended_lease_of_one_side_lets_the_other_in",
        "lock::a_killed_process_of_one_side_lets_the_other_in",
        "lock::each_watchdog_keeps_its_own_hold_and_never_the_others"
    );
    let forced = "each_lock::plain::a_forced_unlock_wakes_who_waits_and_is_told_the_holder lock::a_forced_unlock_of_java_is_seen_by_us lock::a_forced_unlock_of_ours_is_seen_by_java";
    Primitive {
        name: "Lock",
        redisson: "`getLock`",
        rows: with(
            rows,
            [
                row(
                    FORCE,
                    [
                        forced,
                        forced,
                        "each_lock::plain::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                    ],
                ),
                row(
                    MANY,
                    [
                        MIXED_ONLY,
                        MIXED_ONLY,
                        "together::threads_of_both_versions_and_four_rust_processes_lose_no_count stress::claims_under_the_lock_are_unique_while_processes_are_killed",
                    ],
                ),
                row(
                    STATE,
                    [
                        "golden::our_state_is_redissons_after_every_step",
                        "golden::our_state_is_redissons_after_every_step",
                        ONE_AT_A_TIME,
                    ],
                ),
            ],
        ),
    }
}

fn spin() -> Primitive {
    let rows = lock_rows!(
        "each_lock::spin",
        "lock::what_java_holds_is_refused_to_us lock::what_we_hold_is_refused_to_java",
        "",
        "lock::a_spin_waiter_of_either_side_gets_the_lock",
        "",
        "",
        ""
    );
    Primitive {
        name: "Lock that is asked for again and again",
        redisson: "`getSpinLock`, which publishes nothing: here \"woken\" is by asking",
        rows: with(
            rows,
            [
                same(
                    FORCE,
                    "each_lock::spin::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                same(
                    MANY,
                    "not: the same key and scripts as the lock's, which has this row",
                ),
                row(
                    STATE,
                    [
                        "golden::our_state_is_redissons_after_every_step",
                        "golden::our_state_is_redissons_after_every_step",
                        ONE_AT_A_TIME,
                    ],
                ),
            ],
        ),
    }
}

fn fenced() -> Primitive {
    let rows = lock_rows!("each_lock::fenced", "", "", "", "", "", "");
    let tokens = "each_lock::tokens_grow_over_the_holds_of_all";
    Primitive {
        name: "Fenced lock",
        redisson: "`getFencedLock`; 3.16.8 has none and takes part with `getLock`, whose key is the same and which takes no token",
        rows: with(
            rows,
            [
                same(
                    FORCE,
                    "each_lock::fenced::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                ),
                row(
                    "tokens go on from each other",
                    [
                        tokens,
                        "each_lock::tokens_grow_over_the_holds_of_all fenced::tokens_go_on_from_each_other fenced::java_counts_on_from_what_holds_of_other_kinds_draw",
                        tokens,
                    ],
                ),
                row(
                    MANY,
                    [
                        MIXED_ONLY,
                        MIXED_ONLY,
                        "together::threads_of_both_versions_and_four_rust_processes_lose_no_count_under_the_fenced_lock stress::claims_under_the_fenced_lock_are_unique_while_processes_are_killed",
                    ],
                ),
                row(
                    STATE,
                    [
                        "not: no fenced lock in 3.16.8",
                        "fenced::tokens_go_on_from_each_other",
                        ONE_AT_A_TIME,
                    ],
                ),
            ],
        ),
    }
}

fn fair() -> Primitive {
    let rows = lock_rows!(
        "each_lock::fair",
        "fair::each_side_is_refused_what_the_other_holds",
        "fair::each_side_is_refused_what_the_other_holds",
        "",
        "fair::a_lease_that_ends_hands_over_to_the_other_side",
        "fair::a_java_head_that_nobody_called_is_called_by_our_waiters",
        ""
    );
    Primitive {
        name: "Fair lock",
        redisson: "`getFairLock`",
        rows: with(
            rows,
            [
                row(
                    FORCE,
                    [
                        "each_lock::fair::a_forced_unlock_wakes_who_waits_and_is_told_the_holder fair::a_forced_unlock_of_either_side_calls_the_head_of_the_other",
                        "each_lock::fair::a_forced_unlock_wakes_who_waits_and_is_told_the_holder fair::a_forced_unlock_of_either_side_calls_the_head_of_the_other",
                        "each_lock::fair::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                    ],
                ),
                row(
                    "one queue of both sides is served in its order",
                    [
                        "fair::a_mixed_queue_is_served_in_its_order_by_messages_alone",
                        "fair::a_mixed_queue_is_served_in_its_order_by_messages_alone",
                        "each_lock::fair::all_who_wait_are_woken_one_after_the_other",
                    ],
                ),
                row(
                    "a waiter of either side that gives up leaves the line",
                    [
                        "each_lock::a_waiter_that_gives_up_leaves_the_line_to_those_behind fair::our_head_that_gives_up_lets_the_java_waiter_behind_it_in fair::a_java_head_that_gives_up_lets_our_waiter_behind_it_in",
                        "each_lock::a_waiter_that_gives_up_leaves_the_line_to_those_behind fair::our_head_that_gives_up_lets_the_java_waiter_behind_it_in fair::a_java_head_that_gives_up_lets_our_waiter_behind_it_in",
                        "each_lock::a_waiter_that_gives_up_leaves_the_line_to_those_behind",
                    ],
                ),
                row(
                    "a waiter of either side that is killed is passed over",
                    [
                        "each_lock::a_waiter_that_is_killed_is_passed_over_in_its_time fair::a_killed_process_of_ours_that_waits_stands_in_nobodys_way fair::a_killed_java_waiter_is_taken_out_when_redisson_would",
                        "each_lock::a_waiter_that_is_killed_is_passed_over_in_its_time fair::a_killed_process_of_ours_that_waits_stands_in_nobodys_way fair::a_killed_java_waiter_is_taken_out_when_redisson_would",
                        "each_lock::a_waiter_that_is_killed_is_passed_over_in_its_time",
                    ],
                ),
                row(
                    MANY,
                    [
                        MIXED_ONLY,
                        MIXED_ONLY,
                        "together::threads_of_both_versions_and_four_rust_processes_lose_no_count_under_the_fair_lock stress::claims_under_the_fair_lock_are_unique_while_processes_are_killed",
                    ],
                ),
                row(
                    STATE,
                    [
                        "golden_fair::our_fair_lock_and_its_queue_are_redissons_after_every_step",
                        "golden_fair::our_fair_lock_and_its_queue_are_redissons_after_every_step",
                        ONE_AT_A_TIME,
                    ],
                ),
            ],
        ),
    }
}

fn read_write() -> Primitive {
    let rows = lock_rows!(
        "each_lock::write",
        "rw::readers_of_both_share_and_each_writer_excludes_the_other_side",
        "",
        "rw::a_release_of_one_side_wakes_the_other",
        "",
        "rw::a_killed_process_of_one_side_lets_the_other_in",
        ""
    );
    let forced = "each_lock::write::a_forced_unlock_wakes_who_waits_and_is_told_the_holder rw::a_forced_unlock_of_one_side_is_seen_by_the_other";
    let shared = "each_lock::readers_of_all_share_and_the_last_one_lets_a_writer_in rw::readers_of_both_share_and_each_writer_excludes_the_other_side";
    let downgrade = "each_lock::our_downgrade_wakes_the_readers_of_all rw::our_downgrade_wakes_javas_readers_and_keeps_its_writers_out";
    let woken = "rw::one_release_of_our_writer_lets_all_of_javas_readers_in";
    let watchdog = "rw::a_java_readers_watchdog_does_not_end_our_longer_hold rw::our_renewal_keeps_no_java_hold_alive_and_cuts_none";
    Primitive {
        name: "Read-write lock",
        redisson: "`getReadWriteLock`; the common rows are of its write side",
        rows: with(
            rows,
            [
                row(
                    FORCE,
                    [
                        forced,
                        forced,
                        "each_lock::write::a_forced_unlock_wakes_who_waits_and_is_told_the_holder",
                    ],
                ),
                row(
                    "readers share, and the last one lets a writer in",
                    [
                        shared,
                        shared,
                        "each_lock::readers_of_all_share_and_the_last_one_lets_a_writer_in",
                    ],
                ),
                row(
                    "a downgrade of ours wakes Java's readers",
                    [
                        downgrade,
                        downgrade,
                        "each_lock::our_downgrade_wakes_the_readers_of_all",
                    ],
                ),
                row(
                    "we read beside a Java thread that has downgraded",
                    [
                        "rw::we_read_beside_a_java_thread_that_has_downgraded",
                        "rw::we_read_beside_a_java_thread_that_has_downgraded",
                        "not: a downgrade is of one thread; each version has its column",
                    ],
                ),
                row(
                    "one release of a writer lets all readers in",
                    [
                        woken,
                        woken,
                        "each_lock::our_downgrade_wakes_the_readers_of_all",
                    ],
                ),
                row(
                    "no reader's watchdog ends a longer hold of another",
                    [
                        watchdog,
                        watchdog,
                        "not: between its own two versions Redisson breaks this: the watchdog of a reader of 3.16.8 cuts the longer hold of one of 4.7.0",
                    ],
                ),
                row(
                    MANY,
                    [
                        MIXED_ONLY,
                        MIXED_ONLY,
                        "together::threads_of_both_versions_and_four_rust_processes_lose_no_count_under_the_write_lock stress::claims_under_the_write_lock_are_unique_while_processes_are_killed",
                    ],
                ),
                row(
                    STATE,
                    [
                        "golden_rw::our_read_write_lock_leaves_what_redissons_does_after_every_step golden_rw::our_renewals_leave_what_redissons_do_and_nobody_less",
                        "golden_rw::our_read_write_lock_leaves_what_redissons_does_after_every_step golden_rw::our_renewals_leave_what_redissons_do_and_nobody_less",
                        ONE_AT_A_TIME,
                    ],
                ),
            ],
        ),
    }
}

const PARTS_FORCED: &str = "not: neither side can; its members are forced one by one";
const PARTS_STATE: &str = "not: each member is a lock, and that has this row";

fn multi() -> Primitive {
    Primitive {
        name: "Multi-lock",
        redisson: "`getMultiLock(locks...)`",
        rows: with(
            lock_rows!(
                "each_lock::multi",
                "members::multi_locks_of_both_sides_exclude_each_other_member_by_member",
                "members::multi_locks_of_both_sides_exclude_each_other_member_by_member",
                "members::multi_locks_of_both_sides_wake_each_other",
                "",
                "",
                ""
            ),
            [
                same(FORCE, PARTS_FORCED),
                row(
                    MANY,
                    [
                        MIXED_ONLY,
                        MIXED_ONLY,
                        "together::threads_of_both_versions_and_four_rust_processes_lose_no_count_under_two_locks",
                    ],
                ),
                same(STATE, PARTS_STATE),
            ],
        ),
    }
}

fn red() -> Primitive {
    Primitive {
        name: "Lock of a majority",
        redisson: "`RedissonRedLock`; ours sees the end of a lease by its polls, so they are each 2 s in the common rows",
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
                same(FORCE, PARTS_FORCED),
                row(
                    MANY,
                    [
                        MIXED_ONLY,
                        MIXED_ONLY,
                        "together::threads_of_both_versions_and_four_rust_processes_lose_no_count_under_a_majority",
                    ],
                ),
                same(STATE, PARTS_STATE),
            ],
        ),
    }
}

fn group() -> Primitive {
    const OLD: &str = "not: 3.16.8 has no groups";
    let new = |check, test| row(check, [OLD, test, OLD]);
    Primitive {
        name: "Lock of values of a group",
        redisson: "`getMultiLock(group, values)`",
        rows: vec![
            new(
                TRY,
                "each_group::group::a_try_is_refused_while_another_side_holds group::groups_of_both_sides_exclude_each_other_value_by_value",
            ),
            new(
                TIMED,
                "each_group::group::a_timed_try_is_refused_in_its_time_or_served group::groups_of_both_sides_exclude_each_other_value_by_value",
            ),
            new(
                WOKEN,
                "each_group::group::all_who_wait_are_woken_one_after_the_other group::groups_of_both_sides_wake_each_other",
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
                "each_group::group::a_forced_unlock_wakes_who_waits_and_is_told_the_holder group::a_forced_unlock_of_one_side_is_seen_by_the_other",
            ),
            new(
                "a release wakes who waits for just that value",
                "group::our_release_wakes_the_java_thread_that_waits_for_just_that_value",
            ),
            new(
                MANY,
                "together::threads_of_one_version_and_four_rust_processes_lose_no_count_under_a_group",
            ),
            new(STATE, "group::our_state_is_redissons_after_every_step"),
        ],
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
                "each_count::counted::a_permit_is_refused_in_its_time_while_none_is_free",
            ),
            same(
                TIMED,
                "each_count::counted::a_permit_is_refused_in_its_time_while_none_is_free",
            ),
            row(
                WOKEN,
                [
                    "each_count::counted::all_who_wait_are_woken_one_after_the_other synchronizers::a_release_of_ours_wakes_a_java_waiter synchronizers::a_release_of_java_wakes_our_waiter synchronizers::an_undone_acquire_of_ours_wakes_a_java_waiter",
                    "each_count::counted::all_who_wait_are_woken_one_after_the_other synchronizers::a_release_of_ours_wakes_a_java_waiter synchronizers::a_release_of_java_wakes_our_waiter synchronizers::an_undone_acquire_of_ours_wakes_a_java_waiter",
                    "each_count::counted::all_who_wait_are_woken_one_after_the_other",
                ],
            ),
            row(
                "permits set, added and drained are counted alike",
                [
                    "synchronizers::permits_are_counted_alike_and_exclude_both_sides",
                    "synchronizers::permits_are_counted_alike_and_exclude_both_sides",
                    "not: one number in Redis; each version has its column",
                ],
            ),
            same(
                FORCE,
                "not: a permit belongs to nobody; anybody may release it",
            ),
            same(EXPIRY, NO_LEASE),
            same(
                KILLED,
                "each_count::counted::the_permit_of_a_killed_process_is_given_back_by_any_other",
            ),
            same(WATCHDOGS, NO_LEASE),
            same(
                MANY,
                "not: beside Redisson measured in leasehold-bench; ours alone in tests/synchronizers",
            ),
            row(
                STATE,
                [
                    "counts::our_counts_and_leases_are_redissons_after_every_step",
                    "counts::our_counts_and_leases_are_redissons_after_every_step",
                    ONE_AT_A_TIME,
                ],
            ),
        ],
    }
}

fn expirable() -> Primitive {
    Primitive {
        name: "Semaphore whose permits have leases",
        redisson: "`getPermitExpirableSemaphore`",
        rows: vec![
            same(
                TRY,
                "each_count::leased::a_permit_is_refused_in_its_time_while_none_is_free",
            ),
            same(
                TIMED,
                "each_count::leased::a_permit_is_refused_in_its_time_while_none_is_free",
            ),
            row(
                WOKEN,
                [
                    "each_count::leased::all_who_wait_are_woken_one_after_the_other synchronizers::permits_with_leases_wake_both_ways",
                    "each_count::leased::all_who_wait_are_woken_one_after_the_other synchronizers::permits_with_leases_wake_both_ways",
                    "each_count::leased::all_who_wait_are_woken_one_after_the_other",
                ],
            ),
            row(
                "ids are understood by the other side",
                [
                    "synchronizers::permits_without_a_lease_are_understood_and_released_by_id synchronizers::our_permits_are_released_by_java_where_it_writes_ids_as_we_do",
                    "synchronizers::permits_without_a_lease_are_understood_and_released_by_id synchronizers::our_permits_are_released_by_java_where_it_writes_ids_as_we_do",
                    "not: an id is between two; 3.16.8 writes and knows ids as text only, not ours and not those of 4.7.0",
                ],
            ),
            same(
                FORCE,
                "not: neither side has one; a permit is released by its id",
            ),
            row(
                EXPIRY,
                [
                    "synchronizers::permits_with_leases_exclude_both_sides_and_expire_for_both",
                    "synchronizers::permits_with_leases_exclude_both_sides_and_expire_for_both",
                    "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
                ],
            ),
            same(
                KILLED,
                "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
            ),
            same(
                WATCHDOGS,
                "each_count::our_permit_is_renewed_while_it_is_refused_to_java",
            ),
            same(
                MANY,
                "not: beside Redisson measured in leasehold-bench; ours alone in tests/synchronizers",
            ),
            row(
                STATE,
                [
                    "counts::our_counts_and_leases_are_redissons_after_every_step",
                    "counts::our_counts_and_leases_are_redissons_after_every_step",
                    ONE_AT_A_TIME,
                ],
            ),
        ],
    }
}

fn latch() -> Primitive {
    const NOBODY: &str = "not: nobody holds a latch";
    let woken = "each_count::all_who_wait_for_a_latch_go_on_whoever_counts_it_down";
    let columns = |tests| [tests, tests, woken];
    Primitive {
        name: "Count-down latch",
        redisson: "`getCountDownLatch`",
        rows: vec![
            same(TRY, NOBODY),
            row(
                TIMED,
                [
                    "synchronizers::a_latch_that_java_counts_down_and_sets_again_at_once_is_not_missed",
                    "synchronizers::a_latch_that_java_counts_down_and_sets_again_at_once_is_not_missed",
                    "not: a wait with a limit is between two; each version has its column",
                ],
            ),
            row(
                WOKEN,
                columns(
                    "each_count::all_who_wait_for_a_latch_go_on_whoever_counts_it_down synchronizers::a_latch_is_set_counted_and_waited_for_from_both_sides",
                ),
            ),
            row(
                "a latch that is deleted lets who waits go on",
                [
                    "synchronizers::a_latch_that_java_deletes_lets_us_go_on",
                    "synchronizers::a_latch_that_java_deletes_lets_us_go_on",
                    "not: each version has its column",
                ],
            ),
            same(FORCE, NOBODY),
            same(EXPIRY, "not: a latch has no lease"),
            same(KILLED, NOBODY),
            same(WATCHDOGS, "not: a latch has no lease"),
            same(
                MANY,
                "not: beside Redisson measured in leasehold-bench; ours alone in tests/synchronizers",
            ),
            row(
                STATE,
                [
                    "counts::our_counts_and_leases_are_redissons_after_every_step",
                    "counts::our_counts_and_leases_are_redissons_after_every_step",
                    ONE_AT_A_TIME,
                ],
            ),
        ],
    }
}

const DOCUMENTS: &str = "What is written down of it";

/// No primitive: the pages that are held against live Redissons.
fn documents() -> Primitive {
    const ALONE: &str = "not: of each version by itself; each has its column";
    let seen = |check, tests| row(check, [tests, tests, ALONE]);
    Primitive {
        name: DOCUMENTS,
        redisson: "each row is what it was seen to do, beside what a page says of it",
        rows: vec![
            row(
                "what it leaves in Redis and publishes is what wire-format.md says, and no less",
                [
                    "wire::locks_are_on_the_wire_as_the_page_says wire::a_fair_lock_is_on_the_wire_as_the_page_says wire::a_read_write_lock_is_on_the_wire_as_the_page_says wire::a_semaphore_is_on_the_wire_as_the_page_says wire::permits_with_leases_are_on_the_wire_as_the_page_says wire::a_latch_is_on_the_wire_as_the_page_says",
                    "wire::locks_are_on_the_wire_as_the_page_says wire::a_fair_lock_is_on_the_wire_as_the_page_says wire::a_read_write_lock_is_on_the_wire_as_the_page_says wire::a_group_is_on_the_wire_as_the_page_says wire::a_semaphore_is_on_the_wire_as_the_page_says wire::permits_with_leases_are_on_the_wire_as_the_page_says wire::a_latch_is_on_the_wire_as_the_page_says",
                    ALONE,
                ],
            ),
            seen(
                "each method that it has stands in from-redisson.md",
                "methods::every_method_of_redissons_stands_in_the_page",
            ),
        ],
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

/// The tests of a cell by their whole names.
fn tests(cell: &str, module: &str, known: &BTreeSet<String>) -> Vec<String> {
    let whole = |name: &str| match known.contains(&format!("{module}{name}")) {
        true => format!("{module}{name}"),
        false => name.to_owned(),
    };
    cell.split_whitespace().map(whole).collect()
}

/// Every test of this binary.
pub(crate) fn known() -> BTreeSet<String> {
    let binary = std::env::current_exe().unwrap();
    let output = Command::new(binary).arg("--list").output().unwrap();
    let list = String::from_utf8(output.stdout).unwrap();
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(ToOwned::to_owned).collect()
}

/// What the page says of a cell; `outcomes` has what each test came to.
fn shown(cell: &str, module: &str, outcomes: &BTreeMap<String, String>) -> String {
    if let Some(reason) = cell.strip_prefix(NOT) {
        return format!("– {reason}");
    }
    let known = outcomes.keys().cloned().collect();
    let tests = tests(cell, module, &known);
    let bad = tests
        .iter()
        .find(|test| outcomes.get(*test).is_none_or(|outcome| outcome != "ok"));
    let word = match bad.map(|test| outcomes.get(test)) {
        None => "ok".to_owned(),
        Some(None) => "**not run**".to_owned(),
        Some(Some(outcome)) => format!("**{outcome}**"),
    };
    // The column says which mount of it.
    let short = tests
        .iter()
        .map(|test| test.strip_prefix(module).unwrap_or(test));
    let tests: Vec<_> = short.map(|test| format!("`{test}`")).collect();
    format!("{word}: {}", tests.join(", "))
}

fn page(outcomes: &BTreeMap<String, String>, run: &str) -> String {
    let mut page = include_str!("matrix_head.md").replace("{run}", run);
    for primitive in primitives() {
        let Primitive {
            name,
            redisson,
            rows,
        } = primitive;
        let _ = write!(page, "\n## {name}\n\nRedisson: {redisson}.\n\n|");
        let heads = ["check"].into_iter().chain(COLUMNS.map(|(name, _)| name));
        heads.for_each(|head| page.push_str(&format!(" {head} |")));
        page.push_str("\n|---|---|---|---|\n");
        for row in rows {
            let cells = row.cells.iter().zip(COLUMNS);
            let cells: Vec<_> = cells
                .map(|(cell, (_, module))| shown(cell, module, outcomes))
                .collect();
            let _ = writeln!(page, "| {} | {} |", row.check, cells.join(" | "));
        }
    }
    page.push_str(&weaknesses::part(outcomes));
    page
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interop.md")
}

#[test]
fn each_cell_names_tests_that_exist_or_says_why_there_are_none() {
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

/// So nobody changes the table, or what a test is called, without a run.
#[test]
fn the_page_is_what_a_run_without_a_failure_writes() {
    let known = known().into_iter();
    let all_ok = known.map(|test| (test, "ok".to_owned())).collect();
    let there = std::fs::read_to_string(file()).unwrap();
    let run = there.lines().find(|line| line.starts_with("Last run: "));
    let expected = page(&all_ok, run.expect("it says when it was written"));
    for (there, expected) in there.lines().zip(expected.lines()) {
        assert_eq!(there, expected, "run scripts/interop");
    }
    assert_eq!(there.lines().count(), expected.lines().count());
}

/// Not a test when it is run as one: `scripts/interop` calls it with the log of a run.
#[test]
fn write_the_page() {
    let Ok(log) = std::env::var(LOG) else {
        return;
    };
    let log = std::fs::read_to_string(log).unwrap();
    let outcomes: BTreeMap<_, _> = log
        .lines()
        .filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "))
        .map(|(test, outcome)| (test.to_owned(), outcome.to_owned()))
        .collect();
    let run = log.lines().find(|line| line.starts_with("Last run: "));
    std::fs::write(file(), page(&outcomes, run.unwrap())).unwrap();
}
