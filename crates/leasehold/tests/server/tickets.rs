//! A hold that passes through many processes, some of which are killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::testing::history::{Interval, check, monotonic_ns};
use leasehold::ticket::Ticket;
use leasehold::{Client, LossReason};
use leasehold_testkit::{RedisServer, eventually};
use tokio::runtime::Runtime;

use super::scene::{NAME, builder};
use crate::support::child::{Child, job};

const TEST: &str = "server::tickets::a_process_that_resumes";
const MINUTE: Duration = Duration::from_secs(60);
/// The lease of the processes. After this time, the lock of a killed process is free.
const LEASE: Duration = Duration::from_secs(1);

/// `LEASEHOLD_TICKETS=1000` runs longer.
fn tickets() -> usize {
    let tickets = std::env::var("LEASEHOLD_TICKETS");
    tickets.map_or(20, |tickets| tickets.parse().unwrap())
}

/// The job of a child process. When run as a test, this does nothing.
#[test]
fn a_process_that_resumes() {
    let Some(job) = job() else {
        return;
    };
    let words: Vec<_> = job.iter().map(String::as_str).collect();
    let [url, ticket, end] = words[..] else {
        panic!("no such job: {job:?}");
    };
    let ticket: Ticket = ticket.parse().unwrap();
    Runtime::new().unwrap().block_on(async {
        let client = builder().lease(LEASE).connect(url).await.unwrap();
        let guard = match client.resume(&ticket).await {
            Ok(guard) => guard,
            Err(error) => match error.loss() {
                Some(LossReason::Taken { by }) => return println!("late {by}"),
                _ => panic!("{error}"),
            },
        };
        let token = guard.token().unwrap();
        println!("won {} {token} {}", monotonic_ns(), guard.holder_id());
        if end == "dies" {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        let lost = guard.lost();
        println!("until {}", monotonic_ns());
        println!("ticket {}", guard.into_ticket(MINUTE).await.unwrap());
        assert_eq!(lost.await, LossReason::HandedOver);
    });
}

/// Starts two processes with the same ticket. Returns the process that has got the hold, and its
/// output.
fn race(url: &str, ticket: &Ticket, end: &str) -> (Child, [String; 3]) {
    let start = || Child::start(TEST, &format!("{url} {ticket} {end}"));
    let racers = [start(), start()];
    let answered = |child: &Child| child.said("won").or_else(|| child.said("late")).is_some();
    eventually("both have an answer", MINUTE, || {
        racers.iter().all(answered)
    });
    let [one, other] = racers;
    let (winner, late) = match one.said("won") {
        Some(_) => (one, other),
        None => (other, one),
    };
    let won = winner.said("won").expect("one of them has the hold");
    let won: Vec<_> = won.split(' ').map(str::to_owned).collect();
    let won = <[String; 3]>::try_from(won).unwrap();
    assert_eq!(
        late.said("late").as_ref(),
        Some(&won[2]),
        "it is told by whom"
    );
    (winner, won)
}

/// Checks all the time whether the lock is held. The lock may be free only while `may_be_free`.
fn watch(server: &RedisServer, may_be_free: &AtomicBool, over: &AtomicBool) -> u64 {
    let mut reads = 0;
    while !over.load(Ordering::SeqCst) {
        let before = may_be_free.load(Ordering::SeqCst);
        let holds = server.command(&["HLEN", NAME]).unwrap().as_int().unwrap();
        let after = may_be_free.load(Ordering::SeqCst);
        assert!(holds <= 1, "{holds} holds");
        assert!(holds == 1 || before || after, "the lock was free");
        reads += 1;
    }
    reads
}

/// Passes the hold on, and returns the interval of each holder.
fn pass_on(server: &RedisServer, runtime: &Runtime, may_be_free: &AtomicBool) -> Vec<Interval> {
    let url = server.url();
    let client: Client = runtime.block_on(builder().connect(&url)).unwrap();
    let lock = client.fenced_lock(NAME);
    let (mut held, mut last) = (Vec::new(), 0);
    let mut guard = runtime.block_on(lock.acquire()).unwrap();
    may_be_free.store(false, Ordering::SeqCst);
    let mut note = |holder: &str, asked: u64, from: u64, until: u64, token: u64| {
        assert!(token > last, "{token} after {last}");
        last = token;
        held.push(Interval::new(NAME, holder, asked, from, until));
    };
    let mut ticket = runtime.block_on(guard.into_ticket(MINUTE)).unwrap();
    for n in 0..tickets() {
        let asked = monotonic_ns();
        let end = if n % 5 == 4 { "dies" } else { "passes" };
        let (mut winner, [from, token, id]) = race(&url, &ticket, end);
        let (from, token) = (from.parse().unwrap(), token.parse().unwrap());
        if end == "passes" {
            ticket = winner.wait_for("ticket").parse().unwrap();
            let until = winner.wait_for("until").parse().unwrap();
            note(&id, asked, from, until, token);
            winner.finished();
            continue;
        }
        let (waiting, asked_next) = (lock.clone(), monotonic_ns());
        let next = runtime.spawn(async move { waiting.acquire().await });
        may_be_free.store(true, Ordering::SeqCst);
        winner.kill();
        note(&id, asked, from, monotonic_ns(), token);
        guard = runtime.block_on(next).unwrap().unwrap();
        may_be_free.store(false, Ordering::SeqCst);
        let (from, token) = (monotonic_ns(), guard.token());
        let id = guard.holder_id().to_owned();
        note(&id, asked_next, from, monotonic_ns(), token);
        ticket = runtime.block_on(guard.into_ticket(MINUTE)).unwrap();
    }
    may_be_free.store(true, Ordering::SeqCst);
    runtime.block_on(client.release_ticket(&ticket)).unwrap();
    held
}

#[test]
fn hold_passes_through_many_processes_and_is_never_free() {
    let server = RedisServer::start().unwrap();
    let runtime = Runtime::new().unwrap();
    let (may_be_free, over) = (AtomicBool::new(true), AtomicBool::new(false));
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&server, &may_be_free, &over));
        let held = scope.spawn(|| pass_on(&server, &runtime, &may_be_free));
        let held = held.join();
        over.store(true, Ordering::SeqCst);
        assert!(watcher.join().unwrap() > 100);
        check(&held.unwrap()).judge().unwrap();
    });
}
