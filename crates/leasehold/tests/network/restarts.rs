//! A `RedLock` after one of its servers has forgotten a hold: that server has no vote for as long
//! as any hold may last.

use std::time::Duration;

use leasehold::testing::Network;
use leasehold::{Client, Embedded, ErrorKind, LockGuard, RedLock};
use tokio::time::{Instant, sleep};

use crate::MS;
use crate::support::acquire_and_release;

const SECOND: Duration = Duration::from_secs(1);
const NOTE: &str = "leasehold:{x}:longest";

struct Scene {
    masters: [Embedded; 3],
    ours: Vec<Client>,
    theirs: Vec<Client>,
    networks: Vec<Network>,
}

impl Scene {
    async fn new() -> Self {
        let masters = [Embedded::new(), Embedded::new(), Embedded::new()];
        let builder = Client::builder().reply_timeout(300 * MS);
        let clients = || {
            let sides = masters.each_ref();
            let sides = sides.map(|master| master.client_over_network(&builder).unwrap());
            sides.into_iter().unzip()
        };
        let (ours, _): (_, Vec<_>) = clients();
        let (theirs, networks) = clients();
        // All servers have been up for a long time.
        sleep(3600 * SECOND).await;
        Self {
            masters,
            ours,
            theirs,
            networks,
        }
    }

    fn ours(&self) -> RedLock {
        majority(&self.ours)
    }

    fn theirs(&self) -> RedLock {
        majority(&self.theirs).outage_timeout(3600 * SECOND)
    }

    /// Acquires the lock on the first two servers. The third server is free afterwards.
    async fn hold_of_two(&self, lock: &RedLock) -> LockGuard {
        let beside = self.masters[2].client().lock("x");
        let beside = beside.acquire().await.unwrap();
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.members().len(), 2);
        beside.release().await.unwrap();
        guard
    }

    /// Restarts the first server, which forgets its grants. While `guard` is valid, no other client
    /// gets the lock. After that, another client gets it.
    async fn is_kept_until_its_end(&self, guard: LockGuard, lasts: Duration) {
        let start = Instant::now();
        self.masters[0].restart();
        let next = self.theirs().acquire().await.unwrap();
        assert!(!guard.is_held(), "let in after {:?}", start.elapsed());
        assert!(start.elapsed() < lasts + 3 * SECOND, "kept out for ever");
        next.release().await.unwrap();
    }
}

fn majority(clients: &[Client]) -> RedLock {
    RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap()
}

#[tokio::test(start_paused = true)]
async fn server_hiding_its_restart_cannot_vote() {
    let scene = Scene::new().await;
    scene.networks[0].hide_start(true);
    let guard = scene
        .hold_of_two(&scene.ours().fixed_lease(25 * SECOND))
        .await;
    scene.is_kept_until_its_end(guard, 30 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn each_unexplained_reconnect_suspends_the_vote() {
    let scene = Scene::new().await;
    scene.networks[0].hide_start(true);
    let votes = async || {
        let guard = scene.theirs().acquire().await.unwrap();
        let votes = guard.members().len();
        guard.release().await.unwrap();
        votes
    };
    assert_eq!(votes().await, 3);
    for _ in 0..2 {
        scene.networks[0].cut();
        assert_eq!(votes().await, 2);
        sleep(29 * SECOND).await;
        assert_eq!(votes().await, 2);
        sleep(SECOND).await;
        assert_eq!(votes().await, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_outlasts_the_restart_of_all_servers() {
    let scene = Scene::new().await;
    let lock = majority(&scene.ours).outage_timeout(5 * SECOND);
    scene.masters.iter().for_each(Embedded::restart);
    let start = Instant::now();
    // No client holds the lock, but no server can know that.
    let late = lock.try_acquire_for(10 * SECOND).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Unavailable);
    assert!(late.to_string().contains("started a moment ago"), "{late}");
    let guard = lock.acquire().await.unwrap();
    assert!(start.elapsed() > 29 * SECOND, "{:?}", start.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn servers_silent_after_restart_are_an_outage() {
    let scene = Scene::new().await;
    let lock = majority(&scene.theirs).outage_timeout(5 * SECOND);
    scene.masters.iter().for_each(Embedded::restart);
    assert!(lock.try_acquire_for(SECOND).await.is_err());
    for network in &scene.networks {
        network.refuse(true);
    }
    let silent = tokio::time::timeout(45 * SECOND, lock.acquire()).await;
    let silent = silent.expect("that is an outage").unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::Unavailable, "{silent}");
}

#[tokio::test(start_paused = true)]
async fn shorter_request_respects_an_extended_hold() {
    let scene = Scene::new().await;
    let guard = scene.hold_of_two(&scene.ours().fixed_lease(SECOND)).await;
    guard.extend(25 * SECOND).await.unwrap();
    let start = Instant::now();
    scene.masters[0].restart();
    let short = scene.theirs().fixed_lease(SECOND);
    assert!(short.try_acquire_for(20 * SECOND).await.unwrap().is_none());
    let next = short.acquire().await.unwrap();
    assert!(!guard.is_held(), "let in after {:?}", start.elapsed());
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_lease_of_a_majority_exceeds_the_longest() {
    let scene = Scene::new().await;
    let refused = |error: leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("longest"), "{error}");
    };
    let long = 31 * SECOND;
    let lock = scene.ours();
    refused(lock.clone().fixed_lease(long).acquire().await.unwrap_err());
    let owner = leasehold::Owner::new();
    let guard = lock.clone().owned_by(&owner).acquire().await.unwrap();
    refused(guard.extend(long).await.unwrap_err());
    refused(guard.members()[0].extend(long).await.unwrap_err());
    // The owner's locks of single members share the holds.
    let member = scene.ours[0].lock("x").owned_by(&owner);
    refused(member.fixed_lease(long).acquire().await.unwrap_err());
    assert!(guard.valid_until() < Instant::now() + 30 * SECOND);
    guard.extend(30 * SECOND).await.unwrap();
    guard.release().await.unwrap();

    let mut members = Vec::new();
    for client in &scene.ours {
        let member = client.lock("x").owned_by(&owner).fixed_lease(long);
        members.push(member.acquire().await.unwrap());
    }
    refused(lock.clone().owned_by(&owner).acquire().await.unwrap_err());
    drop(members);
    // If no server forgets a hold, the lease needs no limit.
    let trusting = lock.distrust_restarted(false).fixed_lease(long);
    let guard = trusting.acquire().await.unwrap();
    guard.extend(3600 * SECOND).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn longer_lease_is_first_noted_everywhere() {
    let scene = Scene::new().await;
    let lock = scene.theirs().longest_lease(60 * SECOND);
    scene.networks[2].refuse(true);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("must first store"), "{error}");
    scene.networks[2].refuse(false);
    let guard = lock.acquire().await.unwrap();
    guard.extend(60 * SECOND).await.unwrap();
    guard.release().await.unwrap();
    for master in &scene.masters {
        assert_eq!(master.keys(), [NOTE]);
        assert_eq!(master.ttl_ms(NOTE), -1);
    }
    // The handle must reach all servers only once, but each acquire writes the note again.
    scene.networks[2].refuse(true);
    scene.masters[1].remove(NOTE);
    acquire_and_release(&lock).await;
    assert_eq!(scene.masters[1].keys(), [NOTE]);
    // A lock whose `longest_lease` does not exceed the default leaves no note.
    for master in &scene.masters {
        assert!(master.remove(NOTE));
    }
    acquire_and_release(&scene.ours()).await;
    assert!(scene.masters[0].keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn client_with_defaults_honours_longer_notes() {
    let scene = Scene::new().await;
    let long = scene
        .ours()
        .longest_lease(60 * SECOND)
        .fixed_lease(60 * SECOND);
    let guard = scene.hold_of_two(&long).await;
    scene.is_kept_until_its_end(guard, 60 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn one_servers_note_applies_to_earlier_votes() {
    let scene = Scene::new().await;
    let long = scene
        .ours()
        .longest_lease(60 * SECOND)
        .fixed_lease(60 * SECOND);
    let guard = scene.hold_of_two(&long).await;
    scene.masters[0].restart();
    // If only the default lease counted, the restarted server would already have a vote. That
    // server answers first.
    sleep(31 * SECOND).await;
    let said = scene.theirs().try_acquire().await;
    assert!(said.unwrap().is_none(), "one has no vote, and one is held");
    assert!(guard.is_held());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn all_clients_must_share_the_longest_lease() {
    let scene = Scene::new().await;
    let guard = scene
        .hold_of_two(&scene.ours().fixed_lease(25 * SECOND))
        .await;
    scene.masters[0].restart();
    let short = scene.theirs().longest_lease(2 * SECOND).fixed_lease(SECOND);
    let beside = short.acquire().await.unwrap();
    assert!(guard.is_held(), "it could not know");
    beside.release().await.unwrap();
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn note_all_servers_forgot_protects_nobody() {
    let scene = Scene::new().await;
    let long = scene
        .ours()
        .longest_lease(60 * SECOND)
        .fixed_lease(60 * SECOND);
    let guard = scene.hold_of_two(&long).await;
    for master in &scene.masters {
        assert!(master.remove(NOTE));
    }
    scene.masters[0].restart();
    let beside = scene.theirs().acquire().await.unwrap();
    assert!(guard.is_held(), "nobody told it");
    beside.release().await.unwrap();
    drop(guard);
}

/// This limitation remains, as `docs/fencing.md` says.
#[tokio::test(start_paused = true)]
async fn losing_the_shared_counter_lowers_tokens() {
    let scene = Scene::new().await;
    scene.masters[0].step_clock_ahead(3600 * SECOND);
    let guard = scene.hold_of_two(&scene.ours()).await;
    let last = guard.fencing_token().await.unwrap();
    guard.release().await.unwrap();
    assert!(scene.masters[1].remove("redisson_lock_token:{x}"));
    let beside = scene.masters[0].client().lock("x");
    let beside = beside.acquire().await.unwrap();
    let next = scene.theirs().acquire().await.unwrap();
    assert_eq!(next.members().len(), 2);
    assert!(next.fencing_token().await.unwrap() < last);
    next.release().await.unwrap();
    beside.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_note_that_is_no_number_is_named() {
    let scene = Scene::new().await;
    for master in &scene.masters[..2] {
        // A semaphore's value is a number, but a negative number is not a lease.
        let semaphore = master.client().semaphore(NOTE);
        semaphore.try_set_permits(1).await.unwrap();
        semaphore.add_permits(-2).await.unwrap();
    }
    let error = scene.ours().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    assert!(error.to_string().contains(NOTE), "{error}");
}

#[tokio::test(start_paused = true)]
async fn deadline_follows_the_remaining_members() {
    let scene = Scene::new().await;
    let lock = scene.ours().fixed_lease(10 * SECOND);
    let guard = lock.acquire().await.unwrap();
    let start = Instant::now();
    let ends = |guard: &LockGuard| guard.valid_until() - start;
    let members = guard.members();
    members[0].extend(20 * SECOND).await.unwrap();
    members[1].extend(28 * SECOND).await.unwrap();
    let ends_at = |guard: &LockGuard, seconds: u32| {
        let (ends, least) = (ends(guard), (seconds - 1) * SECOND);
        assert!(ends > least && ends < seconds * SECOND, "{ends:?}");
    };
    ends_at(&guard, 20);
    // This is the member whose hold would have lasted longest.
    scene.masters[1].remove("x");
    members[1].extend(28 * SECOND).await.unwrap_err();
    ends_at(&guard, 10);
    assert!(guard.is_held());
    let reason = guard.lost().await;
    assert_eq!(Instant::now(), guard.valid_until(), "{reason}");
    assert!(members[0].is_held(), "one is no majority");
    guard.release().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn losing_the_second_member_loses_the_majority() {
    let scene = Scene::new().await;
    for [first, second] in [[0, 1], [1, 2], [2, 0]] {
        let guard = scene.ours().acquire().await.unwrap();
        let member = |n: usize| &guard.members()[n];
        for (n, held) in [(first, true), (second, false)] {
            scene.masters[n].remove("x");
            member(n).extend(SECOND).await.unwrap_err();
            assert_eq!(guard.is_held(), held);
            assert_eq!(guard.loss().is_none(), held);
        }
        assert_eq!(guard.lost().await, guard.loss().unwrap());
        assert_eq!(guard.valid_until(), Instant::now(), "told at once");
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}
