//! Machines that sleep: their timers stop, but leases continue to run.

use leasehold::testing::Machine;
use leasehold::testing::history::{Interval, check};
use leasehold::{Guard, LockGuard};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
/// The time within which a client notices a change of the clock.
const SOON: Duration = Duration::from_millis(250);

/// Returns a client that has been idle for some time, so that its timers are set for a long sleep.
async fn at_rest(machine: Machine) -> (Embedded, Client) {
    let server = machine.embedded();
    let client = server.client();
    (server, client)
}

/// Returns the loss of this guard, if the guard reports it soon after the machine has slept for
/// `span`.
async fn told_after(machine: Machine, span: Duration, guard: &impl Guard) -> Option<LossReason> {
    let lost = guard.lost();
    tokio::pin!(lost);
    // The holder waits for a loss before the machine sleeps.
    assert!(tokio::time::timeout(2 * SOON, &mut lost).await.is_err());
    machine.sleep(span);
    tokio::time::timeout(SOON, lost).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_holder_is_told_soon_after_its_machine_wakes() {
    let machine = Machine::new();
    let (_server, client) = at_rest(machine).await;
    let fixed = client.lock("a").fixed_lease(HOUR).acquire().await.unwrap();
    let told = told_after(machine, HOUR, &fixed).await;
    assert_eq!(told, Some(LossReason::Expired));
    let renewed = client.fair_lock("b").acquire().await.unwrap();
    assert!(told_after(machine, HOUR, &renewed).await.is_some());
    let limited = client.lock("c").lease(3 * HOUR).max_hold(HOUR);
    let limited = limited.acquire().await.unwrap();
    let told = told_after(machine, HOUR, &limited).await;
    assert_eq!(told, Some(LossReason::MaxHold { limit: HOUR }));
    let multi = MultiLock::new(["d", "e"].map(|name| client.lock(name))).unwrap();
    let multi = multi.fixed_lease(HOUR).acquire().await.unwrap();
    assert!(told_after(machine, HOUR, &multi).await.is_some());
    let permits = client.expirable_semaphore("f");
    permits.try_set_permits(1).await.unwrap();
    let permit = permits.fixed_lease(HOUR).acquire().await.unwrap();
    assert!(told_after(machine, HOUR, &permit).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn work_does_not_go_on_beside_the_next_holder_when_its_machine_wakes() {
    let machine = Machine::new();
    let (server, client) = at_rest(machine).await;
    let start = Instant::now();
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap();
    let guard = client.lock("x").fixed_lease(HOUR).acquire().await.unwrap();
    let ours = async {
        let from = now();
        let work = std::future::pending::<()>();
        assert!(guard.protect(work).await.is_err());
        Interval::new("x", "ours", from, from, now())
    };
    let theirs = async {
        sleep(2 * SOON).await;
        machine.sleep(HOUR);
        sleep(SOON).await;
        let asked = now();
        let next = server.client().lock("x").try_acquire().await.unwrap();
        let (next, from) = (next.expect("the lease is over"), now());
        sleep(HOUR * 2).await;
        next.release().await.unwrap();
        Interval::new("x", "theirs", asked, from, now())
    };
    let (ours, theirs) = tokio::join!(ours, theirs);
    assert_eq!(check(&[ours, theirs]).overlaps, []);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_soon_after_its_machine_wakes() {
    let machine = Machine::new();
    let (_server, client) = at_rest(machine).await;
    let guard = client.lock("x").lease(HOUR).acquire().await.unwrap();
    let is_whole = |guard: &LockGuard| guard.valid_until() > Instant::now() + HOUR * 9 / 10;
    sleep(2 * SOON).await;
    machine.sleep(HOUR * 8 / 10);
    assert!(guard.is_held() && !is_whole(&guard));
    sleep(SOON).await;
    assert!(is_whole(&guard), "{:?}", guard.valid_until());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_limit_after_a_sleep_of_the_machine() {
    let machine = Machine::new();
    let (server, client) = at_rest(machine).await;
    let rival = server.client();
    let lease = 24 * HOUR;
    let lock = rival.lock("a").fixed_lease(lease);
    let _held = lock.acquire().await.unwrap();
    let permits = client.semaphore("b");
    permits.try_set_permits(1).await.unwrap();
    let _permit = permits.acquire().await.unwrap();
    let latch = client.count_down_latch("c");
    latch.try_set_count(1).await.unwrap();
    let lock = client.lock("a").poll_interval(lease);
    let waits = async {
        tokio::join!(
            async { assert!(lock.try_acquire_for(HOUR).await.unwrap().is_none()) },
            async { assert!(permits.try_acquire_for(HOUR).await.unwrap().is_none()) },
            async { assert!(!latch.wait_for(HOUR).await.unwrap()) },
        )
    };
    tokio::pin!(waits);
    assert!(tokio::time::timeout(2 * SOON, &mut waits).await.is_err());
    machine.sleep(HOUR);
    assert!(tokio::time::timeout(SOON, waits).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_asks_soon_after_its_machine_wakes() {
    let machine = Machine::new();
    let (server, client) = at_rest(machine).await;
    let lock = server.client().lock("x").fixed_lease(HOUR);
    let held = lock.acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(24 * HOUR);
    let next = lock.acquire();
    tokio::pin!(next);
    assert!(tokio::time::timeout(2 * SOON, &mut next).await.is_err());
    machine.sleep(HOUR);
    let next = tokio::time::timeout(SOON, next).await;
    next.expect("the lease is over")
        .unwrap()
        .release()
        .await
        .unwrap();
    drop(held);
}
