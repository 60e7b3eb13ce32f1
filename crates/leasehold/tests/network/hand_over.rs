//! A plain lock that is handed over within a process: a release passes it to the next waiter there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold::testing::history::Recorder;
use leasehold::{Lock, LockGuard, Owner, kind};
use tokio::task::JoinHandle;

use super::*;
use crate::support::busy::Busy;

/// The steps of the requests that have been sent.
#[derive(Clone, Default)]
pub(super) struct Sent(Arc<Mutex<Vec<Step>>>);

impl Sent {
    pub(super) fn count(&self, step: Step) -> usize {
        let sent = self.0.lock().unwrap();
        sent.iter().filter(|one| **one == step).count()
    }

    pub(super) fn note(&self, step: Step) {
        self.0.lock().unwrap().push(step);
    }

    pub(super) fn releases(&self) -> usize {
        self.count(Step::LockRelease) + self.count(Step::LockReleaseAndNotify)
    }

    /// Counts the requests for a plain lock.
    pub(super) fn asks(&self) -> usize {
        self.count(Step::LockAcquire) + self.count(Step::LockAcquireAndEnlist)
    }
}

/// Returns a client whose server answers after a millisecond.
pub(super) fn near(server: &Embedded) -> (Client, Network, Sent) {
    at(server, MS, Duration::ZERO)
}

pub(super) fn at(server: &Embedded, request: Duration, reply: Duration) -> (Client, Network, Sent) {
    let (client, network) = over_network(server);
    let sent = Sent::default();
    let noted = sent.clone();
    network.on_request(move |asked| {
        noted.note(asked.step);
        Fate::delivered(request, reply)
    });
    (client, network, sent)
}

/// Runs all tasks that can run at this instant.
pub(super) async fn others_go_on() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Starts waiters in this order.
async fn in_line<const N: usize>(locks: [Lock; N]) -> [JoinHandle<LockGuard>; N] {
    let mut waiters = Vec::new();
    for lock in locks {
        waiters.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        tokio::task::yield_now().await;
    }
    waiters.try_into().ok().unwrap()
}

/// Returns a holder, and waiters of its process in line. No request of the waiters is under way.
async fn held<const N: usize>(client: &Client) -> (LockGuard, [JoinHandle<LockGuard>; N]) {
    let lock = client.lock("x");
    let first = lock.acquire().await.unwrap();
    let waiters = in_line(std::array::from_fn(|_| lock.clone())).await;
    sleep(3 * MS).await;
    (first, waiters)
}

#[tokio::test(start_paused = true)]
async fn release_hands_the_lock_over_without_asking() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let (first, [second, third]) = held(&client).await;
    let (number, start) = (first.number(), Instant::now());
    let (released, second) = tokio::join!(first.release(), async {
        let second = second.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_ne!(second.number(), number);
        second
    });
    released.unwrap();
    // The reply to a request that was sent after the release confirms it.
    assert_eq!(start.elapsed(), MS);
    second.release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
    assert_eq!(sent.releases(), 1, "the last one");
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handed_over_hold_is_told_as_the_next_holders() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second]) = held(&client).await;
    let told = |guard: &LockGuard| {
        let holds = client.holds();
        let [hold] = &holds[..] else {
            panic!("one is held: {holds:?}")
        };
        assert_eq!(
            (hold.number, &*hold.id),
            (guard.number(), guard.holder_id())
        );
        assert_eq!(hold.guards, 1);
        hold.clone()
    };
    let before = told(&first);
    let begins = Instant::now();
    // The second holder has the lock while the first waits for the server's confirmation, and after
    // that.
    let (released, second) = tokio::join!(first.release(), async {
        let second = second.await.unwrap();
        told(&second);
        second
    });
    released.unwrap();
    let after = told(&second);
    assert_eq!((&before.id, &before.name), (&after.id, &after.name));
    assert_eq!(after.since, begins);
    assert!(before.since < begins);
    assert_eq!(client.close().await.holds_left, 1);
    second.release().await.unwrap();
    assert_eq!(client.holds().len(), 0);
}

/// The id belongs to the server's grant. Within the first second after the grant, an operator who
/// saw the id with one holder may take the lock from the next holder of the same client. Once the
/// lock has returned to the server, this id no longer ends any hold.
#[tokio::test(start_paused = true)]
async fn force_by_id_ends_the_hold_of_the_next_holder_it_was_handed_to() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let operator = server.client();
    let (first, [second]) = held(&client).await;
    let seen = first.holder_id().to_owned();
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(second.holder_id(), seen);
    assert!(operator.force_release("x", &seen).await.unwrap());
    let lost = second.extend(MS * 60_000).await.unwrap_err();
    assert_eq!(lost.loss(), Some(&crate::support::forced()), "{lost}");

    let third = client.lock("x").acquire().await.unwrap();
    assert_ne!(third.holder_id(), seen);
    assert!(!operator.force_release("x", &seen).await.unwrap());
    third.release().await.unwrap();
}

/// Makes `tasks` tasks take the lock `times` times each, for a millisecond each time. Returns the
/// times at which each id had a new holder.
async fn ids_of<K: kind::Kind<Guard = LockGuard>>(
    lock: &Lock<K>,
    (tasks, times): (usize, usize),
) -> HashMap<String, Vec<Instant>> {
    let takes_it = async || {
        let mut stays = Vec::new();
        for _ in 0..times {
            let guard = lock.acquire().await.unwrap();
            stays.push((guard.holder_id().to_owned(), Instant::now()));
            sleep(MS).await;
            guard.release().await.unwrap();
        }
        stays
    };
    let mut ids: HashMap<_, Vec<_>> = HashMap::new();
    for (id, at) in join_all((0..tasks).map(|_| takes_it())).await.concat() {
        ids.entry(id).or_default().push(at);
    }
    ids
}

/// Even if the process keeps the lock for a long time, an operator who looks up the holder and then
/// ends its hold by this id takes the lock from that holder.
#[tokio::test(start_paused = true)]
async fn id_passes_on_for_no_longer_than_a_second() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let plain = client.lock("plain").local_hand_over(3_600_000 * MS);
    let longest = |ids: HashMap<String, Vec<Instant>>| {
        let lasts = |at: &Vec<Instant>| *at.iter().max().unwrap() - *at.iter().min().unwrap();
        ids.values().map(lasts).max().unwrap()
    };
    let passes_for = longest(ids_of(&plain, (10, 300)).await);
    assert!(
        (900 * MS..=1000 * MS).contains(&passes_for),
        "{passes_for:?}"
    );
    // The server names some of the next waiters, and the hold passes from one of them to the next.
    let passes_for = longest(ids_of(&client.fair_lock("fair"), (1000, 1)).await);
    assert!(
        (20 * MS..=1000 * MS).contains(&passes_for),
        "{passes_for:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handed_over_lock_is_renewed() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second]) = held(&client).await;
    first.release().await.unwrap();
    let second = second.await.unwrap();
    // This is three leases.
    sleep(3000 * MS).await;
    assert_eq!(second.loss(), None);
    let elsewhere = server.client().lock("x");
    assert!(elsewhere.try_acquire().await.unwrap().is_none());
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_lost_before_its_waiter_comes_is_not_taken() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let lock = client.lock("x");
    let first = lock.acquire().await.unwrap();
    let mut second = Box::pin(lock.acquire());
    assert!(second.as_mut().now_or_never().is_none());
    sleep(3 * MS).await;
    assert!(second.as_mut().now_or_never().is_none());
    assert!(server.client().lock("x").force_unlock().await.unwrap());
    // The lock has already been handed over when this request discovers that it is lost.
    first.release().await.unwrap_err();
    let second = second.await.unwrap();
    assert!(second.is_held(), "{:?}", second.loss());
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_request_behind_it() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third]) = held(&client).await;
    let start = Instant::now();
    let first = tokio::spawn(first.release());
    let second = second.await.unwrap();
    others_go_on().await;
    // The request that confirms the first release is under way.
    second.release().await.unwrap();
    assert_eq!(start.elapsed(), 2 * MS, "it was told by the next one");
    first.await.unwrap().unwrap();
    third.await.unwrap().release().await.unwrap();
}

/// The client can't know whether the first request released the lock before the other client
/// acquired it.
#[tokio::test(start_paused = true)]
async fn a_release_sent_again_does_not_speak_for_a_lock_that_another_has() {
    for (request_lost, forced) in [(true, false), (false, false), (true, true)] {
        let server = Embedded::new();
        let (client, network, _) = near(&server);
        let guard = client.lock("x").acquire().await.unwrap();
        let elsewhere = server.client().lock("x");
        match forced {
            // After a force-unlock, the server knows whose hold was ended.
            true => assert!(elsewhere.force_unlock().await.unwrap()),
            false if request_lost => assert!(server.remove("x")),
            false => {}
        }
        let mut faults = 1;
        network.on_request(move |asked| {
            let fate = Fate::delivered(MS, Duration::ZERO);
            match asked.step {
                Step::LockRelease if faults > 0 => {
                    faults -= 1;
                    match request_lost {
                        true => fate.request_lost(),
                        false => fate.reply_lost(),
                    }
                }
                _ => fate,
            }
        });
        let release = tokio::spawn(guard.release());
        let another = elsewhere.acquire().await.unwrap();
        let error = release.await.unwrap().unwrap_err();
        let kind = match forced {
            true => ErrorKind::Lost,
            false => ErrorKind::OutcomeUnknown,
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert!(another.is_held());
        another.release().await.unwrap();
    }
}

/// The first holder waits for the reply to the last release. That reply does not say whether the
/// hold had been lost before, either.
#[tokio::test(start_paused = true)]
async fn an_earlier_holder_hears_that_nobody_can_know() {
    for dropped in [false, true] {
        let server = Embedded::new();
        let (client, network, _) = near(&server);
        let (first, [second]) = held(&client).await;
        let mut faults = 1;
        network.on_request(move |asked| match asked.step {
            // The renewal is lost, because its reply would confirm the first release earlier.
            Step::LockRenew => Fate::delivered(MS, MS).request_lost(),
            Step::LockRelease | Step::LockReleaseAndNotify if faults > 0 => {
                faults -= 1;
                Fate::delivered(MS, MS).reply_lost()
            }
            _ => Fate::delivered(MS, MS),
        });
        let first = tokio::spawn(first.release());
        let second = second.await.unwrap();
        if dropped {
            drop(second);
        } else {
            let error = second.release().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        let error = first.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        client.close().await;
        assert_eq!(server.keys().len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_owner_holds_goes_back() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let owner = Owner::new();
    let first = client.lock("x").owned_by(&owner).acquire().await.unwrap();
    let [second] = in_line([client.lock("x")]).await;
    sleep(3 * MS).await;
    first.release().await.unwrap();
    assert_eq!(sent.releases(), 1);
    second.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_handed_over_to_an_owner() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let first = client.lock("x").acquire().await.unwrap();
    let owner = Owner::new();
    let owned = client.lock("x").owned_by(&owner);
    let [second] = in_line([owned.clone()]).await;
    sleep(3 * MS).await;
    first.release().await.unwrap();
    assert_eq!(sent.releases(), 1);
    let second = second.await.unwrap();
    assert!(owned.is_held_by(&owner).await.unwrap());
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_guard_hands_the_lock_over() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let (first, [second]) = held(&client).await;
    drop(first);
    let start = Instant::now();
    let second = second.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(sent.releases(), 0);
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn earlier_holder_is_not_told_of_a_later_loss() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second]) = held(&client).await;
    let mut earlier = Box::pin(first.lost());
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert!(server.client().lock("x").force_unlock().await.unwrap());
    assert_eq!(second.lost().await, crate::support::forced());
    assert!(earlier.as_mut().now_or_never().is_none());
    sleep(2000 * MS).await;
    assert!(earlier.now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn release_of_a_lost_lock_says_so_after_handing_it_over() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second]) = held(&client).await;
    assert!(server.client().lock("x").force_unlock().await.unwrap());
    let lost = first.release().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost}");
    // The second holder was handed a lock that had already been lost. It learned of the loss from
    // the same request.
    let second = second.await.unwrap();
    assert_eq!(second.loss(), Some(crate::support::forced()));
}

#[tokio::test(start_paused = true)]
async fn waiters_behind_a_lost_lock_ask_anew() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third]) = held(&client).await;
    assert!(server.client().lock("x").force_unlock().await.unwrap());
    first.release().await.unwrap_err();
    second.await.unwrap().release().await.unwrap_err();
    let third = third.await.unwrap();
    assert!(third.is_held());
    third.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_leaves_no_other_without_answer() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third]) = held(&client).await;
    let first = tokio::spawn(first.release());
    let second = second.await.unwrap();
    others_go_on().await;
    // The request that confirms the first release is under way. It does not confirm the second
    // release.
    let second = tokio::spawn(second.release());
    let third = third.await.unwrap();
    // This release is sent to the server, which answers it although no future waits for the reply.
    assert!(third.release().now_or_never().is_none());
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    client.close().await;
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_hands_on_what_it_was_given() {
    let server = Embedded::new();
    let (client, _network, _) = near(&server);
    let (first, [second, third]) = held(&client).await;
    drop(first);
    second.abort();
    let start = Instant::now();
    let third = tokio::time::timeout(2000 * MS, third).await;
    let third = third.expect("handed on").unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    third.release().await.unwrap();
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_waiter_keeps_no_lock() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.lock("x");
    let first = lock.acquire().await.unwrap();
    let mut unpolled = Box::pin(lock.acquire());
    assert!(unpolled.as_mut().now_or_never().is_none());
    sleep(3 * MS).await;
    // In this poll, the waiter learns that it has to wait.
    assert!(unpolled.as_mut().now_or_never().is_none());
    first.release().await.unwrap();
    assert_eq!(sent.releases(), 0, "it was handed over");
    let start = Instant::now();
    let elsewhere = server.client().lock("x");
    let guard = elsewhere.try_acquire_for(2000 * MS).await.unwrap();
    let guard = guard.expect("the waiter that nobody polls has given it back");
    assert!(start.elapsed() <= 200 * MS, "{:?}", start.elapsed());
    guard.release().await.unwrap();
    unpolled.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_on_other_terms_keeps_its_place() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.lock("x");
    let first = lock.acquire().await.unwrap();
    let other = lock.clone().lease(800 * MS);
    let [second, mut third] = in_line([other, lock.clone()]).await;
    sleep(3 * MS).await;
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert!((&mut third).now_or_never().is_none());
    assert_eq!(sent.releases(), 1);
    second.release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_not_confirmed_lately_goes_back() {
    let server = Embedded::new();
    let (client, _network, sent) = at(&server, 5 * MS, 5 * MS);
    let (first, [second]) = held(&client).await;
    first.release().await.unwrap();
    assert_eq!(sent.releases(), 1);
    second.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_asks_before_the_first_is_answered() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let holder = server.client().lock("x").acquire().await.unwrap();
    let lock = client.lock("x");
    let [first, second] = in_line([lock.clone(), lock.clone()]).await;
    assert_eq!(sent.asks(), 1);
    holder.release().await.unwrap();
    first.await.unwrap().release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hand_over_can_be_turned_off() {
    let server = Embedded::new();
    let (client, _network, sent) = near(&server);
    let lock = client.lock("x").local_hand_over(Duration::ZERO);
    let first = lock.acquire().await.unwrap();
    let [second] = in_line([lock.clone()]).await;
    first.release().await.unwrap();
    assert_eq!(sent.releases(), 1);
    second.await.unwrap().release().await.unwrap();
}

/// Returns tasks that use the lock for a second, and hold it for 1 ms each time.
pub(super) fn busy<K>(lock: Lock<K>, who: &str, tasks: usize) -> Busy<'_, K> {
    Busy {
        lock,
        who,
        tasks,
        lasts: 1000 * MS,
        holds_for: |_| MS,
        is_shared: false,
    }
}

/// Like [`busy`], with a plain lock that each task holds for a tenth of that time.
fn hurried<'a>(client: &Client, who: &'a str, tasks: usize) -> Busy<'a, kind::Plain> {
    Busy {
        holds_for: |_| MS / 10,
        ..busy(client.lock("x"), who, tasks)
    }
}

async fn held_by(tasks: Vec<JoinHandle<usize>>) -> Vec<usize> {
    let held = futures_util::future::join_all(tasks).await;
    held.into_iter().map(Result::unwrap).collect()
}

/// Returns the longest wait of the only task of another client, whose requests take `distance` each
/// way.
async fn longest_wait_at(distance: Duration) -> Duration {
    let server = Embedded::new();
    let (ours, _network, _) = at(&server, MS, MS);
    let (theirs, _its_network, _) = at(&server, distance, distance);
    let recorder = Recorder::new();
    let many = hurried(&ours, "ours", 64).start(&recorder);
    let (lock, end) = (theirs.lock("x"), Instant::now() + 1000 * MS);
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        let asked = recorder.ask("x", "theirs");
        let start = Instant::now();
        let guard = lock.acquire().await.unwrap();
        longest = longest.max(start.elapsed());
        let inside = asked.acquired(&guard);
        // Without this, the clock would not move where requests take no time.
        sleep(MS / 10).await;
        inside.releasing(&guard);
        guard.release().await.unwrap();
    }
    held_by(many).await;
    recorder.report().judge().unwrap();
    longest
}

#[tokio::test(start_paused = true)]
async fn far_waiters_have_their_turn_beside_a_busy_process() {
    for distance in 0..=7 {
        let longest = longest_wait_at(MS * distance).await;
        // A near waiter is served after every slice of the busy process, and a far waiter after
        // every fourth slice.
        let limit = MS * if distance <= 1 { 40 } else { 200 };
        assert!(longest <= limit, "{longest:?} at {distance} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_process_leaves_others_their_turn() {
    let server = Embedded::new();
    let (busy_one, _network, sent) = at(&server, MS, MS);
    let (other, _its_network, _) = at(&server, MS, MS);
    let recorder = Recorder::new();
    let many = hurried(&busy_one, "ours", 16).start(&recorder);
    let one = hurried(&other, "theirs", 1).start(&recorder);
    let (many, one) = (held_by(many).await, held_by(one).await);
    recorder.report().judge().unwrap();
    // The other client is served after each of our slices, which last 10 ms.
    assert!(one[0] >= 40, "{one:?} beside {many:?}");
    let (least, most) = (many.iter().min().unwrap(), many.iter().max().unwrap());
    assert!(most - least <= 2, "{many:?}");
    let asked = sent.asks();
    let all: usize = many.iter().sum();
    assert!(asked * 3 < all, "{asked} asks for {all} holds");
}
