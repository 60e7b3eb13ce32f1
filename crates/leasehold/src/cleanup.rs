//! What dropped guards and dropped waits leave to do: give back what the server
//! granted, or may have granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::backend::step::{Outcome, Value};
use crate::backend::{Backend, Reply, Ticket};
use crate::clock::{Clock, Moment};
use crate::lease::Hold;

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

    /// Gives `hold` back. The first request is queued when this returns, so that
    /// whatever is asked for the same name next runs behind it.
    ///
    /// `unanswered`: no reply has come to the request that may have been granted.
    /// Such a request can still be on the network, and is asked for once more when
    /// the server would refuse it as too late.
    fn give_back(self: &Arc<Self>, hold: Arc<Hold>, unanswered: bool) {
        let first = self.backend.submit(hold.steps.release());
        if matches!(first, Reply::Ready(Some(Ok(_)))) {
            return;
        }
        let pending = PendingOne::new(&self.pending);
        let cleanup = Arc::clone(self);
        self.runtime.spawn(async move {
            let _pending = pending;
            // After one lease and the time a reply may take there is nothing left.
            let limit = cleanup.backend.reply_limit();
            let end = cleanup.clock.now() + hold.terms().lease + limit;
            cleanup.until_given_back(&hold, first, end).await;
            if unanswered {
                cleanup.clock.sleep_until(cleanup.clock.now() + limit).await;
                let again = cleanup.backend.submit(hold.steps.release());
                cleanup.until_given_back(&hold, again, end + limit).await;
            }
        });
    }

    async fn until_given_back(&self, hold: &Hold, mut reply: Reply, end: Moment) {
        let mut pause = Duration::from_millis(20);
        loop {
            match reply.await {
                Ok(_) => return,
                Err(failure) if !failure.may_heal() => {
                    tracing::warn!(
                        key = %hold.key, cause = %failure.cause,
                        "can't release; the lock stays until its lease ends"
                    );
                    return;
                }
                Err(_) => {}
            }
            if self.clock.now() >= end {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            reply = self.backend.submit(hold.steps.release());
        }
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

/// The undo of a hold. Armed before the request for it leaves, it travels into
/// the guard; dropped while armed it gives the hold back.
///
/// Armed later, a future dropped while the reply travels would leave the lock
/// held for a whole lease.
pub(crate) struct Undo {
    cleanup: Arc<Cleanup>,
    hold: Arc<Hold>,
    state: Armed,
}

enum Armed {
    No,
    /// The request's fate is not known yet; a ticket for it once it is queued.
    Asking(Option<Ticket>),
    Held,
}

impl Undo {
    pub(crate) fn arm(cleanup: &Arc<Cleanup>, hold: Arc<Hold>) -> Self {
        Self {
            cleanup: Arc::clone(cleanup),
            hold,
            state: Armed::Asking(None),
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

    /// There is nothing to undo.
    pub(crate) fn disarm(&mut self) {
        self.state = Armed::No;
    }

    /// The request has failed: armed only if it may have run.
    pub(crate) fn failed(&mut self, outcome: Outcome) {
        if outcome == Outcome::DidNotRun {
            self.disarm();
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// What dropping it does, now; afterwards it is disarmed.
    pub(crate) fn give_back_now(&mut self) {
        match std::mem::replace(&mut self.state, Armed::No) {
            Armed::No | Armed::Asking(None) => {}
            Armed::Held => self.cleanup.give_back(Arc::clone(&self.hold), false),
            Armed::Asking(Some(ticket)) => {
                if ticket.may_have_run() {
                    self.cleanup.give_back(Arc::clone(&self.hold), true);
                }
            }
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        self.give_back_now();
    }
}

/// Whether a reply to renew or release says "yours".
pub(crate) fn was_ours(reply: &Value) -> bool {
    *reply == Value::Int(1)
}
