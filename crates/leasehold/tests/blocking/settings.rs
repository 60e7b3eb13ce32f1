//! Each setting of the blocking handles, for each kind of lock: no two holders overlap, and every
//! thread is served.

use std::thread;
use std::time::Duration;

use leasehold::blocking::{AnyLock, Client, MultiLock};
use leasehold::inspect::Activity;
use leasehold::settings::{Backoff, WaitStrategy};
use leasehold::testing::history::Recorder;
use leasehold::{ErrorKind, LossReason};
use leasehold_testkit::eventually;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(20);
const THREADS: usize = 4;
const ROUNDS: usize = 5;

fn kinds(client: &Client) -> Vec<AnyLock> {
    vec![
        client.lock("plain").into(),
        client.fenced_lock("fenced").into(),
        client.fair_lock("fair").into(),
        client.rw_lock("write").write_lock().into(),
        client.group_lock("group", ["a", "b"]).into(),
        MultiLock::new([client.lock("c"), client.lock("d")])
            .unwrap()
            .into(),
    ]
}

type Set = fn(AnyLock) -> AnyLock;

#[test]
fn threads_use_each_kind_with_each_setting() {
    let settings: [Set; 5] = [
        |lock| lock,
        |lock| lock.max_hold(HOUR),
        |lock| lock.fixed_lease(HOUR),
        |lock| lock.poll_interval(Duration::from_millis(1)),
        |lock| lock.wait_strategy(WaitStrategy::Backoff(Backoff::exponential())),
    ];
    let client = Client::embedded();
    for set in settings {
        for lock in kinds(&client).into_iter().map(set) {
            let recorder = Recorder::new();
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        for _ in 0..ROUNDS {
                            let asked = recorder.ask(lock.name(), "a thread");
                            let guard = lock.acquire().unwrap();
                            let inside = asked.acquired(guard.as_async());
                            // The thread re-enters its hold.
                            lock.acquire().unwrap().release().unwrap();
                            guard.extend(SOON).unwrap();
                            inside.releasing(guard.as_async());
                            guard.release().unwrap();
                        }
                    });
                }
            });
            assert_eq!(recorder.report().overlaps, []);
        }
    }
    eventually("nothing is left", SOON, || {
        client.as_async().activity() == Activity::default()
    });
}

#[test]
fn a_maximum_and_a_lease_end_what_threads_hold() {
    let client = Client::embedded();
    let limit = Duration::from_millis(50);
    for lock in kinds(&client) {
        let guard = lock.clone().max_hold(limit).acquire().unwrap();
        let reason = guard.lost_within(SOON).expect("it is over");
        let is_maximum = match &reason {
            LossReason::Member { reason, .. } => matches!(**reason, LossReason::MaxHold { .. }),
            reason => matches!(reason, LossReason::MaxHold { .. }),
        };
        assert!(is_maximum, "{reason}");
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
        lock.clone().fixed_lease(limit).acquire().unwrap().forget();
        let guard = thread::scope(|scope| {
            let waits = scope.spawn(|| lock.acquire().unwrap().release());
            waits.join().unwrap()
        });
        guard.unwrap();
    }
}

#[test]
fn stalled_work_of_a_thread_loses_its_lock() {
    let client = Client::embedded();
    let within = Duration::from_millis(50);
    for lock in kinds(&client) {
        let lock = lock.lease(4 * within);
        let stalling = lock.clone().progress_within(within);
        let guard = stalling.acquire().unwrap();
        guard.progress();
        assert!(guard.stalled_within(SOON).expect("it stalls") >= within);
        let reason = guard.lost_within(SOON).expect("it is over");
        let is_stalled = match &reason {
            LossReason::Member { reason, .. } => matches!(**reason, LossReason::Stalled { .. }),
            reason => matches!(reason, LossReason::Stalled { .. }),
        };
        assert!(is_stalled, "{reason}");
        guard.progress_handle().report();
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
        lock.acquire().unwrap().release().unwrap();
    }
}
