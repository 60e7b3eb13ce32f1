//! Many waiters: they do not cause a thundering herd, and each of them is served.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leasehold::testing::Fate;
use leasehold::{Client, Embedded, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a client that sends over a network, so that requests are counted and take some time.
fn client(server: &Embedded) -> (Client, leasehold::testing::Network) {
    let (client, network) = server.client_over_network(&Client::builder()).unwrap();
    network.on_request(|_| Fate::delivered(Duration::from_millis(1), Duration::from_millis(1)));
    (client, network)
}

/// Returns a server with a semaphore of this number of permits, and a handle for it without a
/// network.
async fn semaphore_of(permits: u32) -> (Embedded, Semaphore) {
    let server = Embedded::new();
    let semaphore = server.client().semaphore("x");
    semaphore.try_set_permits(permits).await.unwrap();
    (server, semaphore)
}

#[tokio::test(start_paused = true)]
async fn thousand_latch_waiters_share_asks() {
    let server = Embedded::new();
    let opens = server.client().count_down_latch("x");
    opens.try_set_count(3).await.unwrap();
    let (client, network) = client(&server);
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let latch = client.count_down_latch("x");
        waiters.spawn(async move { latch.wait().await.unwrap() });
    }
    tokio::time::sleep(SECOND / 2).await;
    let to_begin = network.requests();
    assert!(to_begin <= 4, "{to_begin} asks to begin with");
    // The waiters poll after 1, 2 and 4 s, with one request for all of them.
    tokio::time::sleep(10 * SECOND).await;
    let polls = network.requests() - to_begin;
    assert!((3..=6).contains(&polls), "{polls} asks in ten seconds");
    let before = network.requests();
    assert_eq!(opens.count_down_by(3).await.unwrap(), 0);
    waiters.join_all().await;
    let asks = network.requests() - before;
    assert!(asks <= 2, "{asks} asks when it opened");
}

#[tokio::test(start_paused = true)]
async fn release_costs_each_process_two_asks() {
    let (server, semaphore) = semaphore_of(1).await;
    semaphore.drain().await.unwrap();
    let clients: Vec<_> = (0..3).map(|_| client(&server)).collect();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for (client, _) in &clients {
        for _ in 0..100 {
            let (semaphore, sender) = (client.semaphore("x").poll_interval(HOUR), sender.clone());
            tokio::spawn(async move {
                semaphore.acquire().await.unwrap().forget();
                sender.send(()).unwrap();
            });
        }
    }
    tokio::time::sleep(SECOND).await;
    let requests = || {
        clients
            .iter()
            .map(|(_, network)| network.requests())
            .sum::<u64>()
    };
    for permits in [1, 1, 5, 20] {
        let before = requests();
        semaphore.release(permits).await.unwrap();
        for _ in 0..permits {
            let got = tokio::time::timeout(SECOND, served.recv()).await;
            got.expect("as many as it is enough for").unwrap();
        }
        tokio::time::sleep(SECOND).await;
        assert!(served.try_recv().is_err(), "and no more");
        let asks = requests() - before;
        // One request follows the message, and the waiter that is then the head sends another.
        assert!(asks <= 6, "{asks} asks of three processes for {permits}");
    }
}

#[tokio::test(start_paused = true)]
async fn mixed_size_waiters_are_served_in_order() {
    let (server, semaphore) = semaphore_of(10).await;
    semaphore.drain().await.unwrap();
    let (client, _network) = client(&server);
    let sizes: Vec<u32> = (0..60).map(|n| [7, 1, 3, 1, 10, 2][n % 6]).collect();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for permits in sizes.clone() {
        let (semaphore, sender) = (client.semaphore("x").poll_interval(HOUR), sender.clone());
        tokio::spawn(async move {
            let permit = semaphore.acquire_many(permits).await.unwrap();
            sender.send(permits).unwrap();
            permit.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    semaphore.release(10).await.unwrap();
    for permits in sizes {
        let next = tokio::time::timeout(10 * SECOND, served.recv()).await;
        assert_eq!(next.expect("nobody waits for the poll"), Some(permits));
    }
    // The last permits have yet to be released.
    tokio::time::sleep(SECOND).await;
    assert_eq!(semaphore.available_permits().await.unwrap(), 10);
}

#[tokio::test(start_paused = true)]
async fn permits_pass_within_turn_without_requests() {
    let (server, semaphore) = semaphore_of(4).await;
    let (client, network) = client(&server);
    let before = network.requests();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let semaphore = client.semaphore("x");
        tasks.spawn(async move {
            let permit = semaphore.acquire().await.unwrap();
            permit.release().await.unwrap();
        });
    }
    tasks.join_all().await;
    let requests = network.requests() - before;
    assert!(requests <= 8, "{requests} requests of 200 tasks");
    assert_eq!(semaphore.available_permits().await.unwrap(), 4);
}

/// Uses one permit after the other, forever, with other work in between.
async fn hog(semaphore: Semaphore, hold: Duration, other_work: Duration) {
    loop {
        let permit = semaphore.acquire().await.unwrap();
        tokio::time::sleep(hold).await;
        permit.release().await.unwrap();
        tokio::time::sleep(other_work).await;
    }
}

/// A process near the server whose many tasks use permits.
struct Busy {
    permits: u32,
    hogs: u64,
    other_work: Duration,
}

impl Busy {
    /// Returns the longest wait of another process at this distance from the server.
    async fn longest_wait_at(&self, distance: Duration) -> Duration {
        let (server, _) = semaphore_of(self.permits).await;
        let ((busy, near), (one, far)) = (client(&server), client(&server));
        near.on_request(|_| Fate::default());
        far.on_request(move |_| Fate::delivered(distance, distance));
        far.on_message(move |_| Some(distance));
        let mut hogs = tokio::task::JoinSet::new();
        for n in 0..self.hogs {
            let hold = Duration::from_millis(1 + n % 3);
            hogs.spawn(hog(busy.semaphore("x"), hold, self.other_work));
        }
        let remote = one.semaphore("x").poll_interval(HOUR);
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let asked = Instant::now();
            let permit = timeout(10 * SECOND, remote.acquire()).await;
            let permit = permit.unwrap_or_else(|_| panic!("not served at {distance:?}"));
            longest = longest.max(asked.elapsed());
            permit.unwrap().release().await.unwrap();
        }
        longest
    }
}

#[tokio::test(start_paused = true)]
async fn busy_process_gives_another_its_turn() {
    let ms = Duration::from_millis;
    let many = Busy {
        permits: 4,
        hogs: 32,
        other_work: Duration::ZERO,
    };
    // With these few tasks, often no task is in line.
    let few = Busy {
        permits: 1,
        hogs: 2,
        other_work: ms(1),
    };
    let one = Busy {
        permits: 1,
        hogs: 1,
        other_work: Duration::ZERO,
    };
    for busy in [many, few, one] {
        for distance_ms in 0..=7 {
            let longest = busy.longest_wait_at(ms(distance_ms)).await;
            // A near process is served after every slice of the busy process, and a far process
            // after every fourth slice.
            let limit = ms(if distance_ms <= 1 { 40 } else { 200 });
            assert!(longest <= limit, "{longest:?} at {distance_ms} ms");
        }
    }
}

/// Makes three processes use one permit all the time, all in the same way. Returns how often each
/// process had the permit in twelve seconds.
async fn three_alike<P>(acquire: impl AsyncFn(&Client) -> P, release: impl AsyncFn(P)) -> [u64; 3] {
    let server = Embedded::new();
    let semaphore = server.client().semaphore("x");
    semaphore.try_set_permits(1).await.unwrap();
    let clients: Vec<_> = (0..3).map(|seed| jittery(&server, seed)).collect();
    let end = Instant::now() + 12 * SECOND;
    let rounds = clients.iter().map(async |client| {
        let mut rounds = 0;
        while Instant::now() < end {
            let permit = acquire(client).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            release(permit).await;
            rounds += 1;
        }
        rounds
    });
    let rounds = futures_util::future::join_all(rounds).await;
    rounds.try_into().expect("three of them")
}

/// Returns a client whose requests take 0.5 to 1.5 ms, so that a different client's request arrives
/// first each time.
fn jittery(server: &Embedded, seed: u64) -> Client {
    let (client, network) = client(server);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut way = move || Duration::from_micros(rng.u64(500..1500));
    network.on_request({
        let mut way = way.clone();
        move |_| Fate::delivered(way(), way())
    });
    network.on_message(move |_| Some(way()));
    client
}

fn assert_nobody_starves(what: &str, rounds: [u64; 3]) {
    println!("{what}: {rounds:?}");
    let (least, most) = (rounds.iter().min(), rounds.iter().max());
    assert!(least.unwrap() * 2 > *most.unwrap(), "{what}: {rounds:?}");
}

#[tokio::test(start_paused = true)]
async fn equal_processes_share_a_permit_fairly() {
    let acquire = async |client: &Client| {
        let semaphore = client.semaphore("x").poll_interval(HOUR);
        semaphore.acquire().await.unwrap()
    };
    let rounds = three_alike(acquire, async |permit| permit.release().await.unwrap()).await;
    assert_nobody_starves("plain permits", rounds);
    let acquire = async |client: &Client| {
        let semaphore = client.expirable_semaphore("x").poll_interval(HOUR);
        semaphore.acquire().await.unwrap()
    };
    let rounds = three_alike(acquire, async |permit| permit.release().await.unwrap()).await;
    assert_nobody_starves("permits with leases", rounds);
}

/// Makes a waiter try to acquire permits in vain while `others` run. Returns the number of its
/// requests.
async fn asks_while(others: impl AsyncFnOnce(&Embedded)) -> u64 {
    let server = Embedded::new();
    server
        .client()
        .semaphore("x")
        .try_set_permits(0)
        .await
        .unwrap();
    let (client, network) = client(&server);
    let semaphore = client.semaphore("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { semaphore.acquire().await.map(drop) });
    tokio::time::sleep(SECOND).await;
    let before = network.requests();
    others(&server).await;
    waiter.abort();
    network.requests() - before
}

/// A flood of messages without a release is in `hostile/messages.rs`.
#[tokio::test(start_paused = true)]
async fn each_release_wakes_losing_waiter() {
    let releases = asks_while(async |server| {
        let other = server.client().semaphore("x");
        for _ in 0..500 {
            other.release(1).await.unwrap();
            let permit = other.try_acquire().await.unwrap();
            permit.expect("it is near").forget();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let releases = releases.await;
    assert!(releases >= 490, "{releases} asks for 500 releases");
}

/// A release by the waiter's own client counts, too.
#[tokio::test(start_paused = true)]
async fn own_release_wakes_losing_waiter() {
    let (server, other) = semaphore_of(0).await;
    let (client, network) = client(&server);
    let ours = client.semaphore("x").poll_interval(HOUR);
    let waits = ours.clone();
    network.on_message(|_| Some(Duration::from_millis(3)));
    let waiter = tokio::spawn(async move { waits.acquire().await.map(drop) });
    tokio::time::sleep(SECOND).await;
    let before = network.requests();
    for _ in 0..500 {
        ours.release(1).await.unwrap();
        let permit = other.try_acquire().await.unwrap();
        permit.expect("it is near").forget();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let asks = network.requests() - before - 500;
    assert!(asks >= 490, "{asks} asks for 500 releases");
    waiter.abort();
}

/// Two waiters for permits. The first has just asked the server for both.
struct AskedForTwo {
    admin: Semaphore,
    client: Client,
    network: leasehold::testing::Network,
    head: BoxFuture<'static, leasehold::Result<SemaphorePermit>>,
    behind: JoinHandle<leasehold::Result<SemaphorePermit>>,
}

impl AskedForTwo {
    async fn new() -> Self {
        let (server, admin) = semaphore_of(0).await;
        let (client, network) = client(&server);
        let takes = Duration::from_millis(10);
        network.on_request(move |_| Fate::delivered(takes, takes));
        let semaphore = client.semaphore("x").poll_interval(HOUR);
        let (first, second) = (semaphore.clone(), semaphore);
        let mut head = async move { first.acquire().await }.boxed();
        assert!(timeout(SECOND, &mut head).await.is_err(), "none is free");
        let behind = tokio::spawn(async move { second.acquire().await });
        tokio::time::sleep(SECOND).await;
        let before = network.requests();
        admin.release(2).await.unwrap();
        let asks = async {
            while network.requests() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = &mut head => panic!("the answer takes longer"),
            () = asks => {}
        }
        Self {
            admin,
            client,
            network,
            head,
            behind,
        }
    }

    async fn all_are_back(&self) {
        self.client.close().await;
        assert_eq!(self.admin.available_permits().await.unwrap(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn unpolled_head_withholds_no_permit() {
    let mut scene = AskedForTwo::new().await;
    let permit = timeout(10 * SECOND, &mut scene.behind).await;
    drop(permit.expect("it has one").unwrap());
    // A waiter that is dropped releases its own permit.
    scene.head = std::future::pending().boxed();
    scene.all_are_back().await;
}

#[tokio::test(start_paused = true)]
async fn shared_request_is_undone_with_head() {
    let mut scene = AskedForTwo::new().await;
    scene.behind.abort();
    assert!((&mut scene.behind).await.unwrap_err().is_cancelled());
    scene.head = std::future::pending().boxed();
    // This acquire runs after the undo.
    let beside = scene
        .client
        .semaphore("x")
        .try_acquire_many(2)
        .await
        .unwrap();
    drop(beside.expect("both are back"));
    scene.all_are_back().await;
}

#[tokio::test(start_paused = true)]
async fn lost_reply_returns_permits_with_unpolled_head() {
    let mut scene = AskedForTwo::new().await;
    // The request has arrived, and its reply is under way.
    tokio::time::sleep(Duration::from_millis(15)).await;
    scene.network.cut();
    let permit = timeout(60 * SECOND, &mut scene.behind).await;
    drop(permit.expect("there are two").unwrap());
    scene.head = std::future::pending().boxed();
    scene.all_are_back().await;
}

#[tokio::test(start_paused = true)]
async fn leased_release_wakes_losing_waiter() {
    let server = Embedded::new();
    let other = server.client().expirable_semaphore("x");
    other.try_set_permits(1).await.unwrap();
    let mut permit = other.acquire().await.unwrap();
    let (client, network) = client(&server);
    let semaphore = client.expirable_semaphore("x").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { semaphore.acquire().await.map(drop) });
    tokio::time::sleep(SECOND).await;
    let before = network.requests();
    for _ in 0..500 {
        permit.release().await.unwrap();
        permit = other.try_acquire().await.unwrap().expect("it is near");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let asks = network.requests() - before;
    assert!(asks >= 490, "{asks} asks for 500 releases");
    waiter.abort();
}

/// For a while after its slice, a process leaves free permits to other processes. But a wait that
/// would end during that time asks the server anyway, because it has no other chance.
#[tokio::test(start_paused = true)]
async fn short_wait_asks_during_stand_down() {
    let (server, _) = semaphore_of(1).await;
    let (client, network) = client(&server);
    network.on_request(|_| Fate::default());
    let semaphore = client.semaphore("x");
    let permit = semaphore.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(12)).await;
    permit.release().await.unwrap();
    let before = Instant::now();
    let wait = Duration::from_millis(1);
    let got = semaphore.try_acquire_for(wait).await.unwrap();
    assert!(got.is_some(), "it was free");
    assert!(before.elapsed() < wait);
}

#[tokio::test(start_paused = true)]
async fn handed_on_permit_needs_no_message() {
    let (server, _) = semaphore_of(1).await;
    let (client, network) = client(&server);
    network.on_message(|_| None);
    let semaphore = client.semaphore("x").poll_interval(HOUR);
    let (first, second) = (semaphore.clone(), semaphore.clone());
    let first = tokio::spawn(async move { first.acquire().await });
    let second = tokio::spawn(async move { second.acquire().await });
    let permit = first.await.unwrap().unwrap();
    // The second waiter has already asked the server in vain, and sleeps.
    tokio::time::sleep(Duration::from_millis(8)).await;
    permit.release().await.unwrap();
    let got = timeout(SECOND, second).await;
    drop(got.expect("it is told").unwrap().unwrap());
}
