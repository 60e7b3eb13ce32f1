//! The watchdog renews the holds of a client before their leases end, each on its own terms, and
//! notifies a holder if its hold is lost.
//!
//! Each client has one task and one table of due times. Renewals that are due at the same time are
//! sent in one call, because the connection's queue combines them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::Grant;
use super::cleanup::Cleanup;
use super::grant::WatchdogAction;
use super::state::DueTime;
use super::wheel::{Indexed, Wheel};
use crate::backend::Backend;
use crate::backend::failure::{Cause, Failure, Outcome, accept_refusal};
use crate::backend::route::Route;
use crate::backend::step::{Operation, Parts, Value};
use crate::clock::{Moment, Timers};
use crate::config::wire_ms;
use crate::loss::LossReason;
use crate::observe::{self, MaybeSpan, log};
use crate::sync::{Mutex, MutexGuard};

/// The watchdog of a client.
pub(crate) struct Watchdog {
    shared: Arc<WatchdogShared>,
    task: JoinHandle<()>,
}

struct WatchdogShared {
    backend: Backend,
    cleanup: Arc<Cleanup>,
    timers: Timers,
    holds: Mutex<WatchedHolds>,
    /// The time at which the task wakes by itself, in ms; `u64::MAX` for never. Only a hold that is
    /// due earlier must wake the task. Such holds are rare.
    wakes_at_ms: AtomicU64,
    changed: Notify,
}

/// The watched holds, by the time at which they are due.
type WatchedHolds = Wheel<Watched>;

struct Watched {
    hold: Arc<Grant>,
    /// The time that the renewal may be early, to share a call with others.
    slack: Duration,
}

impl Indexed for Watched {
    fn set_index(&self, index: usize) {
        self.hold.set_wheel_index(index);
    }
}

impl Watchdog {
    pub(crate) fn start(
        backend: Backend,
        cleanup: Arc<Cleanup>,
        timers: Timers,
        runtime: &Handle,
    ) -> Self {
        let shared = Arc::new(WatchdogShared {
            backend,
            cleanup,
            timers,
            holds: Mutex::default(),
            wakes_at_ms: AtomicU64::new(u64::MAX),
            changed: Notify::new(),
        });
        let task = runtime.spawn(run(Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Watches a hold from now on, on its current terms.
    pub(crate) fn watch(&self, hold: &Arc<Grant>) {
        self.shared.schedule(hold);
    }

    /// Forgets a hold that was released, or that is left to expire.
    pub(crate) fn remove(&self, hold: &Grant) {
        self.shared.unschedule(hold);
    }

    /// Returns whether the client's runtime has ended, and the watchdog with it.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Returns the number of watched holds. Does not count a hold that was released because its
    /// next waiter had left. Such a hold is removed from the table when it is due.
    pub(crate) fn len(&self) -> usize {
        let holds = self.shared.holds.lock();
        holds
            .iter()
            .filter(|watched| !watched.hold.is_over())
            .count()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WatchdogShared {
    /// Schedules the hold for the time at which it is due, or somewhat earlier.
    fn schedule(&self, hold: &Arc<Grant>) {
        // A random part spreads holds that were acquired at the same time, or renewed at the same
        // time after an outage. Otherwise thousands of holds would be due in one burst each time,
        // and the client's other requests would have to wait for that burst.
        let part = SPREAD * fastrand::f64();
        // Compute the due time with the table locked: a hold that is released at the same time is
        // removed from the table later, or is already marked as released.
        let holds = self.holds.lock();
        let due = hold.next_due(part);
        self.put(holds, hold, due);
    }

    fn schedule_at(&self, hold: &Arc<Grant>, due: Moment) {
        let holds = self.holds.lock();
        let due = hold.due_at(due);
        self.put(holds, hold, due);
    }

    fn put(
        &self,
        mut holds: MutexGuard<'_, WatchedHolds>,
        hold: &Arc<Grant>,
        due: Option<DueTime>,
    ) {
        let old = hold.set_due(due.map(|due| due.at));
        let old = old.and_then(|old| holds.remove(old, hold.wheel_index()));
        let Some(due) = due else {
            drop(holds);
            // Drop `old` after unlocking: it may be the last reference to a grant.
            drop(old);
            return;
        };
        let watched = Watched {
            hold: Arc::clone(hold),
            slack: due.slack,
        };
        holds.insert(due.at, watched);
        drop(holds);
        drop(old);
        let due_ms = wake_for(due.at);
        if due_ms < self.wakes_at_ms.fetch_min(due_ms, Ordering::SeqCst) {
            self.changed.notify_one();
        }
    }

    fn unschedule(&self, hold: &Grant) {
        let mut holds = self.holds.lock();
        let due = hold.set_due(None);
        let watched = due.and_then(|due| holds.remove(due, hold.wheel_index()));
        drop(holds);
        drop(watched);
    }

    /// Takes the holds that are due, and holds that are due so soon that they may be renewed in the
    /// same call. Takes at most `capacity` holds. The task that renews them puts them back.
    fn take_due(&self, now: Moment, capacity: usize) -> Vec<Arc<Grant>> {
        let mut due = Vec::new();
        let mut holds = self.holds.lock();
        while due.len() < capacity {
            let fits = due.len() < RENEWALS_PER_CALL;
            let is_due = |at: Moment, watched: &Watched| {
                let slack = if fits { watched.slack } else { Duration::ZERO };
                at.saturating_sub(now) <= slack
            };
            let Some(watched) = holds.take_next(is_due) else {
                break;
            };
            watched.hold.set_due(None);
            due.push(watched.hold);
        }
        due
    }

    /// Makes all holds due now.
    fn make_all_due(&self) {
        let now = self.timers.now();
        let mut all = Vec::new();
        let mut holds = self.holds.lock();
        while let Some(watched) = holds.take_next(|_, _| true) {
            watched.hold.set_due(None);
            all.push(watched.hold);
        }
        drop(holds);
        for hold in all {
            self.schedule_at(&hold, now);
        }
    }

    /// Returns the time at which the task wakes by itself. An earlier time that was set remains,
    /// even if the hold that was due then no longer exists: one idle wake-up costs less than a
    /// notification for each short hold.
    fn next_wake(&self) -> Option<Moment> {
        // Set the time under the lock: a thread that adds a hold later sees the time, and wakes the
        // task if that hold is due earlier.
        let holds = self.holds.lock();
        let now_ms = self.timers.now().as_millis();
        let set_ms = self.wakes_at_ms.load(Ordering::SeqCst);
        let set = (set_ms > now_ms && set_ms != u64::MAX).then_some(set_ms);
        let due = holds.next().map(wake_for);
        let wake_ms = set.into_iter().chain(due).min();
        self.wakes_at_ms
            .store(wake_ms.unwrap_or(u64::MAX), Ordering::SeqCst);
        wake_ms.map(Moment::from_millis)
    }
}

/// The largest fraction of its period that a renewal may be early.
const SPREAD: f64 = 0.2;
/// The number of renewals that fill a call. A renewal that is not due yet is not added to a full
/// call.
const RENEWALS_PER_CALL: usize = 256;
/// The maximum number of holds that one operation renews. The server runs an operation without
/// interruption; for this number, it needs half a millisecond.
const RENEWALS_PER_OPERATION: usize = 128;

/// The maximum number of renewals in progress. After a pause of the process, all holds can be due
/// at once. Further holds wait in the table: in the connection's queue, their renewals would delay
/// the client's other requests.
const MAX_IN_FLIGHT: usize = 8 * RENEWALS_PER_CALL;

/// Returns the first whole millisecond at which the hold is due.
fn wake_for(due: Moment) -> u64 {
    due.as_millis().saturating_add(1)
}

async fn run(shared: Arc<WatchdogShared>) {
    let mut renewals = JoinSet::new();
    let mut in_flight = 0;
    loop {
        // One task renews many holds, so that their renewals are queued together and become one
        // call. A task for each hold would cost more than its renewal.
        let due = shared.take_due(shared.timers.now(), MAX_IN_FLIGHT - in_flight);
        in_flight += due.len();
        for due in due.chunks(RENEWALS_PER_CALL) {
            renewals.spawn(process_due(Arc::clone(&shared), due.to_vec()));
        }
        while let Some(done) = renewals.try_join_next() {
            in_flight -= done.unwrap_or(0);
        }
        if renewals.is_empty() {
            // If a task has panicked, the number of its holds is unknown.
            in_flight = 0;
        }
        if in_flight == MAX_IN_FLIGHT {
            in_flight -= renewals
                .join_next()
                .await
                .map_or(0, Result::unwrap_or_default);
            continue;
        }
        let changed = shared.changed.notified();
        let next = shared.next_wake();
        let sleep = pin!(async {
            match next {
                Some(due) => shared.timers.sleep_until(due).await,
                None => std::future::pending().await,
            }
        });
        tokio::select! {
            biased;
            () = sleep => {}
            () = changed => {}
            () = shared.backend.holds_in_doubt() => shared.make_all_due(),
        }
    }
}

/// Renews or ends each of these holds, which are due. Returns their number.
async fn process_due(shared: Arc<WatchdogShared>, holds: Vec<Arc<Grant>>) -> usize {
    let count = holds.len();
    let now = shared.timers.now();
    let mut renewals = Vec::with_capacity(count);
    for hold in holds {
        match hold.next_action(now) {
            WatchdogAction::Nothing => {}
            WatchdogAction::Later => shared.schedule(&hold),
            WatchdogAction::Stalled => try_again_soon(&shared, &hold),
            WatchdogAction::End(reason) => end_hold(&shared, &hold, &reason),
            WatchdogAction::Renew { lease, first } => {
                let node = shared.backend.node_of(hold.key.as_str().as_bytes());
                renewals.push(Renewal {
                    span: hold.renewal_span(),
                    route: hold.route(),
                    hold,
                    lease,
                    first,
                    node,
                });
            }
        }
    }
    // Sort the renewals so that renewals for one operation and with the same lease are adjacent.
    renewals.sort_by_key(Renewal::order);
    let groups = renewals
        .chunk_by(|one, other| one.group().is_some() && one.travels_with(other))
        .flat_map(|group| group.chunks(RENEWALS_PER_OPERATION));
    join_all(groups.map(|group| shared.renew(now, group))).await;
    count
}

/// A hold that must be renewed.
struct Renewal {
    hold: Arc<Grant>,
    lease: Duration,
    /// Whether this is the first renewal since the last confirmed one.
    first: bool,
    /// The server that has the hold.
    node: usize,
    route: Route,
    span: MaybeSpan,
}

impl Renewal {
    /// Returns the step that renews this hold and others in one operation, and the server that has
    /// the hold.
    fn group(&self) -> Option<(&'static str, usize)> {
        let batch = self.hold.steps.batch_renewal()?;
        Some((batch.step.name, self.node))
    }

    /// Returns the sort key. With it, renewals that fit into one operation are adjacent.
    fn order(&self) -> (Option<(&'static str, usize)>, Route, Duration) {
        (self.group(), self.route, self.lease)
    }

    fn travels_with(&self, other: &Self) -> bool {
        self.lease == other.lease && self.route == other.route && self.group() == other.group()
    }
}

impl WatchdogShared {
    /// Renews a group of holds with one operation, or renews a single hold.
    async fn renew(&self, now: Moment, group: &[Renewal]) {
        let Some(request) = batch_request(group) else {
            join_all(group.iter().map(|one| self.renew_alone(now, one))).await;
            return;
        };
        let reply = self.backend.submit_by(request, group[0].route).await;
        let (reply, unconfirmed) = match reply {
            Err(failure) => match failure.cause {
                Cause::Unconfirmed(ref what) => (Ok(what.reply.clone()), Some(failure)),
                _ => (Err(failure), None),
            },
            reply => (reply, None),
        };
        match reply {
            Ok(Value::List(alone)) => {
                let is_alone = |number: i64| alone.contains(&Value::Int(number));
                let (alone, good): (Vec<_>, Vec<_>) =
                    (1..).zip(group).partition(|(number, _)| is_alone(*number));
                for (_, one) in good {
                    match &unconfirmed {
                        None => self.renewed(now, one),
                        Some(failure) => self.renewal_failed(now, one, failure),
                    }
                }
                // Renew the holds one by one, because the server then says what happened to each
                // hold.
                let now = self.timers.now();
                join_all(alone.into_iter().map(|(_, one)| self.renew_alone(now, one))).await;
            }
            // The reply does not say which holds it concerns: one name may be denied, or all of
            // them.
            Ok(_) => self.renew_one_by_one(group).await,
            Err(failure) if failure.outcome == Outcome::DidNotRun && !failure.may_heal() => {
                self.renew_one_by_one(group).await;
            }
            Err(failure) => {
                for one in group {
                    self.renewal_failed(now, one, &failure);
                }
            }
        }
    }

    fn renewed(&self, sent: Moment, one: &Renewal) {
        one.hold.confirmed(sent, one.lease);
        one.span.renewed(observe::RenewalResult::Confirmed);
        self.schedule(&one.hold);
    }

    fn renewal_failed(&self, sent: Moment, one: &Renewal, failure: &Failure) {
        one.hold.renewal_failed(sent, one.first, failure);
        one.span.renewed(observe::RenewalResult::Failed);
        try_again_soon(self, &one.hold);
    }

    async fn renew_one_by_one(&self, group: &[Renewal]) {
        let now = self.timers.now();
        join_all(group.iter().map(|one| self.renew_alone(now, one))).await;
    }

    async fn renew_alone(&self, now: Moment, one: &Renewal) {
        let Renewal {
            hold,
            lease,
            first,
            span,
            ..
        } = one;
        if hold.is_over() {
            // The hold was released, or kept for a fixed time, after its renewal had become due.
            return;
        }
        let request = RenewalRequest {
            backend: &self.backend,
            timers: &self.timers,
            hold,
        };
        match request.send(*lease, (now, *first), span).await {
            Ok(Renewed::Yes) => self.schedule(hold),
            Ok(Renewed::Lost) => {}
            Err(_) => try_again_soon(self, hold),
        }
    }
}

/// The maximum length of a lease in ms, in digits.
const LEASE_LEN: usize = 20;

/// Returns the request that renews all these holds. Returns `None` if their kind has no such
/// request, or if there is only one hold.
fn batch_request(group: &[Renewal]) -> Option<Operation> {
    let [first, _, ..] = group else {
        return None;
    };
    let step = first.hold.steps.batch_renewal()?.step;
    let members = || {
        let steps = group.iter().map(|one| &one.hold.steps);
        steps.filter_map(|steps| steps.batch_renewal())
    };
    let bytes = members().map(|member| member.key.len() + member.hold.len());
    let mut parts = Parts::with_capacity(2 * group.len() + 1, bytes.sum::<usize>() + LEASE_LEN);
    members().for_each(|member| parts.push(member.key));
    parts.push_display(&wire_ms(first.lease));
    members().for_each(|member| parts.push(member.hold));
    Some(Operation::of(step, parts))
}

impl Grant {
    fn renewal_failed(&self, sent: Moment, first: bool, failure: &Failure) {
        // Logged once per outage: the renewal is retried many times before the lease ends.
        if first {
            log(
                || tracing::warn!(key = %self.key, cause = %failure.cause, "renewal failed; trying again"),
            );
        }
        self.observed.renewal_failed();
        self.failed_to_renew(sent, failure);
    }
}

/// Schedules the next attempt after a renewal that failed, or was refused because the work had
/// stalled. Schedules nothing if the lease has expired.
fn try_again_soon(shared: &WatchdogShared, hold: &Arc<Grant>) {
    let now = shared.timers.now();
    let remaining = hold.valid_until().saturating_sub(now);
    if remaining.is_zero() {
        // This check marks the hold as lost, with the failure as the reason.
        if let Some(reason) = hold.report_loss()
            && hold.outlasts(&reason)
        {
            end_hold(shared, hold, &reason);
        }
        return;
    }
    // The pause is an eighth of the remaining time: several attempts fit into the rest of any
    // lease, and they follow faster towards its end. It is at most half a second, so that a short
    // outage delays a renewal no longer than that, and at least 5 ms, so that the last attempts are
    // not a busy loop.
    let pause = (remaining / 8).clamp(Duration::from_millis(5), Duration::from_millis(500));
    shared.schedule_at(hold, now + pause);
}

/// Ends a hold that is already lost for its holder, according to the clock. After that, the lock is
/// free for other clients.
fn end_hold(shared: &WatchdogShared, hold: &Arc<Grant>, reason: &LossReason) {
    log(
        || tracing::warn!(key = %hold.key, %reason, "releasing a lost hold that the server still keeps"),
    );
    // The release is not left to the guard, which may exist for a long time.
    shared.cleanup.give_back(Arc::clone(hold), false);
}

/// The result of a renewal that the server has answered.
pub(crate) enum Renewed {
    /// The hold was confirmed.
    Yes,
    /// The server no longer has the hold. Its `Grant::loss` has the reason.
    Lost,
}

/// Renews a hold now, for a caller that waits for the reply.
pub(crate) async fn try_renew(
    backend: &Backend,
    timers: &Timers,
    hold: &Grant,
    lease: Duration,
) -> Result<Renewed, Failure> {
    let request = RenewalRequest {
        backend,
        timers,
        hold,
    };
    let sent = timers.now();
    let first = hold.renewal_sent(sent);
    request
        .send(lease, (sent, first), &hold.renewal_span())
        .await
}

/// The server's answer to a renewal.
struct RenewalReply {
    /// The remaining time for which the server will keep the hold.
    remaining: Duration,
    /// The longest lease that was requested so far.
    longest: Duration,
}

/// A renewal of one hold.
struct RenewalRequest<'a> {
    backend: &'a Backend,
    timers: &'a Timers,
    hold: &'a Grant,
}

impl RenewalRequest<'_> {
    /// Sends the renewal. `sent` contains the time, and whether this is the first renewal since the
    /// last confirmed one.
    async fn send(
        &self,
        lease: Duration,
        sent: (Moment, bool),
        span: &MaybeSpan,
    ) -> Result<Renewed, Failure> {
        let result = self.send_without_span(lease, sent).await;
        span.renewed(match &result {
            Ok(Renewed::Yes) => observe::RenewalResult::Confirmed,
            Ok(Renewed::Lost) => observe::RenewalResult::Lost,
            Err(_) => observe::RenewalResult::Failed,
        });
        result
    }

    async fn send_without_span(
        &self,
        lease: Duration,
        sent: (Moment, bool),
    ) -> Result<Renewed, Failure> {
        let Some(confirmed) = self.send_once(lease, None, sent).await? else {
            return Ok(Renewed::Lost);
        };
        // The server keeps the hold for longer than any guard asked for: the server's clock was set
        // back, or another client has changed the expiry. If the holder died, the lock would remain
        // for all this time. The comparison uses the longest lease requested until now, not until
        // this request was sent: an extension may have been sent since then.
        let RenewalReply { remaining, longest } = confirmed;
        if remaining > longest + Duration::from_secs(1) && !self.hold.is_over() {
            // The limit is half-way between the longest lease and the remaining time, so that a
            // copy of this request that arrives late does not find anything to shorten.
            let most = longest + (remaining - longest) / 2;
            let now = self.timers.now();
            let sent = (now, self.hold.renewal_sent(now));
            if self.send_once(longest, Some(most), sent).await?.is_none() {
                return Ok(Renewed::Lost);
            }
        }
        Ok(Renewed::Yes)
    }

    /// Sends the renewal once. Returns `None` if the hold is lost; its `Grant::loss` then has the
    /// reason.
    async fn send_once(
        &self,
        lease: Duration,
        most: Option<Duration>,
        (sent, first): (Moment, bool),
    ) -> Result<Option<RenewalReply>, Failure> {
        let hold = self.hold;
        let reply = self
            .backend
            .submit_by(hold.steps.renew(lease, most), hold.route());
        let is_there = |reply: &Value| matches!(reply, Value::Int(1..));
        match accept_refusal(reply.await, is_there) {
            Ok(Value::Int(left_ms @ 1..)) => Ok(Some(RenewalReply {
                remaining: Duration::from_millis(left_ms.unsigned_abs()),
                longest: hold.confirmed(sent, lease),
            })),
            Ok(_) => {
                mark_gone(self.backend, hold, self.timers).await;
                Ok(None)
            }
            // The key contains something other than this hold, so the hold no longer exists.
            Err(Failure {
                cause: Cause::WrongKind(_),
                ..
            }) => {
                hold.lose(LossReason::Deleted);
                Ok(None)
            }
            Err(failure) => {
                hold.renewal_failed(sent, first, &failure);
                Err(failure)
            }
        }
    }
}

/// Marks a hold as lost because the server no longer has it, and reports the reason to its holder.
pub(crate) async fn mark_gone(backend: &Backend, hold: &Grant, timers: &Timers) {
    if !hold.is_over() {
        // Read the server's start first: it must be the start before the reply that has arrived,
        // and the server may restart again at any time.
        let started = backend.replaced_since(hold.confirmed_at());
        let reason = why_lost(backend, hold, timers).await;
        // If the reason is `Forced`, an operator ended the hold after the restart.
        if let (Some(started), false) = (started, reason.is_forced()) {
            hold.forgotten(started);
        }
        hold.lose(reason);
    }
}

/// Returns why the server no longer has a hold, as far as the server knows.
pub(crate) async fn why_lost(backend: &Backend, hold: &Grant, timers: &Timers) -> LossReason {
    // A hold past its deadline has run out, whether or not another client has got the lock since
    // then.
    if timers.now() >= hold.valid_until() {
        return LossReason::Expired;
    }
    // This limit is short, because the holder does not know of the loss yet and is still working.
    const LIMIT: Duration = Duration::from_millis(250);
    let asked = backend.submit(hold.steps.why_lost());
    match timers.timeout(LIMIT, asked).await {
        Some(Ok(reply)) => hold.steps.read_why_lost(reply),
        _ => None,
    }
    .unwrap_or(LossReason::Deleted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn renewals_of_simultaneous_holds_spread_out() {
        const HOLDS: usize = 4000;
        let client = crate::Client::embedded();
        let mut guards = Vec::with_capacity(HOLDS);
        for n in 0..HOLDS {
            let lock = client.lock(n.to_string());
            guards.push(lock.acquire().await.expect("free"));
        }
        tokio::time::sleep(Duration::from_secs(15)).await;

        // One group for each instant at which holds were renewed.
        let mut groups = BTreeMap::new();
        for guard in &guards {
            *groups.entry(guard.valid_until()).or_insert(0) += 1;
        }
        let (first, last) = (groups.keys().next(), groups.keys().last());
        let apart = last.and_then(|last| Some(*last - *first?));
        assert!(apart >= Some(Duration::from_secs(1)), "{apart:?}");
        let largest = groups.values().max();
        // A group also contains holds that are due anyway, a few for each millisecond.
        assert!(
            largest <= Some(&(2 * RENEWALS_PER_CALL)),
            "{largest:?} at once"
        );
    }
}
