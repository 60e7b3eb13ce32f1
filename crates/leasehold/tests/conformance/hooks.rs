//! The hooks that a client calls when something is acquired, takes long, or is lost.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::hooks::Lost;
use leasehold::testing::Machine;
use leasehold::{Client, ClientBuilder, Embedded, MultiLock};

#[cfg(feature = "metrics")]
use self::recorders::{Handles, NoHandles};
use crate::support::{HOUR, eventually};
use crate::warnings::Warnings;

type Calls = Arc<Mutex<Vec<String>>>;

/// Makes a client whose hooks note their calls.
fn client(keyspace: &Embedded, longest: Duration) -> (Client, Calls) {
    let calls = Calls::default();
    let note = |what: &'static str| {
        let calls = Arc::clone(&calls);
        move |kind: &str, name: &str| calls.lock().unwrap().push(format!("{what} {kind} {name}"))
    };
    let (acquired, lost, waits) = (note("acquired"), note("lost"), note("waits"));
    let builder = Client::builder()
        .on_acquired(move |told| acquired(told.kind, told.name))
        .on_lost(move |told| lost(told.kind, told.name))
        .on_waiting_longer_than(longest, move |told| {
            assert!(told.waited >= longest);
            waits(told.kind, told.name);
        });
    (builder.embedded(keyspace).unwrap(), calls)
}

fn take(calls: &Calls) -> Vec<String> {
    std::mem::take(&mut *calls.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_kind_is_told_when_it_is_acquired() {
    let (client, calls) = client(&Embedded::new(), HOUR);
    client.semaphore("s").try_set_permits(1).await.unwrap();
    let permits = client.expirable_semaphore("p");
    permits.try_set_permits(1).await.unwrap();
    drop(client.lock("a").acquire().await.unwrap());
    drop(client.fenced_lock("b").acquire().await.unwrap());
    drop(client.fair_lock("c").acquire().await.unwrap());
    drop(client.rw_lock("d").read().await.unwrap());
    drop(client.rw_lock("e").write().await.unwrap());
    drop(client.group_lock("f", ["1"]).acquire().await.unwrap());
    drop(client.semaphore("s").acquire().await.unwrap());
    drop(permits.acquire().await.unwrap());
    let told = [
        "lock a",
        "lock b",
        "fair c",
        "read d",
        "write e",
        "group f",
        "semaphore s",
        "permit p",
    ];
    assert_eq!(take(&calls), told.map(|what| format!("acquired {what}")));
}

#[tokio::test(start_paused = true)]
async fn long_wait_is_told_once_and_its_guard_knows_how_long_it_was() {
    let second = Duration::from_secs(1);
    let (client, calls) = client(&Embedded::new(), second);
    let guard = client.lock("a").acquire().await.unwrap();
    assert_eq!(guard.waited(), Duration::ZERO);
    let lock = client.lock("a");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(5 * second).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.waited() >= 5 * second, "{:?}", guard.waited());
    assert_eq!(
        take(&calls),
        ["acquired lock a", "waits lock a", "acquired lock a"]
    );
}

#[tokio::test(start_paused = true)]
async fn loss_is_told_once_and_without_being_asked() {
    let keyspace = Embedded::new();
    let (client, calls) = client(&keyspace, HOUR);
    let guard = client.lock("a").acquire().await.unwrap();
    keyspace.client().lock("a").force_unlock().await.unwrap();
    eventually("the next renewal finds it", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        calls.lock().unwrap().len() == 2
    })
    .await;
    assert!(guard.loss().is_some());
    drop(guard);
    assert_eq!(take(&calls), ["acquired lock a", "lost lock a"]);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_that_ran_out_is_told_when_its_guard_is_dropped() {
    let (client, calls) = client(&Embedded::new(), HOUR);
    let lock = client.lock("a").fixed_lease(Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(guard);
    assert_eq!(take(&calls), ["acquired lock a", "lost lock a"]);
}

#[tokio::test(start_paused = true)]
async fn loss_by_a_sleep_of_the_machine_is_told_without_being_asked() {
    let machine = Machine::new();
    let (client, calls) = client(&machine.embedded(), HOUR);
    let warnings = Warnings::listen();
    let guard = client.lock("a").acquire().await.unwrap();
    machine.sleep(HOUR);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(take(&calls), ["acquired lock a", "lost lock a"]);
    assert_eq!(warnings.count("lock lost"), 1);
    drop(guard);
    assert_eq!(take(&calls), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_that_ran_out_is_told_to_who_asks() {
    let (client, calls) = client(&Embedded::new(), HOUR);
    let lock = client.lock("a").fixed_lease(Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!guard.is_held());
    assert_eq!(take(&calls), ["acquired lock a", "lost lock a"]);
    let members = ["b", "c"].map(|name| client.lock(name));
    let multi = MultiLock::new(members).unwrap();
    let multi = multi.fixed_lease(Duration::from_secs(1));
    let guard = multi.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    take(&calls);
    assert!(guard.loss().is_some());
    assert_eq!(take(&calls), ["lost lock b", "lost lock c"]);
}

/// The machine has slept long enough that the renewals of all holds are due at once.
#[tokio::test(start_paused = true)]
async fn hook_that_panics_costs_no_other_hold() {
    let hook = |lost: &Lost<'_>| panic!("{} is lost", lost.name);
    assert_eq!(
        lost_of_many(&Client::builder().on_lost(hook)).await,
        ["limited"]
    );
}

/// Loses one of many holds by a sleep of the machine, and returns the names that are lost.
async fn lost_of_many(builder: &ClientBuilder) -> Vec<String> {
    let machine = Machine::new();
    let client = builder.embedded(&machine.embedded()).unwrap();
    // Dropping the guards would log their losses. If the log panicked and the panic was not caught,
    // a second panic would end the whole program.
    let mut guards = ManuallyDrop::new(Vec::new());
    for n in 0..200 {
        let lock = client.lock(n.to_string());
        guards.push(lock.acquire().await.unwrap());
    }
    let second = Duration::from_secs(1);
    let limited = client.lock("limited").max_hold(20 * second);
    guards.push(limited.acquire().await.unwrap());
    tokio::time::sleep(second).await;
    machine.sleep(25 * second);
    tokio::time::sleep(60 * second).await;
    let lost = guards.iter().filter(|guard| !guard.is_held());
    lost.map(|guard| guard.name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn hooks_that_panic_change_nothing_and_do_not_flood_the_log() {
    let second = Duration::from_secs(1);
    let warnings = Warnings::listen();
    let builder = Client::builder()
        .on_acquired(|_| panic!("on purpose"))
        .on_waiting_longer_than(second, |_| panic!("on purpose"));
    let client = builder.embedded(&Embedded::new()).unwrap();
    for _ in 0..16 {
        let guard = client.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = client.lock("a");
            async move { lock.acquire().await }
        });
        tokio::time::sleep(2 * second).await;
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    // Warnings appear at the 1st, 2nd, 4th, 8th, 16th and 32nd panic.
    assert_eq!(warnings.count("what=\"on_acquired\""), 6);
    assert_eq!(warnings.count("what=\"on_waiting_longer_than\""), 5);
}

/// Runs a future on a thread of its own, and fails if that thread hangs.
fn without_standstill<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(work());
        done.send(()).unwrap();
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it stands still"),
        _ => thread.join().unwrap(),
    }
}

/// Uses a client in all ways that monitoring reports.
async fn is_used_and_lost(client: &Client) {
    let second = Duration::from_secs(1);
    let lock = client.lock("a");
    for _ in 0..3 {
        let guard = lock.acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        tokio::time::sleep(second).await;
        assert!(lock.try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        tokio::time::sleep(60 * second).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
    let guard = lock.acquire().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(guard.lost().await, crate::support::forced());
}

#[test]
fn subscriber_that_panics_costs_no_other_hold() {
    without_standstill(async || {
        let _guard = tracing::subscriber::set_default(Spans(|| panic!("on purpose")));
        assert_eq!(lost_of_many(&Client::builder()).await, ["limited"]);
    });
}

#[test]
fn subscriber_that_panics_changes_nothing() {
    without_standstill(async || {
        let _guard = tracing::subscriber::set_default(Spans(|| panic!("on purpose")));
        is_used_and_lost(&Client::embedded()).await;
    });
}

thread_local! {
    static CLIENT: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Calls every query of the client, as code in a hook may do.
fn asks_the_client() {
    let client = CLIENT.with_borrow(Clone::clone);
    if let Some(client) = client {
        let _ = client.holds();
        let _ = client.activity();
    }
}

#[test]
fn subscriber_may_ask_the_client() {
    without_standstill(async || {
        let client = Client::embedded();
        CLIENT.set(Some(client.clone()));
        let _guard = tracing::subscriber::set_default(Spans(asks_the_client));
        is_used_and_lost(&client).await;
        CLIENT.set(None);
    });
}

#[cfg(feature = "metrics")]
#[test]
fn recorder_that_panics_changes_nothing() {
    without_standstill(async || {
        let recorder = Handles(|| panic!("on purpose"));
        let _guard = metrics::set_default_local_recorder(&recorder);
        is_used_and_lost(&Client::embedded()).await;
    });
}

#[cfg(feature = "metrics")]
#[test]
fn recorder_that_gives_no_handle_changes_nothing() {
    without_standstill(async || {
        let _guard = metrics::set_default_local_recorder(&NoHandles);
        is_used_and_lost(&Client::embedded()).await;
    });
}

#[cfg(feature = "metrics")]
#[test]
fn recorder_may_ask_the_client() {
    without_standstill(async || {
        let client = Client::embedded();
        CLIENT.set(Some(client.clone()));
        let recorder = Handles(asks_the_client);
        let _guard = metrics::set_default_local_recorder(&recorder);
        is_used_and_lost(&client).await;
        CLIENT.set(None);
    });
}

/// A subscriber that calls this function at each event, and whenever a span is entered or changed.
struct Spans(fn());

impl tracing::Subscriber for Spans {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {
        (self.0)();
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {
        (self.0)();
    }

    fn clone_span(&self, id: &tracing::span::Id) -> tracing::span::Id {
        (self.0)();
        id.clone()
    }

    fn try_close(&self, _: tracing::span::Id) -> bool {
        (self.0)();
        true
    }

    fn event(&self, _: &tracing::Event<'_>) {
        (self.0)();
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[cfg(feature = "metrics")]
mod recorders {
    use std::sync::Arc;

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
        Recorder, SharedString, Unit,
    };

    /// A recorder whose handles call this function.
    pub(super) struct Handles(pub(super) fn());

    struct Handle(fn());

    impl CounterFn for Handle {
        fn increment(&self, _: u64) {
            (self.0)();
        }

        fn absolute(&self, _: u64) {
            (self.0)();
        }
    }

    impl GaugeFn for Handle {
        fn increment(&self, _: f64) {
            (self.0)();
        }

        fn decrement(&self, _: f64) {
            (self.0)();
        }

        fn set(&self, _: f64) {
            (self.0)();
        }
    }

    impl HistogramFn for Handle {
        fn record(&self, _: f64) {
            (self.0)();
        }
    }

    impl Recorder for Handles {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Handle(self.0)))
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Arc::new(Handle(self.0)))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Handle(self.0)))
        }
    }

    pub(super) struct NoHandles;

    impl Recorder for NoHandles {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            panic!("on purpose")
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            panic!("on purpose")
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("on purpose")
        }
    }
}
