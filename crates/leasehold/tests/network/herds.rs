//! Many processes that want one name, each once: how often each of them asks hardly depends on how
//! many they are.

use std::pin::Pin;

use futures_util::future::join_all;
use leasehold::testing::history::Recorder;

use super::hand_over::Sent;
use super::*;

type Used = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long each has what it waited for.
const HELD: Duration = Duration::from_millis(50);

/// A client of another process, whose requests take about a millisecond, each its own time.
fn process(server: &Embedded) -> (Client, Network, Sent) {
    let builder = Client::builder().lease(30_000 * MS);
    let (client, network) = server.client_over_network(&builder).unwrap();
    let sent = Sent::default();
    let noted = sent.clone();
    network.on_request(move |asked| {
        noted.note(asked.step);
        let time = Duration::from_micros(fastrand::u64(800..1200));
        Fate::delivered(time, Duration::ZERO)
    });
    (client, network, sent)
}

/// How many requests a process has sent at last, of so many that all use the name once.
async fn requests(processes: usize, asks: &[Step], uses: impl Fn(Client) -> Used) -> f64 {
    let server = Embedded::new();
    let clients: Vec<_> = (0..processes).map(|_| process(&server)).collect();
    let used = clients.iter().map(|(client, _, _)| {
        let used = uses(client.clone());
        tokio::spawn(async move {
            sleep(Duration::from_micros(fastrand::u64(..50_000))).await;
            used.await;
        })
    });
    let used: Vec<_> = used.collect();
    for used in join_all(used).await {
        used.unwrap();
    }
    let of = |sent: &Sent| asks.iter().map(|step| sent.count(*step)).sum::<usize>();
    let asked: usize = clients.iter().map(|(_, _, sent)| of(sent)).sum();
    // What waited has left nothing behind.
    sleep(HELD).await;
    let keys = server.keys();
    assert!(!keys.iter().any(|key| key.contains(":asking")), "{keys:?}");
    asked as f64 / processes as f64
}

/// Eight times as many processes make each of them ask half as often again at most.
async fn assert_flat(asks: &[Step], uses: impl Fn(Client) -> Used) {
    let few = requests(40, asks, &uses).await;
    let many = requests(320, asks, &uses).await;
    assert!(many <= 1.5 * few, "{few} with 40, {many} with 320");
    assert!(few <= 9.0, "{few}");
}

#[tokio::test(start_paused = true)]
async fn processes_that_want_a_lock_ask_seldom() {
    let asks = [Step::LockAcquire, Step::LockAcquireInTurn];
    assert_flat(&asks, |client| {
        Box::pin(async move {
            let guard = client.lock("x").acquire().await.unwrap();
            sleep(HELD).await;
            guard.release().await.unwrap();
        })
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn writers_of_many_processes_ask_seldom() {
    assert_flat(&[Step::RwAcquireWrite], |client| {
        Box::pin(async move {
            let guard = client.rw_lock("x").write().await.unwrap();
            sleep(HELD).await;
            guard.release().await.unwrap();
        })
    })
    .await;
}

/// Readers are let in together, and each of them gets in while many writers wait.
#[tokio::test(start_paused = true)]
async fn readers_beside_many_writers_exclude_them_and_get_in() {
    let (server, recorder) = (Embedded::new(), Recorder::new());
    let clients: Vec<_> = (0..40).map(|_| process(&server)).collect();
    let used = clients.iter().enumerate().map(|(n, (client, _, _))| {
        let (client, recorder) = (client.clone(), recorder.clone());
        tokio::spawn(async move {
            let (lock, who) = (client.rw_lock("x"), format!("process {n}"));
            for _ in 0..5 {
                if n % 4 == 0 {
                    let start = Instant::now();
                    let guard = lock.read().await.unwrap();
                    assert!(start.elapsed() < 3000 * MS, "{:?}", start.elapsed());
                    sleep(10 * MS).await;
                    guard.release().await.unwrap();
                } else {
                    let asked = recorder.ask("x", &who);
                    let guard = lock.write().await.unwrap();
                    let inside = asked.acquired(&guard);
                    sleep(10 * MS).await;
                    inside.releasing(&guard);
                    guard.release().await.unwrap();
                }
            }
        })
    });
    let used: Vec<_> = used.collect();
    for used in join_all(used).await {
        used.unwrap();
    }
    recorder.report().judge().unwrap();
}
