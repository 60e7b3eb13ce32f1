//! The setting of a history: the keyspace, the machines with their networks, and the violations
//! seen so far.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold::testing::history::Recorder;
use leasehold::testing::{Fate, Network};
use leasehold::{Client, Embedded};
use tokio::time::Instant;

use crate::faults::Kind;
use crate::scenario::{Fault, Scenario};
use crate::worker::{Slots, Terms, Tickets};

/// The time limit for a reply.
pub(crate) const REPLY_LIMIT: Duration = Duration::from_millis(400);

pub(crate) struct Stage {
    pub(crate) scenario: Scenario,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) start: Instant,
    pub(crate) servers: Vec<Embedded>,
    /// For each server, a client that bypasses all networks.
    pub(crate) operators: Vec<Client>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) recorder: Recorder,
    pub(crate) slots: Slots,
    pub(crate) terms: Terms,
    pub(crate) tickets: Tickets,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    violations: Vec<String>,
    /// The greatest fencing token so far.
    last_token: u64,
    /// The time and kind of the last fault that broke the promise.
    broken: Option<(Instant, Kind)>,
    /// `active` is the number of workers that want or have the lock now. `entered` counts how often
    /// a worker has begun to want it.
    active: usize,
    entered: usize,
    /// The times of the grants.
    granted: Vec<Instant>,
    /// The start and end of each time for which the lock was kept.
    kept: Vec<(Instant, Instant)>,
    /// The time until which the server may grant the lock to a request that was given up. Such a
    /// grant is undone.
    ghosts_until: Option<Instant>,
}

pub(crate) struct Machine {
    /// One client for each server.
    pub(crate) clients: Vec<Client>,
    pub(crate) closed: AtomicBool,
    /// The networks between the machine and each server.
    pub(crate) networks: Vec<Network>,
    pub(crate) life: Life,
}

impl Stage {
    pub(crate) fn new(scenario: &Scenario) -> Arc<Self> {
        let servers: Vec<_> = std::iter::repeat_with(Embedded::new)
            .take(scenario.servers)
            .collect();
        servers.iter().for_each(Embedded::note_ids);
        let recorder = Recorder::new();
        let machines = (0..scenario.machines)
            .map(|number| Machine::new(scenario, number, &servers, &recorder))
            .collect();
        let kinds = scenario.kinds();
        for kind in &kinds {
            recorder.expect_fault(&kind.name());
        }
        Arc::new(Self {
            scenario: scenario.clone(),
            kinds,
            start: Instant::now(),
            operators: servers.iter().map(Embedded::client).collect(),
            servers,
            machines,
            recorder,
            slots: Slots::default(),
            terms: Terms::default(),
            tickets: Tickets::default(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records a violation.
    pub(crate) fn violation(&self, what: impl AsRef<str>) {
        let what = format!("at {} ms: {}", self.ms(), what.as_ref());
        self.state().violations.push(what);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    pub(crate) fn granted(&self, at: Instant) {
        self.state().granted.push(at);
    }

    /// Records that the server keeps the lock at least during this time.
    pub(crate) fn kept(&self, from: Instant, until: Instant) {
        self.state().kept.push((from, until));
    }

    /// Returns the grants that happened while the server should still have kept the lock. For each
    /// grant, this is the time from the grant to the end of the time for which the lock was kept.
    pub(crate) fn granted_too_early(&self) -> Vec<Duration> {
        let state = self.state();
        let early = state.kept.iter().flat_map(|(from, until)| {
            let within = state.granted.iter().filter(move |at| *at > from);
            within.map(move |at| until.saturating_duration_since(*at))
        });
        early.filter(|early| !early.is_zero()).collect()
    }

    pub(crate) fn fired(&self, kind: Kind) {
        self.recorder.fault_happened(&kind.name());
    }

    /// Records a fault that breaks the promise: from now on, earlier holds do not count.
    pub(crate) fn promise_ends(&self, kind: Kind) {
        self.recorder.promise_ends_here();
        self.state().broken = Some((Instant::now(), kind));
        if kind.loses_data() {
            self.slots.forget();
        }
    }

    /// Records a fencing token. Returns whether it is greater than all earlier tokens.
    pub(crate) fn token_rises(&self, token: u64) -> bool {
        let mut state = self.state();
        let rises = token > state.last_token;
        state.last_token = state.last_token.max(token);
        rises
    }

    pub(crate) fn broken(&self) -> Option<(Instant, Kind)> {
        self.state().broken
    }

    /// Returns the networks of all machines to a server.
    pub(crate) fn networks_to(&self, server: usize) -> impl Iterator<Item = &Network> + Clone {
        let machines = self.machines.iter();
        machines.map(move |machine| &machine.networks[server])
    }

    pub(crate) fn any(&self, has: impl Fn(Kind) -> bool) -> bool {
        self.kinds.iter().any(|kind| has(*kind))
    }

    /// Returns whether a holder may lose its lock because of any fault in this history.
    /// `acknowledged` says whether replicas must confirm the hold.
    pub(crate) fn loses_holds(&self, acknowledged: bool) -> bool {
        let forgets = |kind: Kind| kind.is_empty_restart() && self.scenario.rolls_gently;
        let lease_ms = self.scenario.lease_ms;
        self.any(|kind| !forgets(kind) && kind.loses_holds(lease_ms, acknowledged))
    }

    /// Records that a worker wants the lock from now on.
    pub(crate) fn enter(self: &Arc<Self>) -> Wanting {
        let mut state = self.state();
        state.active += 1;
        state.entered += 1;
        let ghosts = state
            .ghosts_until
            .is_some_and(|until| Instant::now() < until);
        Wanting {
            alone: state.active == 1 && !ghosts,
            entered: state.entered,
            stage: Arc::clone(self),
        }
    }
}

/// A worker that wants or has the lock.
pub(crate) struct Wanting {
    stage: Arc<Stage>,
    alone: bool,
    entered: usize,
}

impl Wanting {
    /// Returns whether this worker is the first that has wanted the lock.
    pub(crate) fn is_first(&self) -> bool {
        self.entered == 1 && self.was_alone()
    }

    /// Returns whether no other worker has wanted the lock while this worker wanted it.
    pub(crate) fn was_alone(&self) -> bool {
        self.alone && self.stage.state().entered == self.entered
    }
}

impl Drop for Wanting {
    fn drop(&mut self) {
        let trips = Duration::from_millis(self.stage.scenario.latency_ms * 4 + 1);
        let mut state = self.stage.state();
        state.active -= 1;
        state.ghosts_until = Some(Instant::now() + trips);
    }
}

impl Machine {
    fn new(scenario: &Scenario, number: usize, servers: &[Embedded], recorder: &Recorder) -> Self {
        let builder = Client::builder()
            .lease(Duration::from_millis(scenario.lease_ms))
            .reply_timeout(REPLY_LIMIT);
        let sides = servers.iter().enumerate().map(|(server, embedded)| {
            let (client, network) = embedded
                .client_over_network(&builder)
                .expect("settings in range");
            let hit = |fault: &&Fault| fault.machine == number && fault.server == server;
            let faults = scenario.faults.iter().filter(hit).cloned().collect();
            let which = (number + server * scenario.machines) as u64;
            let seed = scenario.seed.wrapping_add(which + 1);
            weather(&network, scenario.latency_ms, seed, faults, recorder);
            (client, network)
        });
        let (clients, networks) = sides.unzip();
        Self {
            clients,
            closed: AtomicBool::new(false),
            networks,
            life: Life::default(),
        }
    }
}

/// Makes a network delay requests and messages, and applies its faults to them.
fn weather(network: &Network, latency_ms: u64, seed: u64, faults: Vec<Fault>, recorder: &Recorder) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut seen = vec![0; faults.len()];
    let (ours, recorder) = (faults.clone(), recorder.clone());
    let slow = faults.iter().find(|fault| fault.kind == Kind::MessageLate);
    let slow_ms = slow.map_or(0, |fault| fault.span_ms);
    let note = recorder.clone();
    network.on_request(move |request| {
        let mut delay = || Duration::from_millis(rng.u64(0..=latency_ms));
        let mut fate = Fate::delivered(delay(), delay());
        for (fault, seen) in ours.iter().zip(&mut seen) {
            if !request.step.name().starts_with(fault.step) {
                continue;
            }
            let Some(struck) = strike(fault, fate) else {
                continue;
            };
            // A single duplicated request is rarely one that matters.
            let times = if fault.kind == Kind::RequestDoubled {
                8
            } else {
                1
            };
            if (fault.at..fault.at + times).contains(seen) {
                fate = struck;
                note.fault_happened(&fault.kind.name());
            }
            *seen += 1;
        }
        fate
    });
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x00FF);
    let mut seen = vec![0; faults.len()];
    network.on_message(move |_| {
        let mut delay = Some(Duration::from_millis(rng.u64(0..=latency_ms)));
        for (fault, seen) in faults.iter().zip(&mut seen) {
            let span = Duration::from_millis(fault.span_ms);
            let strikes = match fault.kind {
                Kind::MessageLost => *seen == fault.at,
                Kind::MessageLate => true,
                _ => false,
            };
            *seen += 1;
            if strikes {
                let late = fault.kind == Kind::MessageLate;
                delay = delay.filter(|_| late).map(|delay| delay + span);
                recorder.fault_happened(&fault.kind.name());
            }
        }
        delay
    });
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xFF00);
    network.on_subscription(move |_| Duration::from_millis(rng.u64(0..=latency_ms) + slow_ms));
}

/// Returns the fate that a fault gives a request, or `None` if the fault does not concern requests.
fn strike(fault: &Fault, fate: Fate) -> Option<Fate> {
    let span = Duration::from_millis(fault.span_ms);
    match fault.kind {
        Kind::RequestLost => Some(fate.request_lost()),
        Kind::ReplyLost => Some(fate.reply_lost()),
        Kind::ReplyLate => Some(Fate::delivered(Duration::ZERO, span)),
        Kind::RequestDoubled => Some(fate.duplicated_after(span)),
        Kind::RequestLate => Some(Fate::delivered(span, Duration::ZERO)),
        _ => None,
    }
}

/// The state of a machine: its tasks run, are suspended, or are dead.
#[derive(Clone, Default)]
pub(crate) struct Life(Arc<LifeState>);

#[derive(Default)]
struct LifeState {
    paused: AtomicBool,
    dead: AtomicBool,
    /// Whether the machine has ever been suspended.
    has_paused: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Life {
    pub(crate) fn pause(&self) {
        self.0.paused.store(true, Ordering::SeqCst);
        self.0.has_paused.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        self.0.paused.store(false, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn kill(&self) {
        self.0.dead.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.0.dead.load(Ordering::SeqCst)
    }

    pub(crate) fn has_paused(&self) -> bool {
        self.0.has_paused.load(Ordering::SeqCst)
    }

    fn is_paused(&self) -> bool {
        self.0.paused.load(Ordering::SeqCst)
    }

    fn woken_by(&self, waker: &Waker) {
        let mut wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|other| !other.will_wake(waker));
        wakers.push(waker.clone());
    }

    fn wake(&self) {
        let mut wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }
}

/// A task on a machine. It is suspended and dies together with the machine.
pub(crate) struct Living<F> {
    life: Life,
    task: Option<Pin<Box<F>>>,
}

impl<F: Future<Output = ()>> Living<F> {
    pub(crate) fn new(life: &Life, task: F) -> Self {
        Self {
            life: life.clone(),
            task: Some(Box::pin(task)),
        }
    }
}

impl<F: Future<Output = ()>> Future for Living<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let life = self.life.clone();
        if life.is_dead() {
            self.task = None;
        }
        let Some(task) = &mut self.task else {
            return Poll::Ready(());
        };
        if !life.is_paused() && task.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        life.woken_by(context.waker());
        Poll::Pending
    }
}
