//! A `RedLock` whose servers are restarted without their data while it is held. The hold rejoins
//! the servers.

use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::testing::{Fate, Network, Step};
use leasehold::{Client, Embedded, ErrorKind, LockGuard, LossReason, MultiLock, Owner, RedLock};
use tokio::time::{Instant, sleep, timeout};

use crate::MS;

const SECOND: Duration = Duration::from_secs(1);
/// The time for which a server must be up before a holder counts it again, plus the time until the
/// holder's next renewal there.
const REJOINS: Duration = Duration::from_secs(17);

struct Scene {
    masters: Vec<Embedded>,
    ours: Vec<Client>,
    our_networks: Vec<Network>,
    theirs: Vec<Client>,
    their_networks: Vec<Network>,
}

impl Scene {
    async fn new(servers: usize) -> Self {
        let masters = std::iter::repeat_with(Embedded::new);
        Self::of(masters.take(servers).collect()).await
    }

    async fn of(masters: Vec<Embedded>) -> Self {
        let builder = Client::builder().reply_timeout(20 * SECOND);
        let clients = || {
            let sides = masters.iter();
            let sides = sides.map(|master| master.client_over_network(&builder).unwrap());
            sides.unzip()
        };
        let (ours, our_networks) = clients();
        let (theirs, their_networks) = clients();
        // All servers have been up for a long time.
        sleep(3600 * SECOND).await;
        Self {
            masters,
            ours,
            our_networks,
            theirs,
            their_networks,
        }
    }

    fn ours(&self) -> RedLock {
        majority(&self.ours)
    }

    fn theirs(&self) -> RedLock {
        majority(&self.theirs).outage_timeout(3600 * SECOND)
    }

    fn is_set(&self, server: usize) -> bool {
        self.masters[server].keys().contains(&"x".to_owned())
    }

    fn all_are_set(&self) -> bool {
        (0..self.masters.len()).all(|server| self.is_set(server))
    }

    /// Asserts that this holder keeps the lock while other clients try to acquire it all the time.
    async fn stays_held(&self, guard: &LockGuard, span: Duration) {
        let until = Instant::now() + span;
        while Instant::now() < until {
            assert!(guard.is_held(), "{:?}", guard.loss());
            let theirs = self.theirs().try_acquire().await;
            assert!(!matches!(theirs, Ok(Some(_))), "two have it");
            sleep(500 * MS).await;
        }
    }
}

fn majority(clients: &[Client]) -> RedLock {
    RedLock::new(clients.iter().map(|client| client.lock("x"))).unwrap()
}

/// With some of these leases and distances, a member is missing for a while; with others, no member
/// is ever missing.
#[tokio::test(start_paused = true)]
async fn rolling_restart_ends_no_hold() {
    for (servers, lease, apart) in [
        (3, 30, 1),
        (3, 30, 10),
        (3, 30, 25),
        (5, 30, 3),
        (5, 30, 40),
        (3, 2, 20),
        (5, 2, 10),
    ] {
        let scene = Scene::new(servers).await;
        let lock = scene.ours().lease(lease * SECOND);
        let guard = lock.acquire().await.unwrap();
        let theirs = scene.theirs();
        let waiter = tokio::spawn(async move { theirs.acquire().await });
        for master in &scene.masters {
            master.restart();
            scene.stays_held(&guard, apart * SECOND).await;
        }
        scene.stays_held(&guard, REJOINS).await;
        assert!(scene.all_are_set(), "{servers}, {lease}, {apart}");
        // Each server is restarted once more: a hold that has rejoined is as good as the first.
        for master in &scene.masters {
            master.restart();
            scene.stays_held(&guard, REJOINS).await;
        }
        scene.stays_held(&guard, 60 * SECOND).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        assert!(
            !scene
                .masters
                .iter()
                .any(|master| master.keys().contains(&"x".to_owned()))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn release_between_restart_and_renewal_succeeds() {
    let scene = Scene::new(3).await;
    let guard = scene.ours().acquire().await.unwrap();
    scene.masters[0].restart();
    scene.masters[1].restart();
    // No renewal has noticed the restarts, and no other client can have acquired the lock.
    guard.release().await.unwrap();
    assert!(!scene.is_set(2));
}

#[tokio::test(start_paused = true)]
async fn server_away_for_longer_than_the_lease_rejoins() {
    let scene = Scene::new(3).await;
    let guard = scene.ours().acquire().await.unwrap();
    for server in 0..3 {
        scene.our_networks[server].refuse(true);
        scene.stays_held(&guard, 60 * SECOND).await;
        scene.masters[server].restart();
        scene.stays_held(&guard, 60 * SECOND).await;
        scene.our_networks[server].refuse(false);
        scene.stays_held(&guard, 3 * SECOND).await;
        assert!(scene.is_set(server));
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn removed_key_stays_removed_without_a_restart() {
    for by_force in [true, false] {
        let scene = Scene::new(3).await;
        let guard = scene.ours().acquire().await.unwrap();
        let remove = async |server: usize| {
            if by_force {
                let operator = scene.masters[server].client();
                assert!(operator.lock("x").force_unlock().await.unwrap());
            } else {
                assert!(scene.masters[server].remove("x"));
            }
        };
        // If the server does not report when it started, the client does not know of the restart.
        scene.our_networks[0].hide_start(true);
        scene.our_networks[0].cut();
        remove(0).await;
        sleep(60 * SECOND).await;
        assert!(guard.is_held() && !scene.is_set(0));
        // A later restart does not count either, because the member was already lost.
        scene.our_networks[0].hide_start(false);
        scene.masters[0].restart();
        sleep(60 * SECOND).await;
        assert!(guard.is_held() && !scene.is_set(0));
        remove(1).await;
        let reason = timeout(11 * SECOND, guard.lost()).await.unwrap();
        let LossReason::Member { reason, .. } = reason else {
            panic!("{reason:?}");
        };
        let expected = match by_force {
            true => crate::support::forced(),
            false => LossReason::Deleted,
        };
        assert_eq!(*reason, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn quorum_that_is_gone_is_a_loss() {
    for comes_back in [true, false] {
        let scene = Scene::new(3).await;
        let guard = scene.ours().acquire().await.unwrap();
        let start = Instant::now();
        let mut others = Vec::new();
        for server in 0..2 {
            scene.masters[server].restart();
            if comes_back {
                // Another client holds the lock on this server as a plain lock, without a
                // `RedLock`.
                let other = scene.masters[server].client().lock("x");
                others.push(other.acquire().await.unwrap());
            } else {
                scene.our_networks[server].refuse(true);
            }
        }
        let reason = guard.lost().await;
        assert!(start.elapsed() <= 30 * SECOND, "{:?}", start.elapsed());
        assert_eq!(guard.valid_until(), Instant::now(), "{reason}");
        let LossReason::Member { reason, .. } = reason else {
            panic!("{reason:?}");
        };
        let told = match *reason {
            LossReason::Taken { .. } => comes_back,
            LossReason::RenewalFailed { .. } => !comes_back,
            _ => false,
        };
        assert!(told, "{reason:?}");
        // A loss is final: the holder does not ask a server that is free again.
        for other in others {
            other.release().await.unwrap();
        }
        scene
            .our_networks
            .iter()
            .for_each(|network| network.refuse(false));
        sleep(120 * SECOND).await;
        assert!(!guard.is_held());
        assert!(!scene.is_set(0) && !scene.is_set(1));
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        sleep(60 * SECOND).await;
        assert!(!scene.is_set(2));
    }
}

#[tokio::test(start_paused = true)]
async fn holder_waits_for_who_holds_a_restarted_server() {
    let scene = Scene::new(3).await;
    let guard = scene.ours().acquire().await.unwrap();
    scene.masters[0].restart();
    let other = scene.masters[0].client().lock("x").acquire().await.unwrap();
    scene.stays_held(&guard, 90 * SECOND).await;
    assert!(other.is_held());
    other.release().await.unwrap();
    sleep(2 * SECOND).await;
    assert!(scene.is_set(0));
    // Our hold has rejoined there, so the two other servers may be restarted.
    for server in 1..3 {
        scene.masters[server].restart();
        scene.stays_held(&guard, REJOINS).await;
    }
    guard.release().await.unwrap();
}

/// The request to rejoin is under way when the guard is released or dropped.
#[tokio::test(start_paused = true)]
async fn nothing_is_set_again_behind_a_release() {
    for release in [true, false] {
        let scene = Scene::new(3).await;
        let guard = scene.ours().acquire().await.unwrap();
        let (seen, mut asked) = tokio::sync::mpsc::unbounded_channel();
        scene.our_networks[0].on_request(move |request| {
            if request.step == Step::LockAcquire {
                seen.send(()).unwrap();
                return Fate::delivered(100 * MS, 100 * MS);
            }
            Fate::default()
        });
        scene.masters[0].restart();
        asked.recv().await.unwrap();
        if release {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
        for client in &scene.ours {
            client.close().await;
        }
        sleep(SECOND).await;
        assert!((0..3).all(|server| !scene.is_set(server)));
    }
}

#[tokio::test(start_paused = true)]
async fn forgotten_guard_sets_nothing_again() {
    let scene = Scene::new(3).await;
    let guard = scene.ours().acquire().await.unwrap();
    scene.masters[0].restart();
    sleep(REJOINS).await;
    assert!(scene.all_are_set());
    guard.forget();
    scene.masters[1].restart();
    sleep(60 * SECOND).await;
    assert!((0..3).all(|server| !scene.is_set(server)));
}

/// Before its restart, a server granted the lock to another holder, and that vote still counts. Our
/// holder does not count the server until the other holder's attempt must have ended.
#[tokio::test(start_paused = true)]
async fn vote_from_before_the_restart_gives_no_second_majority() {
    let scene = Scene::new(3).await;
    let guard = scene.ours().acquire().await.unwrap();
    scene.masters[2].restart();
    let beside = scene.masters[2].client().lock("x").acquire().await.unwrap();
    sleep(45 * SECOND).await;
    // From now on, the holder's lease on the first server is not renewed.
    scene.our_networks[0].refuse(true);
    while scene.masters[0].ttl_ms("x") > 5300 {
        sleep(10 * MS).await;
    }
    scene.their_networks[0].on_request(|request| match request.step {
        Step::LockAcquire => Fate::delivered(5500 * MS, Duration::ZERO),
        _ => Fate::default(),
    });
    beside.release().await.unwrap();
    let theirs = scene.theirs().member_timeout(9 * SECOND);
    let theirs = tokio::spawn(async move { theirs.try_acquire().await });
    sleep(100 * MS).await;
    assert!(scene.is_set(2), "that is their vote");
    // The other holder does not learn of the restart.
    scene.their_networks[2].refuse(true);
    scene.masters[2].restart();
    let theirs = theirs.await.unwrap().unwrap();
    let theirs = theirs.expect("the first server was free, and the last had voted");
    assert!(!guard.is_held(), "two have it");
    drop(theirs);
}

/// An owner holds the lock of a single server, and has not learned that the server was restarted.
/// With that hold, the owner tries to acquire the `RedLock`.
#[tokio::test(start_paused = true)]
async fn hold_from_before_the_restart_gives_no_second_majority() {
    let scene = Scene::new(3).await;
    let guard = scene.ours().lease(5 * SECOND).acquire().await.unwrap();
    scene.masters[2].restart();
    let owner = Owner::new();
    let alone = scene.theirs[2].lock("x").owned_by(&owner);
    let alone = alone.acquire().await.unwrap();
    sleep(60 * SECOND).await;
    alone.extend(30 * SECOND).await.unwrap();
    scene.their_networks[2].refuse(true);
    scene.masters[2].restart();
    sleep(13 * SECOND).await;
    scene.our_networks[0].refuse(true);
    sleep(5500 * MS).await;
    assert!(alone.is_held(), "it has not heard of anything");
    assert!(guard.is_held(), "by the restarted server");
    let theirs = scene.theirs().owned_by(&owner).try_acquire().await;
    assert!(!matches!(theirs, Ok(Some(_))), "two have it");
    assert!(guard.is_held());
    drop((alone, guard));
}

/// All servers have granted the lock, but the task that acquires it was not polled for a long time.
#[tokio::test(start_paused = true)]
async fn ballot_of_a_task_that_stood_still_comes_to_nothing() {
    let scene = Scene::new(3).await;
    for (stood_still, granted) in [(11 * SECOND, true), (13 * SECOND, false)] {
        let lock = scene.theirs();
        let mut ballot = Box::pin(lock.try_acquire());
        assert!(ballot.as_mut().now_or_never().is_none());
        sleep(stood_still).await;
        assert!(scene.all_are_set());
        let said = ballot.await;
        assert_eq!(matches!(said, Ok(Some(_))), granted, "{said:?}");
        drop(said);
        sleep(SECOND).await;
        assert!((0..3).all(|server| !scene.is_set(server)));
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_rejoins_knows_the_token() {
    let masters = [Embedded::new(), Embedded::new(), Embedded::new()];
    masters[0].step_clock_ahead(3600 * SECOND);
    let scene = Scene::of(masters.into()).await;
    let guard = scene.ours().acquire().await.unwrap();
    let token = guard.fencing_token().await.unwrap();
    for master in &scene.masters {
        master.restart();
        sleep(2 * REJOINS).await;
    }
    assert_eq!(guard.fencing_token().await.unwrap(), token);
    guard.release().await.unwrap();
    // The two holders have only one of the other servers in common.
    scene.their_networks[0].refuse(true);
    let next = scene.theirs().acquire().await.unwrap();
    assert!(next.fencing_token().await.unwrap() > token);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn note_of_the_longest_lease_comes_back_with_the_server() {
    const NOTE: &str = "leasehold:{x}:longest";
    let scene = Scene::new(3).await;
    let lock = scene.ours().longest_lease(120 * SECOND);
    let guard = lock.lease(120 * SECOND).acquire().await.unwrap();
    for server in 0..3 {
        scene.masters[server].restart();
        // After this time, a renewal finds that the member is missing.
        sleep(43 * SECOND).await;
        assert_eq!(scene.masters[server].ttl_ms(NOTE), -1);
    }
    scene.stays_held(&guard, 120 * SECOND).await;
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn member_counts_from_before_its_request_left() {
    let scene = Scene::new(1).await;
    let lock = scene.ours().member_timeout(5 * SECOND);
    let guard = lock.acquire().await.unwrap();
    let (seen, mut asked) = tokio::sync::mpsc::unbounded_channel();
    scene.our_networks[0].on_request(move |request| match request.step {
        Step::LockAcquire => {
            seen.send(Instant::now()).unwrap();
            Fate::delivered(Duration::ZERO, 2 * SECOND)
        }
        _ => Fate::default(),
    });
    scene.masters[0].restart();
    let asked = asked.recv().await.unwrap();
    let before = guard.valid_until();
    while guard.valid_until() == before {
        sleep(10 * MS).await;
    }
    assert!(Instant::now() >= asked + 2 * SECOND, "before its answer");
    assert!(guard.valid_until() > asked + 29 * SECOND);
    assert!(guard.valid_until() < asked + 30 * SECOND);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn maximum_hold_time_outlasts_restarts() {
    let scene = Scene::new(3).await;
    let lock = scene.ours().max_hold(100 * SECOND);
    let guard = lock.acquire().await.unwrap();
    let start = Instant::now();
    for master in &scene.masters {
        master.restart();
        sleep(2 * REJOINS - SECOND).await;
    }
    assert!(guard.is_held() && scene.all_are_set());
    let reason = timeout(67 * SECOND, guard.lost()).await;
    let LossReason::Member { reason, .. } = reason.expect("it is over") else {
        panic!("it is the members'");
    };
    let limit = 100 * SECOND;
    assert_eq!(*reason, LossReason::MaxHold { limit });
    assert_eq!(start.elapsed(), limit);
    sleep(SECOND).await;
    assert!((0..3).all(|server| !scene.is_set(server)));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn several_locks_end_with_a_restart() {
    let scene = Scene::new(2).await;
    let members = scene.ours.iter().map(|client| client.lock("x"));
    let guard = MultiLock::new(members).unwrap().acquire().await.unwrap();
    let start = Instant::now();
    scene.masters[1].restart();
    guard.lost().await;
    assert!(start.elapsed() <= 11 * SECOND, "{:?}", start.elapsed());
    sleep(60 * SECOND).await;
    assert!(!scene.is_set(1));
    drop(guard);
}

/// All clients that share the lock know that the servers write each change to their disks.
#[tokio::test(start_paused = true)]
async fn trusted_restart_ends_the_hold() {
    let scene = Scene::new(3).await;
    let lock = scene.ours().distrust_restarted(false);
    let guard = lock.acquire().await.unwrap();
    let start = Instant::now();
    scene.masters[0].restart();
    scene.masters[1].restart();
    guard.lost().await;
    assert!(start.elapsed() <= 11 * SECOND, "{:?}", start.elapsed());
    drop(guard);
}
