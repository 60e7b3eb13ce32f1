//! Checks a history after its end: that holds have not overlapped, and that nothing is left behind.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::inspect::Activity;
use leasehold::testing::{Fate, Network};
use leasehold::{Client, Embedded};
use tokio::time::{Instant, sleep, timeout};

use crate::faults::Kind;
use crate::play::Played;
use crate::scenario::Turn;
use crate::stage::{REPLY_LIMIT, Stage};
use crate::subject::{Answer, Held, Subject, Wish};

/// Waits until there are no keys left and no client is active. Reports a violation if this takes
/// too long.
pub(crate) async fn nothing_left(stage: &Stage) {
    let limit = time_to_clean(stage);
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if stage.any(Kind::needs_leases_to_end) {
            let subject = stage.scenario.subject;
            subject.come_by(&stage.operators).await;
        }
        let left = what_is_left(stage);
        if left.is_empty() {
            return;
        }
        // The time limit is checked last, so that the keys are checked once more after the limit
        // has passed.
        if start.elapsed() > limit {
            stage.violation(format!("left behind after {limit:?}: {left}"));
            return;
        }
        sleep(pause).await;
        pause = pause.mul_f64(1.5);
    }
}

/// Checks that all observers of an election learn that there is no longer a leader.
pub(crate) async fn observers_see_the_end(stage: &Stage) {
    let limit = time_to_clean(stage) + Duration::from_millis(stage.scenario.observer_poll_ms());
    let start = Instant::now();
    while let Some(shown) = stage.terms.unfinished(stage) {
        if start.elapsed() > limit {
            stage.violation(format!("an observer still sees {shown} after {limit:?}"));
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Checks that every client that is still running can acquire the lock.
pub(crate) async fn everybody_can(stage: &Stage) {
    for (number, machine) in stage.machines.iter().enumerate() {
        if machine.life.is_dead() || machine.closed.load(Ordering::SeqCst) {
            continue;
        }
        // Faults that have not happened yet will not happen any more.
        for network in &machine.networks {
            network.on_request(|_| Fate::default());
            network.on_message(|_| Some(Duration::ZERO));
        }
        let turn = Turn::at_the_end(number);
        let wish = Wish {
            seed: stage.scenario.seed,
            machine: number,
            place: 0,
            turn: &turn,
            poll_interval: Duration::from_secs(1),
            longest_lease: stage.scenario.longest_lease_for(&turn),
            acknowledged: false,
            owner: None,
        };
        let lock = stage.scenario.subject.lock(&machine.clients, &wish);
        let turn = async {
            match lock.ask(turn.ask).await {
                Ok(Answer::Held(Held::Lock(guard))) => guard.release().await,
                Ok(Answer::Held(Held::Turn(turn))) => turn.done().await,
                Ok(Answer::Held(Held::Term(term))) => term.resign().await,
                Ok(Answer::Busy | Answer::Over(_)) => Ok(()),
                Err(error) => Err(error),
            }
        };
        match timeout(LONGEST_TURN, turn).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => stage.violation(format!("machine {number} at the end: {error}")),
            Err(_) => stage.violation(format!("machine {number} can't have the lock")),
        }
    }
}

/// The time limit for acquiring the lock after the history has ended.
const LONGEST_TURN: Duration = Duration::from_secs(20);

/// Returns the time limit for cleaning up. It includes the time that messages take, and the time
/// for which a subscription outlasts its listeners. If a fault leaves something that ends only with
/// a lease, the limit also includes the longest lease.
fn time_to_clean(stage: &Stage) -> Duration {
    let scenario = &stage.scenario;
    let mut limit = Duration::from_millis(1000 + scenario.latency_ms * 10);
    limit += Duration::from_millis(scenario.longest_kept_ms());
    if stage.any(Kind::disturbs_calls) || stage.any(|kind| kind == Kind::RequestDoubled) {
        // A duplicated request whose second copy arrives late can add a client to the list of
        // clients to notify.
        let undone = REPLY_LIMIT * 6 + Duration::from_secs(3);
        limit += undone.max(scenario.subject.dead_waiters_last());
    }
    // If `keep_for` can't reach a server, the lock remains locked until its lease ends.
    let is_left = stage.any(|kind| kind == Kind::Kept) && stage.any(Kind::disturbs_calls);
    let by_lease = |kind: Kind| match kind {
        // The lease of a ticket is added to the limit below.
        Kind::Ticketed => false,
        Kind::Forced => true,
        // The leader's entry remains until it expires.
        Kind::Removed => scenario.subject == Subject::Election,
        kind => kind.needs_leases_to_end(),
    };
    if is_left || stage.any(by_lease) {
        limit += Duration::from_millis(scenario.longest_lease_ms());
        limit += scenario.subject.dead_waiters_last();
    } else {
        limit += Duration::from_millis(scenario.longest_ticket_ms());
    }
    let back = scenario
        .faults
        .iter()
        .filter(|fault| fault.kind == Kind::ClockBack);
    limit + Duration::from_millis(back.map(|fault| fault.span_ms).sum())
}

fn what_is_left(stage: &Stage) -> String {
    let servers = stage.servers.iter();
    let mut keys: Vec<_> = servers.flat_map(Embedded::keys).collect();
    keys.retain(|key| !stage.scenario.subject.leaves(key));
    if !keys.is_empty() {
        return format!("keys {keys:?}");
    }
    stage
        .machines
        .iter()
        .filter(|machine| !machine.life.is_dead())
        .flat_map(|machine| &machine.clients)
        .map(Client::activity)
        .find(|activity| *activity != Activity::default())
        .map(|activity| format!("{activity:?}"))
        .unwrap_or_default()
}

/// Returns violations of the rule that every hold has its own id. The rule does not apply if the
/// server may see a request twice.
fn ids_used_again(stage: &Stage) -> Vec<String> {
    if stage.any(Kind::repeats) {
        return Vec::new();
    }
    let again = stage.servers.iter().flat_map(Embedded::ids_used_again);
    let names = match stage.scenario.subject {
        // The hash of a group has the group's values where the hashes of other locks have ids.
        Subject::Group => &[],
        subject => subject.keys(),
    };
    let again = again.filter(|(name, _)| names.contains(&&**name));
    again
        .map(|(name, id)| format!("`{id}` was granted `{name}` twice"))
        .collect()
}

/// Checks that the server grants nothing during the time for which a lock was kept.
fn kept_too_short(stage: &Stage) -> Vec<String> {
    if stage.any(|kind| kind.ends_the_promise() || kind == Kind::FailedOver) {
        return Vec::new();
    }
    // Tokio's timers end at a whole millisecond.
    let early = stage.granted_too_early().into_iter();
    let early = early.filter(|early| *early > Duration::from_millis(2));
    early
        .map(|early| format!("granted {early:?} before the end of the span it was kept for"))
        .collect()
}

/// Checks that for each ticket, one of the tasks that try to resume it gets the hold.
fn tickets_in_vain(stage: &Stage) -> Option<String> {
    let excused = |kind: Kind| {
        let gives_up = [Kind::AcquireDropped, Kind::Unpolled, Kind::Closed];
        kind.ends_the_promise() || kind.disturbs_calls() || gives_up.contains(&kind)
    };
    let in_vain = stage.tickets.resumed_by_none(stage);
    (in_vain > 0 && !stage.any(excused)).then(|| format!("{in_vain} tickets were resumed by none"))
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
    violations.extend(ids_used_again(stage));
    violations.extend(kept_too_short(stage));
    violations.extend(tickets_in_vain(stage));
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
            .flat_map(|machine| &machine.networks)
            .map(Network::requests)
            .sum(),
    }
}
