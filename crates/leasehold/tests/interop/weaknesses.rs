//! What is known or suspected of Redisson, sorted by primitive: the second part of
//! `docs/interop.md`. Each stands with the tests that show it, or is open and says why.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::matrix::known;

/// Begins what settles a row that has no test.
const OPEN: &str = "open: ";

const BOTH: &str = "both";
const OLD: &str = "3.16.8";
const NEW: &str = "4.7.0";

/// Where the tests of a version are mounted.
const MOUNTS: [&str; 4] = ["with_3_16_8::", "with_4_7_0::", "with_both::", ""];

pub(crate) struct Weakness {
    /// What it does, and in which versions.
    does: &'static str,
    versions: &'static str,
    /// For a service in Rust that shares the object.
    means: &'static str,
    /// What ours does, or what to set or to do on the Java side.
    answer: &'static str,
    /// Tests, with spaces between; or `open: ` and the reason.
    settled: &'static str,
}

const fn weakness(
    does: &'static str,
    versions: &'static str,
    means: &'static str,
    answer: &'static str,
    settled: &'static str,
) -> Weakness {
    Weakness {
        does,
        versions,
        means,
        answer,
        settled,
    }
}

const SECTIONS: [(&str, &[Weakness]); 10] = [
    ("The watchdog", RENEWAL),
    ("Lock", LOCK),
    ("Fenced lock", FENCED),
    ("Fair lock", FAIR),
    ("Read-write lock", READ_WRITE),
    ("Multi-lock and lock of a majority", WHOLE),
    ("Multi-lock of a group", GROUP),
    ("Semaphores", SEMAPHORES),
    ("Count-down latch", LATCH),
    ("Replicas, clusters and other set-ups", SET_UPS),
];

const ONLY_JAVA: &str = "Java only: nothing.";
const INSIDE: &str =
    "open: a race inside one JVM, which a test outside can't force; read in its code";

const RENEWAL: &[Weakness] = &[
    weakness(
        "Each cycle of lock and unlock, while the client holds nothing else, leaves a timer behind. From the next hold on all of them renew: after 50 cycles 50 scripts a period.",
        NEW,
        "Load on the shared server that grows with the life of the Java process; no lock is lost by it.",
        "Explicit leases (`lock(lease, unit)`) start no timer; beside one lock that is held for the life of the client there is one timer. Ours has one.",
        "suspects::renewal::javas_renewals_grow_with_each_lock_and_unlock",
    ),
    weakness(
        "A thread that holds both modes of a read-write lock and leaves one stops the renewal of the other: 4.7.0 that of the write hold when the read hold goes, 3.16.8 that of the read hold when the write hold goes.",
        BOTH,
        "Ours gets in after the watchdog timeout, beside a Java thread that believes it holds.",
        "In Java no read inside a write (4.7.0), no downgrade (3.16.8), or with explicit leases.",
        "suspects::renewal::java_renews_one_mode_no_more_when_it_leaves_the_other",
    ),
    weakness(
        "Each attempt to unlock takes one hold from the watchdog, a failed one too. A re-entrant hold whose unlock fails once and is repeated is held and not renewed.",
        BOTH,
        "Ours gets in beside the Java thread after the watchdog timeout.",
        "In Java no re-entrance, or no second unlock after an error.",
        "suspects::renewal::an_unlock_in_java_that_fails_takes_the_watchdog_from_a_hold_that_stays",
    ),
    weakness(
        "The first renewal that fails, by a time-out or by any error, is the last of that hold. Nobody is told.",
        "3.16.8 (to 3.43)",
        "Ours gets in beside the Java thread after a hiccup of the server.",
        "Upgrade; else an explicit lease that is longer than the work.",
        "suspects::renewal::a_renewal_that_fails_is_the_last_one_of_3_16_8",
    ),
    weakness(
        "All holds are renewed by one script for each hundred; one key that is of another type fails it, and ends the round for all that come behind.",
        "4.7.0 (from 3.44)",
        "A `SET` of one lock's name, by whomever, costs the Java process its other locks.",
        "Lock names in a name space of their own. Ours answers for each lock by itself.",
        "suspects::renewal::one_key_of_another_type_ends_javas_renewal_of_other_locks",
    ),
    weakness(
        "Only the first registered thread of a name is renewed. After a forced unlock the one that lost the lock is still the first: the next hold of that process is not renewed in time, or (3.16.8) not at all.",
        BOTH,
        "After a `force_unlock` of ours on a Java hold the next Java holder of the same process may lose the lock while it works.",
        "After forcing a lock of Java's, let the thread that held it unlock as often as it locked (each fails, and clears one), or restart the process.",
        "suspects::renewal::after_a_forced_unlock_the_next_hold_of_a_java_process_may_not_be_renewed",
    ),
    weakness(
        "The owner of a lock that is lost is not told. Its `unlock` fails.",
        BOTH,
        "A Java thread works on beside ours until it unlocks.",
        "Fenced locks, with tokens checked where the data is. Ours is told (`guard.lost()`).",
        "lock::a_forced_unlock_of_ours_is_seen_by_java",
    ),
    weakness(
        "Rounds go chunk by chunk and slot by slot, each after the answer of the one before; the next period begins when a round has ended.",
        "4.7.0 (from 3.44)",
        "With a slow server a Java hold may end between two rounds.",
        "A `lockWatchdogTimeout` well above `timeout` times the retries. Ours renews by deadline, each server by itself.",
        "open: needs a cluster, or a server so slow that a round lasts as long as a lease; read in its code",
    ),
    weakness(
        "An error that is thrown inside a round, not answered, ends all rounds of the process.",
        "4.7.0 (from 3.44)",
        "All its locks are free after the watchdog timeout, and it works on.",
        "Nothing to set; watch the Java log.",
        "open: needs an error inside the JVM that no server can cause; seen once in a trial",
    ),
    weakness(
        "A read hold that is registered as the last one of its thread leaves may be dropped with that one, and not be renewed.",
        "4.7.0 (from 3.44)",
        "A writer of ours gets in beside the Java reader after the watchdog timeout.",
        "Explicit leases for read holds.",
        INSIDE,
    ),
];

const LOCK: &[Weakness] = &[
    weakness(
        "A re-entry with a shorter lease shortens the hold.",
        BOTH,
        "Ours gets in at the end of the shorter lease.",
        "In Java the same lease for each entry. Ours keeps the longer one.",
        "suspects::plain::a_re_entry_with_a_shorter_lease_shortens_javas_hold_and_not_ours",
    ),
    weakness(
        "An explicit lease becomes that of the Java object until an unlock. The next thread with the same object that locks without a lease gets the old one, and its first renewal comes too late.",
        BOTH,
        "Ours gets in beside a Java thread that believes its watchdog runs.",
        "In Java a new object (`getLock(name)`) for each use, or never both forms on one name.",
        "suspects::plain::an_explicit_lease_in_java_is_that_of_the_next_thread_on_the_same_object",
    ),
    weakness(
        "An acquire whose reply is lost ends with an error or `false`; what it took stays taken.",
        BOTH,
        "The lock is held by nobody for a whole lease; ours waits that long.",
        "Short leases in Java. Ours undoes what it does not know the outcome of.",
        "suspects::plain::a_reply_that_is_lost_leaves_java_without_the_lock_that_it_took",
    ),
    weakness(
        "Each unlock writes a key for its request with an expiry, and deletes it with one more command.",
        "4.7.0 (from 3.24)",
        "More writes; keys `redisson_unlock_latch:{..}` that end by themselves.",
        "Nothing to do: ours neither reads nor writes them.",
        "suspects::plain::an_unlock_of_newer_java_writes_a_key_and_takes_it_away",
    ),
    weakness(
        "Each call sends the text of its script.",
        "3.16.8 (to 3.45)",
        ONLY_JAVA,
        "From 3.46 on `useScriptCache`, which 4.7.0 has on.",
        "suspects::plain::an_unlock_of_newer_java_writes_a_key_and_takes_it_away",
    ),
    weakness(
        "Each release makes one thread of each process that waits ask; all but one in vain.",
        BOTH,
        "Load on the shared server, with the number of Java processes.",
        "`getFairLock` for names that many processes wait for: it calls one.",
        "suspects::plain::each_release_makes_every_java_process_ask",
    ),
    weakness(
        "A client has so many channels (`subscriptionsPerConnection` times `subscriptionConnectionPoolSize`, 250), one for each name that is waited for, with a fair lock for each thread; a wait beyond them fails.",
        BOTH,
        ONLY_JAVA,
        "Raise both on the Java side. Ours has one connection for all channels.",
        "suspects::plain::java_fails_to_wait_for_more_names_than_it_has_channels",
    ),
    weakness(
        "A spin lock publishes nothing.",
        BOTH,
        "A waiter of ours on the same name is not woken by its unlock.",
        "`wait_strategy(WaitStrategy::Backoff(..))` beside spin locks; else the poll interval serves it.",
        "lock::a_spin_waiter_of_either_side_gets_the_lock",
    ),
    weakness(
        "A waiter whose time ends as it is woken returns without a try, and does not pass the wake-up on.",
        BOTH,
        "None for ours, which have messages of their own; others of that JVM wait for the next one or the end of the lease.",
        "Nothing to set.",
        INSIDE,
    ),
    weakness(
        "An asynchronous waiter may miss a message between its try and its registration.",
        "3.16.8 (to 3.27)",
        ONLY_JAVA,
        "The blocking API, or upgrade.",
        "open: a race inside one JVM, known from the fix alone",
    ),
];

const FENCED: &[Weakness] = &[
    weakness(
        "A re-entry takes a new token, `delete()` lets them start again at 1, and `lockAndGetToken(lease, unit)` ignores its lease.",
        NEW,
        "Tokens have gaps, and can be smaller after a `delete()`; a Java hold lasts as long as its watchdog lets it.",
        "Compare tokens by order, never by distance; `forceUnlock()` instead of `delete()`. Our re-entry has the token of its hold, and ours start at the server's time.",
        "suspects_newer::a_java_fenced_lock_spends_tokens_on_re_entries_and_forgets_them_with_its_key",
    ),
    weakness(
        "A hold without an expiry is taken for its own: the caller gets token −1.",
        NEW,
        "Whoever sets a lock without an expiry lets Java in beside it.",
        "Ours never does; don't `PERSIST` a lock, and refuse token −1 where tokens are checked.",
        "suspects_newer::a_java_fenced_lock_takes_a_hold_without_an_expiry_for_its_own",
    ),
    weakness(
        "`tryLockAndGetToken()` waits without a limit.",
        NEW,
        ONLY_JAVA,
        "`tryLockAndGetToken(0, unit)` asks once.",
        "suspects_newer::a_try_for_a_token_in_java_waits",
    ),
    weakness(
        "As a member of a multi-lock that is given a lease it gives the counter of tokens an expiry, so that they start again at 1.",
        NEW,
        "A token of a later hold may be smaller than one that was seen.",
        "No fenced member in a Java multi-lock. Ours takes the expiry away, and starts at the server's time.",
        "suspects_newer::a_java_multi_lock_lets_the_tokens_of_a_fenced_member_end",
    ),
];

const FAIR: &[Weakness] = &[
    weakness(
        "Who waits behind a head that is dead asks without a pause, thousands of times a second, until the head's time is over: minutes.",
        "4.7.0 (from 3.32)",
        "The shared server is busy with it.",
        "In Java `tryLock(wait, lease, unit)` with a short wait, in a loop: the time of one that dies is its wait. Ours sleep.",
        "suspects::fair::waiters_of_newer_java_spin_behind_a_head_that_is_dead",
    ),
    weakness(
        "A waiter that asks when the lease that it saw is over sleeps without a limit until it is called; the end of a lease calls nobody.",
        "3.16.8 (to 3.31)",
        "A queue that stands still, ours behind it too.",
        "One waiter of ours in line is enough: it calls the head. Else upgrade.",
        "suspects::fair::a_waiter_of_3_16_8_that_has_outwaited_a_lease_sleeps_for_ever fair::a_java_head_that_nobody_called_is_called_by_our_waiters",
    ),
    weakness(
        "A live waiter is taken out when it has waited longer than lease and allowance (five minutes), and comes in last.",
        BOTH,
        "Order is lost for waits of more than five minutes, also by a call of ours, which go by Redisson's rule for its waiters.",
        "In Java waits below five minutes, in a loop. Ours keep their place.",
        "suspects::fair::a_java_waiter_that_has_waited_too_long_comes_in_last",
    ),
    weakness(
        "`tryLock(100, SECONDS)` counts 100 ms for its place in line.",
        BOTH,
        "Such a waiter is taken out as soon as the lease that it saw is over, also by a call of ours.",
        "In Java `tryLock(wait, lease, unit)`.",
        "suspects::fair::a_wait_of_seconds_in_java_keeps_its_place_for_milliseconds",
    ),
    weakness(
        "An asynchronous waiter that gives up takes five minutes from all behind it, whatever it brought.",
        BOTH,
        "Java waiters behind it are taken out, and come in last.",
        "In Java the blocking API for fair locks.",
        "suspects::fair::an_asynchronous_java_waiter_that_gives_up_takes_five_minutes_from_those_behind",
    ),
    weakness(
        "A head that leaves a free lock does not call the next one.",
        BOTH,
        "Java waiters sleep on, to the end of the lease that they saw or for ever.",
        "One waiter of ours in line is enough: it calls the head.",
        "suspects::fair::a_java_head_that_leaves_a_free_lock_calls_nobody_and_ours_does",
    ),
    weakness(
        "A waiter that is interrupted stays in line; queue and times have no expiry.",
        BOTH,
        "Those behind it, ours too, wait for the end of the hold and five minutes.",
        "No interrupts on fair locks in Java; end a wait by its time.",
        "suspects::fair::a_java_waiter_that_is_interrupted_stays_in_line",
    ),
    weakness(
        "A waiter that is killed stands in the way for the rest of the hold and five minutes.",
        BOTH,
        "Ours behind it wait that long.",
        "In Java `tryLock(wait, lease, unit)` with a short wait, in a loop: its allowance is the wait. Ours that die are passed over after 5 s.",
        "fair::a_killed_java_waiter_is_taken_out_when_redisson_would",
    ),
    weakness(
        "Each acquire and each give-up lowers the times of all who wait, one by one, in one script.",
        BOTH,
        "A long line keeps the shared server busy: some 30 ms a call with 5000 waiters.",
        "Hundreds of Java waiters on one name at most.",
        "suspects::fair::an_asynchronous_java_waiter_that_gives_up_takes_five_minutes_from_those_behind",
    ),
    weakness(
        "Anybody can unlock it while it is free, without an error.",
        BOTH,
        "None: one that we hold it does not unlock.",
        "Nothing to set.",
        "suspects::fair::java_unlocks_a_free_fair_lock_without_an_error",
    ),
    weakness(
        "Who is too late in line is decided by the clocks of the clients.",
        BOTH,
        "A Java process whose clock is behind the server's loses its place to a call of ours; one whose clock is ahead of the others' throws them out.",
        "Clocks in step (NTP), well within five minutes.",
        "suspects::clocks::javas_leases_and_places_in_line_are_over_for_a_server_whose_clock_is_ahead",
    ),
];

const READ_WRITE: &[Weakness] = &[
    weakness(
        "A reader's watchdog cuts the lock's expiry to its own timeout, and (to 4.3.1) the leases of all other readers too: a writer gets in beside a reader that has a longer lease.",
        "3.16.8; 4.7.0 cuts the lock alone, and puts it right as it leaves",
        "Exclusion between Java's readers and anybody's writer breaks. Our own holds are put right while the client lives.",
        "In Java either all read holds with the watchdog or all with leases below its timeout; `redisson_watchdog(..)` here if that is below 30 s.",
        "suspects::rw::a_reader_of_3_16_8_keeps_the_dead_and_cuts_the_living rw::a_java_readers_watchdog_does_not_end_our_longer_hold",
    ),
    weakness(
        "A dead reader's hold is renewed by any reader that lives.",
        "3.16.8 (to 4.3.1)",
        "Writers, ours too, wait as long as any Java reader renews.",
        "Upgrade. Our renewal keeps no Java hold alive.",
        "suspects::rw::a_reader_of_3_16_8_keeps_the_dead_and_cuts_the_living rw::our_renewal_keeps_no_java_hold_alive_and_cuts_none",
    ),
    weakness(
        "A read unlock inside a write hold cuts the write hold to the lease of the reads.",
        BOTH,
        "Ours gets in beside the Java writer.",
        "In Java no read inside a write with a longer lease.",
        "suspects::rw::a_read_unlock_inside_a_write_hold_cuts_javas_write_hold_and_not_ours",
    ),
    weakness(
        "A downgrade wakes nobody.",
        BOTH,
        "Readers that wait, ours too, come in at their next poll.",
        "A `poll_interval` that suits. Our downgrade wakes them.",
        "suspects::rw::a_downgrade_in_java_wakes_nobody",
    ),
    weakness(
        "An unlock of the write side wakes the threads that sleep. One that has just been refused misses that, and sleeps for what was left of the lease.",
        BOTH,
        "Java threads sleep on while the lock is free; ours are woken.",
        "Short leases in Java. Behind such a message ours sends one that is kept for the next thread of a process that goes to sleep.",
        "suspects::rw::a_java_reader_that_is_refused_as_a_java_writer_unlocks_sleeps_on_and_ours_wakes_it group::a_java_thread_that_is_refused_as_we_release_is_woken",
    ),
    weakness(
        "A write re-entry adds its lease to the hold's.",
        BOTH,
        "A Java process that dies after some re-entries keeps ours out for as many leases.",
        "In Java no re-entrance of write locks with long leases.",
        "suspects::rw::a_write_re_entry_in_java_adds_its_lease_to_that_of_the_hold",
    ),
    weakness(
        "Readers pass a writer that waits, which may wait for ever; nobody can upgrade.",
        BOTH,
        "A writer of ours beside many Java readers may wait for ever; our readers let it go first.",
        "Limits on waits; pauses between Java's reads.",
        "suspects::rw::java_readers_pass_a_java_writer_that_waits_and_none_can_upgrade",
    ),
    weakness(
        "A reader whose lease is over is told that it reads, and unlocks without an error, while others read.",
        BOTH,
        "A Java reader works beside a writer of ours and is not told.",
        "Leases in Java that are longer than the work. Ours is told.",
        "suspects::rw::a_java_reader_whose_lease_is_over_is_told_that_it_reads",
    ),
    weakness(
        "A read unlock asks for the expiry of every hold of every reader, in one script.",
        BOTH,
        "Many readers keep the shared server busy: some 5 ms an unlock with 2000.",
        "Hundreds of readers on one name at most.",
        "suspects::rw::a_java_reader_whose_lease_is_over_is_told_that_it_reads",
    ),
    weakness(
        "The lease of a read hold stays with the Java object when it leaves while others read, and is that of the next hold that should have the watchdog's.",
        BOTH,
        "A writer of ours gets in beside the Java reader.",
        "In Java a new object for each use, or never both forms on one name.",
        "suspects::rw::a_lease_of_a_java_read_hold_is_that_of_the_next_one_of_the_same_object",
    ),
    weakness(
        "A transaction that holds the write lock blocks on its own read lock.",
        BOTH,
        ONLY_JAVA,
        "No read lock inside a Redisson transaction that writes.",
        "open: Redisson's transactions use names of their own for holders and have no counterpart here; read in its code",
    ),
];

const WHOLE: &[Weakness] = &[
    weakness(
        "With a unit other than milliseconds the lease is multiplied by the unit in each round that fails: 4 s become 4000 s.",
        "4.7.0 (from 3.25)",
        "A Java process that dies then keeps ours out for hours.",
        "In Java `lock(lease, MILLISECONDS)`, or `tryLock`.",
        "suspects::whole::a_multi_lock_of_newer_java_multiplies_its_lease_with_each_round",
    ),
    weakness(
        "An unlock ends at the first member that fails; the others stay locked and renewed.",
        NEW,
        "Ours waits for them as long as the Java process lives.",
        "In Java unlock the members one by one after an error. Ours releases all, and lists what failed.",
        "suspects::whole::an_unlock_of_a_newer_java_multi_lock_stops_at_the_first_error",
    ),
    weakness(
        "At its end it sets the lease of each member without a look at who holds it: it has what it lost on the way, and cuts (or lengthens) the lease of the next holder.",
        BOTH,
        "After a forced unlock, or a stop of the Java process, a hold of ours may get Java's lease, and both believe that they hold.",
        "In Java without a lease: then it sets none at its end. Don't force its members. A hold of ours that is renewed is put right at its next renewal; a fixed lease is not.",
        "suspects::whole::a_java_multi_lock_has_a_member_that_it_has_lost_and_cuts_the_lease_of_its_holder",
    ),
    weakness(
        "A lock of a majority does not compute for how long it is good, and asks one server after the other.",
        BOTH,
        "A Java thread may work on after its majority is over, beside ours.",
        "Leases in Java that are much longer than work and answers together; `guard.valid_until()` here.",
        "open: a number that Redisson does not have can't be asked for; read in its code",
    ),
];

const GROUP: &[Weakness] = &[
    weakness(
        "The second lock object of one group and process is not renewed: only the values of the first are.",
        "4.7.0 (3.16.8 has no groups)",
        "Ours gets in beside the Java thread after the watchdog timeout.",
        "In Java one group lock of a group at a time and process, or explicit leases.",
        "suspects_newer::a_second_lock_on_a_java_group_is_not_renewed",
    ),
    weakness(
        "`lockAsync()` fails; `lockAsync(-1, unit)` says that it has what is over at once.",
        NEW,
        "Ours gets in beside the Java code.",
        "In Java the blocking API, or explicit leases.",
        "suspects_newer::an_asynchronous_java_group_lock_fails_or_is_over_at_once",
    ),
    weakness(
        "An unlock that finds one value lost fails, although it has released the others.",
        NEW,
        ONLY_JAVA,
        "The error is no reason to unlock again. Ours releases what is there, too, and says that a part was lost.",
        "suspects_newer::an_unlock_of_a_java_group_that_has_lost_a_value_fails_and_releases_the_others",
    ),
    weakness(
        "Values whose lease is over stay while the group is in use, and a holder that comes back goes on counting: held once, unlocked once, still taken.",
        NEW,
        "Ours waits for the end of a lease that nobody uses.",
        "In Java leases that are longer than the work.",
        "suspects_newer::a_java_group_hold_inherits_the_count_of_one_that_has_ended",
    ),
    weakness(
        "An unlock wakes one thread of a process, which may wait for another value.",
        NEW,
        "Java threads sleep on while what they want is free. Ours are woken.",
        "Our release wakes all of them.",
        "suspects_newer::an_unlock_of_a_java_group_wakes_one_that_waits_for_another_value group::our_release_wakes_the_java_thread_that_waits_for_just_that_value",
    ),
    weakness(
        "`forceUnlock()` of two values says `false` although it has released them, and `isHeldByCurrentThread()` of one value is true for a stranger.",
        NEW,
        ONLY_JAVA,
        "Don't use either in Java.",
        "suspects_newer::java_says_false_for_two_values_it_has_forced_and_true_for_one_a_stranger_holds",
    ),
    weakness(
        "Leases are by the clock of the client; an unlock looks at that alone, and not at who holds the value now.",
        NEW,
        "Ours, which goes by the server's clock, gets in beside a Java process whose clock is behind. Its unlock then takes nothing from ours, which clears away what has ended.",
        "Clocks in step (NTP), well within a lease.",
        "suspects::clocks::javas_leases_and_places_in_line_are_over_for_a_server_whose_clock_is_ahead",
    ),
];

const SEMAPHORES: &[Weakness] = &[
    weakness(
        "Who waits never asks by itself: a message that is lost is a hang.",
        BOTH,
        "None for ours, which poll (`poll_interval`).",
        "In Java `tryAcquire(wait, unit)` in a loop.",
        "suspects::counts::a_message_that_is_lost_leaves_java_waiting_and_ours_asks",
    ),
    weakness(
        "A message serves one asynchronous waiter of a process, however many permits it tells of; it never asks by itself.",
        BOTH,
        "None: ours sends a message for each permit.",
        "Release one by one in Java where others wait with `acquireAsync`; the blocking API.",
        "suspects::counts::one_message_serves_one_asynchronous_waiter_of_javas",
    ),
    weakness(
        "Draining a semaphore, or adding to it, drops its expiry.",
        BOTH,
        "A semaphore that was to end stays.",
        "Set it anew after it. Ours keeps it.",
        "suspects::counts::draining_in_java_drops_the_expiry_of_a_semaphore_and_ours_keeps_it",
    ),
    weakness(
        "A release makes a semaphore of nothing; a killed process takes its permits with it.",
        BOTH,
        "The same for ours, by the format.",
        "`releaseIfExists` (from 4.0); permits with leases where processes may die.",
        "suspects::counts::a_release_in_java_makes_a_semaphore_of_nothing each_count::counted::the_permit_of_a_killed_process_is_given_back_by_any_other",
    ),
    weakness(
        "Permits with leases end by the clock of the client.",
        BOTH,
        "Ours, which goes by the server's clock, gives the permit of a Java process whose clock is behind to the next.",
        "Clocks in step (NTP), well within a lease.",
        "suspects::clocks::javas_leases_and_places_in_line_are_over_for_a_server_whose_clock_is_ahead",
    ),
    weakness(
        "Permits that have ended come back when somebody asks, not before.",
        BOTH,
        "None: ours ask when a lease ends.",
        "Nothing to set.",
        "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
    ),
    weakness(
        "Ids of permits come from a fast generator, not from one for secrets.",
        BOTH,
        "Who can guess an id and reach the server can release it.",
        "Permissions on the server.",
        "open: nothing to be seen from outside; read in its code",
    ),
    weakness(
        "Some thousands of permits that end together break its script, for good.",
        BOTH,
        "The semaphore is unusable for Java until one of ours asks.",
        "Ours takes any number of them back.",
        "suspects::counts::thousands_of_ended_leases_break_javas_permits_and_not_ours",
    ),
    weakness(
        "A release of several ids publishes how many, not how many are free.",
        "4.7.0 (from 3.23)",
        "None: a message of any number wakes ours. Fewer Java threads wake than could.",
        "Nothing to set.",
        "suspects_newer::a_java_release_of_several_ids_publishes_their_number",
    ),
    weakness(
        "Ids of permits are stored as text (3.16.8) or as bytes (4.7.0): neither version releases those of the other.",
        BOTH,
        "Ours stores as 4.7.0 does, and releases both.",
        "One version of Redisson for code that hands ids on.",
        "synchronizers::permits_without_a_lease_are_understood_and_released_by_id synchronizers::our_permits_are_released_by_java_where_it_writes_ids_as_we_do",
    ),
];

const LATCH: &[Weakness] = &[
    weakness(
        "Who waits never asks by itself: a message that is lost is a hang.",
        BOTH,
        "None for ours, which poll (`poll_interval`).",
        "In Java `await(wait, unit)` in a loop.",
        "suspects::counts::a_message_that_is_lost_leaves_java_waiting_and_ours_asks",
    ),
    weakness(
        "Deleting a latch wakes nobody in Java.",
        BOTH,
        "Java's `await` hangs, also after a `delete` of ours; ours go on.",
        "Count down to zero instead.",
        "suspects::counts::a_latch_that_java_deletes_says_nothing_to_those_who_wait_in_java synchronizers::a_latch_that_java_deletes_lets_us_go_on",
    ),
    weakness(
        "A latch that opens and is set again at once is missed by who waits.",
        BOTH,
        "Java's `await` waits for the next zero; ours go on.",
        "A new name for each round.",
        "suspects::counts::a_latch_that_opens_and_is_set_again_is_missed_by_java_and_not_by_ours",
    ),
    weakness(
        "A latch with braces in its name fails in a cluster.",
        BOTH,
        "The channel is the format's: the same for ours.",
        "No braces in names of latches.",
        "open: needs a cluster; read in its code",
    ),
];

const SET_UPS: &[Weakness] = &[
    weakness(
        "In a cluster 4.7.0 publishes to the shard and 3.16.8 to all, so neither wakes the other.",
        BOTH,
        "Waits of either version that last to the end of the lease, or hang.",
        "One version in a cluster, or `shardedSubscriptionMode` off in the newer one.",
        "open: there is no cluster among the topologies of the tests yet",
    ),
    weakness(
        "In a cluster a name with `}` before `{` sends it into a loop.",
        NEW,
        "Load; the Java call never ends.",
        "No braces in names.",
        "open: needs a cluster of two nodes",
    ),
    weakness(
        "Behind a proxy it may turn to messages of shards that the proxy does not pass on.",
        "4.7.0 (from 3.29)",
        "Java's waiters are not woken.",
        "`shardedSubscriptionMode` off behind proxies.",
        "open: needs a proxy that speaks cluster",
    ),
    weakness(
        "With replicas, a semaphore that refused gives back permits that it never took when a replica does not answer.",
        "4.7.0 (from 3.21)",
        "The semaphore has too many permits, for all.",
        "`checkLockSyncedSlaves` off; permits with leases.",
        "suspects::replicas::a_silent_replica_makes_newer_java_give_permits_that_it_was_refused",
    ),
    weakness(
        "With replicas, an acquire whose reply is lost is sent again and counts twice: one unlock leaves the lock taken, permits are lost.",
        BOTH,
        "Ours waits for a lease that nobody uses; permits are lost for all.",
        "A `timeout` well above the server's slowest answer, explicit leases, permits with leases.",
        "suspects::replicas::a_lost_reply_makes_java_with_replicas_take_a_lock_twice",
    ),
    weakness(
        "With replicas, every operation waits for all of them (up to 1 s) although one would do, and fails when none answers; 3.16.8 leaves the lock taken then.",
        BOTH,
        "Slow Java calls; with 3.16.8 locks that nobody holds until their lease ends.",
        "`slavesSyncTimeout`, or `checkLockSyncedSlaves` off.",
        "suspects::replicas::a_silent_replica_makes_java_locks_fail_and_3_16_8_leave_them_taken",
    ),
    weakness(
        "A lock that a server has confirmed can be lost when a replica takes over.",
        BOTH,
        "Two hold at once, of whichever side.",
        "Fenced locks with tokens checked where the data is, or a lock of a majority.",
        "open: true of any lock on replicas; ours are tried in the fail-over tests, not beside Redisson",
    ),
    weakness(
        "Which replicas 3.16.8 counts while one takes over is not known.",
        OLD,
        "As above.",
        "As above.",
        "open: needs a fail-over beside it",
    ),
    weakness(
        "`isExists` and `remainTimeToLive` ask a replica by default, and may be late.",
        BOTH,
        "A Java process may see a hold of ours late, or longer than it is.",
        "`readMode` `MASTER`.",
        "open: needs a replica that is late by a known time",
    ),
    weakness(
        "Configurations with sentinels and for hosted servers, the queue semaphore, name mappers, and servers other than the one of the last run.",
        BOTH,
        "Unknown.",
        "Try what you use.",
        "open: none of them is among the tests beside Redisson",
    ),
];

/// The tests by their whole names, one for each version that runs them.
fn mounted(settled: &str, known: &BTreeSet<String>) -> Vec<(String, Vec<String>)> {
    let mounts = |name: &str| {
        let whole = MOUNTS.map(|mount| format!("{mount}{name}")).into_iter();
        whole.filter(|name| known.contains(name)).collect()
    };
    let names = settled.split_whitespace();
    names.map(|name| (name.to_owned(), mounts(name))).collect()
}

fn shown(settled: &str, outcomes: &BTreeMap<String, String>) -> String {
    if settled.starts_with(OPEN) {
        return settled.to_owned();
    }
    let known = outcomes.keys().cloned().collect();
    let tests = mounted(settled, &known);
    let is_ok = |test: &String| outcomes[test] == "ok";
    let word = match &tests {
        tests if tests.iter().any(|(_, mounts)| mounts.is_empty()) => "**not run**",
        tests if tests.iter().all(|(_, mounts)| mounts.iter().all(is_ok)) => "seen",
        _ => "**FAILED**",
    };
    let names: Vec<_> = tests.iter().map(|(name, _)| format!("`{name}`")).collect();
    format!("{word}: {}", names.join(", "))
}

/// The part of the page.
pub(crate) fn part(outcomes: &BTreeMap<String, String>) -> String {
    let mut page = include_str!("weaknesses_head.md").to_owned();
    for (name, weaknesses) in SECTIONS {
        let _ = write!(page, "\n### {name}\n\n");
        page.push_str("| Redisson | versions | for Rust beside it | what to do | settled |\n");
        page.push_str("|---|---|---|---|---|\n");
        for one in weaknesses {
            let settled = shown(one.settled, outcomes);
            let cells = [one.does, one.versions, one.means, one.answer, &settled];
            let _ = writeln!(page, "| {} |", cells.join(" | "));
        }
    }
    page
}

#[test]
fn each_weakness_has_tests_that_exist_or_is_open_for_a_reason() {
    let known = known();
    for (section, weaknesses) in SECTIONS {
        for one in weaknesses {
            let place = format!("{section}: {}", one.does);
            let cells = [one.does, one.versions, one.means, one.answer, one.settled];
            assert!(cells.iter().all(|cell| !cell.trim().is_empty()), "{place}");
            assert!(!cells.iter().any(|cell| cell.contains('|')), "{place}");
            if let Some(reason) = one.settled.strip_prefix(OPEN) {
                assert!(reason.len() > 10, "no reason: {place}");
                continue;
            }
            for (name, mounts) in mounted(one.settled, &known) {
                assert!(!mounts.is_empty(), "no test `{name}`: {place}");
            }
        }
    }
}

/// The other way round: a test that shows something of Redisson's has its row.
#[test]
fn each_test_of_a_weakness_stands_in_a_row() {
    let rows: Vec<_> = SECTIONS.iter().flat_map(|(_, all)| *all).collect();
    for test in known() {
        let name = MOUNTS.iter().find_map(|mount| test.strip_prefix(mount));
        let name = name.expect("the last one is empty");
        if name.starts_with("suspects") {
            let stands = |row: &&Weakness| row.settled.split_whitespace().any(|one| one == name);
            assert!(rows.iter().any(stands), "no row: {name}");
        }
    }
}
