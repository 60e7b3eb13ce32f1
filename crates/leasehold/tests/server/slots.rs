//! Turns of many clients whose clocks differ.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::Client;
use leasehold::slot::Begin;
use leasehold_testkit::RedisServer;

const CLIENTS: u64 = 50;
const PERIOD_MS: u64 = 500;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// `LEASEHOLD_SLOTS=1000` runs longer.
fn slots() -> u64 {
    let slots = std::env::var("LEASEHOLD_SLOTS");
    slots.map_or(6, |slots| slots.parse().unwrap())
}

#[tokio::test]
async fn each_slot_runs_once_with_clocks_up_to_half_a_slot_off() {
    let server = RedisServer::start().unwrap();
    let first = now_ms() / PERIOD_MS + 3;
    // Each slot that ran, with the number of slots that the turn reported as missed.
    let runs: Arc<Mutex<BTreeMap<SystemTime, u64>>> = Arc::default();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = Client::connect(&server.url()).await.unwrap();
        let runs = Arc::clone(&runs);
        // From 200 ms early to 200 ms late: less than half a slot, with room for a slow request.
        let skew_ms = number * 400 / CLIENTS;
        clients.push(tokio::spawn(async move {
            let turns = client
                .lock("job")
                .once_per(Duration::from_millis(PERIOD_MS));
            for slot in first..first + slots() {
                let due = slot * PERIOD_MS - 200 + skew_ms;
                let wait = due.saturating_sub(now_ms());
                tokio::time::sleep(Duration::from_millis(wait)).await;
                if let Begin::Run(turn) = turns.try_begin().await.unwrap() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    let slot = turn.slot().unwrap();
                    let again = runs.lock().unwrap().insert(slot, turn.missed());
                    assert_eq!(again, None, "{slot:?} ran twice");
                    turn.done().await.unwrap();
                }
            }
            client.close().await;
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    let runs = runs.lock().unwrap();
    // On a busy machine, all clients may miss a slot, and the next turn reports it.
    let (mut before, mut missed) = (None, 0);
    for (slot, reported) in runs.iter() {
        let gap = before.map_or(Duration::ZERO, |before| {
            slot.duration_since(before).unwrap()
        });
        let skipped = gap.as_millis() / u128::from(PERIOD_MS);
        assert_eq!(u128::from(*reported), skipped.saturating_sub(1), "{runs:?}");
        before = Some(*slot);
        missed += reported;
    }
    assert!(runs.len() as u64 + missed >= slots(), "{runs:?}");
}
