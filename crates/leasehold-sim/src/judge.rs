//! Judges a history when it is over: nothing overlapped, and nothing is left.

use std::time::Duration;

use leasehold::Activity;
use tokio::time::{Instant, sleep};

use crate::faults::Kind;
use crate::play::Played;
use crate::stage::{REPLY_LIMIT, Stage};

/// Waits until no key and no activity is left, and no longer than that may take.
pub(crate) async fn nothing_left(stage: &Stage) {
    let limit = time_to_clean(stage);
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        let left = what_is_left(stage);
        if left.is_empty() {
            return;
        }
        // The last look comes after the limit.
        if start.elapsed() > limit {
            stage.violation(format!("left behind after {limit:?}: {left}"));
            return;
        }
        sleep(pause).await;
        pause = pause.mul_f64(1.5);
    }
}

/// One lease, where a fault leaves nothing else to wait for; otherwise the time a
/// message takes, and a subscription lingers.
fn time_to_clean(stage: &Stage) -> Duration {
    let scenario = &stage.scenario;
    let mut limit = Duration::from_millis(1000 + scenario.latency_ms * 10);
    if stage.any(Kind::disturbs_calls) || stage.any(|kind| kind == Kind::RequestDoubled) {
        limit += REPLY_LIMIT * 6 + Duration::from_secs(3);
    }
    if stage.any(|kind| kind.needs_leases_to_end() || kind == Kind::Forced) {
        limit += Duration::from_millis(scenario.longest_lease_ms());
    }
    let back = scenario
        .faults
        .iter()
        .filter(|fault| fault.kind == Kind::ClockBack);
    limit + Duration::from_millis(back.map(|fault| fault.span_ms).sum())
}

fn what_is_left(stage: &Stage) -> String {
    let keys = stage.server.keys();
    if !keys.is_empty() {
        return format!("keys {keys:?}");
    }
    stage
        .machines
        .iter()
        .filter(|machine| !machine.life.is_dead())
        .map(|machine| machine.client.activity())
        .find(|activity| *activity != Activity::default())
        .map(|activity| format!("{activity:?}"))
        .unwrap_or_default()
}

pub(crate) fn judge(stage: &Stage) -> Played {
    let report = stage.recorder.report();
    let mut violations = stage.violations();
    violations.extend(
        report
            .overlaps
            .iter()
            .map(|overlap| format!("two holders: {overlap}")),
    );
    let trace = stage
        .recorder
        .intervals()
        .iter()
        .map(|hold| {
            let who = hold.holder().split(" (").next().unwrap_or_default();
            format!(
                "{who}: {} to {} us",
                hold.from_ns() / 1000,
                hold.until_ns() / 1000
            )
        })
        .collect();
    Played {
        violations,
        report,
        trace,
        requests: stage
            .machines
            .iter()
            .map(|machine| machine.network.requests())
            .sum(),
    }
}
