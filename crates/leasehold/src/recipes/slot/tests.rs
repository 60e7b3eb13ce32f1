//! Slots and their boundaries, on a keyspace whose clock the test sets.

use super::steps::{ANY, Begin, FAILED, Finish};
use crate::backend::memory::Keyspace;
use crate::backend::step::Value;

const PERIOD: u64 = 60_000;

struct Server {
    keyspace: Keyspace,
    holds: u64,
    repeats: u64,
    most_once: bool,
    offset: u64,
    keep_ms: u64,
}

impl Server {
    fn at(now_ms: u64) -> Self {
        let mut server = Self {
            keyspace: Keyspace::default(),
            holds: 0,
            repeats: 0,
            most_once: false,
            offset: 0,
            keep_ms: 90_000_000,
        };
        server.keyspace.set_now(now_ms);
        server
    }

    fn hold(&self) -> String {
        format!("cccccccc-0000-4000-8000-000000000000:{}", self.holds)
    }

    fn begin(&mut self) -> Vec<i64> {
        self.begin_requested_at(self.keyspace.now_ms())
    }

    fn begin_requested_at(&mut self, requested_ms: u64) -> Vec<i64> {
        self.holds += 1;
        self.begin_again(requested_ms)
    }

    /// Repeats the last request. Returns `[1, slot, missed]` if the turn was granted, and only the
    /// code otherwise.
    fn begin_again(&mut self, requested_ms: u64) -> Vec<i64> {
        let hold = self.hold();
        let step = Begin {
            lock: b"x",
            newest: b"leasehold:{x}:slot",
            record: b"leasehold:{x}:slot",
            hold: hold.as_bytes(),
            lease_ms: 30_000,
            period_ms: PERIOD,
            offset_ms: self.offset,
            requested_ms,
            id: b"",
            repeats: self.repeats,
            most_once: self.most_once,
            by: b"me",
            keep_ms: self.keep_ms,
        };
        let operation = step.operation();
        let reply = (operation.step.twin)(&mut self.keyspace, &operation.parts);
        let Ok(Value::List(items)) = reply else {
            panic!("{reply:?}");
        };
        let shown = if items[0] == Value::Int(1) { 3 } else { 1 };
        let numbers = items.iter().take(shown).map_while(|item| match item {
            Value::Int(number) => Some(*number),
            _ => None,
        });
        numbers.collect()
    }

    fn finish(&mut self, state: &str) -> i64 {
        let hold = self.hold();
        let step = Finish {
            lock: b"x",
            newest: b"leasehold:{x}:slot",
            record: b"leasehold:{x}:slot",
            hold: hold.as_bytes(),
            channel: b"c",
            state: state.as_bytes(),
            rc: b"",
            keep_ms: self.keep_ms,
            slot: 100,
            period_ms: PERIOD,
            offset_ms: self.offset,
            id: b"",
            by: b"me",
            began_ms: 1,
        };
        let operation = step.operation();
        match (operation.step.twin)(&mut self.keyspace, &operation.parts) {
            Ok(Value::Int(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self) -> Vec<i64> {
        let reply = self.begin();
        assert_eq!(reply[0], 1, "{reply:?}");
        assert_eq!(self.finish("done"), 1);
        reply
    }
}

#[test]
fn slot_is_the_nearest_one() {
    for (now_ms, slot) in [
        (100 * PERIOD - PERIOD / 2, 100),
        (100 * PERIOD, 100),
        (100 * PERIOD + PERIOD / 2 - 1, 100),
        (100 * PERIOD + PERIOD / 2, 101),
    ] {
        assert_eq!(Server::at(now_ms).run(), [1, slot, 0], "{now_ms}");
    }
    let mut server = Server::at(100 * PERIOD + 10_000 - PERIOD / 2);
    server.offset = 10_000;
    assert_eq!(server.run(), [1, 100, 0]);
}

#[test]
fn request_that_runs_late_is_for_the_slot_of_its_time() {
    let mut server = Server::at(101 * PERIOD);
    let requested = 101 * PERIOD - PERIOD / 2 - 1;
    assert_eq!(server.begin_requested_at(requested), [1, 100, 0]);
    server.finish("done");
    // Meanwhile another client had the next slot.
    server.run();
    assert_eq!(server.begin_requested_at(requested), [3]);
    server.repeats = ANY;
    assert_eq!(
        server.begin_requested_at(requested),
        [1, 101, 0],
        "the next slot stays closed"
    );
}

#[test]
fn slot_runs_once_from_edge_to_edge() {
    let mut server = Server::at(100 * PERIOD - PERIOD / 2);
    assert_eq!(server.run()[1], 100);
    server.keyspace.set_now(100 * PERIOD + PERIOD / 2 - 1);
    assert_eq!(server.begin(), [3]);
    server.keyspace.set_now(100 * PERIOD + PERIOD / 2);
    assert_eq!(server.run(), [1, 101, 0]);
}

#[test]
fn skipped_slots_are_counted() {
    let mut server = Server::at(100 * PERIOD);
    server.run();
    server.keyspace.set_now(104 * PERIOD);
    assert_eq!(server.run(), [1, 104, 3]);
}

#[test]
fn turn_that_no_client_began_counts_as_missed_later() {
    let mut server = Server::at(100 * PERIOD);
    server.run();
    server.keyspace.set_now(103 * PERIOD);
    assert_eq!(server.begin(), [1, 103, 2]);
    server.finish("open");
    assert_eq!(server.begin(), [1, 103, 2], "in the same slot");
    server.finish("open");
    server.keyspace.set_now(105 * PERIOD);
    assert_eq!(server.begin(), [1, 105, 4]);
}

#[test]
fn clock_that_is_set_back_opens_no_slot() {
    let mut server = Server::at(100 * PERIOD);
    server.run();
    for slot in [99, 100, 40] {
        server.keyspace.set_now(slot * PERIOD);
        assert_eq!(server.begin()[0], 3, "{slot}");
    }
    server.keyspace.set_now(101 * PERIOD);
    assert_eq!(server.run(), [1, 101, 0]);
}

#[test]
fn wait_is_for_the_slot_of_its_first_answer() {
    let mut server = Server::at(100 * PERIOD);
    server.begin();
    server.keyspace.set_now(101 * PERIOD);
    server.finish("done");
    server.holds = 7;
    assert_eq!(server.begin_requested_at(100 * PERIOD), [3]);
    assert_eq!(server.begin()[..2], [1, 101]);
}

#[test]
fn turn_whose_lease_ran_out_is_open_or_closed_as_asked() {
    for most_once in [false, true] {
        let mut server = Server::at(100 * PERIOD);
        server.begin();
        server.keyspace.set_now(100 * PERIOD + 1000);
        assert_eq!(server.begin()[0], 2);
        server.keyspace.del(b"x");
        server.most_once = most_once;
        assert_eq!(server.begin()[0], if most_once { 3 } else { 1 });
    }
}

#[test]
fn done_turn_that_was_lost_has_failed() {
    let mut server = Server::at(100 * PERIOD);
    server.begin();
    server.keyspace.del(b"x");
    assert_eq!(server.finish("done"), 0);
    assert_eq!(server.begin()[0], 3, "not repeated");
    server.repeats = FAILED;
    assert_eq!(server.begin()[0], 1);
    // A copy of the request that ended the turn gets the same reply.
    assert_eq!((server.finish("done"), server.finish("done")), (1, 1));
}

#[test]
fn late_copy_of_a_request_grants_nothing() {
    let now_ms = 100 * PERIOD;
    for state in ["done", "failed", "open"] {
        let mut server = Server::at(now_ms);
        server.repeats = ANY;
        assert_eq!(server.begin(), [1, 100, 0], "{state}");
        assert_eq!(server.begin_again(now_ms), [1, 100, 0], "{state}: it runs");
        assert_eq!(server.finish(state), 1);
        assert_eq!(server.begin_again(now_ms), [2], "{state}: it has ended");
        assert_eq!(server.begin(), [1, 100, 0], "{state}: a new request");
        server.keyspace.del(b"x");
        assert_eq!(server.begin_again(now_ms), [2], "{state}: it was lost");
    }
}

#[test]
fn late_copy_of_a_request_grants_nothing_after_other_turns() {
    let now_ms = 100 * PERIOD;
    let mut server = Server::at(now_ms);
    server.repeats = ANY;
    server.run();
    let (copied, others) = (server.holds, 4);
    for other in 1..=others {
        server.holds = copied + other - 1;
        server.run();
        server.holds = copied;
        assert_eq!(server.begin_again(now_ms), [2], "after {other} turns");
    }
}

#[test]
fn repeated_turn_is_the_last_one_that_does_not_run() {
    for state in ["done", "failed", "open"] {
        let mut server = Server::at(100 * PERIOD);
        server.begin();
        server.repeats = ANY;
        assert_eq!(server.begin()[0], 2, "it runs");
        server.holds -= 1;
        assert_eq!(server.finish(state), 1);
        assert_eq!(server.run(), [1, 100, 0], "{state}");
        server.keyspace.set_now(103 * PERIOD - 1);
        assert_eq!(
            server.run(),
            [1, 102, 1],
            "{state}: the next slot stays open"
        );
        server.repeats = 0;
        assert_eq!(server.run(), [1, 103, 0], "{state}");
        server.repeats = ANY;
        assert_eq!(
            server.run(),
            [1, 103, 0],
            "{state}: it has run before its time"
        );
        server.repeats = 0;
        assert_eq!(server.begin()[0], 3, "{state}");
    }
    let mut server = Server::at(100 * PERIOD);
    (server.repeats, server.most_once) = (ANY, true);
    server.begin();
    server.keyspace.del(b"x");
    assert_eq!(server.begin()[0], 1, "its holder died");
}

#[test]
fn slot_of_a_clock_that_was_ahead_ends_on_request() {
    let mut server = Server::at(100 * PERIOD);
    server.run();
    server.keyspace.set_now(40 * PERIOD);
    assert_eq!(server.begin()[0], 3);
    server.repeats = ANY;
    assert_eq!(server.run(), [1, 40, 0]);
    server.repeats = 0;
    assert_eq!(server.begin()[0], 3);
    server.keyspace.set_now(41 * PERIOD);
    assert_eq!(server.run(), [1, 41, 0]);
}

/// A run by hand without `again` took the next slot, far from its beginning.
#[test]
fn slot_that_was_taken_too_early_opens_on_request() {
    let mut server = Server::at(100 * PERIOD + PERIOD / 2);
    assert_eq!(server.run(), [1, 101, 0]);
    server.repeats = ANY;
    assert_eq!(server.run(), [1, 100, 0]);
    server.repeats = 0;
    server.keyspace.set_now(101 * PERIOD);
    assert_eq!(server.run(), [1, 101, 0]);
}

#[test]
fn repeated_turn_that_no_client_began_leaves_the_turn_as_it_was() {
    for (state, repeats) in [("done", ANY), ("failed", ANY), ("failed", FAILED)] {
        let mut server = Server::at(100 * PERIOD);
        server.begin();
        server.finish(state);
        server.repeats = repeats;
        assert_eq!(server.begin(), [1, 100, 0], "{state}");
        assert_eq!(server.finish("open"), 1);
        server.repeats = 0;
        assert_eq!(server.begin(), [3], "{state}: it has ended");
        server.keyspace.set_now(101 * PERIOD);
        assert_eq!(server.begin(), [1, 101, 0], "{state}: none was missed");
    }
    let mut server = Server::at(100 * PERIOD);
    server.begin();
    server.keyspace.del(b"x");
    (server.repeats, server.most_once) = (ANY, true);
    assert_eq!(server.begin(), [1, 100, 0]);
    assert_eq!(server.finish("open"), 1);
    assert_eq!(server.begin_again(100 * PERIOD), [2], "a late copy");
    server.repeats = 0;
    assert_eq!(server.begin(), [3], "its holder died");
}

#[test]
fn record_that_is_lost_during_the_job_is_written_again() {
    let mut server = Server::at(100 * PERIOD);
    server.begin();
    server.keyspace.del(b"leasehold:{x}:slot");
    assert_eq!(server.finish("done"), 1);
    assert_eq!(server.begin(), [3]);
}

#[test]
fn repetition_that_never_ended_leaves_what_it_repeated() {
    let mut server = Server::at(100 * PERIOD);
    server.run();
    server.repeats = ANY;
    server.begin();
    // Its grant was lost, and its lease has ended.
    server.keyspace.del(b"x");
    server.repeats = 0;
    assert_eq!(server.begin(), [1, 100, 0]);
    assert_eq!(server.finish("open"), 1);
    assert_eq!(server.begin(), [3], "it was done");
}

#[test]
fn repetition_with_other_slots_that_no_client_began_leaves_slots_and_lifetime() {
    for state in ["done", "open"] {
        let mut server = Server::at(100 * PERIOD);
        server.begin();
        server.finish(state);
        let ttl = server.keyspace.pttl(b"leasehold:{x}:slot");
        server.repeats = ANY;
        server.offset = 1000;
        server.keep_ms = 1000;
        assert_eq!(server.begin()[0], 1, "{state}");
        assert_eq!(server.finish("open"), 1);
        assert_eq!(server.keyspace.pttl(b"leasehold:{x}:slot"), ttl, "{state}");
        (server.repeats, server.offset) = (0, 0);
        let code = if state == "done" { 3 } else { 1 };
        assert_eq!(server.begin()[0], code, "{state}");
    }
}

#[test]
fn late_copies_are_refused_after_repetitions_that_no_client_began() {
    let now_ms = 100 * PERIOD;
    let mut server = Server::at(now_ms);
    server.run();
    server.repeats = ANY;
    server.begin();
    server.finish("open");
    let (copied, others) = (server.holds, 3);
    for other in 1..=others {
        server.holds = copied + other - 1;
        server.begin();
        server.finish("open");
        server.holds = copied;
        assert_eq!(server.begin_again(now_ms), [2], "after {other} repetitions");
    }
}
