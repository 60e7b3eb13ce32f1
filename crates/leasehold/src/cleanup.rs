//! The work that dropped guards and dropped waits leave: giving back what the server granted,
//! or may have granted.

pub(crate) mod batches;
pub(crate) mod idempotency;
pub(crate) mod sweep;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::backend::failure::Outcome;
use crate::backend::retry::{Failed, Pauses, until_answered};
use crate::backend::step::{Operation, Value};
use crate::backend::{Backend, Reply, Ticket};
use crate::clock::{Clock, Moment};
use crate::key::Key;
use crate::lease::Hold;

/// What can be given back.
pub(crate) trait Return: Send + Sync + 'static {
    fn key(&self) -> &Key;

    /// Gives it back. Asked for again, it changes nothing more.
    fn give_back(&self) -> Operation;

    /// The moment after which retrying is pointless. `unsure_since`: when the first request left
    /// that may have run; `None` if each is known not to have run. A reply takes `reply_timeout`
    /// at most.
    fn over_at(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment;

    /// That time has come, and no server has answered.
    fn given_up(&self) {}
}

impl Return for Hold {
    fn key(&self) -> &Key {
        &self.key
    }

    fn give_back(&self) -> Operation {
        self.steps.release()
    }

    fn over_at(
        &self,
        started: Moment,
        _unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment {
        started + self.steps.gone_within(self.longest_asked()) + reply_timeout
    }
}

/// Gives back in the background.
pub(crate) struct Cleanup {
    backend: Backend,
    clock: Clock,
    runtime: Handle,
    pending: Arc<Pending>,
}

#[derive(Default)]
struct Pending {
    count: AtomicUsize,
    changed: Notify,
}

impl Cleanup {
    pub(crate) fn new(backend: Backend, clock: Clock, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            backend,
            clock,
            runtime,
            pending: Arc::default(),
        })
    }

    /// Sends an operation for which nobody waits. If it does not arrive, what it would take back
    /// ends by itself.
    pub(crate) fn send(&self, operation: Operation) {
        let reply = self.backend.submit(operation);
        if matches!(reply, Reply::Ready(_)) {
            return;
        }
        self.spawn(async move {
            let _ = reply.await;
        });
    }

    /// Runs work in the background that has something to give back. The connection stays for it,
    /// even if the last handle of the client goes meanwhile.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Counted from here, not from when the task begins: a close that comes next waits for it.
        let (pending, backend) = (PendingOne::new(&self.pending), self.backend.clone());
        self.runtime.spawn(async move {
            let (_pending, _backend) = (pending, backend);
            work.await;
        });
    }

    /// Runs work in the background for which waiters wait. A close of the client does not wait
    /// for it.
    pub(crate) fn carry(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Gives `hold` back. The first request is queued when this returns, so that
    /// whatever is asked for the same name next runs behind it.
    ///
    /// `unanswered`: no reply has come to the request that may have been granted. It can still
    /// be on the network, so the release is sent once more when the server would refuse that
    /// request as too late.
    pub(crate) fn give_back<H: Return>(self: &Arc<Self>, hold: Arc<H>, unanswered: bool) {
        // Here, not in the task, which begins some time later: other requests for the name would
        // come before it.
        let first = self.backend.submit(hold.give_back());
        if matches!(first, Reply::Ready(Some(Ok(_)))) {
            return;
        }
        let cleanup = Arc::clone(self);
        self.spawn(async move {
            let started = cleanup.clock.now();
            cleanup.until_given_back(&*hold, first, started).await;
            if unanswered {
                cleanup.give_back_what_comes_late(&*hold, started).await;
            }
        });
    }

    /// `hold` is given back, but an earlier request for it can still be on the network.
    fn give_back_again<H: Return>(self: &Arc<Self>, hold: Arc<H>) {
        let cleanup = Arc::clone(self);
        self.spawn(async move {
            let started = cleanup.clock.now();
            cleanup.give_back_what_comes_late(&*hold, started).await;
        });
    }

    /// Once more, when the server would refuse an earlier request as too late.
    async fn give_back_what_comes_late<H: Return>(&self, hold: &H, started: Moment) {
        // A request may run until this long after it left (`not_after` in `call.rs`).
        let limit = self.backend.reply_timeout();
        self.clock.sleep_until(self.clock.now() + limit).await;
        let again = self.backend.submit(hold.give_back());
        self.until_given_back(hold, again, started + limit).await;
    }

    async fn until_given_back<H: Return>(&self, hold: &H, first: Reply, started: Moment) {
        let (mut unsure_since, mut told) = (None, false);
        let goes_on = |failed: Failed<'_>| {
            let failure = failed.failure;
            if failure.is_about_the_key() {
                tracing::warn!(
                    key = %hold.key(), cause = %failure.cause,
                    "can't release; what has a lease stays until it ends"
                );
                return false;
            }
            // Sent again nevertheless: an operator may mend a permission, a password or an error
            // that we don't know while there is still time.
            if !failure.may_heal() && !std::mem::replace(&mut told, true) {
                tracing::warn!(
                    key = %hold.key(), cause = %failure.cause,
                    "the server refuses a release; it is sent again in the background"
                );
            }
            if failure.outcome == Outcome::MayHaveRun {
                unsure_since.get_or_insert(failed.sent);
            }
            let over = hold.over_at(started, unsure_since, self.backend.reply_timeout());
            let goes_on = self.clock.now() < over;
            if !goes_on {
                hold.given_up();
            }
            goes_on
        };
        let pauses = Pauses::from(Duration::from_millis(20)).up_to(Duration::from_secs(1));
        let release = || self.backend.submit(hold.give_back());
        // Whether it was answered or given up: nothing more can be done here.
        let _ = until_answered(self.clock, (first, started), pauses, release, goes_on).await;
    }

    /// How much is still to be given back.
    pub(crate) fn pending(&self) -> usize {
        self.pending.count.load(Ordering::SeqCst)
    }

    /// Resolves when nothing is left to give back.
    pub(crate) async fn done(&self) {
        loop {
            let changed = self.pending.changed.notified();
            tokio::pin!(changed);
            // Registered before the count is read, or the last change would be missed.
            changed.as_mut().enable();
            if self.pending() == 0 {
                return;
            }
            changed.await;
        }
    }
}

struct PendingOne(Arc<Pending>);

impl PendingOne {
    fn new(pending: &Arc<Pending>) -> Self {
        pending.count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(pending))
    }
}

impl Drop for PendingOne {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// The undo of a hold. Armed before the request for it leaves, it travels into the guard; dropped
/// while armed it gives the hold back. A request that has not left is taken out of the queue; one
/// that has is followed by its release on the same connection.
///
/// If it were armed later, a future that is dropped while the reply travels would leave the lock
/// held for a whole lease.
///
/// A waiter that has a place in a line on the server asks again and again with one id, and keeps
/// one undo from its first request on: the release gives back the lock or the place, whichever
/// there is.
pub(crate) struct Undo<H: Return = Hold> {
    cleanup: Arc<Cleanup>,
    hold: Arc<H>,
    state: Armed,
    /// An earlier request for the same hold has taken a place in line, or may have.
    in_line: bool,
    /// Until when the server could still run an earlier request that it never answered.
    late_until: Option<Moment>,
}

enum Armed {
    No,
    /// Nobody knows yet what became of the request; with its ticket once it is queued.
    Asking(Option<Ticket>),
    /// Refused for now, with a place in line.
    Waiting,
    Held,
}

impl<H: Return> Undo<H> {
    pub(crate) fn arm(cleanup: &Arc<Cleanup>, hold: Arc<H>) -> Self {
        Self {
            cleanup: Arc::clone(cleanup),
            hold,
            state: Armed::Asking(None),
            in_line: false,
            late_until: None,
        }
    }

    /// The request is in the queue, or on its way, as `reply`.
    pub(crate) fn watch(&mut self, reply: &Reply) {
        self.state = Armed::Asking(Some(reply.ticket()));
    }

    /// The server has granted it.
    pub(crate) fn granted(&mut self) {
        self.state = Armed::Held;
    }

    /// The server has not granted it, and keeps its place in line.
    pub(crate) fn in_line(&mut self) {
        self.in_line = true;
        self.state = Armed::Waiting;
    }

    /// There is nothing to undo.
    pub(crate) fn disarm(&mut self) {
        self.state = Armed::No;
    }

    /// The server has taken the hold back.
    pub(crate) fn given_back(&mut self) {
        self.disarm();
        // An earlier request may arrive behind the release, and take the lock for nobody.
        if self.may_come_late() {
            self.cleanup.give_back_again(Arc::clone(&self.hold));
        }
    }

    /// The request has failed: armed only if it, or one before it, may have run.
    pub(crate) fn failed(&mut self, outcome: Outcome) {
        match outcome {
            // Still armed: an earlier request has a place in line.
            Outcome::DidNotRun if self.in_line => self.state = Armed::Waiting,
            Outcome::DidNotRun => self.disarm(),
            Outcome::MayHaveRun => {
                // It may have taken one, which the next request has to know.
                self.in_line = true;
                let limit = self.cleanup.backend.reply_timeout();
                self.late_until = Some(self.cleanup.clock.now() + limit);
            }
        }
    }

    fn may_come_late(&self) -> bool {
        let now = self.cleanup.clock.now();
        self.late_until.is_some_and(|moment| now < moment)
    }

    pub(crate) fn hold(&self) -> &Arc<H> {
        &self.hold
    }

    /// Does now what dropping it would do; afterwards it is disarmed.
    pub(crate) fn give_back_now(&mut self) {
        let unanswered = match std::mem::replace(&mut self.state, Armed::No) {
            // It may arrive behind its release, so that goes twice.
            Armed::Asking(Some(ticket)) if ticket.may_have_run() => true,
            // It never left, and no earlier request has left anything.
            Armed::Asking(_) if !self.in_line => return,
            Armed::No => return,
            Armed::Asking(_) | Armed::Waiting | Armed::Held => self.may_come_late(),
        };
        self.cleanup.give_back(Arc::clone(&self.hold), unanswered);
    }
}

impl<H: Return> Drop for Undo<H> {
    fn drop(&mut self) {
        self.give_back_now();
    }
}

/// Whether a reply to a release says "yours".
pub(crate) fn was_ours(reply: &Value) -> bool {
    *reply == Value::Int(1)
}
