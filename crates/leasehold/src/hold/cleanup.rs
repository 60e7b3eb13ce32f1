//! The background work after a guard or a wait was dropped: it releases what the server granted, or
//! may have granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Grant;
use super::confirm::Confirmation;
use crate::backend::failure::Outcome;
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::route::Route;
use crate::backend::step::{Operation, Value};
use crate::backend::{Backend, Reply};
use crate::clock::{Moment, Timers};
use crate::key::Key;
use crate::loss::LossReason;
use crate::observe::log;
use crate::process::Process;

/// A hold or a place that can be given back.
pub(crate) trait Releasable: Send + Sync + 'static {
    fn key(&self) -> &Key;

    /// Returns the operation that gives the hold or place back. Repeating the operation changes
    /// nothing more.
    fn release_operation(&self) -> Operation;

    /// Returns the route of that operation. On this route, it runs after the request for the hold.
    fn undo_route(&self) -> Route {
        Route::Plain
    }

    /// Returns the moment after which retrying is pointless. `unsure_since` is the time at which
    /// the first request that may have run was sent. It is `None` if certainly none of the requests
    /// has run. A reply takes at most `reply_timeout`.
    fn retry_until(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment;

    /// Notes the server's reply. `sure` means that certainly no earlier request has run.
    fn answered(&self, _reply: &Value, _sure: bool) {}

    /// Notes that the release was given up: the moment of `retry_until` has passed, and no server
    /// has answered.
    fn given_up(&self) {}
}

impl Releasable for Grant {
    fn key(&self) -> &Key {
        &self.key
    }

    fn release_operation(&self) -> Operation {
        self.mark_release();
        self.steps.release()
    }

    fn undo_route(&self) -> Route {
        self.undo_route()
    }

    fn retry_until(
        &self,
        started: Moment,
        _unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment {
        started + self.steps.ends_within(self.longest_requested()) + reply_timeout
    }

    fn answered(&self, reply: &Value, sure: bool) {
        // Earlier holders that handed the hold over also wait for this reply, if the last holder
        // was dropped without waiting.
        let confirmation = match was_ours(reply) {
            true => Confirmation::Held,
            false if sure && !self.may_have_ended() && !self.is_past_lease() => {
                Confirmation::Lost(LossReason::Deleted)
            }
            false => Confirmation::Unknown,
        };
        self.deliver(self.mark_release(), &confirmation);
    }
}

/// The background tasks that release holds.
pub(crate) struct Cleanup {
    pub(super) backend: Backend,
    pub(super) timers: Timers,
    runtime: Handle,
    /// The process of the client. A forked child does not release anything.
    process: Process,
    pending: Arc<PendingReleases>,
}

#[derive(Default)]
struct PendingReleases {
    count: AtomicUsize,
    changed: Notify,
}

impl Cleanup {
    pub(crate) fn new(backend: Backend, timers: Timers, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            backend,
            timers,
            runtime,
            process: Process::own(),
            pending: Arc::default(),
        })
    }

    /// Returns whether this process is a child of the client's process.
    pub(super) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Sends an operation for which no caller waits. If the operation does not arrive, the state
    /// that it would remove expires by itself.
    pub(crate) fn send(&self, operation: Operation, route: Route) {
        let reply = self.backend.submit_by(operation, route);
        if matches!(reply, Reply::Ready(_)) {
            return;
        }
        self.spawn(async move {
            let _ = reply.await;
        });
    }

    /// Runs a release in the background. The connection stays open for it, even if the last handle
    /// of the client is dropped earlier.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if self.process.is_forked() {
            return;
        }
        // The release counts as pending from here, and not only once its task begins, so that a
        // close that follows waits for it.
        let (pending, backend) = (
            PendingReleaseGuard::new(&self.pending),
            self.backend.clone(),
        );
        self.runtime.spawn(async move {
            let (_pending, _backend) = (pending, backend);
            work.await;
        });
    }

    /// Runs work for waiters in the background. A close of the client does not wait for it.
    pub(crate) fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        if !self.process.is_forked() {
            self.runtime.spawn(work);
        }
    }

    /// Releases `hold`. The first request is queued when this returns, so the next request for the
    /// same name runs after it.
    ///
    /// `unanswered` means that the request for the hold may have been granted, but its reply has
    /// not arrived. That request may still be on the network. So the release is sent once more at
    /// the time when the server would refuse that request as too late.
    pub(crate) fn give_back<H: Releasable>(self: &Arc<Self>, hold: Arc<H>, unanswered: bool) {
        if self.process.is_forked() {
            return;
        }
        // The release is sent here and not in the task. The task begins later, so other requests
        // for the name would run before the release.
        let first = self
            .backend
            .submit_by(hold.release_operation(), hold.undo_route());
        if let Reply::Ready(Some(Ok(reply))) = &first {
            hold.answered(reply, true);
            return;
        }
        let cleanup = Arc::clone(self);
        self.spawn(async move {
            let started = cleanup.timers.now();
            cleanup.release_until_answered(&*hold, first, started).await;
            if unanswered {
                cleanup.release_once_more(&*hold, started).await;
            }
        });
    }

    /// Releases `hold` again, because an earlier request for it may still be on the network.
    pub(super) fn give_back_again<H: Releasable>(self: &Arc<Self>, hold: Arc<H>) {
        let cleanup = Arc::clone(self);
        self.spawn(async move {
            let started = cleanup.timers.now();
            cleanup.release_once_more(&*hold, started).await;
        });
    }

    /// Sends the release once more when the server would refuse an earlier request as too late.
    async fn release_once_more<H: Releasable>(&self, hold: &H, started: Moment) {
        // A request may still run until this much time has passed since it was sent (`not_after` in
        // `call.rs`).
        let limit = self.backend.reply_timeout();
        self.timers.sleep(limit).await;
        let again = self
            .backend
            .submit_by(hold.release_operation(), hold.undo_route());
        self.release_until_answered(hold, again, started + limit)
            .await;
    }

    async fn release_until_answered<H: Releasable>(&self, hold: &H, first: Reply, started: Moment) {
        let (mut unsure_since, mut warned) = (None, false);
        let should_retry = |failed: FailedAttempt<'_>| {
            let failure = failed.failure;
            if failure.is_about_the_key() {
                log(|| {
                    tracing::warn!(
                        key = %hold.key(), cause = %failure.cause,
                        "can't release the hold; it stays until its lease ends, if it has one"
                    )
                });
                return false;
            }
            // The release is sent again anyway: an operator may repair the permission, the password
            // or the unknown error before the hold expires.
            if !failure.may_heal() && !std::mem::replace(&mut warned, true) {
                log(|| {
                    tracing::warn!(
                        key = %hold.key(), cause = %failure.cause,
                        "the server refuses a release; it is sent again in the background"
                    )
                });
            }
            if failure.outcome == Outcome::MayHaveRun {
                unsure_since.get_or_insert(failed.sent);
            }
            let over = hold.retry_until(started, unsure_since, self.backend.reply_timeout());
            let should_retry = self.timers.now() < over;
            if !should_retry {
                hold.given_up();
            }
            should_retry
        };
        let pauses = RetryDelays::from(Duration::from_millis(20)).up_to(Duration::from_secs(1));
        let release = || {
            self.backend
                .submit_by(hold.release_operation(), hold.undo_route())
        };
        // If the release was given up, nothing more can be done here.
        if let Ok(reply) = until_answered(
            &self.timers,
            (first, started),
            pauses,
            release,
            should_retry,
        )
        .await
        {
            hold.answered(&reply, unsure_since.is_none());
        }
    }

    /// Returns the number of releases in progress.
    pub(crate) fn pending(&self) -> usize {
        self.pending.count.load(Ordering::SeqCst)
    }

    /// Resolves when no release is in progress.
    pub(crate) async fn done(&self) {
        loop {
            let changed = self.pending.changed.notified();
            tokio::pin!(changed);
            // Register before the count is read. Otherwise the last change would be missed.
            changed.as_mut().enable();
            if self.pending() == 0 {
                return;
            }
            changed.await;
        }
    }
}

struct PendingReleaseGuard(Arc<PendingReleases>);

impl PendingReleaseGuard {
    fn new(pending: &Arc<PendingReleases>) -> Self {
        pending.count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(pending))
    }
}

impl Drop for PendingReleaseGuard {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// Returns whether a reply to a release says that the hold was ours.
pub(crate) fn was_ours(reply: &Value) -> bool {
    matches!(reply, Value::Int(1..))
}
