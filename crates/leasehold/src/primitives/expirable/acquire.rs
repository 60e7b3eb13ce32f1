//! The acquire of permits with leases.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::steps::{ExpirableNames, PermitHold};
use super::{ExpirablePermit, ExpirableSemaphore};
use crate::backend::channels::Listener;
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::Value;
use crate::config::Terms;
use crate::error::Result;
use crate::guard::Share;
use crate::hold::{Asked, Grant, HoldSteps, Undo};
use crate::local::hand_over::HoldWaiter;
use crate::local::line::{LineMode, Place};
use crate::local::reentry::Held;
use crate::local::slice;
use crate::observe::{Entry, Observed, ObservedKind};
use crate::primitives::absence::Absence;
use crate::primitives::enlistment::Enlistment;
use crate::wait::{Answer, Ask, Deadline, NotBefore, Wait};

pub(super) async fn acquire(
    semaphore: &ExpirableSemaphore,
    names: &ExpirableNames,
    terms: Terms,
    permits: u32,
    deadline: Deadline,
) -> Result<Option<ExpirablePermit>> {
    let context = &semaphore.context;
    let line = LineMode::HeadAsks;
    // If requests cost nothing, handing permits over saves nothing.
    let slice = (!context.backend.is_in_process()).then_some(semaphore.settings.local_hand_over);
    // A try takes no place in the line.
    let place = (!matches!(deadline, Deadline::Now)).then(|| {
        let local = context.locals.of(&names.key);
        match slice {
            Some(slice) => local.line_up_for_hold(line, HoldWaiter::new(terms, permits, slice)),
            None => local.line_up(line),
        }
    });
    let observed = context.observer.of(ObservedKind::Permit, &names.key);
    let acquiring = observed.begin_acquire(&names.key, &context.timers);
    let own = names.own_channel.as_deref();
    let channels = [&*names.channel, own.unwrap_or_default()];
    let channels = channels.map(|channel| (context.backend.channels(), channel));
    let wait = Wait {
        context,
        key: &names.key,
        line_key: &names.key,
        channels: &channels[..=usize::from(own.is_some())],
        settings: &semaphore.settings,
        deadline,
        line,
        place: place.as_ref(),
        was_held: false,
        span: Some(acquiring.span()),
    };
    let acquire = LeasedPermitAcquire {
        observed: &observed,
        semaphore,
        names,
        terms,
        permits,
        place: slice.and(place.as_ref()),
        enlistment: Enlistment::new(&context.backend, Route::Plain),
        absence: Absence::new(semaphore.must_exist, deadline),
    };
    let granted = acquiring.watch(pin!(wait.until_granted(&acquire))).await;
    let ended = acquiring.ended(&granted, |_| Entry::Granted);
    Ok(granted?.map(|undo| {
        context.watchdog.watch(undo.hold());
        // The hold has no owner: permits are never re-entered, because each acquire takes its own
        // permits.
        let held = Held::new(&context.live_holds, undo, None, slice);
        let share = Share::new(Arc::clone(context), held).after(ended);
        ExpirablePermit::new(share.reporting(terms.progress_within))
    }))
}

struct LeasedPermitAcquire<'a> {
    observed: &'a Observed,
    semaphore: &'a ExpirableSemaphore,
    names: &'a ExpirableNames,
    terms: Terms,
    permits: u32,
    /// The waiter's place, if its line hands permits over; `None` also for a try.
    place: Option<&'a Place>,
    enlistment: Enlistment<'a>,
    absence: Absence,
}

impl LeasedPermitAcquire<'_> {
    /// Reads the reply to a step that granted nothing.
    fn read_refusal(
        &self,
        items: &[Value],
        mut undo: Undo,
        given_back: Option<i64>,
    ) -> Result<Answer<Undo>, Failure> {
        let context = &self.semaphore.context;
        let &[
            Value::Int(free),
            Value::Int(ttl_ms),
            Value::Int(exists),
            Value::Int(held),
            Value::Int(before),
        ] = items
        else {
            // The undo is not disarmed here: a malformed list may mean a grant.
            return Err(context.backend.malformed());
        };
        // The step grants all or none, so there is nothing to give back.
        undo.disarm();
        self.enlistment.state.answered(u32::try_from(before).ok());
        self.answered(given_back, free, false);
        if exists != 1 {
            self.absence.report_missing(context, &self.names.key)?;
        }
        // `None` if the reply is -1: no lease has an end that this waiter could wait for.
        let within = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
        // The number of free permits alone is not enough as a fingerprint. If released permits are
        // taken again before this request runs, the number is the same as before, and only the ids
        // of the permits in use differ.
        let fingerprint = (free, held.to_be_bytes().into());
        Ok(Answer::Later {
            within,
            fingerprint,
        })
    }
}

impl Ask for LeasedPermitAcquire<'_> {
    type Grant = Undo;

    async fn ask(&self) -> Result<Answer<Undo>, Failure> {
        let context = &self.semaphore.context;
        // Use fresh ids each time, so that no other request can be mistaken for this one.
        let steps = PermitHold::fresh(self.names.clone(), &context.client_id, self.permits);
        let list_state = &self.enlistment.state;
        let caller = self.place.and_then(|_| self.enlistment.caller());
        let enlisting = caller.and_then(|caller| {
            list_state.enlist(steps.delist(caller));
            steps.acquire_and_enlist(self.terms.lease, caller)
        });
        let operation = enlisting.unwrap_or_else(|| steps.acquire(self.terms.lease));
        let hold = Grant::new(
            self.names.key.clone(),
            Box::new(steps),
            self.terms,
            context.clock,
            context.margin,
            Asked {
                lease: self.terms.lease,
                at: context.clock.now(),
            },
            self.observed.clone(),
        );
        let given_back = self.place.and_then(|place| {
            // Read this before the request is sent: permits that are given back later are not
            // available to the request.
            place.slice().lock().given_back(context.clock.now())
        });
        // Arm the undo before the request is sent: a future that is dropped before the answer
        // arrives must not keep permits for a full lease.
        let mut undo = Undo::arm(&context.cleanup, Arc::clone(&hold));
        let reply = context.backend.submit(operation);
        undo.watch(&reply);
        match reply.await {
            Ok(Value::Int(left)) => {
                undo.granted();
                list_state.granted();
                self.answered(given_back, left, true);
                if hold.granted(None) {
                    return Ok(Answer::Granted(undo));
                }
                // The undo is still armed, so the permits are given back when it is dropped here.
                Err(context.backend.granted_too_late())
            }
            Ok(Value::List(items)) => self.read_refusal(&items, undo, given_back),
            Ok(_) => Err(context.backend.malformed()),
            Err(failure) => {
                undo.failed(failure.outcome);
                Err(failure)
            }
        }
    }

    fn not_before(&self) -> Option<NotBefore> {
        let now = self.semaphore.context.clock.now();
        let slice = self.place?.slice().lock();
        let length = self.semaphore.settings.local_hand_over;
        let own = slice.all_ours_until(now, length).map(NotBefore::Own);
        own.or_else(|| slice.not_before(now).map(NotBefore::Others))
    }

    fn before_ask(&self, listeners: &[Listener]) {
        self.enlistment.state.heard(listeners);
    }

    fn clients_ahead(&self) -> Option<u32> {
        self.enlistment.state.before()
    }

    fn on_message(&self) {
        // A listed client is notified in the order of the list, so it sends its request at once.
        let is_listed = self.clients_ahead().is_some();
        if let Some(place) = self.place.filter(|_| !is_listed) {
            let now = self.semaphore.context.clock.now();
            place.slice().lock().release_heard(now);
        }
    }

    async fn granted_locally(&self) -> Undo {
        match self.place {
            Some(place) => place.handed_over().await,
            None => std::future::pending().await,
        }
    }
}

impl LeasedPermitAcquire<'_> {
    /// Notes the server's answer: `left` permits are still free.
    fn answered(&self, given_back: Option<i64>, left: i64, granted: bool) {
        let Some(place) = self.place else { return };
        let has_others = place.has_others();
        let mut slice = place.slice().lock();
        // A waiter that is alone in its line does not begin a slice, so that nothing must be stored
        // for it.
        let begins = granted && (has_others || !slice.is_idle());
        slice.answered(&slice::SliceReport {
            given_back,
            free: left.saturating_add(if granted { self.permits.into() } else { 0 }),
            // This is also true after a refusal: fewer permits are free than the first waiter in
            // line wants.
            none_left: !granted || left <= 0,
            granted: begins,
            now: self.semaphore.context.clock.now(),
        });
    }
}
