//! Threads of both Redissons and tasks in processes of this library share one lock, while processes
//! of all of them are killed and restarted at random.
//!
//! Each holder takes the next number of a plain counter in three steps under the lock, and *claims*
//! it: it sets the number's field of a hash, which no other holder has set before, to the times of
//! the hold. So the work of a killed process is known too. Two holders that had the lock at once
//! have the same number, and their times overlap. A number without a claim was taken by a process
//! that was killed before it could claim it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold::testing::history::{Interval, check, monotonic_ns};
use leasehold_testkit::redisson::Pending;
use leasehold_testkit::{RedisServer, Redisson, RedissonVersion, eventually};

use crate::child;
use crate::support::child::Child;
use crate::topology;
use crate::what::What;

const SECONDS: &str = "LEASEHOLD_STRESS_SECONDS";
const THREADS: usize = 4;
const TASKS: usize = 4;
const PROCESSES: usize = 2;
/// A lease long enough for a busy machine. A killed holder delays all other clients for this time.
const LEASE: Duration = Duration::from_secs(4);
/// The limit of a wait for the fair lock. A killed waiter of Redisson's keeps its place in the
/// queue for as long as it wanted to wait; without a limit, for five minutes.
const FAIR_WAIT: Duration = Duration::from_secs(2);
/// A limit for everything that must happen in the end.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn plain_claims_stay_unique_despite_kills() {
    torment(What::Plain);
}

#[test]
fn fair_claims_stay_unique_despite_kills() {
    torment(What::Fair);
}

#[test]
fn fenced_claims_stay_unique_despite_kills() {
    torment(What::Fenced);
}

#[test]
fn write_claims_stay_unique_despite_kills() {
    torment(What::Write);
}

#[test]
fn multi_claims_stay_unique_despite_kills() {
    torment(What::Multi);
}

#[test]
fn red_claims_stay_unique_despite_kills() {
    torment(What::Red);
}

#[test]
fn group_claims_stay_unique_despite_kills() {
    torment(What::Group);
}

/// A process that takes part.
enum Player {
    Java {
        redisson: Redisson,
        claims: Pending<u64>,
    },
    Rust(Child),
}

/// A participant, whose process is killed and restarted.
#[derive(Clone, Copy)]
enum Seat {
    Java(RedissonVersion),
    Rust(usize),
}

impl Seat {
    fn side(self) -> String {
        match self {
            Self::Java(version) => format!("Redisson-{version}"),
            Self::Rust(number) => format!("Rust-{number}"),
        }
    }

    fn start(self, what: What, url: &str) -> Player {
        match self {
            Self::Java(version) => {
                let redisson = Redisson::start(version, url);
                redisson.client("c", Some(LEASE)).unwrap();
                let thread = redisson.thread("c", "t").kind(what.java(version));
                let wait = (what == What::Fair).then_some(FAIR_WAIT);
                let claims = thread.torment(what.name(), &self.side(), THREADS, wait);
                Player::Java { redisson, claims }
            }
            Self::Rust(_) => {
                let child = child::torment(what, url, &self.side(), TASKS, LEASE);
                child.wait_for("claims");
                Player::Rust(child)
            }
        }
    }
}

impl Player {
    fn kill(&mut self) {
        match self {
            Self::Java { redisson, .. } => redisson.kill(),
            Self::Rust(child) => child.kill(),
        }
    }

    /// Waits for the end of the process, which must not have noticed a fault.
    fn finished(self, limit: Duration) {
        match self {
            Self::Java { claims, .. } => {
                claims.wait(limit).unwrap();
            }
            Self::Rust(child) => {
                child.finished();
            }
        }
    }
}

fn torment(what: What) {
    let run = std::env::var(SECONDS).map_or(8, |seconds| seconds.parse().unwrap());
    let run = Duration::from_secs(run);
    let server = topology::start();
    let seats: Vec<_> = RedissonVersion::ALL
        .into_iter()
        // The older version has no groups.
        .filter(|version| what != What::Group || *version == RedissonVersion::V4_7_0)
        .map(Seat::Java)
        .chain((0..PROCESSES).map(Seat::Rust))
        .collect();
    let url = server.url();
    let mut players: Vec<_> = seats.iter().map(|seat| seat.start(what, &url)).collect();
    let start = Instant::now();
    let mut kills = BTreeMap::<String, usize>::new();
    for at in victims(&seats) {
        let longest = 4000.min(millis(run) / 4);
        std::thread::sleep(Duration::from_millis(fastrand::u64(longest / 3..longest)));
        // The process that is killed last has the last quarter of the run to recover.
        if start.elapsed() > run * 3 / 4 && kills.len() > 1 {
            break;
        }
        players[at].kill();
        *kills.entry(seats[at].side()).or_default() += 1;
        players[at] = seats[at].start(what, &url);
    }
    std::thread::sleep(run.saturating_sub(start.elapsed()));
    all_have_claimed(&server, &seats);
    server.command(&["SET", "over", "1"]).unwrap();
    for player in players {
        player.finished(LIMIT);
    }
    judge(what, &server, &kills);
}

/// Waits until each side has claimed a number. On a slow machine, or after holders were killed, a
/// side may have waited all the time.
fn all_have_claimed(server: &RedisServer, seats: &[Seat]) {
    eventually("each side has claimed a number", LIMIT, || {
        let all = claims(server);
        seats
            .iter()
            .all(|seat| all.iter().any(|(_, claim)| claim.starts_with(&seat.side())))
    });
}

/// Returns each number that was claimed, with its claim.
fn claims(server: &RedisServer) -> Vec<(u64, String)> {
    let claims = server.command(&["HGETALL", "claims"]).unwrap();
    let words = claims.as_array().unwrap().iter();
    let words: Vec<_> = words.map(|item| item.as_text().unwrap()).collect();
    let claims = words.chunks(2);
    claims
        .map(|pair| (pair[0].parse().unwrap(), pair[1].to_owned()))
        .collect()
}

/// Returns the processes to kill, chosen at random: alternately one of this library and one of a
/// Redisson.
fn victims(seats: &[Seat]) -> impl Iterator<Item = usize> {
    let javas = seats.len() - PROCESSES;
    std::iter::repeat_with(move || {
        [
            fastrand::usize(javas..javas + PROCESSES),
            fastrand::usize(..javas),
        ]
    })
    .flatten()
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

fn judge(what: What, server: &RedisServer, kills: &BTreeMap<String, usize>) {
    let mut intervals = Vec::new();
    let mut sides: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    let mut last = 0;
    for (number, claim) in claims(server) {
        let words: Vec<_> = claim.split(' ').collect();
        let times: Vec<u64> = words[1..].iter().map(|ns| ns.parse().unwrap()).collect();
        let holder = format!("{} number {number}", words[0]);
        let [asked, from, until] = times[..] else {
            panic!("{claim}")
        };
        intervals.push(Interval::new("hot", &holder, asked, from, until));
        last = last.max(number);
        let side = words[0].rsplit_once('-').unwrap().0.to_owned();
        let (holds, waited) = sides.entry(side).or_default();
        *holds += 1;
        *waited = (*waited).max(from - asked);
    }
    let counter = server.command(&["GET", "counter"]).unwrap();
    let counter: u64 = counter.as_text().unwrap().parse().unwrap();
    let begin = intervals.iter().map(Interval::from_ns).min().unwrap();
    let end = intervals.iter().map(Interval::until_ns).max().unwrap();
    let seconds = (end - begin) as f64 / 1e9;
    for (side, (holds, waited)) in &sides {
        let killed = kills.get(side).copied().unwrap_or(0);
        println!(
            "{what:?}: {side}: {holds} holds, {:.0} % of all, {:.0} a second, longest wait {:.1} s, killed {killed} times",
            100.0 * *holds as f64 / intervals.len() as f64,
            *holds as f64 / seconds,
            *waited as f64 / 1e9,
        );
    }
    let killed: usize = kills.values().sum();
    let unclaimed = usize::try_from(last).unwrap() - intervals.len();
    println!("{what:?}: {last} numbers in {seconds:.0} s, {killed} kills, {unclaimed} unclaimed");
    check(&intervals).judge().unwrap();
    // A killed process has claimed all of its numbers except for at most one.
    assert!(unclaimed <= killed, "{unclaimed} numbers have no owner");
    let ahead = counter.checked_sub(last).expect("the counter went back");
    assert!(usize::try_from(ahead).unwrap() + unclaimed <= killed);
}

/// Does the work of a process of this library.
pub(crate) async fn claim(client: &Client, what: What, url: &str, who: &str, tasks: usize) {
    let redis = redis::Client::open(url).unwrap();
    let redis = child::patient(&redis).await;
    println!("claims");
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let lock = what.ours(client);
        let (mut redis, who) = (redis.clone(), format!("{who}-{task}"));
        running.spawn(async move {
            while !is_over(&mut redis).await {
                let asked = monotonic_ns();
                let guard = lock.acquire().await.unwrap();
                let from = monotonic_ns();
                take_number(&mut redis, &format!("{who} {asked} {from}")).await;
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

async fn is_over(redis: &mut redis::aio::MultiplexedConnection) -> bool {
    let over = redis::cmd("EXISTS").arg("over").to_owned();
    over.query_async(redis).await.unwrap()
}

async fn take_number(redis: &mut redis::aio::MultiplexedConnection, claim: &str) {
    let get = redis::cmd("GET").arg("counter").to_owned();
    let last: Option<u64> = get.query_async(redis).await.unwrap();
    let number = last.unwrap_or(0) + 1;
    tokio::task::yield_now().await;
    let set = redis::cmd("SET").arg("counter").arg(number).to_owned();
    set.query_async::<()>(redis).await.unwrap();
    let claim = format!("{claim} {}", monotonic_ns());
    let mut claims = redis::cmd("HSETNX");
    claims.arg("claims").arg(number).arg(&claim);
    let is_first: bool = claims.query_async(redis).await.unwrap();
    assert!(is_first, "{number} was claimed before: {claim}");
}
