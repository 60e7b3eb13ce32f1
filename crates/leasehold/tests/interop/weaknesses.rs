//! The known or suspected weaknesses of Redisson, by primitive: the second part of
//! `docs/interop.md` and of `docs/interop-tests.md`. Each names the tests that show it, or is
//! open and says why.

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
    /// What Redisson does, and in which versions.
    does: &'static str,
    versions: &'static str,
    /// For a service in Rust that shares the object.
    means: &'static str,
    /// What to set or to do, mostly on the Java side, and what Leasehold does.
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
    ("Group lock", GROUP),
    ("Semaphores", SEMAPHORES),
    ("Count-down latch", LATCH),
    ("Replicas, clusters and other set-ups", SET_UPS),
];

const ONLY_JAVA: &str = "Nothing: it concerns Java only.";
const INSIDE: &str =
    "open: a race inside one JVM, which no test outside can force; read in Redisson's code";

const RENEWAL: &[Weakness] = &[
    weakness(
        "Each lock and unlock leaves a timer behind, if the client holds nothing else at that moment. From the next hold on all these timers renew: after 50 cycles 50 scripts a period.",
        NEW,
        "The load on the shared server grows with the life of the Java process. No lock is lost.",
        "In Java use explicit leases (`lock(lease, unit)`), which start no timer. A client that holds one lock for its whole life has one timer. Leasehold has one timer.",
        "suspects::renewal::javas_renewals_grow_with_each_lock_and_unlock",
    ),
    weakness(
        "A thread that holds both modes of a read-write lock and releases one stops the renewal of the other. 4.7.0 stops renewing the write hold when the read hold is released, 3.16.8 the read hold when the write hold is released.",
        BOTH,
        "Leasehold gets the lock after the watchdog timeout, beside a Java thread that believes that it holds the lock.",
        "In Java don't read inside a write (4.7.0) and don't downgrade (3.16.8), or use explicit leases.",
        "suspects::renewal::java_renews_one_mode_no_more_when_it_leaves_the_other",
    ),
    weakness(
        "Each unlock takes one hold from the watchdog's count, even an unlock that fails. A re-entrant hold whose unlock fails once and is repeated stays held, without renewal.",
        BOTH,
        "Leasehold gets the lock beside the Java thread after the watchdog timeout.",
        "In Java avoid re-entrance, or don't unlock again after an error.",
        "suspects::renewal::an_unlock_in_java_that_fails_takes_the_watchdog_from_a_hold_that_stays",
    ),
    weakness(
        "The first renewal that fails, by a time-out or by any error, is the last one of that hold. Nobody is told.",
        "3.16.8 (to 3.43)",
        "Leasehold gets the lock beside the Java thread after a short failure of the server.",
        "Upgrade, or use an explicit lease that is longer than the work.",
        "suspects::renewal::a_renewal_that_fails_is_the_last_one_of_3_16_8",
    ),
    weakness(
        "One script renews up to a hundred holds. If one key is of another type, the script fails, and no hold that comes after it in this round is renewed.",
        "4.7.0 (from 3.44)",
        "A `SET` on the name of one lock, by whomever, costs the Java process its other locks.",
        "Keep lock names in a name space of their own. A renewal by Leasehold fails for one lock alone.",
        "suspects::renewal::one_key_of_another_type_ends_javas_renewal_of_other_locks",
    ),
    weakness(
        "Only the thread that registered first for a name is renewed. After a forced unlock the thread that lost the lock is still the first one: the next hold of the process is renewed too late, or (3.16.8) not at all.",
        BOTH,
        "After a `force_unlock` by Leasehold on a Java hold, the next Java holder in the same process may lose the lock while it works.",
        "After forcing a Java hold, let the thread that had it unlock as often as it locked (each unlock fails, and clears one registration), or restart the process.",
        "suspects::renewal::after_a_forced_unlock_the_next_hold_of_a_java_process_may_not_be_renewed",
    ),
    weakness(
        "The holder is not told that its lock is lost. Its `unlock` fails.",
        BOTH,
        "A Java thread works on beside a Leasehold holder until it unlocks.",
        "Use fenced locks, and check the tokens where the data is. A Leasehold holder is told (`guard.lost()`).",
        "lock::a_forced_unlock_of_ours_is_seen_by_java",
    ),
    weakness(
        "A round of renewals goes chunk by chunk and slot by slot, and each request waits for the answer to the one before. The next period begins when the round has ended.",
        "4.7.0 (from 3.44)",
        "With a slow server a Java hold may end between two rounds.",
        "Set `lockWatchdogTimeout` well above `timeout` times the retries. Leasehold renews by deadline, each server independently.",
        "open: needs a cluster, or a server so slow that a round lasts as long as a lease; read in Redisson's code",
    ),
    weakness(
        "An exception inside a round, which is no error reply of the server, ends all rounds of the process.",
        "4.7.0 (from 3.44)",
        "All locks of the Java process are free after the watchdog timeout, and its threads work on.",
        "Nothing to set; watch the Java log.",
        "open: needs an error inside the JVM that no server can cause; seen once in a trial",
    ),
    weakness(
        "A read hold that registers while its thread's last read hold leaves may be dropped together with that one, and is then not renewed.",
        "4.7.0 (from 3.44)",
        "A Leasehold writer gets the lock beside the Java reader after the watchdog timeout.",
        "In Java use explicit leases for read holds.",
        INSIDE,
    ),
];

const LOCK: &[Weakness] = &[
    weakness(
        "A re-entry with a shorter lease shortens the hold.",
        BOTH,
        "Leasehold gets the lock when the shorter lease ends.",
        "In Java use the same lease for each entry. Leasehold keeps the longer lease.",
        "suspects::plain::a_re_entry_with_a_shorter_lease_shortens_javas_hold_and_not_ours",
    ),
    weakness(
        "An explicit lease stays with the Java object until an unlock. The next thread that locks the same object without a lease gets the old lease, and its first renewal comes too late.",
        BOTH,
        "Leasehold gets the lock beside a Java thread that believes its watchdog runs.",
        "In Java use a new object (`getLock(name)`) for each use, or only one of the two forms for a name.",
        "suspects::plain::an_explicit_lease_in_java_is_that_of_the_next_thread_on_the_same_object",
    ),
    weakness(
        "An acquire whose reply is lost ends with an error or `false`. What it has taken stays taken.",
        BOTH,
        "Nobody uses the lock for a whole lease, and Leasehold waits that long.",
        "Use short leases in Java. Leasehold undoes a request whose outcome it does not know.",
        "suspects::plain::a_reply_that_is_lost_leaves_java_without_the_lock_that_it_took",
    ),
    weakness(
        "Each unlock writes a key for its request, with an expiry, and deletes the key with one more command.",
        "4.7.0 (from 3.24)",
        "More writes, and keys `redisson_unlock_latch:{..}` that expire by themselves.",
        "Nothing to do: Leasehold neither reads nor writes these keys.",
        "suspects::plain::an_unlock_of_newer_java_writes_a_key_and_takes_it_away",
    ),
    weakness(
        "Each call sends the text of its script.",
        "3.16.8 (to 3.45)",
        ONLY_JAVA,
        "From 3.46 on set `useScriptCache`; 4.7.0 has it on.",
        "suspects::plain::an_unlock_of_newer_java_writes_a_key_and_takes_it_away",
    ),
    weakness(
        "Each release makes one thread of every waiting process ask the server. All but one ask in vain.",
        BOTH,
        "The load on the shared server grows with the number of Java processes.",
        "In Java use `getFairLock` for names that many processes wait for: its release calls one waiter.",
        "suspects::plain::each_release_makes_every_java_process_ask",
    ),
    weakness(
        "A client has a limited number of channels (`subscriptionsPerConnection` times `subscriptionConnectionPoolSize`, 250). It needs one for each name that it waits for, with a fair lock one for each waiting thread. A wait beyond the limit fails.",
        BOTH,
        ONLY_JAVA,
        "Raise both settings in Java. Leasehold has one connection for all channels.",
        "suspects::plain::java_fails_to_wait_for_more_names_than_it_has_channels",
    ),
    weakness(
        "A spin lock publishes nothing.",
        BOTH,
        "The unlock of a spin lock does not wake a Leasehold waiter of the same name.",
        "Use `wait_strategy(WaitStrategy::Backoff(..))` beside spin locks. Without it the waiter asks again after its poll interval.",
        "lock::a_spin_waiter_of_either_side_gets_the_lock",
    ),
    weakness(
        "A waiter whose time ends just as it is woken returns without another try, and does not pass the wake-up on.",
        BOTH,
        "Nothing for Leasehold's waiters, which have messages of their own. Other threads of that JVM wait for the next message or the end of the lease.",
        "Nothing to set.",
        INSIDE,
    ),
    weakness(
        "An asynchronous waiter may miss a message that comes between its try and its registration.",
        "3.16.8 (to 3.27)",
        ONLY_JAVA,
        "Use the blocking API, or upgrade.",
        "open: a race inside one JVM, known from the fix alone",
    ),
];

const FENCED: &[Weakness] = &[
    weakness(
        "A re-entry takes a new token. After a `delete()` the tokens start again at 1. `lockAndGetToken(lease, unit)` ignores its lease.",
        NEW,
        "Tokens have gaps, and can be smaller after a `delete()`. A Java hold lasts as long as its watchdog renews it.",
        "Compare tokens by order, never by distance. Use `forceUnlock()` instead of `delete()`. In Leasehold a re-entry has the token of its hold, and tokens start at the server's time.",
        "suspects_newer::a_java_fenced_lock_spends_tokens_on_re_entries_and_forgets_them_with_its_key",
    ),
    weakness(
        "A Java thread takes a hold without an expiry for its own, and gets token −1.",
        NEW,
        "Whoever sets a lock without an expiry lets Java in beside it.",
        "Don't `PERSIST` a lock, and refuse token −1 where tokens are checked. Leasehold never sets a lock without an expiry.",
        "suspects_newer::a_java_fenced_lock_takes_a_hold_without_an_expiry_for_its_own",
    ),
    weakness(
        "`tryLockAndGetToken()` waits without a limit.",
        NEW,
        ONLY_JAVA,
        "Use `tryLockAndGetToken(0, unit)`, which asks once.",
        "suspects_newer::a_try_for_a_token_in_java_waits",
    ),
    weakness(
        "A fenced lock that is a member of a multi-lock with a lease gives the counter of tokens an expiry. When the counter has expired, tokens start again at 1.",
        NEW,
        "A later hold may have a smaller token than an earlier one.",
        "Don't use a fenced lock as a member of a Java multi-lock. Leasehold removes the expiry, and starts tokens at the server's time.",
        "suspects_newer::a_java_multi_lock_lets_the_tokens_of_a_fenced_member_end",
    ),
];

const FAIR: &[Weakness] = &[
    weakness(
        "A waiter behind a dead head of the queue asks without a pause, thousands of times a second, until the head's time is over. That takes minutes.",
        "4.7.0 (from 3.32)",
        "The shared server is busy with these requests.",
        "In Java use `tryLock(wait, lease, unit)` with a short wait, in a loop: the time of a waiter that dies is then that wait. Leasehold's waiters sleep.",
        "suspects::fair::waiters_of_newer_java_spin_behind_a_head_that_is_dead",
    ),
    weakness(
        "A waiter that asks after the end of the lease that it saw sleeps without a limit until it is called. The end of a lease calls nobody.",
        "3.16.8 (to 3.31)",
        "The queue stands still, for Leasehold's waiters behind it too.",
        "One Leasehold waiter in the queue is enough: it calls the head. Otherwise upgrade.",
        "suspects::fair::a_waiter_of_3_16_8_that_has_outwaited_a_lease_sleeps_for_ever fair::a_java_head_that_nobody_called_is_called_by_our_waiters",
    ),
    weakness(
        "A live waiter that has waited longer than the lease and the allowance (five minutes) is removed from the queue, and gets the lock last.",
        BOTH,
        "Waiters of more than five minutes lose their order. A call by Leasehold removes them too, because it follows Redisson's rule for Redisson's waiters.",
        "In Java wait less than five minutes, in a loop. Leasehold's waiters keep their place.",
        "suspects::fair::a_java_waiter_that_has_waited_too_long_comes_in_last",
    ),
    weakness(
        "`tryLock(100, SECONDS)` counts as 100 ms for the waiter's place in the queue.",
        BOTH,
        "Such a waiter is removed as soon as the lease that it saw is over, by a call of Leasehold too.",
        "In Java use `tryLock(wait, lease, unit)`.",
        "suspects::fair::a_wait_of_seconds_in_java_keeps_its_place_for_milliseconds",
    ),
    weakness(
        "An asynchronous waiter that gives up takes five minutes from all waiters behind it, whatever its own allowance was.",
        BOTH,
        "Java waiters behind it are removed from the queue, and get the lock last.",
        "In Java use the blocking API for fair locks.",
        "suspects::fair::an_asynchronous_java_waiter_that_gives_up_takes_five_minutes_from_those_behind",
    ),
    weakness(
        "When the head of the queue gives up while the lock is free, it does not call the next waiter.",
        BOTH,
        "Java's waiters sleep on, to the end of the lease that they saw or for ever.",
        "One Leasehold waiter in the queue is enough: it calls the head.",
        "suspects::fair::a_java_head_that_leaves_a_free_lock_calls_nobody_and_ours_does",
    ),
    weakness(
        "A waiter that is interrupted stays in the queue. The queue and its times have no expiry.",
        BOTH,
        "The waiters behind it, Leasehold's too, wait for the end of the hold and five minutes more.",
        "Don't interrupt Java threads that wait for a fair lock. End a wait by its time limit.",
        "suspects::fair::a_java_waiter_that_is_interrupted_stays_in_line",
    ),
    weakness(
        "A killed waiter blocks the queue for the rest of the hold and five minutes more.",
        BOTH,
        "Leasehold's waiters behind it wait that long.",
        "In Java use `tryLock(wait, lease, unit)` with a short wait, in a loop: the allowance of such a waiter is its wait. A Leasehold waiter that dies is passed over after 5 s.",
        "fair::a_killed_java_waiter_is_taken_out_when_redisson_would",
    ),
    weakness(
        "Each acquire and each give-up lowers the times of all waiters, one by one, in one script.",
        BOTH,
        "A long queue keeps the shared server busy: some 30 ms a call with 5000 waiters.",
        "Let some hundreds of Java threads at most wait for one name.",
        "suspects::fair::an_asynchronous_java_waiter_that_gives_up_takes_five_minutes_from_those_behind",
    ),
    weakness(
        "Anybody can unlock a free fair lock, without an error.",
        BOTH,
        "Nothing: Java can't unlock one that Leasehold holds.",
        "Nothing to set.",
        "suspects::fair::java_unlocks_a_free_fair_lock_without_an_error",
    ),
    weakness(
        "The clocks of the clients decide which waiter has waited too long.",
        BOTH,
        "A Java process whose clock is behind the server's loses its place when Leasehold calls. A Java process whose clock is ahead of the others' removes their waiters.",
        "Keep the clocks in step (NTP), well within five minutes.",
        "suspects::clocks::javas_leases_and_places_in_line_are_over_for_a_server_whose_clock_is_ahead",
    ),
];

const READ_WRITE: &[Weakness] = &[
    weakness(
        "A reader's watchdog cuts the lock's expiry to its own timeout. Up to 4.3.1 it also cuts the leases of all other readers. A writer then gets in beside a reader that has a longer lease.",
        "3.16.8; 4.7.0 cuts only the lock's expiry, and restores it when that reader leaves",
        "A writer of any side may hold beside Java's readers. Leasehold's own holds are restored while their client lives.",
        "In Java take all read holds with the watchdog, or all with leases below its timeout. Set `redisson_watchdog(..)` in Leasehold if that timeout is below 30 s.",
        "suspects::rw::a_reader_of_3_16_8_keeps_the_dead_and_cuts_the_living rw::a_java_readers_watchdog_does_not_end_our_longer_hold",
    ),
    weakness(
        "Any living reader renews the hold of a dead one.",
        "3.16.8 (to 4.3.1)",
        "Writers, Leasehold's too, wait as long as any Java reader renews.",
        "Upgrade. Leasehold's renewals keep no Java hold alive.",
        "suspects::rw::a_reader_of_3_16_8_keeps_the_dead_and_cuts_the_living rw::our_renewal_keeps_no_java_hold_alive_and_cuts_none",
    ),
    weakness(
        "A read unlock inside a write hold cuts the write hold to the lease of the reads.",
        BOTH,
        "Leasehold gets the lock beside the Java writer.",
        "In Java don't read inside a write that has a longer lease.",
        "suspects::rw::a_read_unlock_inside_a_write_hold_cuts_javas_write_hold_and_not_ours",
    ),
    weakness(
        "A downgrade wakes nobody.",
        BOTH,
        "Waiting readers, Leasehold's too, get in at their next poll.",
        "Choose a `poll_interval` that suits. A downgrade by Leasehold wakes the readers.",
        "suspects::rw::a_downgrade_in_java_wakes_nobody",
    ),
    weakness(
        "An unlock of the write side wakes the threads that sleep. A thread that has just been refused misses the message, and sleeps for the rest of the lease.",
        BOTH,
        "Java's threads sleep on while the lock is free. Leasehold's waiters are woken.",
        "Use short leases in Java. After its own message Leasehold sends one more, which is kept for the next thread of a process that goes to sleep.",
        "suspects::rw::a_java_reader_that_is_refused_as_a_java_writer_unlocks_sleeps_on_and_ours_wakes_it group::a_java_thread_that_is_refused_as_we_release_is_woken",
    ),
    weakness(
        "A re-entry of the write lock adds its lease to that of the hold.",
        BOTH,
        "A Java process that dies after some re-entries keeps Leasehold out for as many leases.",
        "In Java don't re-enter write locks with long leases.",
        "suspects::rw::a_write_re_entry_in_java_adds_its_lease_to_that_of_the_hold",
    ),
    weakness(
        "Readers pass a waiting writer, which may wait for ever. Nobody can upgrade.",
        BOTH,
        "A Leasehold writer beside many Java readers may wait for ever. Leasehold's readers let it go first.",
        "Set limits on waits, and leave pauses between Java's reads.",
        "suspects::rw::java_readers_pass_a_java_writer_that_waits_and_none_can_upgrade",
    ),
    weakness(
        "A reader whose lease is over is told that it still reads, and its unlock succeeds, while others read.",
        BOTH,
        "A Java reader works beside a Leasehold writer and is not told.",
        "In Java use leases that are longer than the work. A Leasehold reader is told.",
        "suspects::rw::a_java_reader_whose_lease_is_over_is_told_that_it_reads",
    ),
    weakness(
        "A read unlock asks for the expiry of every hold of every reader, in one script.",
        BOTH,
        "Many readers keep the shared server busy: some 5 ms an unlock with 2000 readers.",
        "Let some hundreds of readers at most share one name.",
        "suspects::rw::a_java_reader_whose_lease_is_over_is_told_that_it_reads",
    ),
    weakness(
        "The lease of a read hold stays with the Java object if the reader leaves while others read. The next hold of that object gets this lease where it should get the watchdog's.",
        BOTH,
        "A Leasehold writer gets the lock beside the Java reader.",
        "In Java use a new object for each use, or only one of the two forms for a name.",
        "suspects::rw::a_lease_of_a_java_read_hold_is_that_of_the_next_one_of_the_same_object",
    ),
    weakness(
        "A transaction that holds the write lock blocks on its own read lock.",
        BOTH,
        ONLY_JAVA,
        "Don't take a read lock inside a Redisson transaction that writes.",
        "open: Redisson's transactions use names of their own for holders, and Leasehold has no counterpart; read in Redisson's code",
    ),
];

const WHOLE: &[Weakness] = &[
    weakness(
        "With a unit other than milliseconds each round that fails multiplies the lease by the unit: 4 s become 4000 s.",
        "4.7.0 (from 3.25)",
        "A Java process that dies then keeps Leasehold out for hours.",
        "In Java use `lock(lease, MILLISECONDS)`, or `tryLock`.",
        "suspects::whole::a_multi_lock_of_newer_java_multiplies_its_lease_with_each_round",
    ),
    weakness(
        "An unlock stops at the first member that fails. The other members stay locked and renewed.",
        NEW,
        "Leasehold waits for these members as long as the Java process lives.",
        "In Java unlock the members one by one after an error. Leasehold releases all members, and lists those that failed.",
        "suspects::whole::an_unlock_of_a_newer_java_multi_lock_stops_at_the_first_error",
    ),
    weakness(
        "At the end of an acquire it sets the lease of each member without checking who holds it. It then believes that it holds a member that it lost on the way, and it shortens (or lengthens) the lease of that member's next holder.",
        BOTH,
        "After a forced unlock, or a pause of the Java process, a Leasehold hold may get Java's lease, and both sides believe that they hold.",
        "In Java lock without a lease: then it sets none at the end. Don't force its members. A renewed hold of Leasehold is corrected at its next renewal; a fixed lease is not.",
        "suspects::whole::a_java_multi_lock_has_a_member_that_it_has_lost_and_cuts_the_lease_of_its_holder",
    ),
    weakness(
        "A lock of a majority does not compute for how long it is valid, and asks one server after the other.",
        BOTH,
        "A Java thread may work on after its majority is over, beside a Leasehold holder.",
        "In Java use leases that are much longer than the work and the answers together. Leasehold has `guard.valid_until()`.",
        "open: Redisson has no such number that a test could read; read in Redisson's code",
    ),
];

const GROUP: &[Weakness] = &[
    weakness(
        "A second lock object of the same group in the same process is not renewed: only the values of the first one are.",
        "4.7.0 (3.16.8 has no groups)",
        "Leasehold gets the lock beside the Java thread after the watchdog timeout.",
        "In Java hold one group lock of a group at a time in each process, or use explicit leases.",
        "suspects_newer::a_second_lock_on_a_java_group_is_not_renewed",
    ),
    weakness(
        "`lockAsync()` fails. `lockAsync(-1, unit)` reports a hold that is over at once.",
        NEW,
        "Leasehold gets the lock beside the Java code.",
        "In Java use the blocking API, or explicit leases.",
        "suspects_newer::an_asynchronous_java_group_lock_fails_or_is_over_at_once",
    ),
    weakness(
        "An unlock that finds one value lost fails, although it has released the others.",
        NEW,
        ONLY_JAVA,
        "Don't unlock again after this error. Leasehold too releases the values that are left, and reports that one was lost.",
        "suspects_newer::an_unlock_of_a_java_group_that_has_lost_a_value_fails_and_releases_the_others",
    ),
    weakness(
        "Values whose lease is over stay while the group is in use. A holder that comes back goes on counting from them: it locks once, unlocks once, and the value is still taken.",
        NEW,
        "Leasehold waits for the end of a lease that nobody uses.",
        "In Java use leases that are longer than the work.",
        "suspects_newer::a_java_group_hold_inherits_the_count_of_one_that_has_ended",
    ),
    weakness(
        "An unlock wakes one thread of a process, which may wait for another value.",
        NEW,
        "Java's threads sleep on while the value that they want is free. Leasehold's waiters are woken.",
        "A release by Leasehold wakes all waiters.",
        "suspects_newer::an_unlock_of_a_java_group_wakes_one_that_waits_for_another_value group::our_release_wakes_the_java_thread_that_waits_for_just_that_value",
    ),
    weakness(
        "`forceUnlock()` of two values returns `false` although it has released them. `isHeldByCurrentThread()` of one value is true even if a stranger holds it.",
        NEW,
        ONLY_JAVA,
        "Don't use either method in Java.",
        "suspects_newer::java_says_false_for_two_values_it_has_forced_and_true_for_one_a_stranger_holds",
    ),
    weakness(
        "Leases go by the clock of the client. An unlock checks this clock alone, and not who holds the value now.",
        NEW,
        "Leasehold goes by the server's clock, and gets in beside a Java process whose clock is behind. The Java unlock then takes nothing from Leasehold, which has cleared the ended values away.",
        "Keep the clocks in step (NTP), well within a lease.",
        "suspects::clocks::javas_leases_and_places_in_line_are_over_for_a_server_whose_clock_is_ahead",
    ),
];

const SEMAPHORES: &[Weakness] = &[
    weakness(
        "A waiter never asks by itself: after a lost message it hangs.",
        BOTH,
        "Nothing for Leasehold's waiters, which poll (`poll_interval`).",
        "In Java use `tryAcquire(wait, unit)` in a loop.",
        "suspects::counts::a_message_that_is_lost_leaves_java_waiting_and_ours_asks",
    ),
    weakness(
        "One message serves one asynchronous waiter of a process, however many permits the message announces. Such a waiter never asks by itself.",
        BOTH,
        "Nothing: Leasehold sends a message for each permit.",
        "In Java release permits one by one where others wait with `acquireAsync`, or use the blocking API.",
        "suspects::counts::one_message_serves_one_asynchronous_waiter_of_javas",
    ),
    weakness(
        "Draining a semaphore, or adding permits to it, drops its expiry.",
        BOTH,
        "A semaphore that should expire stays.",
        "Set the expiry again afterwards. Leasehold keeps it.",
        "suspects::counts::draining_in_java_drops_the_expiry_of_a_semaphore_and_ours_keeps_it",
    ),
    weakness(
        "A release creates a semaphore that does not exist. A killed process takes its permits with it.",
        BOTH,
        "The same holds for Leasehold, because of the format.",
        "Use `releaseIfExists` (from 4.0), and permits with leases where processes may die.",
        "suspects::counts::a_release_in_java_makes_a_semaphore_of_nothing each_count::counted::the_permit_of_a_killed_process_is_given_back_by_any_other",
    ),
    weakness(
        "Permits with leases end by the clock of the client.",
        BOTH,
        "Leasehold goes by the server's clock, and gives the permit of a Java process whose clock is behind to the next waiter.",
        "Keep the clocks in step (NTP), well within a lease.",
        "suspects::clocks::javas_leases_and_places_in_line_are_over_for_a_server_whose_clock_is_ahead",
    ),
    weakness(
        "Permits whose leases have ended come back when somebody asks, not before.",
        BOTH,
        "Nothing: Leasehold's waiters ask when a lease ends.",
        "Nothing to set.",
        "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
    ),
    weakness(
        "The ids of permits come from a fast generator, not from one for secrets.",
        BOTH,
        "Whoever can guess an id and reach the server can release the permit.",
        "Set permissions on the server.",
        "open: nothing can be seen from outside; read in Redisson's code",
    ),
    weakness(
        "When some thousands of permits end together, its script breaks, for good.",
        BOTH,
        "Java can't use the semaphore until a Leasehold client asks.",
        "Leasehold takes back any number of ended permits.",
        "suspects::counts::thousands_of_ended_leases_break_javas_permits_and_not_ours",
    ),
    weakness(
        "A release of several ids publishes their number, not the number of free permits.",
        "4.7.0 (from 3.23)",
        "Nothing for Leasehold: any message wakes its waiters. Fewer Java threads wake than could.",
        "Nothing to set.",
        "suspects_newer::a_java_release_of_several_ids_publishes_their_number",
    ),
    weakness(
        "3.16.8 stores the ids of permits as text, 4.7.0 as bytes. Neither version releases the permits of the other.",
        BOTH,
        "Leasehold stores ids as 4.7.0 does, and releases the permits of both.",
        "Use one version of Redisson for code that hands ids on.",
        "synchronizers::permits_without_a_lease_are_understood_and_released_by_id synchronizers::our_permits_are_released_by_java_where_it_writes_ids_as_we_do",
    ),
];

const LATCH: &[Weakness] = &[
    weakness(
        "A waiter never asks by itself: after a lost message it hangs.",
        BOTH,
        "Nothing for Leasehold's waiters, which poll (`poll_interval`).",
        "In Java use `await(wait, unit)` in a loop.",
        "suspects::counts::a_message_that_is_lost_leaves_java_waiting_and_ours_asks",
    ),
    weakness(
        "Deleting a latch wakes nobody in Java.",
        BOTH,
        "Java's `await` hangs, after a `delete` by Leasehold too. Leasehold's waiters go on.",
        "Count down to zero instead.",
        "suspects::counts::a_latch_that_java_deletes_says_nothing_to_those_who_wait_in_java synchronizers::a_latch_that_java_deletes_lets_us_go_on",
    ),
    weakness(
        "A waiter misses a latch that opens and is set again at once.",
        BOTH,
        "Java's `await` waits for the next zero. Leasehold's waiters go on.",
        "Use a new name for each round.",
        "suspects::counts::a_latch_that_opens_and_is_set_again_is_missed_by_java_and_not_by_ours",
    ),
    weakness(
        "A latch with braces in its name fails in a cluster.",
        BOTH,
        "The same holds for Leasehold, because the format fixes the channel.",
        "Don't use braces in the names of latches.",
        "open: needs a cluster; read in Redisson's code",
    ),
];

const SET_UPS: &[Weakness] = &[
    weakness(
        "In a cluster 4.7.0 publishes to the shard and 3.16.8 to all nodes, so neither wakes the other.",
        BOTH,
        "Waiters of either version wait to the end of the lease, or hang.",
        "Use one version in a cluster, or turn `shardedSubscriptionMode` off in the newer one.",
        "open: the tests have no cluster yet",
    ),
    weakness(
        "In a cluster a name with `}` before `{` sends the client into an endless loop.",
        NEW,
        "Load; the Java call never ends.",
        "Don't use braces in names.",
        "open: needs a cluster of two nodes",
    ),
    weakness(
        "Behind a proxy the client may switch to shard messages, which the proxy does not pass on.",
        "4.7.0 (from 3.29)",
        "Java's waiters are not woken.",
        "Turn `shardedSubscriptionMode` off behind proxies.",
        "open: needs a proxy that speaks the cluster protocol",
    ),
    weakness(
        "With replicas a semaphore that refused an acquire gives back permits that it never took, if a replica does not answer.",
        "4.7.0 (from 3.21)",
        "The semaphore has too many permits, for all sides.",
        "Turn `checkLockSyncedSlaves` off; use permits with leases.",
        "suspects::replicas::a_silent_replica_makes_newer_java_give_permits_that_it_was_refused",
    ),
    weakness(
        "With replicas an acquire whose reply is lost is sent again and counts twice. One unlock then leaves the lock taken, and permits are lost.",
        BOTH,
        "Leasehold waits for a lease that nobody uses. Permits are lost for all sides.",
        "Set `timeout` well above the server's slowest answer; use explicit leases, and permits with leases.",
        "suspects::replicas::a_lost_reply_makes_java_with_replicas_take_a_lock_twice",
    ),
    weakness(
        "With replicas every operation waits for all of them (up to 1 s) although one would do, and fails when none answers. 3.16.8 leaves the lock taken then.",
        BOTH,
        "Java calls are slow. With 3.16.8 a lock that nobody holds stays taken until its lease ends.",
        "Set `slavesSyncTimeout`, or turn `checkLockSyncedSlaves` off.",
        "suspects::replicas::a_silent_replica_makes_java_locks_fail_and_3_16_8_leave_them_taken",
    ),
    weakness(
        "A lock that a server has confirmed can be lost when a replica takes over.",
        BOTH,
        "Two hold at once, of whichever side.",
        "Use fenced locks and check the tokens where the data is, or use a lock of a majority.",
        "open: true of any lock on replicas; the fail-over tests try Leasehold alone, not beside Redisson",
    ),
    weakness(
        "It is not known which replicas 3.16.8 counts while one of them takes over.",
        OLD,
        "As in the row above.",
        "As in the row above.",
        "open: needs a fail-over beside 3.16.8",
    ),
    weakness(
        "`isExists` and `remainTimeToLive` ask a replica by default, whose answer may be late.",
        BOTH,
        "A Java process may see a Leasehold hold late, or longer than it is.",
        "Set `readMode` to `MASTER`.",
        "open: needs a replica that is late by a known time",
    ),
    weakness(
        "Not tested: configurations with sentinels and for hosted servers, the queue semaphore, name mappers, and servers other than that of the last run.",
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

/// `seen` if all of these tests passed, in each version that runs them.
fn word(tests: &[(String, Vec<String>)], outcomes: &BTreeMap<String, String>) -> &'static str {
    let is_ok = |test: &String| outcomes[test] == "ok";
    match tests {
        tests if tests.iter().any(|(_, mounts)| mounts.is_empty()) => "**not run**",
        tests if tests.iter().all(|(_, mounts)| mounts.iter().all(is_ok)) => "seen",
        _ => "**FAILED**",
    }
}

/// What the table says of the tests of a row.
fn shown(settled: &str, outcomes: &BTreeMap<String, String>) -> String {
    if let Some(reason) = settled.strip_prefix(OPEN) {
        return format!("none: {reason}");
    }
    let known = outcomes.keys().cloned().collect();
    word(&mounted(settled, &known), outcomes).to_owned()
}

const HEAD: &str = "
## What Redisson does by itself

The tables have the known or suspected weaknesses of Redisson, whether they matter beside Rust,
and what to do about them. *Both* means 3.16.8 and 4.7.0; *from* and *to* name the first and the
last version that has a weakness. *Seen* means that tests with live Redissons show the weakness, in
each version that they run with. Where the row says that Leasehold behaves differently, they show
that too. *None* says why no test shows the weakness.
[interop-tests.md](interop-tests.md#tests-of-what-redisson-does-by-itself) names the tests.
";

/// The part of `docs/interop.md`.
pub(crate) fn part(outcomes: &BTreeMap<String, String>) -> String {
    let mut page = HEAD.to_owned();
    for (name, weaknesses) in SECTIONS {
        let _ = write!(page, "\n### {name}\n\n");
        page.push_str("| what Redisson does | versions | effect on Rust | what to do | tests |\n");
        page.push_str("|---|---|---|---|---|\n");
        for one in weaknesses {
            let tests = shown(one.settled, outcomes);
            let cells = [one.does, one.versions, one.means, one.answer, &tests];
            let _ = writeln!(page, "| {} |", cells.join(" | "));
        }
    }
    page
}

const DETAILS_HEAD: &str = "
## Tests of what Redisson does by itself

The tests behind [each weakness](interop.md#what-redisson-does-by-itself) that has some. *Seen*
means that each test of the line passed.
";

/// The part of `docs/interop-tests.md`.
pub(crate) fn details(outcomes: &BTreeMap<String, String>) -> String {
    let known = outcomes.keys().cloned().collect();
    let mut page = DETAILS_HEAD.to_owned();
    for (name, weaknesses) in SECTIONS {
        let _ = write!(
            page,
            "\n### {name}\n\n| what Redisson does | tests |\n|---|---|\n"
        );
        let tested = |one: &&Weakness| !one.settled.starts_with(OPEN);
        for Weakness { does, settled, .. } in weaknesses.iter().filter(tested) {
            let tests = mounted(settled, &known);
            let names: Vec<_> = tests.iter().map(|(name, _)| format!("`{name}`")).collect();
            let word = word(&tests, outcomes);
            let _ = writeln!(page, "| {does} | {word}: {} |", names.join(", "));
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
