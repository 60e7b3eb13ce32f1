//! Tickets for threads.

use std::thread;
use std::time::Duration;

use leasehold::blocking::Client;
use leasehold::ticket::Ticket;
use leasehold::{Embedded, LossReason};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn hold_of_a_thread_passes_to_another_client_and_thread() {
    let server = Embedded::new();
    let (ours, theirs) = (Client::of(&server), Client::of(&server));
    let guard = ours.fenced_lock("x").acquire().unwrap();
    let token = guard.as_async().token();
    let line = guard.into_ticket(MINUTE).unwrap().to_string();
    assert!(ours.lock("x").try_acquire().unwrap().is_none());
    let ticket: Ticket = line.parse().unwrap();
    let guard = theirs.resume(&ticket).unwrap();
    assert!(guard.as_async().token() > Some(token));
    let late = ours.release_ticket(&ticket).unwrap_err();
    assert!(matches!(late.loss(), Some(LossReason::Taken { .. })));
    // No thread owns it, so any thread may release it.
    thread::spawn(move || guard.release().unwrap())
        .join()
        .unwrap();

    // Each handle resumes without the owner that its acquires have.
    let write = ours.rw_lock("x").write().unwrap();
    let ticket = write.into_ticket(MINUTE).unwrap();
    let write = theirs.rw_lock("x").write_lock().resume(&ticket).unwrap();
    let ticket = write.into_ticket(MINUTE).unwrap();
    theirs.release_ticket(&ticket).unwrap();
    let free = ours.lock("x").try_acquire().unwrap();
    free.expect("it is free").release().unwrap();
}

#[test]
fn permits_of_a_thread_pass_to_another_client() {
    let server = Embedded::new();
    let (ours, theirs) = (Client::of(&server), Client::of(&server));
    let semaphore = ours.expirable_semaphore("x");
    semaphore.try_set_permits(2).unwrap();
    let permit = semaphore.acquire().unwrap();
    let ticket = permit.into_ticket(MINUTE).unwrap();
    let permit = theirs.expirable_semaphore("x").resume(&ticket).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    permit.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
}
