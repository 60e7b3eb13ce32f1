//! How permits are given back. While it is this process's turn (`local/turn.rs`), other waiters of
//! the process get them at once. Otherwise, when others wait, the permits that are given back in
//! one turn of the scheduler go as one request: that is when there are many.

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
use crate::hold::cleanup::Return;
use crate::key::Key;
use crate::local::returns::{Carrier, Member, Sent};
use crate::local::{Local, repeatable_for};
use crate::observe::log;
use crate::primitives::request;
use crate::sync::{Mutex, MutexGuard};

/// A semaphore's key and channel.
#[derive(Clone)]
pub(super) struct Names {
    pub(super) key: Key,
    pub(super) channel: Arc<str>,
}

/// Permits on their way back.
enum Returning {
    /// Other waiters of this process have them.
    PassedOn,
    /// In a request of their own.
    Alone(Sent),
    /// In a shared request, which is seen through whatever becomes of this.
    Together(Member),
}

/// Gives `permits` back, and returns how that ended. If this is dropped after it was polled, they
/// are still given back.
pub(super) async fn release(
    context: &Arc<Context>,
    names: &Names,
    permits: u32,
) -> Result<(), Failure> {
    let local = context.locals.of(&names.key);
    match start(context, names, &local, permits) {
        Returning::PassedOn => Ok(()),
        Returning::Alone(sent) => follow(context, &local, sent).await,
        Returning::Together(member) => match member.ending().await {
            Some(ending) => ending,
            None => {
                // The task that carries a batch always tells its end, unless the runtime drops the
                // task.
                let address = context.backend.address();
                Err(Failure::runtime_ended(Outcome::MayHaveRun, address))
            }
        },
    }
}

/// Gives `permits` back in the background.
pub(super) fn give_back(context: &Arc<Context>, names: &Names, permits: u32) {
    let local = context.locals.of(&names.key);
    let Returning::Alone(sent) = start(context, names, &local, permits) else {
        return;
    };
    let is_here = matches!(sent.reply, Reply::Ready(_));
    let context = Arc::clone(context);
    let cleanup = Arc::clone(&context.cleanup);
    let followed = async move {
        let ended = follow(&context, &local, sent).await;
        // Nobody waits for this end, so nobody else would hear of permits that stay in use.
        tell_if_final(local.key(), &ended);
    };
    if is_here {
        // An embedded backend has answered, so one poll brings this to its end.
        followed.now_or_never();
    } else {
        cleanup.spawn(followed);
    }
}

fn start(context: &Arc<Context>, names: &Names, local: &Local, permits: u32) -> Returning {
    let in_process = context.backend.is_in_process();
    let permits = match in_process {
        true => permits,
        // Asked even when nobody waits: a return ends the turn of this process when its time is
        // over.
        false => local.pass_on(permits, context.clock.now()),
    };
    if permits == 0 {
        return Returning::PassedOn;
    }
    // Nobody of this process waits, so there is no crowd whose returns are worth gathering. This
    // one leaves at once.
    if in_process || !local.anyone_wants_permits() {
        send(context, names, local);
        let sent = submit(context, names, local, permits.into());
        nudge(context, names, local);
        return Returning::Alone(sent);
    }
    let (member, carrier) = loop {
        match local.returns.join(permits) {
            Some(joined) => break joined,
            // The batch is full, and its carrier has not come to send it yet. It leaves now, and
            // the next round opens another one.
            None => send(context, names, local),
        };
    };
    if let Some(carrier) = carrier {
        let carried = carry(Arc::clone(context), names.clone(), local.clone(), carrier);
        // As clean-up: a close of the client waits until the batch has been sent and answered.
        context.cleanup.spawn(carried);
    }
    Returning::Together(member)
}

async fn carry(context: Arc<Context>, names: Names, local: Local, mut carrier: Carrier) {
    turn().await;
    // A request may have sent this batch already. Then this sends the one that was opened behind
    // it, if there is one, and the carrier of that finds it sent.
    if send(&context, &names, &local) {
        nudge(&context, &names, &local);
    }
    // It is there: whoever sent the batch did so under the lock that `send` has just had.
    if let Some(sent) = carrier.sent() {
        let ended = follow(&context, &local, sent).await;
        // Perhaps nobody in this batch waits for the end.
        tell_if_final(&names.key, &ended);
        carrier.end(ended);
    }
}

/// Lets other tasks that are ready run first: they may have something to give back as well. Not
/// `yield_now`, which would wait for this thread although another one is idle.
async fn turn() {
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

/// Sends the permits that were given back so far, so that the next request runs behind them. `true`
/// if there were any.
pub(super) fn send(context: &Context, names: &Names, local: &Local) -> bool {
    let submit = |permits| submit(context, names, local, permits);
    local.returns.send(submit)
}

fn submit(context: &Context, names: &Names, local: &Local, permits: i64) -> Sent {
    let Names { key, channel } = names;
    let marked = request::mark(context, local);
    let operation = steps::add(key, &marked, permits, false, channel);
    Sent {
        // Before the request leaves, because the life of its marker is counted from here. If it
        // were counted from later, a copy could be sent behind the end of the marker, and count
        // twice.
        left_at: context.clock.now(),
        we_listen: context.backend.channels().is_live(channel),
        reply: context.backend.submit(operation.clone()),
        operation,
        marked,
    }
}

/// Lets our own waiters ask right behind the release, before its message comes. Not when other
/// processes wait as well, because those would hardly ever be first.
fn nudge(context: &Context, names: &Names, local: &Local) {
    if local.turn.lock().is_alone() {
        context.backend.channels().wake(&names.channel);
    }
}

/// Sees the release through. If this is dropped, or no reply comes, the release ends in the
/// background.
async fn follow(context: &Context, local: &Local, sent: Sent) -> Result<(), Failure> {
    let returned = Returned {
        key: local.key().clone(),
        operation: sent.operation.clone(),
        // Also for the case that this is dropped meanwhile.
        unsure_since: Mutex::new(Some(sent.left_at)),
    };
    let mut undo = Undo::arm(&context.cleanup, Arc::new(returned));
    // As of a hold: whatever becomes of the reply, there is something to give back. The clean-up
    // sends the same operation under the same marker, so the permits still count once.
    undo.granted();
    match request::repeat(context, sent.left_at, sent.reply, sent.operation).await {
        Ok(reply) => {
            undo.disarm();
            if let Value::List(items) = reply.value
                && let [_, Value::Int(listeners)] = items[..]
            {
                let ours = i64::from(sent.we_listen);
                // A number that is not known, -1, is none. Then others may listen, and they get their
                // turn.
                let others = u32::try_from(listeners - ours).ok();
                local.turn.lock().published(others);
            }
            if reply.is_only_copy {
                let now = context.clock.now();
                local.markers.answered(sent.marked, now);
            }
            Ok(())
        }
        Err(failure) => {
            // The key holds something else now, so the clean-up would only fail in the same way.
            if failure.is_about_the_key() {
                undo.disarm();
            }
            // No marker has begun its life, so none limits for how long the clean-up may try.
            if failure.outcome == Outcome::DidNotRun {
                undo.hold().unsure_since(None);
            }
            Err(failure)
        }
    }
}

/// Warns of a failure after which the clean-up does not try again either.
fn tell_if_final(key: &Key, ended: &Result<(), Failure>) {
    if let Err(failure) = ended
        && failure.is_about_the_key()
    {
        log(
            || tracing::warn!(key = %key, cause = %failure.cause, "can't give permits back; they may stay in use"),
        );
    }
}

fn given_up(key: &Key) {
    log(|| {
        tracing::warn!(
            key = %key,
            "no server answered in time to give permits back; they may stay in use"
        )
    });
}

/// How long to go on giving back to a server that can't be reached.
const PATIENCE: Duration = Duration::from_secs(600);

/// When to stop trying: beyond the life of its marker the same request would count twice.
fn over_at(started: Moment, unsure_since: Option<Moment>, reply_timeout: Duration) -> Moment {
    unsure_since.map_or(started + PATIENCE, |since| {
        since + repeatable_for(reply_timeout)
    })
}

/// Permits on their way back, under a marker of their own.
struct Returned {
    key: Key,
    operation: Operation,
    /// When a request left that may have run, before the clean-up took over.
    unsure_since: Mutex<Option<Moment>>,
}

impl Returned {
    fn unsure_since(&self, moment: Option<Moment>) {
        *self.unsure() = moment;
    }

    fn unsure(&self) -> MutexGuard<'_, Option<Moment>> {
        // No code that can panic runs under this lock.
        self.unsure_since.lock()
    }
}

impl Return for Returned {
    fn key(&self) -> &Key {
        &self.key
    }

    fn give_back(&self) -> Operation {
        self.operation.clone()
    }

    fn over_at(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment {
        let before = *self.unsure();
        over_at(started, before.or(unsure_since), reply_timeout)
    }

    fn given_up(&self) {
        given_up(&self.key);
    }
}

/// Permits that an ask may have been granted.
pub(super) struct Granted {
    pub(super) names: Names,
    pub(super) marker: String,
}

impl Return for Granted {
    fn key(&self) -> &Key {
        &self.names.key
    }

    fn give_back(&self) -> Operation {
        steps::undo(&self.names.key, &self.marker, &self.names.channel)
    }

    fn over_at(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_timeout: Duration,
    ) -> Moment {
        over_at(started, unsure_since, reply_timeout)
    }

    fn given_up(&self) {
        given_up(&self.names.key);
    }
}
