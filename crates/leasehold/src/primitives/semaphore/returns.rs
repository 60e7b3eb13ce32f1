//! The return of released permits, to other waiters of this process or to the server. During this
//! process's slice (`local/slice.rs`), other waiters of the process get the permits at once. After
//! the slice, if the process has waiters, all permits that its ready tasks give back are sent as
//! one request. If the process has no waiters, each return is sent on its own.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use super::steps;
use crate::backend::Reply;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::step::{Operation, Value};
use crate::clock::Moment;
use crate::context::Context;
use crate::hold::Undo;
use crate::hold::cleanup::Releasable;
use crate::key::Key;
use crate::local::returns::{BatchMember, Carrier, SentReturn};
use crate::local::{RecordRef, repeatable_for};
use crate::observe::log;
use crate::primitives::request;
use crate::sync::{Mutex, MutexGuard};

/// A semaphore's key and channel.
#[derive(Clone)]
pub(super) struct SemaphoreNames {
    pub(super) key: Key,
    pub(super) channel: Arc<str>,
}

/// Permits that are being given back.
enum Returning {
    /// The permits were passed to other waiters of this process.
    PassedOn,
    /// The permits are in a request of their own.
    Alone(SentReturn),
    /// The permits are in a shared request, which is completed even if this value is dropped.
    Together(BatchMember),
}

/// Gives `permits` back, and returns the result. If this future is dropped after it was polled, the
/// permits are still given back.
pub(super) async fn release(
    context: &Arc<Context>,
    names: &SemaphoreNames,
    permits: u32,
) -> Result<(), Failure> {
    let local = context.locals.of(&names.key);
    match start(context, names, &local, permits) {
        Returning::PassedOn => Ok(()),
        Returning::Alone(sent) => complete(context, &local, sent).await,
        Returning::Together(member) => match member.result().await {
            Some(result) => result,
            None => {
                // The task that sends a batch always reports the result, unless the runtime drops
                // the task.
                let address = context.backend.address();
                Err(Failure::runtime_ended(Outcome::MayHaveRun, address))
            }
        },
    }
}

/// Gives `permits` back in the background.
pub(super) fn give_back(context: &Arc<Context>, names: &SemaphoreNames, permits: u32) {
    let local = context.locals.of(&names.key);
    let Returning::Alone(sent) = start(context, names, &local, permits) else {
        return;
    };
    let is_ready = matches!(sent.reply, Reply::Ready(_));
    let context = Arc::clone(context);
    let cleanup = Arc::clone(&context.cleanup);
    let followed = async move {
        let ended = complete(&context, &local, sent).await;
        // No task waits for the result, so only this log message reports permits that stay in use.
        warn_if_final(local.key(), &ended);
    };
    if is_ready {
        // An embedded backend has answered, so one poll completes this.
        followed.now_or_never();
    } else {
        cleanup.spawn(followed);
    }
}

fn start(
    context: &Arc<Context>,
    names: &SemaphoreNames,
    local: &RecordRef,
    permits: u32,
) -> Returning {
    let in_process = context.backend.is_in_process();
    let permits = match in_process {
        true => permits,
        // Call this even when no waiter waits: a slice ends with the first return after its time is
        // up.
        false => local.pass_on(permits, context.clock.now()),
    };
    if permits == 0 {
        return Returning::PassedOn;
    }
    // With an embedded backend or without waiters, a batch would save no requests, so this return
    // is sent at once.
    if in_process || !local.has_permit_waiters() {
        send(context, names, local);
        let sent = submit(context, names, local, permits.into());
        nudge(context, names, local);
        return Returning::Alone(sent);
    }
    let (member, carrier) = loop {
        match local.returns.join(permits) {
            Some(joined) => break joined,
            // The batch is full, and its task has not sent it yet. Send it now; the next round
            // opens another batch.
            None => send(context, names, local),
        };
    };
    if let Some(carrier) = carrier {
        let batch = UnsentBatch {
            context: Arc::clone(context),
            names: names.clone(),
            local: local.clone(),
            is_sent: false,
        };
        // Spawn it as clean-up, so that closing the client waits until the batch has been sent and
        // answered.
        context.cleanup.spawn(carry(batch, carrier));
    }
    Returning::Together(member)
}

/// A batch of returns that its task has not sent yet. If the task is dropped before its first poll,
/// because the runtime ends, the drop sends the batch: otherwise its permits would stay in use.
struct UnsentBatch {
    context: Arc<Context>,
    names: SemaphoreNames,
    local: RecordRef,
    is_sent: bool,
}

impl Drop for UnsentBatch {
    fn drop(&mut self) {
        if !self.is_sent {
            send(&self.context, &self.names, &self.local);
        }
    }
}

async fn carry(mut batch: UnsentBatch, mut carrier: Carrier) {
    yield_once().await;
    batch.is_sent = true;
    let UnsentBatch {
        context,
        names,
        local,
        ..
    } = &batch;
    // Another request may have sent this batch already. In that case this call sends the next
    // batch, if there is one, and the task of that batch finds it sent.
    if send(context, names, local) {
        nudge(context, names, local);
    }
    // The batch has now been sent: by this `send`, or by an earlier one, which locked the same
    // mutex.
    if let Some(sent) = carrier.sent() {
        let ended = complete(context, local, sent).await;
        // Log a failure here, because perhaps no member of this batch waits for the result.
        warn_if_final(&names.key, &ended);
        carrier.end(ended);
    }
}

/// Lets other tasks that are ready run first: they may have something to give back, too.
/// `yield_now` would be wrong: it waits for this thread although another thread is idle.
async fn yield_once() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sends the release of the permits that have been given back so far, so that the next request runs
/// after this release. Returns whether there were any such permits.
pub(super) fn send(context: &Context, names: &SemaphoreNames, local: &RecordRef) -> bool {
    let submit = |permits| submit(context, names, local, permits);
    local.returns.send(submit)
}

fn submit(
    context: &Context,
    names: &SemaphoreNames,
    local: &RecordRef,
    permits: i64,
) -> SentReturn {
    let SemaphoreNames { key, channel } = names;
    let marked = request::new_marker(context, local);
    let operation = steps::add(key, &marked, permits, false, channel);
    SentReturn {
        // Read the time before the request is sent, because the lifetime of its marker counts from
        // here. If it counted from a later moment, a copy could be sent after the marker has
        // expired, and would count twice.
        sent_at: context.clock.now(),
        we_listen: context.backend.channels().is_live(channel),
        reply: context.backend.submit(operation.clone()),
        operation,
        marked,
    }
}

/// Lets our own waiters send a request right after the release, before its message arrives. If
/// other processes wait, too, this does nothing, because otherwise their waiters would hardly ever
/// be first.
fn nudge(context: &Context, names: &SemaphoreNames, local: &RecordRef) {
    if local.slice.lock().no_other_listener() {
        context.backend.channels().wake(&names.channel);
    }
}

/// Completes the release. If this future is dropped, or no reply arrives, the release is completed
/// in the background.
async fn complete(context: &Context, local: &RecordRef, sent: SentReturn) -> Result<(), Failure> {
    let returned = ReturnedPermits {
        key: local.key().clone(),
        operation: sent.operation.clone(),
        // This is set in case this future is dropped before the reply arrives.
        unsure_since: Mutex::new(Some(sent.sent_at)),
    };
    let mut undo = Undo::arm(&context.cleanup, Arc::new(returned));
    // Whatever the reply is, the permits must be given back, like a hold that was granted. The
    // clean-up sends the same operation under the same marker, so the permits still count once.
    undo.granted();
    match request::repeat(context, sent.sent_at, sent.reply, sent.operation).await {
        Ok(reply) => {
            undo.disarm();
            if let Value::List(items) = reply.value
                && let [_, Value::Int(listeners)] = items[..]
            {
                let ours = i64::from(sent.we_listen);
                // `None` if the reply is -1, which means that the number is unknown. In that case
                // other processes may be subscribed, and they get their slice.
                let others = u32::try_from(listeners - ours).ok();
                local.slice.lock().published(others);
            }
            if reply.is_only_copy {
                let now = context.clock.now();
                local.markers.answered(sent.marked, now);
            }
            Ok(())
        }
        Err(failure) => {
            // The key now holds something else, so the clean-up would fail in the same way.
            if failure.is_about_the_key() {
                undo.disarm();
            }
            // No marker has been written, so there is no marker whose expiry limits how long the
            // clean-up may try.
            if failure.outcome == Outcome::DidNotRun {
                undo.hold().unsure_since(None);
            }
            Err(failure)
        }
    }
}

/// Logs a warning about a failure after which the clean-up does not try again either.
fn warn_if_final(key: &Key, ended: &Result<(), Failure>) {
    if let Err(failure) = ended
        && failure.is_about_the_key()
    {
        log(
            || tracing::warn!(key = %key, cause = %failure.cause, "can't release permits; they may stay in use"),
        );
    }
}

fn warn_given_up(key: &Key) {
    log(|| {
        tracing::warn!(
            key = %key,
            "no server answered in time to release permits; they may stay in use"
        )
    });
}

/// The time for which the client tries to give permits back while no server can be reached.
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);

/// Returns the time at which to stop trying: after the marker has expired, the same request would
/// count twice.
fn retry_until(started: Moment, unsure_since: Option<Moment>, reply_timeout: Duration) -> Moment {
    unsure_since.map_or(started + GIVE_UP_AFTER, |since| {
        since + repeatable_for(reply_timeout)
    })
}

/// Permits that are being given back, under their own marker.
struct ReturnedPermits {
    key: Key,
    operation: Operation,
    /// The moment at which a request that may have run was sent, before the clean-up took over.
    unsure_since: Mutex<Option<Moment>>,
}

impl ReturnedPermits {
    fn unsure_since(&self, moment: Option<Moment>) {
        *self.unsure() = moment;
    }

    fn unsure(&self) -> MutexGuard<'_, Option<Moment>> {
        // No code that can panic runs under this lock.
        self.unsure_since.lock()
    }
}

impl Releasable for ReturnedPermits {
    fn key(&self) -> &Key {
        &self.key
    }

    fn release_operation(&self) -> Operation {
        self.operation.clone()
    }

    fn retry_until(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment {
        let before = *self.unsure();
        retry_until(started, before.or(unsure_since), reply_timeout)
    }

    fn given_up(&self) {
        warn_given_up(&self.key);
    }
}

/// Permits that a request may have been granted.
pub(super) struct GrantedPermits {
    pub(super) names: SemaphoreNames,
    pub(super) marker: String,
}

impl Releasable for GrantedPermits {
    fn key(&self) -> &Key {
        &self.names.key
    }

    fn release_operation(&self) -> Operation {
        steps::undo(&self.names.key, &self.marker, &self.names.channel)
    }

    fn retry_until(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment {
        retry_until(started, unsure_since, reply_timeout)
    }

    fn given_up(&self) {
        warn_given_up(&self.names.key);
    }
}
