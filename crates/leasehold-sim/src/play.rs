//! Plays one history and checks it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::testing::history::Report;
use leasehold::testing::{Fate, Network};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::faults::Kind;
use crate::judge;
use crate::scenario::{Fault, Scenario};
use crate::stage::{Living, Machine, Stage};
use crate::subject::Subject;
use crate::worker::{dead_turns_are_open, observe, work};

/// The result of a history.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Played {
    /// Violations of the promise.
    pub violations: Vec<String>,
    /// The report of the history checker.
    pub report: Report,
    /// The holds, one line for each.
    pub trace: Vec<String>,
    /// Number of requests that were sent.
    pub requests: u64,
}

impl Played {
    /// Returns whether the history tests anything: whether there was contention, and each fault
    /// happened.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.report.judge().is_ok()
    }
}

/// Plays a scenario from its start until all keys and waits have ended.
#[must_use]
pub fn play(scenario: &Scenario) -> Played {
    on_its_own_clock(scenario.seed, run(scenario))
}

/// Plays a history repeatedly, until it shows a violation, at most eight times.
///
/// One seed may have several histories, because Tokio itself chooses at random in which order it
/// wakes the receivers of one channel.
#[must_use]
pub fn play_again(history: impl Fn() -> Played) -> Played {
    const TIMES: usize = 8;
    let mut played = history();
    for _ in 1..TIMES {
        if !played.violations.is_empty() {
            break;
        }
        played = history();
    }
    played
}

/// Plays a history on a paused clock.
pub(crate) fn on_its_own_clock(seed: u64, history: impl Future<Output = Played>) -> Played {
    // The random choices in the library must be repeatable, too.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    let played = catch_unwind(AssertUnwindSafe(|| runtime.block_on(history)));
    played.unwrap_or_else(|panic| Played {
        violations: vec![format!("panicked: {}", text_of(&*panic))],
        ..Played::default()
    })
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default()
}

/// The virtual time by which every history has ended. Leases that are not meant to end during a
/// history are much longer.
const LONGEST: Duration = Duration::from_secs(600);
/// Like [`LONGEST`], for histories whose tasks sometimes do not poll their acquires.
const LONGEST_UNPOLLED: Duration = Duration::from_secs(3000);

async fn run(scenario: &Scenario) -> Played {
    let stage = Stage::new(scenario);
    let mut workers = JoinSet::new();
    for (number, worker) in scenario.workers.iter().enumerate() {
        let life = &stage.machines[worker.machine].life;
        let task = work(Arc::clone(&stage), number, worker.clone());
        workers.spawn(Living::new(life, task));
    }
    let mut observers = JoinSet::new();
    if scenario.subject == Subject::Election {
        for (number, machine) in stage.machines.iter().enumerate() {
            let task = observe(Arc::clone(&stage), number);
            observers.spawn(Living::new(&machine.life, task));
        }
    }
    let mut faults = JoinSet::new();
    for fault in &scenario.faults {
        faults.spawn(inflict(Arc::clone(&stage), fault.clone()));
    }
    let all = async {
        while let Some(done) = workers.join_next().await {
            if let Err(error) = done {
                stage.violation(format!("a worker ended badly: {error}"));
            }
        }
    };
    let longest = if scenario.unpolled {
        LONGEST_UNPOLLED
    } else {
        LONGEST
    };
    if timeout(longest, all).await.is_err() {
        stage.violation("somebody waits for ever");
    } else {
        while faults.join_next().await.is_some() {}
        judge::observers_see_the_end(&stage).await;
        observers.shutdown().await;
        judge::nothing_left(&stage).await;
        dead_turns_are_open(&stage).await;
        judge::everybody_can(&stage).await;
        judge::nothing_left(&stage).await;
    }
    judge::judge(&stage)
}

/// Makes a fault happen at its time. The simulated network itself applies the faults that affect
/// requests and messages.
async fn inflict(stage: Arc<Stage>, fault: Fault) {
    use Kind::*;
    if matches!(
        fault.kind,
        RequestLost
            | ReplyLost
            | ReplyLate
            | RequestDoubled
            | RequestLate
            | MessageLost
            | MessageLate
    ) {
        return;
    }
    sleep(Duration::from_millis(fault.at)).await;
    let machine = &stage.machines[fault.machine];
    let span = Duration::from_millis(fault.span_ms);
    let (network, server) = (
        &machine.networks[fault.server],
        &stage.servers[fault.server],
    );
    match fault.kind {
        Cut => network.cut(),
        CutReordered => network.cut_while_requests_travel(span),
        MessagesCut => network.cut_messages(),
        Frozen => freeze(std::slice::from_ref(network), span).await,
        Refused => refuse([network], span).await,
        RestartWithData => refuse(stage.networks_to(fault.server), span).await,
        RestartEmpty | RestartUntold => {
            for network in stage.networks_to(fault.server) {
                network.hide_start(fault.kind == RestartUntold);
            }
            // A `RedLock` works without the servers that have lost their data.
            if stage.scenario.subject == Subject::Red {
                server.restart();
            } else {
                stage.promise_ends(fault.kind);
                server.clear();
            }
            refuse(stage.networks_to(fault.server), span).await;
        }
        RolledBack => {
            let checkpoint = server.checkpoint();
            sleep(span).await;
            stage.promise_ends(fault.kind);
            server.roll_back(&checkpoint);
        }
        Unconfirmed => unconfirmed(&stage, &fault, span).await,
        FailedOver => fails_over(&stage, &fault, span).await,
        ClockAhead => {
            stage.promise_ends(fault.kind);
            server.step_clock_ahead(span);
        }
        ClockBack => server.step_clock_back(span),
        Paused => {
            machine.life.pause();
            freeze(&machine.networks, span).await;
            machine.life.resume();
        }
        Killed => kill(machine),
        Closed => close(&stage, machine).await,
        Forced => {
            stage.promise_ends(fault.kind);
            stage.scenario.subject.force_unlock(&stage.operators).await;
        }
        Removed => {
            stage.promise_ends(fault.kind);
            for key in stage.scenario.subject.keys() {
                stage.servers.iter().for_each(|server| {
                    server.remove(key);
                });
            }
        }
        _ => return,
    }
    stage.fired(fault.kind);
}

async fn freeze(networks: &[Network], span: Duration) {
    networks.iter().for_each(|network| network.freeze(true));
    sleep(span).await;
    networks.iter().for_each(|network| network.freeze(false));
}

async fn refuse(networks: impl IntoIterator<Item = &Network> + Clone, span: Duration) {
    for network in networks.clone() {
        network.refuse(true);
    }
    sleep(span).await;
    for network in networks {
        network.refuse(false);
    }
}

/// Disconnects the replicas, so that they receive no writes during `span`.
async fn unconfirmed(stage: &Stage, fault: &Fault, span: Duration) {
    let confirm_by = |replicas| {
        let networks = stage.networks_to(fault.server);
        networks.for_each(|network| network.confirm_by(replicas));
    };
    confirm_by(0);
    sleep(span).await;
    confirm_by(1);
}

/// Promotes a replica that has received no writes for the duration `span`. Holds that replicas have
/// confirmed must survive this, so the promise still applies to them.
async fn fails_over(stage: &Stage, fault: &Fault, span: Duration) {
    let server = &stage.servers[fault.server];
    let replica = server.checkpoint();
    unconfirmed(stage, fault, span).await;
    server.roll_back(&replica);
    server.cut_all();
}

async fn close(stage: &Stage, machine: &Machine) {
    for client in &machine.clients {
        client.close().await;
        if client.activity().releases > 0 {
            stage.violation("closed, and something was left to give back");
        }
    }
    machine.closed.store(true, Ordering::SeqCst);
}

/// Kills a process: its requests and messages no longer reach any server.
fn kill(machine: &Machine) {
    for network in &machine.networks {
        network.on_request(|_| Fate::default().request_lost());
        network.on_message(|_| None);
        network.cut_while_requests_travel(Duration::ZERO);
    }
    machine.life.kill();
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn history_is_played_until_it_shows_its_violation() {
        let plays = Cell::new(0);
        let third_fails = || {
            plays.set(plays.get() + 1);
            let violations = (plays.get() == 3).then(|| "two hold".to_owned());
            Played {
                violations: violations.into_iter().collect(),
                ..Played::default()
            }
        };
        assert_eq!(play_again(third_fails).violations, ["two hold"]);
        assert_eq!(plays.get(), 3);

        assert!(play_again(third_fails).violations.is_empty());
        assert_eq!(plays.get(), 11);
    }
}
