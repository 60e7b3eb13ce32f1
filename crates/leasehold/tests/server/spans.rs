//! Each span of `docs/tracing.md` occurs, with its attributes and links.

use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::{Client, Embedded, ErrorKind, Owner};
use leasehold_testkit::RedisServer;

use crate::support::spans::{Seen, Spans, documented_spans};
use crate::support::{HOUR, eventually};

/// Returns the only span of this name.
fn one(spans: &Spans, name: &str) -> Seen {
    let all = spans.all(name);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

fn last(spans: &Spans, name: &str) -> Seen {
    spans.all(name).pop().unwrap()
}

#[tokio::test]
async fn every_span_has_the_attributes_of_the_page_and_no_others() {
    let (spans, _guard) = Spans::listen();
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.fenced_lock("x").acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.extend(HOUR).await.unwrap();
    client.lock("x").force_unlock().await.unwrap();
    assert_eq!(
        guard.release().await.unwrap_err().kind(),
        ErrorKind::Lost,
        "so that it has a word for that, too"
    );
    assert!(last(&spans, "leasehold.release").is("result", "lost"));
    let guard = client.lock("x").acquire().await.unwrap();
    client.lock("x").force_unlock().await.unwrap();
    assert_eq!(
        guard.extend(HOUR).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert!(last(&spans, "leasehold.renewal").is("result", "lost"));
    assert!(last(&spans, "leasehold.hold").is("loss", "forced"));
    assert_eq!(spans.words(), documented_spans());
}

#[tokio::test]
async fn acquire_hold_and_release_are_linked() {
    let (spans, _guard) = Spans::listen();
    let client = Client::embedded();
    let guard = client.lock("x").acquire().await.unwrap();
    let (acquire, hold) = (
        one(&spans, "leasehold.acquire"),
        one(&spans, "leasehold.hold"),
    );
    assert!(acquire.is("kind", "lock") && acquire.is("name", "x"));
    assert!(acquire.is("result", "granted") && acquire.is("granted_by", "server"));
    assert_eq!(
        (acquire.number_of("asks"), acquire.number_of("wake_ups")),
        (1, 0)
    );
    assert!(
        !acquire.attributes.contains_key("wait.reason"),
        "{acquire:?}"
    );
    assert!(!acquire.is_open() && hold.is_open());
    assert_eq!(hold.follows, [acquire.number]);
    assert!(hold.is("holder", guard.holder_id()), "{hold:?}");

    guard.release().await.unwrap();
    let release = one(&spans, "leasehold.release");
    assert_eq!(release.follows, [hold.number]);
    assert!(release.is("result", "released") && !release.is_open());
    assert!(!spans.at(hold.number).is_open());
}

#[tokio::test]
async fn handed_over_hold_leads_to_the_next_acquire_and_its_hold() {
    let (spans, _guard) = Spans::listen();
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let handed = || {
        let acquires = spans.all("leasehold.acquire");
        acquires
            .into_iter()
            .find(|it| it.is("granted_by", "process"))
    };
    // A hand-over needs a confirmation that is at most 5 ms old. On a busy machine it may be older.
    eventually("a hold is handed over", async || {
        let one = async || client.lock("x").acquire().await.unwrap().release().await;
        let (first, second, third) = tokio::join!(one(), one(), one());
        first.and(second).and(third).unwrap();
        handed().is_some()
    })
    .await;
    let acquire = handed().unwrap();
    let [before] = acquire.follows[..] else {
        panic!("{acquire:?}");
    };
    let before = spans.at(before);
    assert_eq!(before.name, "leasehold.hold");
    assert_eq!(before.follows.len(), 1, "{before:?}");
    assert_eq!(spans.at(before.follows[0]).name, "leasehold.acquire");
    assert_ne!(before.follows, [acquire.number]);
    let holds = spans.all("leasehold.hold");
    let next = holds.iter().filter(|it| it.follows == [acquire.number]);
    let next: Vec<_> = next.collect();
    assert_eq!(next.len(), 1, "{next:?}");
    assert_ne!(next[0].number, before.number);
    let releases = spans.all("leasehold.release");
    let passed = releases.iter().find(|it| it.follows == [before.number]);
    assert!(passed.unwrap().is("result", "handed_over"), "{passed:?}");
    assert!(holds.iter().all(|hold| !hold.is_open()), "{holds:?}");
}

#[tokio::test]
async fn acquire_tells_why_it_waits_and_what_woke_it() {
    let (spans, _guard) = Spans::listen();
    let server = RedisServer::start().unwrap();
    let holder = Client::connect(&server.url()).await.unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = holder.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(HOUR);
    let mut waits = Box::pin(lock.acquire());
    // Only the release wakes the waiter.
    eventually("it listens", async || {
        assert!((&mut waits).now_or_never().is_none());
        server
            .channels()
            .contains(&"redisson_lock__channel:{x}".to_owned())
    })
    .await;
    let behind = lock.try_acquire().await.unwrap();
    assert!(behind.is_none());
    let behind = last(&spans, "leasehold.acquire");
    assert!(behind.is("wait.reason", "in_line") && behind.is("result", "busy"));
    assert_eq!(behind.number_of("asks"), 0);

    let (released, got) = tokio::join!(guard.release(), waits);
    released.unwrap();
    let waited = spans.all("leasehold.acquire").remove(1);
    assert!(waited.is("wait.reason", "held") && waited.is("result", "granted"));
    assert!(waited.number_of("asks") >= 2 && waited.number_of("wake_ups") >= 1);
    drop(got);

    assert!(lock.acquire().now_or_never().is_none());
    assert!(last(&spans, "leasehold.acquire").is("result", "cancelled"));
}

#[tokio::test(start_paused = true)]
async fn renewals_are_children_of_their_hold() {
    let (spans, _guard) = Spans::listen();
    let keyspace = Embedded::new();
    let (client, network) = keyspace.client_over_network(&Client::builder()).unwrap();
    let guards = [
        client.lock("x").acquire().await.unwrap(),
        client.lock("y").acquire().await.unwrap(),
    ];
    let holds = spans.all("leasehold.hold");
    let of = |n: usize| {
        let mut renewals = spans.all("leasehold.renewal");
        renewals.retain(|it| it.parent == Some(holds[n].number));
        renewals
    };
    let ended = |n: usize, word: &str| of(n).iter().filter(|it| it.is("result", word)).count();
    eventually("both are renewed", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ended(0, "confirmed") > 0 && ended(1, "confirmed") > 0
    })
    .await;
    assert_eq!(ended(0, "failed") + ended(1, "failed"), 0);
    network.refuse(true);
    for guard in &guards {
        guard.lost().await;
    }
    assert!(ended(0, "failed") > 0 && ended(1, "failed") > 0);
    let error = client.lock("z").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let acquire = last(&spans, "leasehold.acquire");
    assert!(acquire.is("result", "unavailable") && acquire.is("wait.reason", "no_answer"));
}

#[tokio::test]
async fn re_entry_follows_the_hold_that_it_has_joined() {
    let (spans, _guard) = Spans::listen();
    let client = Client::embedded();
    let lock = client.lock("x").owned_by(&Owner::new());
    let _outer = lock.acquire().await.unwrap();
    let hold = one(&spans, "leasehold.hold");
    let _inner = lock.acquire().await.unwrap();
    let inner = last(&spans, "leasehold.acquire");
    assert!(inner.is("result", "entered") && inner.number_of("asks") == 0);
    assert_eq!(inner.follows, [hold.number]);
    assert_eq!(one(&spans, "leasehold.hold").number, hold.number);
}
