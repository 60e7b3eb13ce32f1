//! Every feature during every fault that can be tested without a server, with all settings that
//! every handle has.

use leasehold::testing::Machine;
use leasehold::{Acknowledgement, AnyLock, ClientBuilder, Owner};

use super::*;
use crate::support::company::Company;
use crate::support::is_clean;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

struct Site {
    server: Embedded,
    beside: [Embedded; 2],
    clients: [Client; 2],
    networks: [Network; 2],
}

impl Site {
    fn new() -> Self {
        Self::of(Embedded::new)
    }

    fn of(embedded: impl Fn() -> Embedded) -> Self {
        Self::with(embedded, |builder| builder)
    }

    fn with(
        embedded: impl Fn() -> Embedded,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Self {
        let server = embedded();
        let builder = settings(Client::builder().lease(30 * SECOND));
        let side = || server.client_over_network(&builder).unwrap();
        let ((ours, our_network), (theirs, their_network)) = (side(), side());
        let networks = [our_network, their_network];
        for network in &networks {
            network.on_request(takes(MS));
        }
        Self {
            beside: [embedded(), embedded()],
            clients: [ours, theirs],
            networks,
            server,
        }
    }

    /// Uses every feature during the fault, and checks that nothing is left behind.
    async fn goes_through(&self, set: fn(AnyLock) -> AnyLock, trouble: impl AsyncFnOnce()) {
        let [ours, theirs] = &self.clients;
        let company = Company {
            set,
            beside: self.beside.clone(),
            ..Company::new(ours, theirs)
        };
        company.goes_through(trouble).await;
        let keys = || {
            let keys = self.server.keys().into_iter();
            keys.filter(|key| !key.contains("_token:") && !key.starts_with("leasehold:"))
                .collect()
        };
        is_clean(keys, Vec::new, &[ours, theirs]).await;
    }
}

fn confirmed(builder: ClientBuilder) -> ClientBuilder {
    builder.acknowledged_by(Acknowledgement::replicas(1))
}

#[tokio::test(start_paused = true)]
async fn every_feature_outlasts_an_outage() {
    outlasts_an_outage(Site::new()).await;
    outlasts_an_outage(Site::with(Embedded::new, confirmed)).await;
}

async fn outlasts_an_outage(site: Site) {
    let outage = async || {
        for network in &site.networks {
            network.refuse(true);
        }
        sleep(10 * SECOND).await;
        for network in &site.networks {
            network.refuse(false);
        }
        sleep(SECOND).await;
        for network in &site.networks {
            network.freeze(true);
        }
        sleep(SECOND).await;
        for network in &site.networks {
            network.freeze(false);
        }
        site.networks[0].cut();
        site.networks[1].cut_while_requests_travel(100 * MS);
    };
    site.goes_through(|lock| lock, outage).await;
}

#[tokio::test(start_paused = true)]
async fn every_feature_outlasts_a_sleep_of_the_machine() {
    let machine = Machine::new();
    outlasts_a_sleep(machine, Site::of(|| machine.embedded())).await;
    let site = Site::with(|| machine.embedded(), confirmed);
    outlasts_a_sleep(machine, site).await;
}

async fn outlasts_a_sleep(machine: Machine, site: Site) {
    let sleeps = async || {
        sleep(SECOND).await;
        machine.sleep(10 * SECOND);
        sleep(SECOND).await;
    };
    site.goes_through(|lock| lock, sleeps).await;
}

#[tokio::test(start_paused = true)]
async fn every_feature_does_without_messages() {
    let site = Site::new();
    for network in &site.networks {
        network.on_message(|_| None);
    }
    site.goes_through(|lock| lock, async || sleep(SECOND).await)
        .await;
}

#[tokio::test(start_paused = true)]
async fn every_feature_backs_off() {
    let site = Site::new();
    let set = |lock: AnyLock| lock.wait_strategy(WaitStrategy::Backoff(Backoff::exponential()));
    site.goes_through(set, async || sleep(SECOND).await).await;
}

#[tokio::test(start_paused = true)]
async fn every_feature_has_an_owner() {
    let site = Site::new();
    let set = |lock: AnyLock| lock.owned_by(&Owner::new());
    site.goes_through(set, async || sleep(SECOND).await).await;
}

#[tokio::test(start_paused = true)]
async fn every_feature_has_a_maximum() {
    let site = Site::new();
    site.goes_through(|lock| lock.max_hold(HOUR), async || sleep(SECOND).await)
        .await;
}

/// The replicas are away for less than a lease.
#[tokio::test(start_paused = true)]
async fn every_feature_is_confirmed() {
    let site = Site::with(Embedded::new, confirmed);
    let replicas_are_away = async || {
        for replicas in [0, 2] {
            for network in &site.networks {
                network.confirm_by(replicas);
            }
            sleep(5 * SECOND).await;
        }
    };
    site.goes_through(|lock| lock, replicas_are_away).await;
}

#[tokio::test(start_paused = true)]
async fn every_feature_outlasts_what_others_cancel() {
    let site = Site::new();
    let cancelled = async || {
        for name in ["plain", "fair", "write", "handed over", "run", "read"] {
            for polls in 0..8 {
                let any: [AnyLock; 3] = [
                    site.clients[0].lock(name).into(),
                    site.clients[0].fair_lock(name).into(),
                    site.clients[0].rw_lock(name).write_lock().into(),
                ];
                for lock in any {
                    // The server refuses a lock of another kind at once.
                    let _ = tokio::time::timeout(polls * MS, lock.acquire()).await;
                }
            }
        }
    };
    site.goes_through(|lock| lock, cancelled).await;
}
