//! The acquire of permits: the head of the line also requests the permits for the waiters behind
//! it.

use std::pin::pin;
use std::sync::{Arc, Weak};

use futures_util::FutureExt as _;
use tokio::sync::oneshot;

use super::Semaphore;
use super::permit::SemaphorePermit;
use super::returns::{self, GrantedPermits, SemaphoreNames};
use super::steps;
use crate::backend::Reply;
use crate::backend::channels::Listener;
use crate::backend::failure::{Failure, Outcome};
use crate::backend::route::Route;
use crate::backend::step::Value;
use crate::context::Context;
use crate::error::Result;
use crate::hold::{Undo, WaitingClient};
use crate::local::line::{LineMode, Place};
use crate::local::permits::PermitWaiter;
use crate::local::slice::SliceReport;
use crate::local::{Marked, RecordRef};
use crate::observe::{Entry, ObservedKind};
use crate::primitives::absence::Absence;
use crate::primitives::enlistment::Enlistment;
use crate::primitives::request;
use crate::sync::Mutex;
use crate::wait::{Answer, Ask, Deadline, NotBefore, Wait};

/// The largest number of waiters in one request. A longer request would block the server for too
/// long.
const MOST_AT_ONCE: usize = 64;

pub(super) async fn acquire(
    semaphore: &Semaphore,
    names: SemaphoreNames,
    permits: u32,
    deadline: Deadline,
) -> Result<Option<SemaphorePermit>> {
    let context = &semaphore.context;
    let key = names.key.clone();
    let local = context.locals.of(&key);
    // A try takes no place in the line.
    let place =
        (!matches!(deadline, Deadline::Now)).then(|| local.clone().line_up_for_permits(permits));
    let place = place.as_ref();
    let acquire = PermitAcquire {
        semaphore,
        names,
        local,
        permits,
        place,
        enlistment: Enlistment::new(&context.backend, Route::Plain),
        absence: Absence::new(semaphore.must_exist, deadline),
    };
    let observed = context.observer.of(ObservedKind::Semaphore, &key);
    let acquiring = observed.begin_acquire(&key, &context.timers);
    let own = semaphore.own_channel.as_deref();
    let channels = [&*semaphore.channel, own.unwrap_or_default()];
    let channels = channels.map(|channel| (context.backend.channels(), channel));
    let wait = Wait {
        context,
        key: &key,
        line_key: &key,
        channels: &channels[..=usize::from(own.is_some())],
        settings: &semaphore.settings,
        deadline,
        line: LineMode::HeadAsks,
        place,
        was_held: false,
        span: Some(acquiring.span()),
    };
    let granted = acquiring.watch(pin!(wait.until_granted(&acquire))).await;
    acquiring.ended(&granted, |_| Entry::Granted);
    granted
}

struct PermitAcquire<'a> {
    semaphore: &'a Semaphore,
    names: SemaphoreNames,
    local: RecordRef,
    permits: u32,
    place: Option<&'a Place>,
    enlistment: Enlistment<'a>,
    absence: Absence,
}

impl PermitAcquire<'_> {
    fn give_up(&self) {
        if let Some(place) = self.place
            && place.give_up()
        {
            // Another waiter's request was granted permits for this waiter, but this waiter has not
            // taken them.
            drop(self.permit());
        }
    }

    fn waiter(&self) -> Option<&Arc<PermitWaiter>> {
        self.place.and_then(Place::permit_waiter)
    }

    fn permit(&self) -> SemaphorePermit {
        SemaphorePermit::new(&self.semaphore.context, self.names.clone(), self.permits)
    }

    fn request(&self) -> PermitRequest {
        let context = &self.semaphore.context;
        // A waiter may send its request before the moment of `not_before`, because its deadline is
        // earlier. Such a waiter requests only its own permits.
        let behind = match (self.place, self.not_before()) {
            (Some(head), None) => head.other_permit_waiters(MOST_AT_ONCE - 1),
            _ => Vec::new(),
        };
        let others = behind.iter().map(|waiter| waiter.permits);
        PermitRequest {
            context: Arc::clone(context),
            names: self.names.clone(),
            local: self.local.clone(),
            // Each request needs a new marker: under the marker of an earlier request, the server
            // would repeat the earlier reply.
            marked: request::new_marker(context, &self.local),
            // The head is first: the server grants in this order, and the first grant counts as the
            // grant of the head.
            sizes: std::iter::once(self.permits).chain(others).collect(),
            head: self.waiter().cloned(),
            behind,
            given_back: None,
            client: self.place.and_then(|_| self.enlistment.caller()),
        }
    }

    /// Notes that the request adds this client to the waiting clients, if a release can notify it.
    fn enlist(&self, client: Option<WaitingClient>) {
        let SemaphoreNames { key, channel } = &self.names;
        if let Some(client) = client {
            let delist = steps::delist(key, client, self.permits, channel);
            self.enlistment.state.enlist(Some(delist));
        }
    }
}

impl Ask for PermitAcquire<'_> {
    type Grant = SemaphorePermit;

    async fn ask(&self) -> Result<Answer<SemaphorePermit>, Failure> {
        let context = &self.semaphore.context;
        let mut request = self.request();
        self.enlist(request.client);
        let (undo, mut reply) = request.send();
        let answer = match (&mut reply).now_or_never() {
            // An embedded backend has already answered, so no task has to wait for the reply.
            Some(reply) => {
                let answer = request.answered(&undo, reply)?;
                request.hand_out(answer.grants);
                answer
            }
            // The reply concerns only the head. If the head is not polled, this does not delay
            // other waiters.
            None if request.behind.is_empty() => request.answered(&undo, reply.await)?,
            None => {
                let (sender, answer) = oneshot::channel();
                // Pass a weak reference, because the undo must end with the head: if the task kept
                // the undo alive, nothing would be given back before the answer arrives.
                let task = request.finish_in_task(Arc::downgrade(&undo), reply, sender);
                // Don't use `spawn`: closing the client waits for spawned work, but this reply
                // matters only to waiters.
                context.cleanup.spawn_detached(task);
                let address = context.backend.address();
                // While this future exists, `undo` exists, too, so the task sends a result. So a
                // channel that was closed without a result means that the runtime has dropped the
                // task.
                let ended = |_| Failure::runtime_ended(Outcome::MayHaveRun, address);
                answer.await.map_err(ended)??
            }
        };
        if let Some(permit) = answer.granted {
            self.enlistment.state.granted();
            return Ok(Answer::Granted(permit));
        }
        self.enlistment.state.answered(answer.before);
        if !answer.exists {
            self.absence.report_missing(context, &self.names.key)?;
        }
        // The number of free permits alone is not enough as a fingerprint. If other waiters take
        // released permits before this request runs, the number is the same as before, and only
        // `released` differs.
        let fingerprint = (answer.free, answer.released);
        Ok(Answer::Later {
            within: None,
            fingerprint,
        })
    }

    fn not_before(&self) -> Option<NotBefore> {
        let now = self.semaphore.context.clock.now();
        let until = self.local.slice.lock().not_before(now);
        until.map(NotBefore::Others)
    }

    fn before_ask(&self, listeners: &[Listener]) {
        self.enlistment.state.heard(listeners);
    }

    fn clients_ahead(&self) -> Option<u32> {
        self.enlistment.state.before()
    }

    fn on_message(&self) {
        // A listed client is notified in the order of the list, so it sends its request at once.
        if self.clients_ahead().is_some() {
            return;
        }
        let now = self.semaphore.context.clock.now();
        self.local.slice.lock().release_heard(now);
    }

    async fn granted_locally(&self) -> SemaphorePermit {
        match self.waiter() {
            Some(waiter) => waiter.granted().await,
            None => std::future::pending().await,
        }
        self.permit()
    }
}

impl Drop for PermitAcquire<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// One request, for the head of a line and the waiters behind it.
struct PermitRequest {
    context: Arc<Context>,
    names: SemaphoreNames,
    local: RecordRef,
    marked: Marked,
    /// The number of permits that each waiter wants, the head first.
    sizes: Vec<u32>,
    head: Option<Arc<PermitWaiter>>,
    behind: Vec<Arc<PermitWaiter>>,
    given_back: Option<i64>,
    /// This client, if a release may notify it.
    client: Option<WaitingClient>,
}

/// The undo of a request. It belongs to the head. The task that waits for the reply has only a weak
/// reference. If the head gives up before the answer arrives, everything that was granted is given
/// back, and the next waiter in line sends its request.
type SharedUndo = Mutex<Undo<GrantedPermits>>;

impl PermitRequest {
    fn send(&mut self) -> (Arc<SharedUndo>, Reply) {
        let context = &self.context;
        let operation = steps::acquire(&self.names.key, &self.marked, &self.sizes, self.client);
        // Arm the undo before the request is sent: a grant must not be lost when no task waits for
        // the answer any more.
        let granted = GrantedPermits {
            names: self.names.clone(),
            marker: self.marked.marker.clone(),
        };
        let mut undo = Undo::arm(&context.cleanup, Arc::new(granted));
        // Send returned permits before the request: otherwise the request could be refused for lack
        // of exactly these permits.
        returns::send(context, &self.names, &self.local);
        let now = context.clock.now();
        // Read this before the request is sent: permits that are given back later are not available
        // to the request, and must not make the other processes' slice look unused.
        self.given_back = self.local.slice.lock().given_back(now);
        let reply = context.backend.submit(operation);
        // This tells the undo whether the request was sent: if it was not, nothing is undone on the
        // server.
        undo.watch(&reply);
        (Arc::new(Mutex::new(undo)), reply)
    }

    /// Waits for the reply in its own task, so that the waiters behind the head get their permits
    /// even if the head is not polled.
    async fn finish_in_task(
        self,
        undo: Weak<SharedUndo>,
        reply: Reply,
        head: oneshot::Sender<Result<PermitReply, Failure>>,
    ) {
        let reply = reply.await;
        // If the undo no longer exists, the head has given up, and the request is undone.
        if let Some(undo) = undo.upgrade() {
            let answer = self.answered(&undo, reply);
            let granted = answer.as_ref().map_or(0, |answer| answer.grants);
            // If the head gives up just now, the result is returned by `send` or dropped with the
            // channel. Either way the head's permits are dropped, which gives them back.
            drop(head.send(answer));
            self.hand_out(granted);
        }
    }

    /// Reads the reply. The result contains the head's permits, if they were granted.
    fn answered(
        &self,
        undo: &SharedUndo,
        reply: Result<Value, Failure>,
    ) -> Result<PermitReply, Failure> {
        let context = &self.context;
        let mut undo = undo.lock();
        let answer = reply.and_then(|reply| {
            read(&reply, self.sizes.len()).ok_or_else(|| context.backend.malformed())
        });
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                undo.failed(failure.outcome);
                // Give the permits back here, because the head might not be polled.
                undo.give_back_now();
                return Err(failure);
            }
        };
        // From here on each permit either is passed to its waiter or is given back to the server.
        undo.disarm();
        drop(undo);
        // Do this after disarming the undo: from here on a later request may remove the marker, and
        // without the marker the undo would not find what to give back.
        let now = context.clock.now();
        self.local.markers.answered(self.marked.clone(), now);
        let grants = answer.grants;
        let taken = self.sizes.iter().take(grants);
        let taken: i64 = taken.map(|size| i64::from(*size)).sum();
        self.local.slice.lock().answered(&SliceReport {
            given_back: self.given_back,
            // The reply has the number of permits that are still free. Only the number that the
            // request found shows whether other processes have taken anything.
            free: answer.free.saturating_add(taken),
            none_left: answer.free <= 0,
            // A try does not begin a slice: it has no waiters behind it that could use a returned
            // permit.
            granted: grants > 0 && self.head.is_some(),
            now,
        });
        if grants > 0 {
            // The head has the permits that it asked for, so it does not need permits that other
            // holders give back. Permits that were already passed to it are given back.
            if self.head.as_ref().is_some_and(|waiter| waiter.close()) {
                drop(self.permit(self.sizes[0]));
            }
            answer.granted = Some(self.permit(self.sizes[0]));
        }
        Ok(answer)
    }

    /// Gives the waiters behind the head the permits that the server granted for them, in line
    /// order.
    fn hand_out(&self, granted: usize) {
        // The first grant was for the head, whether the head still waits or not.
        for waiter in self.behind.iter().take(granted.saturating_sub(1)) {
            if !waiter.grant() {
                // The waiter gave up, or a holder of this process has passed permits to it since
                // the request was sent. So it does not need this grant.
                drop(self.permit(waiter.permits));
            }
        }
    }

    fn permit(&self, permits: u32) -> SemaphorePermit {
        SemaphorePermit::new(&self.context, self.names.clone(), permits)
    }
}

/// The server's answer to a request.
struct PermitReply {
    /// The number of waiters that were granted their permits.
    grants: usize,
    /// The permits of the first waiter.
    granted: Option<SemaphorePermit>,
    /// The number of permits that are free.
    free: i64,
    /// Whether the semaphore exists.
    exists: bool,
    /// The request that last gave permits back.
    released: Vec<u8>,
    /// The number of clients that are notified before this one; `None` if this client is not in the
    /// list.
    before: Option<u32>,
}

/// Reads the answer to a request on behalf of at most `most` waiters.
fn read(reply: &Value, most: usize) -> Option<PermitReply> {
    let Value::List(items) = reply else {
        return None;
    };
    let [
        Value::Int(grants),
        Value::Int(free),
        Value::Int(exists),
        Value::Text(released),
        Value::Int(before),
    ] = &items[..]
    else {
        return None;
    };
    Some(PermitReply {
        // There can't be more grants than waiters. Such a reply is malformed, and the undo gives
        // back any permits that were taken.
        grants: usize::try_from(*grants)
            .ok()
            .filter(|grants| *grants <= most)?,
        granted: None,
        free: *free,
        exists: *exists == 1,
        released: released.clone(),
        before: u32::try_from(*before).ok(),
    })
}
