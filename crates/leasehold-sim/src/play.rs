//! Plays one history and judges it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::history::Report;
use leasehold::testing::Fate;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::faults::Kind;
use crate::judge;
use crate::scenario::{Fault, Scenario};
use crate::stage::{Living, Machine, NAME, Stage};
use crate::worker::work;

/// What came of a history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Played {
    /// What must not be and was.
    pub violations: Vec<String>,
    /// What the history checker says.
    pub report: Report,
    /// The holds, one line each, the same in every run of the same scenario.
    pub trace: Vec<String>,
    /// How many requests were sent.
    pub requests: u64,
}

impl Played {
    /// Whether it shows anything: there was contention, and each fault happened.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.report.judge().is_ok()
    }
}

/// Plays a scenario from its start to the point where nothing is left.
#[must_use]
pub fn play(scenario: &Scenario) -> Played {
    // What the library draws at random must be the same again, too.
    fastrand::seed(scenario.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    let played = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(scenario))));
    played.unwrap_or_else(|panic| Played {
        violations: vec![format!("panicked: {}", text_of(&*panic))],
        report: Report::default(),
        trace: Vec::new(),
        requests: 0,
    })
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default()
}

/// By then every history is over, in virtual time: leases that nobody waits for the
/// end of are much longer.
const LONGEST: Duration = Duration::from_secs(600);

async fn run(scenario: &Scenario) -> Played {
    let stage = Stage::new(scenario);
    let mut workers = JoinSet::new();
    for (number, worker) in scenario.workers.iter().enumerate() {
        let life = &stage.machines[worker.machine].life;
        let task = work(Arc::clone(&stage), number, worker.clone());
        workers.spawn(Living::new(life, task));
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
    if timeout(LONGEST, all).await.is_err() {
        stage.violation("somebody waits for ever");
    } else {
        while faults.join_next().await.is_some() {}
        judge::nothing_left(&stage).await;
        judge::everybody_can(&stage).await;
        judge::nothing_left(&stage).await;
    }
    judge::judge(&stage)
}

/// Makes a fault of time happen. Those of requests and messages are the network's.
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
    match fault.kind {
        Cut => machine.network.cut(),
        CutReordered => machine.network.cut_while_requests_travel(span),
        MessagesCut => machine.network.cut_messages(),
        Frozen => freeze(machine, span).await,
        Refused => refuse(std::slice::from_ref(machine), span).await,
        RestartWithData => refuse(&stage.machines, span).await,
        RestartEmpty => {
            stage.promise_ends(fault.kind);
            stage.server.clear();
            refuse(&stage.machines, span).await;
        }
        RolledBack => {
            let checkpoint = stage.server.checkpoint();
            sleep(span).await;
            stage.promise_ends(fault.kind);
            stage.server.roll_back(&checkpoint);
        }
        ClockAhead => {
            stage.promise_ends(fault.kind);
            stage.server.step_clock_ahead(span);
        }
        ClockBack => stage.server.step_clock_back(span),
        Paused => {
            machine.life.pause();
            freeze(machine, span).await;
            machine.life.resume();
        }
        Killed => kill(machine),
        Closed => {
            machine.client.close().await;
            machine.closed.store(true, Ordering::SeqCst);
            if machine.client.activity().releases > 0 {
                stage.violation("closed, and something was left to give back");
            }
        }
        Forced => {
            stage.promise_ends(fault.kind);
            let _ = stage.operator.lock(NAME).force_unlock().await;
        }
        Removed => {
            stage.promise_ends(fault.kind);
            stage.server.remove(NAME);
        }
        _ => return,
    }
    stage.fired(fault.kind);
}

async fn freeze(machine: &Machine, span: Duration) {
    machine.network.freeze(true);
    sleep(span).await;
    machine.network.freeze(false);
}

async fn refuse(machines: &[Machine], span: Duration) {
    machines
        .iter()
        .for_each(|machine| machine.network.refuse(true));
    sleep(span).await;
    machines
        .iter()
        .for_each(|machine| machine.network.refuse(false));
}

/// Nothing of a dead process gets out any more.
fn kill(machine: &Machine) {
    machine
        .network
        .on_request(|_| Fate::default().request_lost());
    machine.network.on_message(|_| None);
    machine.network.cut_while_requests_travel(Duration::ZERO);
    machine.life.kill();
}
