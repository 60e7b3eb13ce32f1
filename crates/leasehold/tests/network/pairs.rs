//! Every pair of actions that users take with a lock, at the same time and under one name. Tasks in
//! one process take the two actions in turn, while tasks in another process use the lock, too. Each
//! kind of lock is used, and each history is checked: no two holders overlap, every task is served,
//! and nothing is left.
//!
//! `LEASEHOLD_PAIRS_SEEDS` sets the number of seeds that are played for each pair.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fastrand::Rng;
use leasehold::inspect::Activity;
use leasehold::testing::history::{Asked, Inside};
use leasehold::{
    Acknowledgement, AnyLock, Error, ExpirablePermit, ExpirableSemaphore, Guard as _, LockGuard,
    Owner, PermitId, Result,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

const LEASE: Duration = Duration::from_millis(600);
/// The time for which a hold is kept or forgotten.
const LEFT: Duration = Duration::from_millis(80);
const MAXIMUM: Duration = Duration::from_millis(20);
/// A limit above the sum of everything for which a pair waits: leases, reservations, places in
/// line.
const LONGEST: Duration = Duration::from_secs(120);
const MASTERS: usize = 3;
const ROUNDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Fenced,
    Fair,
    Sides,
    Group,
    Several,
    Majority,
    Permit,
}

const KINDS: [Kind; 8] = [
    Kind::Plain,
    Kind::Fenced,
    Kind::Fair,
    Kind::Sides,
    Kind::Group,
    Kind::Several,
    Kind::Majority,
    Kind::Permit,
];

/// A task's use of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Holds the lock for a moment, so that the process hands over, shares and swaps holds.
    Holds,
    /// Holds the lock until it has been renewed.
    StaysLong,
    Drops,
    Extends,
    Reenters,
    HasAMaximum,
    MakesNoProgress,
    Forgets,
    Keeps,
    Forces,
    IsNotPolled,
    IsCancelled,
    BacksOff,
    /// No message reaches the task's client.
    HearsNothing,
    /// Replicas acknowledge all holds of the task's client.
    IsConfirmed,
    DrawsTokens,
    ClosesACircle,
    ClosesItsClient,
    LosesItsConnection,
    ChangesSides,
}

const ACTS: [Act; 20] = [
    Act::Holds,
    Act::StaysLong,
    Act::Drops,
    Act::Extends,
    Act::Reenters,
    Act::HasAMaximum,
    Act::MakesNoProgress,
    Act::Forgets,
    Act::Keeps,
    Act::Forces,
    Act::IsNotPolled,
    Act::IsCancelled,
    Act::BacksOff,
    Act::HearsNothing,
    Act::IsConfirmed,
    Act::DrawsTokens,
    Act::ClosesACircle,
    Act::ClosesItsClient,
    Act::LosesItsConnection,
    Act::ChangesSides,
];

/// One process, with a client of each server.
struct Process {
    clients: Vec<Client>,
    networks: Vec<Network>,
}

impl Process {
    fn new(servers: &[Embedded], confirmed: bool, rng: &mut Rng) -> Self {
        let mut builder = Client::builder().reply_timeout(400 * MS).lease(LEASE);
        if confirmed {
            builder = builder.acknowledged_by(Acknowledgement::replicas(1).within(100 * MS));
        }
        let sides = servers
            .iter()
            .map(|server| server.client_over_network(&builder).unwrap());
        let (clients, networks): (Vec<_>, Vec<Network>) = sides.unzip();
        for network in &networks {
            let mut rng = rng.fork();
            network.on_request(move |_| {
                let mut takes = || Duration::from_micros(rng.u64(..1500));
                Fate::delivered(takes(), takes())
            });
        }
        Self { clients, networks }
    }
}

struct Stage {
    kind: Kind,
    acts: [Act; 2],
    servers: Vec<Embedded>,
    ours: Process,
    theirs: Process,
    recorder: Recorder,
}

enum Wanted {
    Lock(AnyLock),
    Permit(ExpirableSemaphore),
}

enum Held {
    Lock(LockGuard),
    Permit(ExpirablePermit),
}

macro_rules! of_either {
    ($held:expr, $one:ident => $what:expr) => {
        match $held {
            Held::Lock($one) => $what,
            Held::Permit($one) => $what,
        }
    };
}

macro_rules! setters {
    ($($name:ident: $type:ty),+) => {
        $(fn $name(self, value: $type) -> Self {
            match self {
                Self::Lock(lock) => Self::Lock(lock.$name(value)),
                Self::Permit(permits) => Self::Permit(permits.$name(value)),
            }
        })+
    };
}

impl Wanted {
    setters! { max_hold: Duration, progress_within: Duration, fixed_lease: Duration, wait_strategy: WaitStrategy }

    fn owned_by(self, owner: &Owner) -> Self {
        match self {
            Self::Lock(lock) => Self::Lock(lock.owned_by(owner)),
            permits @ Self::Permit(_) => permits,
        }
    }

    async fn acquire(&self) -> Result<Held> {
        Ok(match self {
            Self::Lock(lock) => Held::Lock(lock.acquire().await?),
            Self::Permit(permits) => Held::Permit(permits.acquire().await?),
        })
    }
}

impl Held {
    async fn release(self) -> Result<()> {
        of_either!(self, one => one.release().await)
    }

    fn releasing(&self, inside: Vec<Inside>) {
        for one in inside {
            of_either!(self, held => one.releasing(held));
        }
    }

    fn ids(&self) -> Vec<PermitId> {
        match self {
            Self::Lock(_) => Vec::new(),
            Self::Permit(permit) => permit.ids().to_vec(),
        }
    }
}

impl Stage {
    async fn new(kind: Kind, acts: [Act; 2], rng: &mut Rng) -> Self {
        let servers: Vec<_> = std::iter::repeat_with(Embedded::new)
            .take(MASTERS)
            .collect();
        let confirmed = acts.contains(&Act::IsConfirmed);
        let stage = Self {
            kind,
            acts,
            ours: Process::new(&servers, confirmed, rng),
            theirs: Process::new(&servers, false, rng),
            servers,
            recorder: Recorder::new(),
        };
        if acts.contains(&Act::HearsNothing) {
            for network in &stage.ours.networks {
                network.on_message(|_| None);
            }
        }
        if kind == Kind::Permit {
            let permits = stage.servers[0].client().expirable_semaphore("x");
            permits.set_permits(1).await.unwrap();
        }
        stage
    }

    fn has(&self, act: Act) -> bool {
        self.acts.contains(&act)
    }

    /// Makes the lock that a task wants. `writes` chooses the side of a read-write lock.
    fn wanted(&self, clients: &[Client], writes: bool) -> Wanted {
        let client = &clients[0];
        let lock: AnyLock = match self.kind {
            Kind::Plain => client.lock("x").into(),
            Kind::Fenced => client.fenced_lock("x").into(),
            Kind::Fair => client.fair_lock("x").into(),
            Kind::Sides if writes => client.rw_lock("x").write_lock().into(),
            Kind::Sides => client.rw_lock("x").read_lock().into(),
            Kind::Group => client.group_lock("x", ["a", "b"]).into(),
            Kind::Several => {
                let members: [AnyLock; 2] = [client.lock("x").into(), client.fair_lock("y").into()];
                MultiLock::new(members).unwrap().into()
            }
            Kind::Majority => RedLock::new(clients.iter().map(|client| client.lock("x")))
                .unwrap()
                .distrust_restarted(false)
                .into(),
            Kind::Permit => return Wanted::Permit(client.expirable_semaphore("x")),
        };
        Wanted::Lock(lock.poll_interval(100 * MS))
    }

    fn ask(&self, writes: bool, who: &str) -> Vec<Asked> {
        let names = match self.kind {
            Kind::Several => &["x", "y"][..],
            _ => &["x"],
        };
        let asked = names.iter().map(|name| {
            let asked = self.recorder.ask(name, who);
            match self.kind {
                Kind::Sides if !writes => asked.sharing(),
                _ => asked,
            }
        });
        asked.collect()
    }

    /// Asserts that these acts may cause this error.
    fn refused(&self, error: &Error) {
        let allowed = match error.kind() {
            ErrorKind::Deadlock => self.has(Act::ClosesACircle),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => self.has(Act::LosesItsConnection),
            _ => false,
        };
        assert!(allowed, "{error:?}");
    }

    fn given_back(&self, was_held: bool, released: Result<()>) {
        match released {
            Err(error) if error.kind() == ErrorKind::Lost => {
                let broken = [Act::Forces, Act::LosesItsConnection];
                let broken = broken.into_iter().any(|act| self.has(act));
                assert!(broken || !was_held, "{error:?}");
            }
            Err(error) => self.refused(&error),
            Ok(()) => {}
        }
    }

    async fn act(&self, process: &Process, act: Act, rng: &mut Rng) {
        let (writes, who) = (rng.bool(), format!("{act:?}"));
        let wanted = self.wanted(&process.clients, writes);
        let asked = self.ask(writes, &who);
        let owner = Owner::new();
        let wanted = match act {
            Act::Reenters | Act::ClosesACircle => wanted.owned_by(&owner),
            Act::HasAMaximum => wanted.max_hold(MAXIMUM),
            Act::MakesNoProgress => wanted.progress_within(MAXIMUM),
            Act::Forgets => wanted.fixed_lease(LEFT),
            Act::BacksOff => wanted.wait_strategy(WaitStrategy::Backoff(Backoff::constant(
                rng.u32(1..40) * MS,
            ))),
            _ => wanted,
        };
        let acquire = wanted.acquire();
        let held = match act {
            Act::IsNotPolled => now_and_then(rng, acquire).await,
            Act::IsCancelled => match timeout(rng.u32(..12) * MS, acquire).await {
                Ok(held) => held,
                Err(_) => return,
            },
            _ => acquire.await,
        };
        match held {
            Err(error) => self.refused(&error),
            Ok(held) => {
                let inside = asked.into_iter();
                let inside = inside.map(|one| of_either!(&held, held => one.acquired(held)));
                let inside = inside.collect();
                let done = Holding {
                    stage: self,
                    process,
                    wanted: &wanted,
                    owner,
                    writes,
                };
                done.hold(act, held, inside, rng).await;
            }
        }
    }

    /// Asserts that everything can be acquired again, and that nothing is left behind.
    async fn is_over(&self) {
        for process in [&self.ours, &self.theirs] {
            let wanted = self.wanted(&process.clients, true);
            wanted.acquire().await.unwrap().release().await.unwrap();
        }
        if self.kind == Kind::Permit {
            let permits = self.servers[0].client().expirable_semaphore("x");
            assert_eq!(permits.available_permits().await.unwrap(), 1);
            permits.delete().await.unwrap();
        }
        let start = Instant::now();
        loop {
            let clients = [&self.ours, &self.theirs];
            let mut clients = clients.into_iter().flat_map(|process| &process.clients);
            let busy = clients.find(|client| client.activity() != Activity::default());
            let keys = self.servers.iter().flat_map(Embedded::keys);
            let kept = |key: &String| key.contains("_token:") || key.starts_with("leasehold:");
            let keys: Vec<_> = keys.filter(|key| !kept(key)).collect();
            if busy.is_none() && keys.is_empty() {
                return;
            }
            let busy = busy.map(Client::activity);
            assert!(start.elapsed() < LONGEST, "left behind: {keys:?}, {busy:?}");
            sleep(20 * MS).await;
        }
    }
}

/// A hold, and the lock that was acquired.
struct Holding<'a> {
    stage: &'a Stage,
    process: &'a Process,
    wanted: &'a Wanted,
    owner: Owner,
    writes: bool,
}

impl Holding<'_> {
    async fn hold(self, act: Act, held: Held, inside: Vec<Inside>, rng: &mut Rng) {
        let moment = Duration::from_micros(rng.u64(..4000));
        match act {
            Act::StaysLong => sleep(LEASE.mul_f64(1.3)).await,
            Act::Extends => {
                let extended = of_either!(&held, held => held.extend(2 * LEASE).await);
                self.stage.given_back(was_held(&held), extended);
            }
            Act::Reenters => self.reenter(&held).await,
            Act::HasAMaximum => {
                let start = Instant::now();
                of_either!(&held, held => held.lost().await);
                assert!(start.elapsed() <= MAXIMUM);
            }
            Act::MakesNoProgress => {
                let start = Instant::now();
                of_either!(&held, held => held.lost().await);
                assert!(start.elapsed() <= MAXIMUM + LEASE);
            }
            Act::Forces => self.force(&held).await,
            Act::DrawsTokens => self.draw(&held).await,
            Act::ClosesACircle => self.close_a_circle(rng).await,
            Act::LosesItsConnection => {
                let network = rng.choice(&self.process.networks).unwrap();
                match rng.bool() {
                    true => network.cut(),
                    false => {
                        network.refuse(true);
                        sleep(rng.u32(1..100) * MS).await;
                        network.refuse(false);
                    }
                }
            }
            _ => sleep(moment).await,
        }
        self.leave(act, held, inside).await;
    }

    async fn leave(self, act: Act, held: Held, inside: Vec<Inside>) {
        let stage = self.stage;
        match (act, held) {
            // A forgotten hold is valid until its lease ends, but the history records its end here.
            (Act::Forgets, held) => {
                held.releasing(inside);
                of_either!(held, held => held.forget());
            }
            (Act::Keeps, Held::Lock(guard)) => {
                let held = Held::Lock(guard);
                held.releasing(inside);
                let was_held = was_held(&held);
                let Held::Lock(guard) = held else {
                    return;
                };
                match guard.keep_for(LEFT).await {
                    // Readers share the hold.
                    Err(error) if error.kind() == ErrorKind::Misuse => {}
                    kept => stage.given_back(was_held, kept),
                }
            }
            (Act::Drops, held) => held.releasing(inside),
            (_, held) => {
                held.releasing(inside);
                let was_held = was_held(&held);
                stage.given_back(was_held, held.release().await);
            }
        }
    }

    async fn reenter(&self, outer: &Held) {
        if matches!(outer, Held::Permit(_)) {
            return;
        }
        match self.wanted.acquire().await {
            Ok(inner) => {
                assert!(self.wanted_is_held(), "the owner holds it");
                let was_held = was_held(&inner);
                self.stage.given_back(was_held, inner.release().await);
            }
            Err(error) => self.stage.refused(&error),
        }
    }

    fn wanted_is_held(&self) -> bool {
        let broken = [Act::Forces, Act::LosesItsConnection];
        match self.wanted {
            Wanted::Lock(lock) => {
                lock.is_held_by(&self.owner) || broken.into_iter().any(|act| self.stage.has(act))
            }
            Wanted::Permit(_) => true,
        }
    }

    /// Force-unlocks the hold, as an operator does.
    async fn force(&self, held: &Held) {
        let client = &self.stage.theirs.clients[0];
        // The holder may learn of this later, and may have relied on its hold until then.
        self.stage.recorder.promise_ends_here();
        let forced = match self.stage.kind {
            Kind::Plain | Kind::Several | Kind::Majority => client.lock("x").force_unlock().await,
            Kind::Fenced => client.fenced_lock("x").force_unlock().await,
            Kind::Fair => client.fair_lock("x").force_unlock().await,
            Kind::Sides if self.writes => client.rw_lock("x").write_lock().force_unlock().await,
            Kind::Sides => client.rw_lock("x").read_lock().force_unlock().await,
            Kind::Group => client.group_lock("x", ["a", "b"]).force_unlock().await,
            Kind::Permit => {
                let permits = client.expirable_semaphore("x");
                permits.release_many(&held.ids()).await
            }
        };
        if let Err(error) = forced {
            self.stage.refused(&error);
        }
        self.stage.recorder.promise_ends_here();
    }

    async fn draw(&self, held: &Held) {
        let Held::Lock(guard) = held else {
            return;
        };
        let first = guard.fencing_token().await;
        if let (Ok(first), Ok(second)) = (&first, guard.fencing_token().await) {
            assert_eq!(*first, second, "a hold has one token");
        }
        match first {
            // Several holders may share these kinds.
            Err(error) if error.kind() == ErrorKind::Misuse => {
                assert!(
                    [Kind::Sides, Kind::Group].contains(&self.stage.kind),
                    "{error}"
                );
            }
            Err(error) => self.stage.given_back(guard.is_held(), Err(error)),
            Ok(_) => {}
        }
    }

    /// Another owner holds `z` and wants this lock, while the owner of this lock wants `z`.
    async fn close_a_circle(&self, rng: &mut Rng) {
        let Wanted::Lock(wanted) = self.wanted else {
            return;
        };
        let client = &self.process.clients[0];
        let other = Owner::new();
        let Ok(Some(beside)) = client.lock("z").owned_by(&other).try_acquire().await else {
            return;
        };
        let crossed = wanted.clone().owned_by(&other);
        let (limit, ours) = (rng.u32(5..20) * MS, client.lock("z").owned_by(&self.owner));
        let (theirs, ours) =
            tokio::join!(crossed.try_acquire_for(limit), ours.try_acquire_for(limit));
        for guard in [theirs, ours] {
            match guard {
                Err(error) if error.is_transient() => {
                    // The time limit passed before the reply arrived.
                }
                Err(error) => self.stage.refused(&error),
                Ok(None) => {}
                // The guard belongs to a reader, or its holder has already lost the lock.
                Ok(Some(guard)) => {
                    let held = guard.is_held();
                    self.stage.given_back(held, guard.release().await);
                }
            }
        }
        self.stage
            .given_back(beside.is_held(), beside.release().await);
    }
}

fn was_held(held: &Held) -> bool {
    of_either!(held, held => held.is_held())
}

/// Polls a future, but sometimes pauses for a while.
async fn now_and_then<F: Future>(rng: &mut Rng, future: F) -> F::Output {
    let (mut future, mut pause) = (pin!(future), None);
    poll_fn(|context| {
        if let Some(sleeps) = &mut pause {
            let sleeps: &mut std::pin::Pin<Box<tokio::time::Sleep>> = sleeps;
            if sleeps.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            pause = None;
        }
        let polled = future.as_mut().poll(context);
        if polled.is_pending() && rng.u8(..10) < 3 {
            let mut begins = Box::pin(sleep(rng.u32(1..300) * MS));
            if begins.as_mut().poll(context).is_pending() {
                pause = Some(begins);
            }
        }
        polled
    })
    .await
}

/// Acquires the lock with another client, and closes that client.
async fn closes_its_client(stage: &Stage, rng: &mut Rng) {
    let process = Process::new(&stage.servers, stage.has(Act::IsConfirmed), rng);
    stage.act(&process, Act::Holds, rng).await;
    let (wanted, asked) = (
        stage.wanted(&process.clients, true).fixed_lease(LEFT),
        stage.ask(true, "closes"),
    );
    let held = match wanted.acquire().await {
        Ok(held) => held,
        Err(error) => return stage.refused(&error),
    };
    let inside: Vec<_> = asked
        .into_iter()
        .map(|one| of_either!(&held, held => one.acquired(held)))
        .collect();
    for client in &process.clients {
        client.close().await;
    }
    held.releasing(inside);
    let was_held = was_held(&held);
    stage.given_back(was_held, held.release().await);
}

/// A writer downgrades, and upgrades again if no other reader shares the lock.
async fn changes_sides(stage: &Stage, process: &Process, rng: &mut Rng) {
    let lock = process.clients[0].rw_lock("x").poll_interval(100 * MS);
    let asked = stage.recorder.ask("x", "writes");
    let guard = match lock.write().await {
        Ok(guard) => guard,
        Err(error) => return stage.refused(&error),
    };
    let inside = asked.acquired(&guard);
    sleep(Duration::from_micros(rng.u64(..3000))).await;
    inside.releasing(&guard);
    let asked = stage.recorder.ask("x", "reads").sharing();
    let was_held = guard.is_held();
    let guard = match guard.downgrade().await {
        Ok(guard) => guard,
        Err(error) => return stage.given_back(was_held, Err(error)),
    };
    let inside = asked.acquired(&guard);
    sleep(Duration::from_micros(rng.u64(..3000))).await;
    inside.releasing(&guard);
    let asked = stage.recorder.ask("x", "writes again");
    let was_held = guard.is_held();
    let released = match guard.try_upgrade().await {
        Ok(guard) => {
            asked.acquired(&guard).releasing(&guard);
            guard.release().await
        }
        Err(refused) => refused.into_guard().release().await,
    };
    stage.given_back(was_held, released);
}

async fn rounds(stage: Arc<Stage>, ours: bool, acts: [Act; 2], seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let process = if ours { &stage.ours } else { &stage.theirs };
    for round in 0..ROUNDS {
        let act = acts[round % 2];
        match act {
            Act::ClosesItsClient => closes_its_client(&stage, &mut rng).await,
            Act::ChangesSides if stage.kind == Kind::Sides => {
                changes_sides(&stage, process, &mut rng).await;
            }
            act => stage.act(process, act, &mut rng).await,
        }
        sleep(Duration::from_micros(rng.u64(..3000))).await;
    }
}

async fn meet(kind: Kind, acts: [Act; 2], seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let stage = Arc::new(Stage::new(kind, acts, &mut rng).await);
    let mut tasks = JoinSet::new();
    let [one, other] = acts;
    for acts in [[one, other], [other, one], [one, other], [other, one]] {
        tasks.spawn(rounds(Arc::clone(&stage), true, acts, rng.u64(..)));
    }
    for acts in [[Act::Holds; 2], [one, other]] {
        tasks.spawn(rounds(Arc::clone(&stage), false, acts, rng.u64(..)));
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        stage.is_over().await;
    };
    timeout(LONGEST, all).await.expect("it stands still");
    let report = stage.recorder.report();
    assert_eq!(report.overlaps, []);
}

/// Runs `work` on a paused clock of its own.
fn on_a_paused_clock(work: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(work);
}

#[test]
fn every_two_acts_meet() {
    let seeds = std::env::var("LEASEHOLD_PAIRS_SEEDS").ok();
    let seeds: u64 = seeds.map_or(1, |seeds| seeds.parse().unwrap());
    let mut wrong = Vec::new();
    for (number, one) in ACTS.into_iter().enumerate() {
        for other in &ACTS[number..] {
            for kind in KINDS {
                for seed in 0..seeds {
                    let play = || on_a_paused_clock(meet(kind, [one, *other], seed));
                    if std::panic::catch_unwind(play).is_err() {
                        wrong.push(format!("{kind:?}: {one:?} and {other:?}, seed {seed}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
