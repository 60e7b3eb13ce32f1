//! Elections across failovers: tokens rise, and an observer sees each term that lasts.
//!
//! `LEASEHOLD_FAILOVERS=200` makes more failovers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::testing::history::monotonic_ns;
use leasehold::{Client, Term};
use leasehold_testkit::Sentinels;
use tokio::task::{JoinSet, block_in_place};

use super::acknowledged::failovers;

const POLL: Duration = Duration::from_millis(100);
/// A lease that lasts longer than a failover, except on a very busy machine.
const LEASE: Duration = Duration::from_secs(10);

/// A term, with the times at which its candidate asked for it, and ended it.
#[derive(Debug)]
struct Led {
    token: u64,
    asked: u64,
    ended: u64,
}

/// The events of all candidates and of the observer.
#[derive(Default)]
struct Story {
    /// The payloads with which candidates have stood. Each payload is used once.
    stood: Mutex<BTreeSet<String>>,
    /// The terms by payload.
    led: Mutex<BTreeMap<String, Led>>,
    /// The tokens and payloads that the observer saw.
    seen: Mutex<Vec<(u64, String)>>,
    is_over: AtomicBool,
}

impl Story {
    fn has_seen(&self, token: u64) -> bool {
        let seen = self.seen.lock().unwrap();
        seen.iter().any(|(its, _)| *its == token)
    }

    /// Waits until the observer has seen this term. The observer must see it, because the term
    /// lasts until then.
    async fn is_seen(&self, term: &Term) {
        let limit = Duration::from_secs(60);
        let seen = async {
            while !self.has_seen(term.token()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::time::timeout(limit, term.protect(seen)).await;
        // A failover may have lost the term.
        let _ = seen.expect("a term that lasts is seen");
    }

    fn judge(&self) {
        let (led, seen) = (self.led.lock().unwrap(), self.seen.lock().unwrap());
        assert!(seen.is_sorted_by(|one, next| one.0 < next.0), "{seen:?}");
        let stood = self.stood.lock().unwrap();
        let mut payloads = BTreeSet::new();
        for (token, payload) in &*seen {
            assert!(payloads.insert(payload), "{payload} was seen twice");
            // If the answer to a candidate was lost, it has led according to the server, without
            // knowing it.
            assert!(stood.contains(payload), "no candidate has {payload}");
            if let Some(led) = led.get(payload) {
                assert_eq!(led.token, *token, "of {payload}");
            }
        }
        for (payload, term) in &*led {
            for (other, later) in &*led {
                let is_later = term.ended <= later.asked;
                let rises = term.token < later.token;
                assert!(!is_later || rises, "{payload} {term:?}, {other} {later:?}");
            }
        }
    }
}

async fn stands_until_over(client: Client, number: usize, story: Arc<Story>) {
    for attempt in 0.. {
        if story.is_over.load(Ordering::SeqCst) {
            return;
        }
        let payload = format!("{number}:{attempt}");
        story.stood.lock().unwrap().insert(payload.clone());
        let election = client.election("x").payload(&*payload);
        let asked = monotonic_ns();
        match election.lease(LEASE).poll_interval(POLL).stand().await {
            Ok(term) => {
                let token = term.token();
                story.is_seen(&term).await;
                // The term may be lost, or its end may not be confirmed.
                let ended = monotonic_ns();
                let _ = term.resign().await;
                let led = Led {
                    token,
                    asked,
                    ended,
                };
                story.led.lock().unwrap().insert(payload, led);
                tokio::time::sleep(POLL / 10).await;
            }
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

async fn observes_until_over(client: Client, story: Arc<Story>) {
    let mut terms = client.election("x").poll_interval(POLL).observe();
    while let Some(next) = terms.next().await {
        if let Some(leader) = next.expect("no outage is so long") {
            let seen = (leader.token.unwrap(), leader.payload.unwrap());
            story.seen.lock().unwrap().push(seen);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_and_terms_are_seen_across_failovers() {
    let sentinels = Sentinels::start(1);
    let story = Arc::<Story>::default();
    let connected = async || Client::connect(&sentinels.url()).await.unwrap();
    let observer = connected().await;
    let observes = tokio::spawn(observes_until_over(observer.clone(), Arc::clone(&story)));
    let mut candidates = JoinSet::new();
    for number in 0..3 {
        let client = connected().await;
        candidates.spawn(stands_until_over(client, number, Arc::clone(&story)));
    }
    for _ in 0..failovers() {
        let before = story.led.lock().unwrap().len();
        block_in_place(|| sentinels.fail_over());
        let more = async {
            while story.led.lock().unwrap().len() < before + 4 {
                tokio::time::sleep(POLL / 10).await;
            }
        };
        let limit = Duration::from_secs(120);
        tokio::time::timeout(limit, more)
            .await
            .expect("candidates lead after a failover");
    }
    story.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = candidates.join_next().await {
        ended.unwrap();
    }
    observer.close().await;
    observes.await.unwrap();
    story.judge();
}
