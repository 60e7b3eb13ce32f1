//! Several clients of this process that use every primitive at the same time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::Cluster;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::account::Account;
use super::worker::{JOBS, LEASE, PERMITS, Say, TAG, Worker, make_semaphores};
use crate::support::{eventually, is_clean};

const CLIENTS: usize = 2;

pub(crate) struct Crew {
    clients: Vec<Client>,
    stop: watch::Sender<()>,
    work: Vec<JoinHandle<()>>,
    done: Arc<Vec<AtomicUsize>>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Crew {
    /// Starts the clients, which begin their work at once. All their names are in the slot of
    /// [`TAG`].
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let builder = Client::builder().lease(LEASE);
            clients.push(builder.connect(&cluster.url()).await.unwrap());
        }
        make_semaphores(&clients[0], TAG).await.unwrap();
        let (stop, _) = watch::channel(());
        let mut crew = Self {
            clients,
            stop,
            work: Vec::new(),
            done: Arc::new(JOBS.map(|_| AtomicUsize::new(0)).into()),
            lines: Arc::default(),
        };
        let lines = Arc::clone(&crew.lines);
        let say: Say = Arc::new(move |line| lines.lock().unwrap().push(line));
        let numbers = Arc::<AtomicU64>::default();
        for n in 0..2 * CLIENTS * JOBS.len() {
            let worker = Worker {
                client: crew.clients[n % CLIENTS].clone(),
                say: Arc::clone(&say),
                numbers: Arc::clone(&numbers),
            };
            crew.start_worker(worker, n / CLIENTS % JOBS.len());
        }
        crew
    }

    fn start_worker(&mut self, worker: Worker, job: usize) {
        let done = Arc::clone(&self.done);
        let stopped = self.stop.subscribe();
        self.work.push(tokio::spawn(async move {
            while !stopped.has_changed().unwrap_or(true) {
                worker.run(JOBS[job], TAG).await;
                done[job].fetch_add(1, Ordering::SeqCst);
                // At the end of the runtime each call fails at once.
                tokio::task::yield_now().await;
            }
        }));
    }

    /// Waits until each primitive has been used once more.
    pub(crate) async fn goes_on(&self) {
        let before: Vec<_> = self.done.iter().map(|n| n.load(Ordering::SeqCst)).collect();
        for (n, before) in before.into_iter().enumerate() {
            // A request that waits for an open slot is abandoned after the outage timeout.
            let used = eventually("it is used", async || {
                self.done[n].load(Ordering::SeqCst) > before + 1
            });
            let used = tokio::time::timeout(Duration::from_secs(60), used);
            used.await
                .unwrap_or_else(|_| panic!("{:?} stands still", JOBS[n]));
        }
    }

    /// Ends the work and checks it: no two holders overlapped, no call hangs, and no key is left
    /// behind. Returns the errors.
    pub(crate) async fn end(self, cluster: &Cluster) -> Vec<String> {
        drop(self.stop);
        for work in self.work {
            let ended = tokio::time::timeout(Duration::from_secs(60), work);
            ended.await.expect("no call hangs").unwrap();
        }
        let mut account = Account::default();
        account.read(0, &self.lines.lock().unwrap());
        account.judge(&[]);
        let clients: Vec<_> = self.clients.iter().collect();
        nothing_is_left(cluster, &clients, &[TAG]).await;
        account.errors
    }
}

/// Asserts that every permit has been returned, and that no other key is left behind.
pub(crate) async fn nothing_is_left(cluster: &Cluster, clients: &[&Client], places: &[&str]) {
    for place in places {
        let semaphore = clients[0].semaphore(format!("{place}permits"));
        eventually("every permit is back", async || {
            semaphore.available_permits().await.unwrap() == i64::from(PERMITS)
        })
        .await;
        let leased = clients[0].expirable_semaphore(format!("{place}leased"));
        eventually("every permit with a lease is back", async || {
            leased.available_permits().await.unwrap() == i64::from(PERMITS)
        })
        .await;
        semaphore.delete().await.unwrap();
        leased.delete().await.unwrap();
    }
    let keys = || {
        let keys = cluster.keys().into_iter();
        // Token counters are permanent, and markers expire.
        keys.filter(|key| !key.contains("_token:") && !key.starts_with("leasehold:"))
            .collect()
    };
    is_clean(keys, || cluster.channels(), clients).await;
}
