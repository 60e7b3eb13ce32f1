//! Threads whose machine sleeps.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::blocking::Client;
use leasehold::testing::Machine;
use leasehold_testkit::eventually;

use crate::support::HOUR;

const SOON: Duration = Duration::from_secs(20);

/// All limits end during the sleep. A timer that stopped in it would run for an hour more.
#[test]
fn threads_notice_soon_that_their_machine_slept() {
    let machine = Machine::new();
    let keyspace = machine.embedded();
    let [ours, theirs] = [(); 2].map(|()| Client::of(&keyspace));
    ours.semaphore("permits").try_set_permits(0).unwrap();
    ours.count_down_latch("latch").try_set_count(1).unwrap();
    let held = ours.lock("held").fixed_lease(HOUR);
    thread::scope(|scope| {
        let (tell, is_held) = mpsc::channel();
        let holder = scope.spawn(move || {
            let guard = held.acquire().unwrap();
            tell.send(()).unwrap();
            guard.lost_within(2 * HOUR).is_some() && !guard.is_held()
        });
        is_held.recv().unwrap();
        let waits = [
            holder,
            scope.spawn(|| theirs.lock("held").acquire().is_ok()),
            scope.spawn(|| {
                let permit = theirs.semaphore("permits").try_acquire_for(HOUR);
                permit.unwrap().is_none()
            }),
            scope.spawn(|| !theirs.count_down_latch("latch").wait_for(HOUR).unwrap()),
        ];
        eventually("they wait", SOON, || {
            theirs.as_async().activity().channels == 3
        });
        machine.sleep(2 * HOUR);
        eventually("they go on", SOON, || {
            waits.iter().all(|one| one.is_finished())
        });
        for wait in waits {
            assert!(wait.join().unwrap());
        }
    });
}
