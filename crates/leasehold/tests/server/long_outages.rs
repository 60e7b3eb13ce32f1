//! A server that is away for a long time, and a thousand waiters that tolerate the outage.
//!
//! `LEASEHOLD_OUTAGE_SECONDS=600` makes the outage ten minutes long. The tests then also check how
//! soon all waiters are served and all limits are reported, which is only fair on an otherwise idle
//! machine.

use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::{Client, Lock};
use leasehold_testkit::RedisServer;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{HOUR, eventually};

const LENGTH: &str = "LEASEHOLD_OUTAGE_SECONDS";
/// The length of the outage if [`LENGTH`] is not set. It is longer than the longest delay between
/// two attempts to connect.
const SHORT: Duration = Duration::from_secs(3);
const CLIENTS: usize = 4;
const NAMES: usize = 50;
const WAITERS: usize = 1000;
/// The number of waiters for each name in each client.
const OF_EACH: usize = WAITERS / NAMES / CLIENTS;

/// The time within which all waiters are served when the server is back.
const SERVED_WITHIN: Duration = Duration::from_millis(1500);
/// The wait limit that some waiters have during the outage, and the longest delay of their errors.
const LIMIT: Duration = Duration::from_secs(2);
const TOLD_WITHIN: Duration = Duration::from_millis(250);
/// A limit that only ends a hopeless wait.
const HOPELESS: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// The process has ended, and connections are refused.
    Down,
    /// The process is paused: connections are opened, but nothing is answered.
    Frozen,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_waiters_are_served_when_the_server_is_back() {
    Arena::open(Outage::Down).await.run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_waiters_are_served_when_the_server_goes_on() {
    Arena::open(Outage::Frozen).await.run().await;
}

struct Arena {
    outage: Outage,
    server: RedisServer,
    clients: Vec<Client>,
    recorder: Recorder,
    /// Tasks that each return the time at which they were served.
    waiters: JoinSet<Instant>,
}

impl Arena {
    /// Starts the server, the clients and half of the waiters.
    async fn open(outage: Outage) -> Self {
        let server = RedisServer::start().unwrap();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::connect(&server.url()).await.unwrap());
        }
        for name in names() {
            let held =
                server.command(&["HSET", &name, "7e57c0de-0000-4000-8000-000000000000:1", "1"]);
            assert_eq!(held.unwrap().as_int(), Some(1));
            expire(&server, &name, HOUR);
        }
        let mut arena = Self {
            outage,
            server,
            clients,
            recorder: Recorder::new(),
            waiters: JoinSet::new(),
        };
        arena.enter(0..OF_EACH / 2);
        let clients = &arena.clients;
        eventually("they wait", async || {
            let all_listen = |client: &Client| client.activity().channels == NAMES;
            clients.iter().all(all_listen)
        })
        .await;
        arena
    }

    /// Starts the waiters with these numbers, for each client and each name.
    fn enter(&mut self, numbers: std::ops::Range<usize>) {
        let outage_timeout = length() + HOUR;
        for (at, client) in self.clients.iter().enumerate() {
            for name in names() {
                for number in numbers.clone() {
                    let lock = client.lock(&name).outage_timeout(outage_timeout);
                    let who = format!("client {at} waiter {number}");
                    self.waiters
                        .spawn(is_served(self.recorder.clone(), lock, name.clone(), who));
                }
            }
        }
    }

    async fn run(mut self) {
        let began = Instant::now();
        self.ends();
        self.enter(OF_EACH / 2..OF_EACH);
        let latest = self.limits_are_kept(began + length()).await;
        let back = self.is_back().await;
        let mut last = Duration::ZERO;
        let mut served = 0;
        while let Some(waiter) = self.next().await {
            let after = waiter.checked_duration_since(back);
            last = last.max(after.expect("nobody was served before"));
            served += 1;
        }
        println!(
            "{:?} for {:?}: {served} waiters were served within {last:?}; \
             limits were told {latest:?} late at most",
            self.outage,
            length()
        );
        assert_eq!(served, WAITERS);
        self.recorder.report().judge().unwrap();
        if std::env::var_os(LENGTH).is_some() {
            assert!(last <= SERVED_WITHIN, "{last:?}");
            assert!(latest <= TOLD_WITHIN, "{latest:?}");
        }
        let clients = &self.clients;
        eventually("nothing is left", async || {
            let is_idle = |client: &Client| client.activity().lines == 0;
            clients.iter().all(is_idle) && self.server.keys().is_empty()
        })
        .await;
    }

    /// Begins the outage.
    fn ends(&self) {
        match self.outage {
            Outage::Down => self.server.kill().unwrap(),
            Outage::Frozen => {
                // The holds end during the outage.
                for name in names() {
                    expire(&self.server, &name, length() - Duration::from_millis(500));
                }
                self.server.pause().unwrap();
            }
        }
    }

    /// Ends the outage. Returns the time at which it ended.
    async fn is_back(&self) -> Instant {
        assert_eq!(self.recorder.intervals(), [], "the server was away");
        // A process takes time to start. A process that is resumed may serve clients before
        // `resume` returns.
        let before = Instant::now();
        match self.outage {
            Outage::Down => {
                tokio::task::block_in_place(|| self.server.restart().unwrap());
                match self.recorder.intervals().is_empty() {
                    true => Instant::now(),
                    false => before,
                }
            }
            Outage::Frozen => {
                self.server.resume().unwrap();
                before
            }
        }
    }

    /// Starts waits with limits of their own until `until`. Returns the longest delay of an error.
    async fn limits_are_kept(&self, until: Instant) -> Duration {
        let mut tries = JoinSet::new();
        for (at, name) in names().enumerate().cycle() {
            let lock = self.clients[at % CLIENTS].lock(&name);
            let lock = lock.outage_timeout(length() + HOUR);
            tries.spawn(async move {
                let began = Instant::now();
                let granted = lock.try_acquire_for(LIMIT).await;
                assert!(!matches!(granted, Ok(Some(_))), "the server was away");
                began.elapsed().saturating_sub(LIMIT)
            });
            if Instant::now() + LIMIT + Duration::from_millis(100) > until {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let told = tokio::time::timeout(HOPELESS, tries.join_all()).await;
        let latest = told.expect("each limit ends").into_iter().max().unwrap();
        tokio::time::sleep_until(until).await;
        latest
    }

    async fn next(&mut self) -> Option<Instant> {
        let next = tokio::time::timeout(HOPELESS, self.waiters.join_next()).await;
        Some(next.expect("somebody is served")?.unwrap())
    }
}

async fn is_served(recorder: Recorder, lock: Lock, name: String, who: String) -> Instant {
    let asked = recorder.ask(&name, &who);
    let guard = lock.acquire().await.unwrap();
    let served = Instant::now();
    let inside = asked.acquired(&guard);
    inside.releasing(&guard);
    guard.release().await.unwrap();
    served
}

fn names() -> impl Iterator<Item = String> + Clone {
    (0..NAMES).map(|n| format!("name {n}"))
}

fn expire(server: &RedisServer, name: &str, after: Duration) {
    let ms = after.as_millis().to_string();
    let set = server.command(&["PEXPIRE", name, &ms]);
    assert_eq!(set.unwrap().as_int(), Some(1));
}

fn length() -> Duration {
    let seconds = std::env::var(LENGTH).ok();
    seconds.map_or(SHORT, |seconds| {
        Duration::from_secs(seconds.parse().expect("a number"))
    })
}
