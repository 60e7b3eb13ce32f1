//! Turns of many processes whose clocks differ, and of processes that are stopped.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::slot::{Begin, Turn, TurnState, Turns};
use leasehold::{Client, ErrorKind};
use leasehold_testkit::{ClockShim, RedisServer};

use crate::support::child::{Child, job};

const TEST: &str = "server::slots::a_process_with_a_clock_of_its_own";
const PROCESSES: usize = 50;
const PERIOD_MS: u64 = 500;
/// The number of milliseconds by which the clock of each process is fast. It is less than half a
/// slot, which leaves room for a slow request.
const FAST_MS: [i64; 5] = [-200, -100, 0, 100, 200];

/// `LEASEHOLD_SLOTS=1000` runs longer.
fn slots() -> u64 {
    let slots = std::env::var("LEASEHOLD_SLOTS");
    slots.map_or(6, |slots| slots.parse().unwrap())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn turns(client: &Client) -> Turns {
    let period = Duration::from_millis(PERIOD_MS);
    client.lock("job").once_per(period)
}

/// The job of a child process. When run as a test, this does nothing.
#[tokio::test]
async fn a_process_with_a_clock_of_its_own() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    match words[..] {
        ["slots", url, first, last] => {
            run_slots(url, first.parse().unwrap(), last.parse().unwrap()).await;
        }
        ["once", url] => run_once(url).await,
        _ => panic!("no such job: {words:?}"),
    }
}

/// Tries to get the turn of each slot when the slot begins by the clock of this process.
async fn run_slots(url: &str, first: u64, last: u64) {
    let client = Client::connect(url).await.unwrap();
    let turns = turns(&client);
    for slot in first..=last {
        let wait = (slot * PERIOD_MS).saturating_sub(now_ms());
        tokio::time::sleep(Duration::from_millis(wait)).await;
        if let Begin::Run(turn) = turns.try_begin().await.unwrap() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let since = turn.slot().unwrap().duration_since(UNIX_EPOCH).unwrap();
            let missed = turn.missed();
            turn.done().await.unwrap();
            println!("ran {} {missed}", since.as_millis());
        }
    }
    client.close().await;
}

/// Begins a turn that no other process may have, and is stopped during the job.
async fn run_once(url: &str) {
    let lease = Duration::from_secs(1);
    let client = Client::builder().lease(lease).connect(url).await.unwrap();
    let turns = client.lock("job").once_for("monday");
    let Begin::Run(turn) = turns.try_begin().await.unwrap() else {
        panic!("the turn is open");
    };
    println!("runs");
    turn.lost().await;
    println!("lost");
    let error = turn.done().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn each_slot_runs_once_with_clocks_up_to_half_a_slot_off() {
    let server = RedisServer::start().unwrap();
    let clocks = FAST_MS.map(|fast_ms| {
        let clock = ClockShim::new().unwrap();
        let by = Duration::from_millis(fast_ms.unsigned_abs());
        match fast_ms {
            0.. => clock.step_ahead(by),
            _ => clock.step_back(by),
        }
        clock
    });
    // Fifty processes need a moment to start.
    let first = (now_ms() + 3_000) / PERIOD_MS + 1;
    let last = first + slots() - 1;
    let job = format!("slots {} {first} {last}", server.url());
    let children = (0..PROCESSES).map(|number| {
        let clock = &clocks[number % clocks.len()];
        Child::by(clock, TEST, &job)
    });
    let children: Vec<_> = children.collect();
    // Each slot that ran, with the number of slots that its turn reported as missed.
    let mut runs = BTreeMap::new();
    for child in children {
        for line in child.finished() {
            let Some(ran) = line.strip_prefix("ran ") else {
                continue;
            };
            let (at_ms, missed) = ran.split_once(' ').unwrap();
            let at_ms: u64 = at_ms.parse().unwrap();
            let again = runs.insert(at_ms / PERIOD_MS, missed.parse::<u64>().unwrap());
            assert_eq!(again, None, "the slot at {at_ms} ran twice");
        }
    }
    // On a busy machine, all processes may miss a slot, and the next turn reports it. So a turn
    // after the last slot is needed to complete the sum.
    let wait = ((last + 1) * PERIOD_MS).saturating_sub(now_ms());
    tokio::time::sleep(Duration::from_millis(wait)).await;
    let client = Client::connect(&server.url()).await.unwrap();
    let Begin::Run(turn) = turns(&client).try_begin().await.unwrap() else {
        panic!("no other process asks any more");
    };
    let since = turn.slot().unwrap().duration_since(UNIX_EPOCH).unwrap();
    let after = u64::try_from(since.as_millis()).unwrap() / PERIOD_MS;
    runs.insert(after, turn.missed());
    let mut before = None;
    for (slot, missed) in &runs {
        let skipped = before.map_or(0, |before| slot - before - 1);
        assert_eq!(*missed, skipped, "{runs:?}");
        before = Some(slot);
    }
    let missed = runs.values().sum::<u64>();
    println!(
        "{} slots ran once, and {missed} were missed",
        runs.len() - 1
    );
    let earliest = *runs.keys().next().unwrap();
    assert_eq!(earliest + runs.len() as u64 + missed, after + 1);
    assert!(earliest <= last, "{runs:?}");
}

#[tokio::test]
async fn process_that_sleeps_past_its_lease_does_not_note_its_turn_as_done() {
    let server = RedisServer::start().unwrap();
    let child = Child::start(TEST, &format!("once {}", server.url()));
    child.wait_for("runs");
    child.pause();
    let client = Client::connect(&server.url()).await.unwrap();
    let turns = client.lock("job").once_for("monday");
    let Begin::Run(turn) = turns.begin().await.unwrap() else {
        panic!("its holder did not do it");
    };
    child.resume();
    child.finished();
    // The late report of the first holder did not change anything: this is still the last turn.
    let seen = client.lock("job").last_turn().await.unwrap().unwrap();
    assert_eq!(seen.hold, turn.holder_id());
    turn.done().await.unwrap();
    assert!(matches!(turns.begin().await.unwrap(), Begin::Done(_)));
}

async fn begun(turns: &Turns) -> Turn {
    match turns.begin().await.unwrap() {
        Begin::Run(turn) => turn,
        other => panic!("the turn is open: {other:?}"),
    }
}

/// A server without memory refuses most writes.
#[tokio::test]
async fn end_of_a_turn_is_recorded_without_memory() {
    let server = RedisServer::start().unwrap();
    let limit = |bytes| server.command(&["CONFIG", "SET", "maxmemory", bytes]);
    let client = Client::connect(&server.url()).await.unwrap();
    let hour = Duration::from_secs(3600);
    let per_slot = client.lock("job").once_per(hour).retry_failed(true);
    let per_id = client.lock("id").once_for("1").retry_failed(true);
    for turns in [per_slot, per_id] {
        let lock = client.lock(turns.name());
        for state in [TurnState::Failed, TurnState::Done] {
            limit("1").unwrap();
            let error = turns.try_begin().await.expect_err("there is no memory");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            limit("0").unwrap();
            let turn = begun(&turns).await;
            limit("1").unwrap();
            match state {
                TurnState::Done => turn.done().await.unwrap(),
                _ => turn.failed().await.unwrap(),
            }
            limit("0").unwrap();
            assert!(!lock.is_locked().await.unwrap(), "{state:?}");
            let last = lock.last_turn().await.unwrap();
            assert_eq!(last.expect("it is recorded").state, state);
        }
    }
}
