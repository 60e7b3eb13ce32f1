//! The known or suspected weaknesses of Redisson, by primitive: the second part of
//! `docs/interop.md` and of `docs/interop-tests.md`. Each weakness names the tests that show it, or
//! is open and says why.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::matrix::known;

/// The beginning of a `settled` entry without tests.
const OPEN: &str = "open: ";

const BOTH: &str = "both";
const OLD: &str = "3.16.8";
const NEW: &str = "4.7.0";

/// The modules in which the tests of a version are mounted.
const MOUNTS: [&str; 4] = ["with_3_16_8::", "with_4_7_0::", "with_both::", ""];

pub(crate) struct Weakness {
    /// The behaviour of Redisson, and the versions that have it.
    does: &'static str,
    versions: &'static str,
    /// The meaning for a service in Rust that shares the object.
    means: &'static str,
    /// The setting or action against it, mostly on the Java side, and the behaviour of Leasehold.
    answer: &'static str,
    /// Tests, separated by spaces, or `open: ` and the reason.
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

const ONLY_JAVA: &str = "Nothing: only Java is affected.";
const INSIDE: &str = "open: a race inside one JVM, which no test from outside can force; found by reading Redisson's code";

const RENEWAL: &[Weakness] = &[
    weakness(
        "Each pair of `lock` and `unlock` leaves a timer running if the client holds nothing else at that moment. All these timers renew the client's later holds: after 50 locks and unlocks, they send 50 scripts per period.",
        NEW,
        "The load on the shared server grows for as long as the Java process runs. No lock is lost.",
        "In Java, use explicit leases (`lock(lease, unit)`): they don't start a timer. A client that always holds at least one lock has only one timer. A Leasehold client always has one timer.",
        "suspects::renewal::javas_renewals_grow_with_each_lock_and_unlock",
    ),
    weakness(
        "If a thread has both a read hold and a write hold of one lock and releases one of the two holds, the remaining hold is no longer renewed. In 4.7.0, this happens to the write hold when the read hold is released; in 3.16.8, to the read hold when the write hold is released.",
        BOTH,
        "Leasehold gets the lock after the watchdog timeout, while a Java thread still believes that it holds the lock.",
        "In Java, don't acquire the read lock while you hold the write lock (4.7.0) and don't downgrade (3.16.8), or use explicit leases.",
        "suspects::renewal::leaving_one_java_mode_stops_others_renewal",
    ),
    weakness(
        "Each unlock, even one that fails, lowers the watchdog's count of entries by one. If the unlock of a re-entrant hold fails and is repeated, the lock stays held but is no longer renewed.",
        BOTH,
        "Leasehold gets the lock after the watchdog timeout, while the Java thread continues.",
        "In Java, avoid re-entrance, or don't unlock again after an error.",
        "suspects::renewal::failed_java_unlock_stops_watchdog_of_hold",
    ),
    weakness(
        "If a renewal fails, with a timeout or any other error, the hold is never renewed again. The holder does not learn of this.",
        "3.16.8 (to 3.43)",
        "After a short failure of the server, Leasehold gets the lock while the Java thread continues.",
        "Upgrade, or use an explicit lease that is longer than the work.",
        "suspects::renewal::failed_renewal_is_old_javas_last",
    ),
    weakness(
        "One script renews up to a hundred holds. If one of their keys has another type, the script fails, and the holds that follow in this round are not renewed.",
        "4.7.0 (from 3.44)",
        "A `SET` on the name of one lock, by any client, makes the Java process lose its other locks.",
        "Give the names of locks a prefix that other keys don't have. In Leasehold, a key of another type stops only the renewal of its own lock.",
        "suspects::renewal::wrong_type_key_stops_other_java_renewals",
    ),
    weakness(
        "For each name, a process renews only the hold of the thread that was the first to register for renewal. After a forced unlock, the thread that lost the lock still counts as the first one. So the next hold of the process is renewed too late or, in 3.16.8, not at all.",
        BOTH,
        "After Leasehold's `force_unlock` of a Java hold, the next holder in the same Java process may lose the lock while it still works.",
        "After a forced unlock of a Java hold, let the thread that had the hold call `unlock` as often as it called `lock` (each call fails, and clears one registration), or restart the process.",
        "suspects::renewal::forced_unlock_leaves_next_java_hold_unrenewed",
    ),
    weakness(
        "A holder learns that its lock is lost only when its `unlock` fails.",
        BOTH,
        "Until its `unlock` fails, a Java thread continues to work at the same time as a Leasehold holder.",
        "Use fenced locks, and let the resource that you protect check the tokens. A Leasehold holder does not have to wait for its release to fail: `guard.lost()` reports the loss earlier.",
        "lock::our_forced_unlock_is_seen_by_java",
    ),
    weakness(
        "A round of renewals sends its requests one after the other, and each request waits for the reply to the previous one. The next period begins only when the round has ended.",
        "4.7.0 (from 3.44)",
        "On a slow server, a Java hold may end between two rounds.",
        "Set `lockWatchdogTimeout` well above `timeout` multiplied by the number of retries. Leasehold renews each hold before its deadline, and a slow server does not delay renewals on other servers.",
        "open: no test has a server so slow that a round lasts as long as a lease; found by reading Redisson's code",
    ),
    weakness(
        "If a round of renewals throws an exception that is not an error reply from the server, the process never renews again.",
        "4.7.0 (from 3.44)",
        "All locks of the Java process are free after the watchdog timeout, but the process's threads continue to work.",
        "There is nothing to set. Watch the Java log.",
        "open: the test would need an error inside the JVM that no server can cause; seen once in a trial",
    ),
    weakness(
        "If a read hold is registered just as the last read hold of its thread is removed, Redisson may remove both. The new hold is then not renewed.",
        "4.7.0 (from 3.44)",
        "A Leasehold writer gets the lock after the watchdog timeout, while the Java reader continues.",
        "In Java, use explicit leases for read holds.",
        INSIDE,
    ),
];

const LOCK: &[Weakness] = &[
    weakness(
        "A re-entry with a shorter lease shortens the hold.",
        BOTH,
        "Leasehold gets the lock when the shorter lease ends.",
        "In Java, use the same lease for each entry. Leasehold keeps the longer lease.",
        "suspects::plain::java_reentry_with_shorter_lease_cuts_hold",
    ),
    weakness(
        "An explicit lease stays stored in the Java object until an unlock. The next thread that locks the same object without a lease gets the stored lease, and the first renewal may arrive after this lease has ended.",
        BOTH,
        "Leasehold gets the lock while a Java thread relies on the watchdog.",
        "In Java, use a new object (`getLock(name)`) for each use, or lock a name either always with a lease or always without.",
        "suspects::plain::java_lease_leaks_to_next_thread",
    ),
    weakness(
        "If the reply to an acquire is lost, the acquire ends with an error or `false`, but the lock stays held.",
        BOTH,
        "Leasehold waits for a whole lease, although no client uses the lock.",
        "Use short leases in Java. Leasehold undoes an acquire whose outcome it does not know.",
        "suspects::plain::java_loses_lock_when_reply_is_lost",
    ),
    weakness(
        "Each unlock writes a key that has an expiry and belongs to this request, and deletes the key with a second command.",
        "4.7.0 (from 3.24)",
        "The server gets more writes, and has keys `redisson_unlock_latch:{..}` for a short time.",
        "Nothing to do: Leasehold neither reads nor writes these keys.",
        "suspects::plain::new_java_unlock_writes_temporary_key",
    ),
    weakness(
        "Each call sends the source code of its script.",
        "3.16.8 (to 3.45)",
        ONLY_JAVA,
        "Set `useScriptCache` (from 3.46). In 4.7.0 it is on by default.",
        "suspects::plain::new_java_unlock_writes_temporary_key",
    ),
    weakness(
        "After each release, one thread of every waiting process sends a request to the server. Only one of the threads gets the lock.",
        BOTH,
        "The load on the shared server grows with the number of Java processes.",
        "In Java, use `getFairLock` for names that many processes wait for: its release notifies one waiter.",
        "suspects::plain::each_release_makes_every_java_process_ask",
    ),
    weakness(
        "A client has a limited number of channels (`subscriptionsPerConnection` times `subscriptionConnectionPoolSize`: 250). It needs one channel for each name that it waits for or, with a fair lock, for each waiting thread. If all channels are in use, any further wait fails.",
        BOTH,
        ONLY_JAVA,
        "Raise both settings in Java. Leasehold has one connection for all channels.",
        "suspects::plain::java_wait_fails_without_free_channel",
    ),
    weakness(
        "A spin lock does not publish its releases.",
        BOTH,
        "The unlock of a spin lock does not wake a Leasehold client that waits for the same name.",
        "For a name that Java uses as a spin lock, use `wait_strategy(WaitStrategy::Backoff(..))`. With another strategy, the waiter tries again only after its poll interval.",
        "lock::spin_waiters_get_lock_across_sides",
    ),
    weakness(
        "If a waiter is woken just as its time limit ends, it returns without another try, and does not wake another waiter instead.",
        BOTH,
        "Nothing for Leasehold's waiters, which receive messages of their own. Other threads of that JVM wait for the next message or the end of the lease.",
        "Nothing to set.",
        INSIDE,
    ),
    weakness(
        "An asynchronous waiter may miss a message that arrives between its first try and its registration as a waiter.",
        "3.16.8 (to 3.27)",
        ONLY_JAVA,
        "Use the blocking API, or upgrade.",
        "open: a race inside one JVM, known only from the fix",
    ),
];

const FENCED: &[Weakness] = &[
    weakness(
        "A re-entry takes a new token. After a `delete()`, tokens start again at 1. `lockAndGetToken(lease, unit)` ignores the lease.",
        NEW,
        "Tokens have gaps, and after a `delete()` they can be smaller than before. A Java hold lasts for as long as the watchdog renews it.",
        "Compare tokens by order, never by distance. Use `forceUnlock()` instead of `delete()`. In Leasehold, a re-entry has the token of its hold, and tokens are never less than the server's time in microseconds.",
        "suspects_newer::java_reentry_spends_fencing_tokens",
    ),
    weakness(
        "A Java thread believes that a hold without an expiry is its own, and gets token −1.",
        NEW,
        "If a held lock has no expiry, Java also acquires it.",
        "Don't run `PERSIST` on a lock, and let the resource that checks tokens refuse −1. Leasehold gives every lock an expiry.",
        "suspects_newer::java_fenced_try_claims_hold_without_expiry",
    ),
    weakness(
        "`tryLockAndGetToken()` waits without a limit.",
        NEW,
        ONLY_JAVA,
        "Use `tryLockAndGetToken(0, unit)`, which tries once.",
        "suspects_newer::a_try_for_a_token_in_java_waits",
    ),
    weakness(
        "If a fenced lock is a member of a multi-lock that is locked with a lease, the counter of tokens gets an expiry. When the counter has expired, tokens start again at 1.",
        NEW,
        "A later hold may have a smaller token than an earlier one.",
        "Don't use a fenced lock as a member of a Java multi-lock. Leasehold removes the expiry, and its tokens are never less than the server's time in microseconds, so they rise even after the counter has expired.",
        "suspects_newer::java_multi_lock_expires_fencing_counter",
    ),
];

const FAIR: &[Weakness] = &[
    weakness(
        "If the client of the first waiter in the queue (the head) is dead, the next waiter sends requests without a pause, thousands of times a second, until the head's timeout has passed, which takes minutes.",
        "4.7.0 (from 3.32)",
        "The shared server is busy with these requests.",
        "In Java, use `tryLock(wait, lease, unit)` with a short wait, in a loop. If such a waiter dies, it keeps its place only for the time of that wait instead of five minutes. Leasehold's waiters sleep between their requests.",
        "suspects::fair::new_java_waiters_spin_behind_dead_head",
    ),
    weakness(
        "A waiter learns the remaining lease of the holder when it is refused. If the waiter tries again after that lease and is refused again, it sleeps until it is notified, perhaps forever: waiters are not notified when a lease ends.",
        "3.16.8 (to 3.31)",
        "The queue is blocked, including Leasehold's later waiters.",
        "One Leasehold waiter in the queue is enough: it notifies the head. Without one, upgrade.",
        "suspects::fair::old_java_waiter_outlasting_lease_never_wakes fair::our_waiter_wakes_sleeping_java_head",
    ),
    weakness(
        "If a live waiter has waited for longer than the lease plus five minutes, it is removed from the queue, and must join again as the last.",
        BOTH,
        "Java threads that wait for more than five minutes lose their place. A request from Leasehold also removes them, because Leasehold applies Redisson's rule to Redisson's waiters.",
        "In Java, wait for less than five minutes at a time, in a loop. Leasehold's waiters keep their places.",
        "suspects::fair::timed_out_java_waiter_is_served_last",
    ),
    weakness(
        "With `tryLock(100, SECONDS)`, the waiter is entitled to its place in the queue for only 100 ms after the end of the lease.",
        BOTH,
        "Any request, including Leasehold's, removes such a waiter shortly after the end of the lease that was running when it joined.",
        "In Java, use `tryLock(wait, lease, unit)`.",
        "suspects::fair::java_wait_in_seconds_counts_as_milliseconds",
    ),
    weakness(
        "When an asynchronous waiter gives up, the timeouts of all later waiters are lowered by five minutes, even if the waiter's own time limit was different.",
        BOTH,
        "Later Java waiters are removed from the queue too early, and must join again as the last.",
        "In Java, use the blocking API for fair locks.",
        "suspects::fair::async_java_timeout_costs_successors_five_minutes",
    ),
    weakness(
        "When the head of the queue gives up while the lock is free, it does not notify the next waiter.",
        BOTH,
        "Java's waiters continue to sleep, either until the end of the lease that they learned when they were refused, or forever.",
        "One Leasehold waiter in the queue is enough: it notifies the head.",
        "suspects::fair::departing_java_head_wakes_no_successor",
    ),
    weakness(
        "If a waiter is interrupted, it stays in the queue. The queue and the waiters' timeouts have no expiry.",
        BOTH,
        "Later waiters, including Leasehold's, wait until five minutes after the end of the hold.",
        "Don't interrupt Java threads that wait for a fair lock. Give the wait a time limit instead.",
        "suspects::fair::interrupted_java_waiter_stays_in_queue",
    ),
    weakness(
        "If a waiter is killed, it blocks the queue until five minutes after the end of the hold.",
        BOTH,
        "Leasehold waiters that are after the killed waiter in the queue wait for these five minutes.",
        "In Java, use `tryLock(wait, lease, unit)` with a short wait, in a loop. If such a waiter is killed, it keeps its place after the end of the hold only for the time of that wait instead of five minutes. A killed Leasehold waiter is passed over after 5 s.",
        "fair::killed_java_waiter_leaves_at_redissons_timeout",
    ),
    weakness(
        "When a waiter acquires the lock or gives up, one script lowers the timeouts of all waiters, one by one.",
        BOTH,
        "A long queue keeps the shared server busy: with 5000 waiters, each such call takes about 30 ms.",
        "Let at most a few hundred Java threads wait for one name.",
        "suspects::fair::async_java_timeout_costs_successors_five_minutes",
    ),
    weakness(
        "Any client can call `unlock` on a free fair lock, without an error.",
        BOTH,
        "Nothing: Java can't unlock a fair lock that Leasehold holds.",
        "Nothing to set.",
        "suspects::fair::java_unlocks_free_fair_lock_without_error",
    ),
    weakness(
        "The clocks of the clients decide which waiter has waited too long.",
        BOTH,
        "If the clock of a Java process is behind the server's, its waiters lose their places when Leasehold sends a request. If the clock of a Java process is ahead of the other clocks, this process removes the waiters of other processes.",
        "Keep the clocks in step (NTP): they must differ by much less than five minutes.",
        "suspects::clocks::server_clock_ahead_expires_java_leases_early",
    ),
];

const READ_WRITE: &[Weakness] = &[
    weakness(
        "A reader's watchdog shortens the lock's expiry to the watchdog timeout. Up to 4.3.1, it also shortens the leases of all other readers. A writer can then acquire the lock while a reader with a longer lease still holds it.",
        "3.16.8; 4.7.0 shortens only the lock's expiry, and restores this expiry when the reader with the watchdog unlocks",
        "A writer, Leasehold's or Redisson's, may hold the lock at the same time as Java's readers. Leasehold's clients restore their own holds.",
        "In Java, either use the watchdog for all read holds, or give all of them leases below the watchdog timeout. If this timeout is below 30 s, set `redisson_watchdog(..)` in Leasehold.",
        "suspects::rw::old_java_reader_cuts_longer_read_leases rw::java_reader_watchdog_keeps_our_longer_hold",
    ),
    weakness(
        "Any living reader renews the hold of a dead reader.",
        "3.16.8 (to 4.3.1)",
        "Writers, including Leasehold's, wait for as long as any Java reader renews its hold.",
        "Upgrade. Leasehold's renewals don't renew Java's holds.",
        "suspects::rw::old_java_reader_cuts_longer_read_leases rw::our_renewal_changes_no_java_read_lease",
    ),
    weakness(
        "If a thread that holds the write lock unlocks the read lock, the lease of the write hold is shortened to the lease of the read hold.",
        BOTH,
        "Leasehold gets the lock while the Java writer continues.",
        "In Java, don't acquire the read lock inside a write hold whose lease is longer than the read hold's.",
        "suspects::rw::inner_read_unlock_cuts_java_write_hold",
    ),
    weakness(
        "A downgrade does not wake the waiters.",
        BOTH,
        "Waiting readers, including Leasehold's, get the lock only when they poll again.",
        "Set a short `poll_interval` in Leasehold. A downgrade by Leasehold wakes the readers.",
        "suspects::rw::a_downgrade_in_java_wakes_nobody",
    ),
    weakness(
        "An unlock of the write lock wakes the threads that sleep. If a thread has just been refused but does not sleep yet, it misses the message, and sleeps for the rest of the lease.",
        BOTH,
        "Java's threads continue to sleep although the lock is free. Leasehold's waiters are woken.",
        "Use short leases in Java. Leasehold sends two more messages after the message about the release. One of them is kept for the next thread of a process that falls asleep, even if Redisson 3.16.8 handles the messages out of order. If several threads sleep, set `keepAlive` in 3.16.8, which keeps the messages in order.",
        "suspects::rw::refused_java_reader_misses_java_writers_release group::our_release_wakes_just_refused_java_thread",
    ),
    weakness(
        "A re-entry of the write lock adds its own lease to the remaining lease of the hold.",
        BOTH,
        "If a Java process dies after several re-entries, it keeps Leasehold out for one lease per re-entry.",
        "In Java, don't re-enter write locks with long leases.",
        "suspects::rw::java_write_reentry_adds_lease_to_hold",
    ),
    weakness(
        "New readers pass a waiting writer, which may wait forever. A reader can't upgrade its hold to a write hold.",
        BOTH,
        "If there are many Java readers, a Leasehold writer may wait forever. Leasehold's readers let the writer go first.",
        "Set time limits for waits, and leave pauses between Java's reads.",
        "suspects::rw::java_readers_overtake_writer_and_cannot_upgrade",
    ),
    weakness(
        "If the lease of a reader has ended while other readers hold the lock, Redisson reports that this reader still holds the lock, and this reader's unlock succeeds.",
        BOTH,
        "A Java reader can work at the same time as a Leasehold writer, without learning that its lease has ended.",
        "In Java, use leases that are longer than the work. A Leasehold reader learns of the loss.",
        "suspects::rw::expired_java_read_hold_is_still_reported",
    ),
    weakness(
        "A read unlock reads the expiry of every hold of every reader, in one script.",
        BOTH,
        "Many readers keep the shared server busy: with 2000 readers, each unlock takes about 5 ms.",
        "Let at most a few hundred readers share one name.",
        "suspects::rw::expired_java_read_hold_is_still_reported",
    ),
    weakness(
        "If a reader unlocks while others still read, its lease stays stored in the Java object. The next hold that is acquired with that object gets this lease instead of the watchdog's.",
        BOTH,
        "A Leasehold writer gets the lock while the Java reader continues.",
        "In Java, use a new object for each use, or lock a name either always with a lease or always without.",
        "suspects::rw::java_read_lease_leaks_to_next_hold",
    ),
    weakness(
        "If a transaction holds the write lock and tries to take the read lock, it blocks itself.",
        BOTH,
        ONLY_JAVA,
        "Don't take a read lock inside a Redisson transaction that writes.",
        "open: Redisson's transactions use their own names for holders, and Leasehold has no transactions; found by reading Redisson's code",
    ),
];

const WHOLE: &[Weakness] = &[
    weakness(
        "If the lease is given in a unit other than milliseconds, each failed round of the acquire multiplies the lease by the milliseconds in that unit: 4 s become 4000 s.",
        "4.7.0 (from 3.25)",
        "If the Java process then dies, it keeps Leasehold out for hours.",
        "In Java, use `lock(lease, MILLISECONDS)`, or `tryLock`.",
        "suspects::whole::new_java_multi_lease_grows_each_round",
    ),
    weakness(
        "An unlock stops at the first member that can't be unlocked. The remaining members stay locked, and are still renewed.",
        NEW,
        "Leasehold waits for these members for as long as the Java process lives.",
        "In Java, unlock the members one by one after an error. Leasehold releases all members, and lists the failed members.",
        "suspects::whole::new_java_multi_unlock_stops_at_error",
    ),
    weakness(
        "At the end of an acquire, Redisson sets the lease of each member without checking which client holds the member. If Redisson lost a member during the acquire, it believes that it still holds that member, and changes the lease of the member's next holder.",
        BOTH,
        "After a forced unlock, or a pause of the Java process, a Leasehold hold may get Java's lease, and both Java and Leasehold believe that they hold the lock.",
        "In Java, lock without a lease: Redisson then sets no lease at the end. Don't unlock the members by force. The next renewal by Leasehold corrects a renewed hold; a fixed lease is not corrected.",
        "suspects::whole::java_multi_lock_claims_lost_member",
    ),
    weakness(
        "`RedissonRedLock` does not compute how long it is valid, and sends its requests to one server after the other.",
        BOTH,
        "A Java thread may continue to work when it no longer holds the lock on a majority of the servers, at the same time as a Leasehold holder.",
        "In Java, use leases that are much longer than the work plus the time that all servers take to answer. Leasehold has `guard.valid_until()`.",
        "open: Redisson has no validity that a test could read; found by reading Redisson's code",
    ),
];

const GROUP: &[Weakness] = &[
    weakness(
        "If a process uses two lock objects of the same group, it renews only the values of the first object.",
        "4.7.0 (3.16.8 has no groups)",
        "Leasehold gets the lock after the watchdog timeout, while the Java thread continues.",
        "In each Java process, hold only one group lock of each group at a time, or use explicit leases.",
        "suspects_newer::second_java_group_lock_is_not_renewed",
    ),
    weakness(
        "`lockAsync()` fails. `lockAsync(-1, unit)` reports success, but the hold expires immediately.",
        NEW,
        "Leasehold gets the lock while the Java code continues.",
        "In Java, use the blocking API, or explicit leases.",
        "suspects_newer::async_java_group_lock_never_holds",
    ),
    weakness(
        "If one value was lost, the unlock fails, although it has released the other values.",
        NEW,
        ONLY_JAVA,
        "Don't unlock again after this error. Leasehold also releases the remaining values, and reports that one was lost.",
        "suspects_newer::java_group_unlock_with_lost_value_fails",
    ),
    weakness(
        "Values whose leases have ended stay in the hash while the group is in use. If the old holder locks such a value again, the old count continues: after one `lock` and one `unlock`, the value is still held.",
        NEW,
        "Leasehold waits until the lease ends, although no client uses the value any longer.",
        "In Java, use leases that are longer than the work.",
        "suspects_newer::java_group_hold_inherits_expired_count",
    ),
    weakness(
        "An unlock wakes only one thread in each process, and that thread may be waiting for another value.",
        NEW,
        "Java's threads continue to sleep although the value that they want is free. Leasehold's waiters are woken.",
        "A release by Leasehold wakes all waiters.",
        "suspects_newer::java_group_unlock_wakes_wrong_waiter group::group_release_wakes_matching_java_waiter",
    ),
    weakness(
        "`forceUnlock()` of two values returns `false` although it has released them. `isHeldByCurrentThread()` of one value is true even if another thread or client holds it.",
        NEW,
        ONLY_JAVA,
        "Don't use either method in Java.",
        "suspects_newer::java_group_misreports_forced_unlock_and_ownership",
    ),
    weakness(
        "Leases use the clock of the client. An unlock checks the lease by this clock, but does not check whether another client now holds the value.",
        NEW,
        "Leasehold uses the server's clock. If the clock of a Java process is behind, Leasehold gets the lock while the Java process still counts its own lease as running. The Java unlock does not end Leasehold's hold, because Leasehold has removed the values whose leases had ended.",
        "Keep the clocks in step (NTP): they must differ by much less than a lease.",
        "suspects::clocks::server_clock_ahead_expires_java_leases_early",
    ),
];

const SEMAPHORES: &[Weakness] = &[
    weakness(
        "A waiter tries again only when a message arrives: if the message is lost, the waiter hangs.",
        BOTH,
        "Nothing for Leasehold's waiters, which poll (`poll_interval`).",
        "In Java, use `tryAcquire(wait, unit)` in a loop.",
        "suspects::counts::lost_message_leaves_java_waiters_asleep",
    ),
    weakness(
        "A message wakes only one asynchronous waiter of a process, however many permits the message announces. Such a waiter tries again only when a message arrives.",
        BOTH,
        "Nothing: Leasehold sends a message for each permit.",
        "In Java, release permits one by one if other code waits with `acquireAsync`, or use the blocking API.",
        "suspects::counts::one_message_serves_one_asynchronous_waiter_of_javas",
    ),
    weakness(
        "Draining a semaphore, or adding permits to it, removes its expiry.",
        BOTH,
        "A semaphore that should expire remains forever.",
        "Set the expiry again afterwards. Leasehold keeps it.",
        "suspects::counts::java_add_and_drain_drop_semaphore_expiry",
    ),
    weakness(
        "A release creates a semaphore that does not exist. The permits of a killed process are lost.",
        BOTH,
        "The same is true of Leasehold, because it follows Redisson's format.",
        "Use `releaseIfExists` (from 4.0), and permits with leases where processes may die.",
        "suspects::counts::java_release_creates_missing_semaphore each_count::counted::the_permit_of_a_killed_process_is_given_back_by_any_other",
    ),
    weakness(
        "The client's clock decides when the leases of permits end.",
        BOTH,
        "Leasehold uses the server's clock. If the clock of a Java process is behind, Leasehold gives a permit of that process to the next waiter before the process expects it.",
        "Keep the clocks in step (NTP): they must differ by much less than a lease.",
        "suspects::clocks::server_clock_ahead_expires_java_leases_early",
    ),
    weakness(
        "When the lease of a permit ends, the permit becomes free only with the next request by a client.",
        BOTH,
        "Nothing: Leasehold's waiters send a request when a lease ends.",
        "Nothing to set.",
        "each_count::leased::the_permit_of_a_killed_process_comes_back_after_its_lease",
    ),
    weakness(
        "The ids of permits are made by a fast random generator that is not secure.",
        BOTH,
        "If a client can reach the server and guess an id, it can release the permit.",
        "Set permissions on the server.",
        "open: nothing can be seen from outside; found by reading Redisson's code",
    ),
    weakness(
        "If the leases of several thousand permits have ended, Redisson's script fails from then on.",
        BOTH,
        "Java can't use the semaphore until a Leasehold client sends a request to it.",
        "Leasehold takes back any number of permits whose leases have ended.",
        "suspects::counts::thousands_of_expired_leases_break_java_permits",
    ),
    weakness(
        "A release of several ids publishes their number, not the number of free permits.",
        "4.7.0 (from 3.23)",
        "Nothing for Leasehold: any message wakes its waiters. In Java, the message wakes fewer threads than there are free permits.",
        "Nothing to set.",
        "suspects_newer::java_release_of_ids_publishes_their_count",
    ),
    weakness(
        "3.16.8 stores the ids of permits as hex digits, and 4.7.0 as bytes. Neither version can release permits of the other version.",
        BOTH,
        "Leasehold stores ids as 4.7.0 does, and can release the permits of both versions.",
        "Use one version of Redisson in all code that passes ids on.",
        "synchronizers::java_permits_without_lease_work_by_id synchronizers::new_java_releases_our_permits_by_id",
    ),
];

const LATCH: &[Weakness] = &[
    weakness(
        "A waiter tries again only when a message arrives: if the message is lost, the waiter hangs.",
        BOTH,
        "Nothing for Leasehold's waiters, which poll (`poll_interval`).",
        "In Java, use `await(wait, unit)` in a loop.",
        "suspects::counts::lost_message_leaves_java_waiters_asleep",
    ),
    weakness(
        "Deleting a latch does not wake Java's waiters.",
        BOTH,
        "Java's `await` hangs, even after a `delete` by Leasehold. Leasehold's waiters return.",
        "Count down to zero instead.",
        "suspects::counts::deleting_java_latch_wakes_no_java_waiter synchronizers::java_latch_deletion_wakes_our_waiter",
    ),
    weakness(
        "If a latch opens and is set again immediately, a waiter misses that it was open.",
        BOTH,
        "Java's `await` waits until the count reaches zero again. Leasehold's waiters return.",
        "Use a new name for each round.",
        "suspects::counts::java_waiter_misses_latch_reset_after_zero",
    ),
    weakness(
        "A latch with braces in its name fails in a cluster.",
        BOTH,
        "The same is true of Leasehold, because it must use the same channel.",
        "Don't use braces in the names of latches.",
        "open: no test uses such a name in a cluster; found by reading Redisson's code",
    ),
];

const SET_UPS: &[Weakness] = &[
    weakness(
        "In a cluster, 4.7.0 publishes to the shard, and 3.16.8 to all nodes. So neither version wakes the waiters of the other.",
        BOTH,
        "Waiters of either version wait until the lease ends, or hang.",
        "Use one version in a cluster, or turn `shardedSubscriptionMode` off in the newer one.",
        "open: seen in trials with only these two versions; in the tests, a Leasehold client always takes part",
    ),
    weakness(
        "In a cluster, a name with `}` before `{` sends the client into an endless loop.",
        NEW,
        "The server is busy with the client's requests, and the Java call never ends.",
        "Don't use braces in names.",
        "open: no test uses such a name in a cluster, because the call of that Java process would never end",
    ),
    weakness(
        "Behind a proxy, the client may switch to sharded messages, which the proxy does not pass on.",
        "4.7.0 (from 3.29)",
        "Java's waiters are not woken.",
        "Turn `shardedSubscriptionMode` off behind proxies.",
        "open: the test would need a proxy that speaks the cluster protocol",
    ),
    weakness(
        "With replicas: if an acquire from a semaphore is refused, and a replica does not answer, Redisson adds the permits of this acquire to the semaphore, although the acquire did not get any.",
        "4.7.0 (from 3.21)",
        "The semaphore then has too many permits, for all clients.",
        "Turn `checkLockSyncedSlaves` off; use permits with leases.",
        "suspects::replicas::silent_replica_makes_new_java_add_permits",
    ),
    weakness(
        "With replicas: if the reply to an acquire is lost, the acquire is sent again and counts twice. After one unlock, the lock is still held, or permits are lost.",
        BOTH,
        "Leasehold waits until the lease ends, although no client uses the lock. Permits are lost for all clients.",
        "Set `timeout` well above the server's slowest answer; use explicit leases, and permits with leases.",
        "suspects::replicas::replicated_java_locks_twice_after_lost_reply",
    ),
    weakness(
        "With replicas, every operation waits for all replicas (up to 1 s), although one answer is enough. If no replica answers, the operation fails, and 3.16.8 leaves the lock held.",
        BOTH,
        "Java calls are slow. With 3.16.8, a lock that no client uses stays held until its lease ends.",
        "Set `slavesSyncTimeout`, or turn `checkLockSyncedSlaves` off.",
        "suspects::replicas::silent_replica_makes_java_lock_fail",
    ),
    weakness(
        "If a replica takes over, a lock that the old master had granted can be lost.",
        BOTH,
        "Two clients, Leasehold's or Redisson's, hold the lock at the same time.",
        "In Rust, use acknowledged holds. In both Rust and Java, use fenced locks and let the resource that you protect check the tokens, or use a `RedLock`.",
        "open: true of any lock on replicas; a failover that loses locks is tested only with Leasehold",
    ),
    weakness(
        "While a replica takes over, it is unclear which replicas 3.16.8 counts when it waits for confirmations.",
        OLD,
        "Two clients, Leasehold's or Redisson's, may hold the lock at the same time.",
        "Use fenced locks and let the resource that you protect check the tokens, or use a `RedLock`.",
        "open: the test would need a 3.16.8 that is in the middle of an operation while a replica takes over",
    ),
    weakness(
        "By default, `isExists` and `remainTimeToLive` read from a replica, which may not have the latest data.",
        BOTH,
        "A Java process may see the beginning or the end of a Leasehold hold too late.",
        "Set `readMode` to `MASTER`.",
        "open: the test would need a replica whose data is late by a known time",
    ),
    weakness(
        "Redisson is not tested with configurations for hosted servers, with the queue semaphore, or on servers other than the server of the last run.",
        BOTH,
        "Unknown.",
        "Test the combination that you use.",
        "open: the tests with Redisson include none of these",
    ),
];

/// Returns the tests by their full names, one for each version that runs them.
fn mounted(settled: &str, known: &BTreeSet<String>) -> Vec<(String, Vec<String>)> {
    let mounts = |name: &str| {
        let whole = MOUNTS.map(|mount| format!("{mount}{name}")).into_iter();
        whole.filter(|name| known.contains(name)).collect()
    };
    let names = settled.split_whitespace();
    names.map(|name| (name.to_owned(), mounts(name))).collect()
}

/// Returns `seen` if all of these tests passed, in each version that runs them.
fn word(tests: &[(String, Vec<String>)], outcomes: &BTreeMap<String, String>) -> &'static str {
    let is_ok = |test: &String| outcomes[test] == "ok";
    match tests {
        tests if tests.iter().any(|(_, mounts)| mounts.is_empty()) => "**not run**",
        tests if tests.iter().all(|(_, mounts)| mounts.iter().all(is_ok)) => "seen",
        _ => "**FAILED**",
    }
}

/// Returns the table's cell for the tests of a row.
fn shown(settled: &str, outcomes: &BTreeMap<String, String>) -> String {
    if let Some(reason) = settled.strip_prefix(OPEN) {
        return format!("none: {reason}");
    }
    let known = outcomes.keys().cloned().collect();
    word(&mounted(settled, &known), outcomes).to_owned()
}

const HEAD: &str = "
## What Redisson does by itself

The tables list the known or suspected weaknesses of Redisson, their effect if Leasehold uses the
same name, and what to do about them. *Both* means 3.16.8 and 4.7.0. *From* and *to* name the first
and the last version with a weakness. *Seen* means that tests with live Redisson clients show the
weakness in each version that the row names. If the row says that Leasehold behaves differently, the
tests show that, too. *None* is followed by the reason why no test shows the weakness.
[interop-tests.md](interop-tests.md#tests-of-what-redisson-does-by-itself) names the tests.
";

/// Returns the part of `docs/interop.md`.
pub(crate) fn part(outcomes: &BTreeMap<String, String>) -> String {
    let mut page = HEAD.to_owned();
    for (name, weaknesses) in SECTIONS {
        let _ = write!(page, "\n### {name}\n\n");
        page.push_str("| what Redisson does | versions | effect | what to do | tests |\n");
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

The tables list the tests for [each weakness](interop.md#what-redisson-does-by-itself) that has
tests. *Seen* means that each test in the row passed.
";

/// Returns the part of `docs/interop-tests.md`.
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
fn each_weakness_names_tests_or_reason() {
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

/// Each test that shows a weakness of Redisson has a row, too.
#[test]
fn each_weakness_test_has_a_row() {
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
