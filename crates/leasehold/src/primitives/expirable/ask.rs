//! The acquire of permits with leases.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::steps::{Names, Permits};
use super::{ExpirablePermit, ExpirableSemaphore};
use crate::backend::channels::Listener;
use crate::backend::failure::Failure;
use crate::backend::route::Route;
use crate::backend::step::Value;
use crate::config::Terms;
use crate::error::Result;
use crate::guard::Share;
use crate::hold::{Grant, HoldSteps, Undo};
use crate::local::hand_over::Candidate;
use crate::local::line::{Line, Place};
use crate::local::reentry::Held;
use crate::local::turn;
use crate::observe::{Kind, Observed, Way};
use crate::primitives::absence::Absence;
use crate::primitives::calls::Called;
use crate::wait::{Answer, Ask, Deadline, NotBefore, Wait};

pub(super) async fn acquire(
    semaphore: &ExpirableSemaphore,
    names: &Names,
    terms: Terms,
    permits: u32,
    deadline: Deadline,
) -> Result<Option<ExpirablePermit>> {
    let context = &semaphore.context;
    let line = Line::OneAsks;
    // If requests cost nothing, an exchange saves nothing.
    let turn = (!context.backend.is_in_process()).then_some(semaphore.settings.local_hand_over);
    // An acquire that asks once takes no place in the line.
    let place = (!matches!(deadline, Deadline::Now)).then(|| {
        let local = context.locals.of(&names.key);
        match turn {
            Some(turn) => local.line_up_as(line, Candidate::new(terms, permits, turn)),
            None => local.line_up(line),
        }
    });
    let observed = context.observer.of(Kind::Permit, &names.key);
    let acquiring = observed.acquires(&names.key, &context.timers);
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
        told: Some(acquiring.span()),
    };
    let asker = Asker {
        observed: &observed,
        semaphore,
        names,
        terms,
        permits,
        place: turn.and(place.as_ref()),
        called: Called::new(&context.backend, Route::Plain),
        absence: Absence::new(semaphore.must_exist, deadline),
    };
    let granted = acquiring.watch(pin!(wait.until_granted(&asker))).await;
    let ended = acquiring.ended(&granted, |_| Way::Granted);
    Ok(granted?.map(|undo| {
        context.watchdog.keep(undo.hold());
        // No owner: a permit is never entered again, because each acquire takes its own permits.
        let held = Held::new(&context.standing, undo, None, turn);
        ExpirablePermit::new(Share::new(Arc::clone(context), held).after(ended))
    }))
}

struct Asker<'a> {
    observed: &'a Observed,
    semaphore: &'a ExpirableSemaphore,
    names: &'a Names,
    terms: Terms,
    permits: u32,
    /// The waiter's place, if the waiters of its line take turns.
    place: Option<&'a Place>,
    called: Called<'a>,
    absence: Absence,
}

impl Ask for Asker<'_> {
    type Grant = Undo;

    async fn ask(&self) -> Result<Answer<Undo>, Failure> {
        let context = &self.semaphore.context;
        // Fresh ids each time, so that no other request can be mistaken for this one.
        let steps = Permits::fresh(self.names.clone(), &context.client_id, self.permits);
        let calls = &self.called.calls;
        let caller = self.place.and_then(|_| self.called.caller());
        let in_turn = caller.and_then(|caller| {
            calls.asks(steps.leave_turn(caller));
            steps.acquire_in_turn(self.terms.lease, caller)
        });
        let operation = in_turn.unwrap_or_else(|| steps.acquire(self.terms.lease));
        let hold = Grant::new(
            self.names.key.clone(),
            Box::new(steps),
            self.terms,
            context.clock,
            context.margin,
            // Read before the request is sent: the validity counts from here, because the server's
            // lease begins before its answer arrives.
            context.clock.now(),
            self.observed.clone(),
        );
        let given_back = self.place.and_then(|place| {
            // Before the request is sent: permits that are given back after it are not available to
            // it.
            place.turns().lock().given_back(context.clock.now())
        });
        // Armed before the request is sent: a future that is dropped while the answer is on its way
        // must not keep permits for a whole lease.
        let mut undo = Undo::arm(&context.cleanup, Arc::clone(&hold));
        let reply = context.backend.submit(operation);
        undo.watch(&reply);
        match reply.await {
            Ok(Value::Int(left)) => {
                undo.granted();
                calls.granted();
                self.answered(given_back, left, true);
                if hold.granted(None) {
                    return Ok(Answer::Granted(undo));
                }
                // The undo is still armed, so the permits are given back when it is dropped here.
                Err(context.backend.granted_too_late())
            }
            Ok(Value::List(items)) => match items[..] {
                [
                    Value::Int(free),
                    Value::Int(ttl_ms),
                    Value::Int(there),
                    Value::Int(held),
                    Value::Int(before),
                ] => {
                    // The step grants all or none, so there is nothing to give back.
                    undo.disarm();
                    calls.answered(u32::try_from(before).ok());
                    self.answered(given_back, free, false);
                    if there != 1 {
                        self.absence.found(context, &self.names.key)?;
                    }
                    // -1 is not a `u64`: then there is no lease in use whose end could wake this
                    // waiter.
                    let within = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
                    // The number of free permits can be the same although permits changed hands.
                    // Their ids distinguish a release from a flood of messages.
                    let evidence = (free, held.to_be_bytes().into());
                    Ok(Answer::Later { within, evidence })
                }
                // Not disarmed: a malformed list may mean a grant.
                _ => Err(context.backend.malformed()),
            },
            Ok(_) => Err(context.backend.malformed()),
            Err(failure) => {
                undo.failed(failure.outcome);
                Err(failure)
            }
        }
    }

    fn not_before(&self) -> Option<NotBefore> {
        let now = self.semaphore.context.clock.now();
        let turns = self.place?.turns().lock();
        let length = self.semaphore.settings.local_hand_over;
        let own = turns.all_ours_until(now, length).map(NotBefore::Own);
        own.or_else(|| turns.not_before(now).map(NotBefore::Others))
    }

    fn heard(&self, listeners: &[Listener]) {
        self.called.calls.heard(listeners);
    }

    fn before(&self) -> Option<u32> {
        self.called.calls.before()
    }

    fn woken(&self) {
        // A client that is called in its turn asks at once.
        let is_called = self.before().is_some();
        if let Some(place) = self.place.filter(|_| !is_called) {
            let now = self.semaphore.context.clock.now();
            place.turns().lock().hears(now);
        }
    }

    async fn meanwhile(&self) -> Undo {
        match self.place {
            Some(place) => place.handed().await,
            None => std::future::pending().await,
        }
    }
}

impl Asker<'_> {
    /// Notes the server's answer: `left` permits are left.
    fn answered(&self, given_back: Option<i64>, left: i64, granted: bool) {
        let Some(place) = self.place else { return };
        let has_others = place.has_others();
        let mut turns = place.turns().lock();
        // A waiter without other waiters in line begins no turn: nothing must be remembered.
        let begins = granted && (has_others || !turns.is_idle());
        turns.answered(&turn::Asked {
            given_back,
            free: left.saturating_add(if granted { self.permits.into() } else { 0 }),
            // Also after a refusal: fewer permits are left than the first waiter in line wants.
            none_left: !granted || left <= 0,
            granted: begins,
            now: self.semaphore.context.clock.now(),
        });
    }
}
