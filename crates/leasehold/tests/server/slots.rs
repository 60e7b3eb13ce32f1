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
    let runs: Arc<Mutex<BTreeMap<SystemTime, u32>>> = Arc::default();
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
                    *runs.lock().unwrap().entry(slot).or_default() += 1;
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
    assert!(runs.values().all(|times| *times == 1), "{runs:?}");
    // A busy machine may delay requests into the next slot, but they skip none between.
    assert!(runs.len() as u64 >= slots(), "{runs:?}");
}
