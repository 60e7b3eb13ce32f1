//! The acquire that all kinds of locks with one name have in common.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::kind::Named;
use super::{Lock, LockGuard};
use crate::backend::channels::Listener;
use crate::backend::failure::{Cause, Failure, accept_refusal};
use crate::backend::route::Route;
use crate::backend::step::Value;
use crate::clock::Moment;
use crate::config::Terms;
use crate::error::Result;
use crate::guard::Share;
use crate::hold::{AcquireReply, Asked, Grant, HoldSteps, Undo};
use crate::key::Key;
use crate::leave::keep_for::{SEVERAL_HOLDERS, cannot_keep};
use crate::local::hand_over::HoldWaiter;
use crate::local::line::{LineMode, Place, SoleWaiter};
use crate::local::reentry::{Held, OwnerEntry};
use crate::local::shared_hold::{Grace, Join};
use crate::local::{RecordRef, place_renewals, slice};
use crate::observe::ObservedAcquire;
use crate::owner::Owner;
use crate::primitives::enlistment::{Enlistment, own_channel};
use crate::primitives::shared_keys;
use crate::sync::Mutex;
use crate::wait::{Answer, Ask, Deadline, NotBefore, TIME_FOR_ANSWER, TimedAnswer, Wait};

/// The longest time for which one acquire of an owner waits for another acquire of the same owner,
/// whose future might not be polled.
const STALLED_AFTER: Duration = Duration::from_millis(100);

pub(crate) async fn acquire_by<K: Named>(
    lock: &Lock<K>,
    deadline: Deadline,
) -> Result<Option<LockGuard>> {
    if let Some(once) = lock.for_one_acquire() {
        // Boxed, because few handles are non-reentrant, and otherwise every waiter would carry this
        // state.
        return Box::pin(acquire_by(&once, deadline)).await;
    }
    let key = lock.key()?;
    let terms = lock.kind.terms(lock.settings.terms(key)?);
    lock.context.check_lease(terms.first_lease(), key)?;
    if terms.min_hold.is_some() && !K::CAN_BE_KEPT {
        return Err(cannot_keep(key, SEVERAL_HOLDERS));
    }
    lock.context.check_acknowledged(terms, key)?;
    // Check this before any request is sent: a closed client does not renew holds, so the new
    // holder would lose the lock at the end of its first lease.
    lock.context.check_open(key)?;
    shared_keys::check(&lock.context, key);
    let context = &lock.context;
    let observed = context.observer.of(K::OBSERVED, key);
    let acquiring = observed.begin_acquire(key, &context.timers);
    let acquire = LockAcquire {
        acquiring: &acquiring,
        lock,
        key,
        line_key: lock.kind.line_key(key),
        terms,
        pending_undo: Mutex::default(),
    };
    let share = match &lock.owner {
        None => acquiring.watch(pin!(acquire.until(deadline))).await,
        Some(owner) => match acquire.enter_at_once(owner) {
            EnterResult::Done(share) => share.map(Some),
            // Boxed, because few waiters have an owner, and otherwise every waiter would carry this
            // state.
            EnterResult::MustWait(local, entry) => {
                let entering = Box::pin(acquire.enter_as(owner, deadline, local, entry));
                acquiring.watch(pin!(entering)).await
            }
        },
    };
    let ended = acquiring.ended(&share, Share::entry);
    let within = terms.progress_within;
    Ok(share?.map(|share| LockGuard::new(share.after(ended).reporting(within))))
}

/// One acquire: its lock, its terms and the place that it keeps.
struct LockAcquire<'a, K> {
    lock: &'a Lock<K>,
    acquiring: &'a ObservedAcquire<'a>,
    key: &'a Key,
    line_key: Key,
    terms: Terms,
    /// The undo that gives up the waiter's place on the server. It is set between two requests, for
    /// a kind whose waiters have a place on the server.
    pending_undo: Mutex<Option<Undo>>,
}

/// The next step of an owner's acquire, after a check of what the owner already holds under the
/// name.
enum EnterResult {
    /// The acquire is complete: the owner shares a hold that it already has, or must not send a
    /// request (an error).
    Done(Result<Share>),
    /// The acquire needs a request, or must wait for one.
    MustWait(RecordRef, OwnerEntry),
}

impl<K: Named> LockAcquire<'_, K> {
    /// Enters a hold that the owner already has, so that a re-entry never waits behind other
    /// waiters. Most re-entries end here.
    fn enter_at_once(&self, owner: &Owner) -> EnterResult {
        let context = &self.lock.context;
        let local = context.locals.of(&self.line_key);
        match local.enter(owner, self.terms) {
            Ok(OwnerEntry::Joined(held, joined)) if !joined.must_confirm => {
                let share = Share::joined(Arc::clone(context), held, joined);
                share.reschedule(joined.moves_due);
                EnterResult::Done(Ok(share))
            }
            Ok(entry) => EnterResult::MustWait(local, entry),
            Err(error) => EnterResult::Done(Err(error)),
        }
    }

    async fn enter_as(
        &self,
        owner: &Owner,
        deadline: Deadline,
        local: RecordRef,
        mut entry: OwnerEntry,
    ) -> Result<Option<Share>> {
        let context = &self.lock.context;
        loop {
            let mut enters_beside = false;
            match entry {
                OwnerEntry::Ask(branch) => {
                    let share = tokio::select! {
                        biased;
                        share = self.until(deadline) => share?,
                        // Another acquire by the same owner has got the lock, and this acquire
                        // enters that hold.
                        () = local.owners.held_by_another(owner) => {
                            drop(branch);
                            drop(self.take_pending_undo());
                            entry = local.enter(owner, self.terms)?;
                            continue;
                        }
                    };
                    match &share {
                        // Both acquires of the owner were granted the lock, which is possible for
                        // readers. This acquire gives its hold back.
                        Some(share) if !branch.granted(share.held()) => {}
                        _ => return Ok(share),
                    }
                }
                OwnerEntry::Joined(held, joined) => {
                    // The share is created before the confirmation is requested. If this future is
                    // dropped in between, dropping the share ends its part in the hold.
                    let share = Share::joined(Arc::clone(context), held, joined);
                    match share.confirm_reentry(joined).await {
                        Ok(()) => return Ok(Some(share)),
                        // The hold was lost in the meantime, so this acquire requests the lock
                        // again.
                        Err(_) if share.hold().loss().is_some() => {}
                        Err(error) => return Err(error),
                    }
                }
                OwnerEntry::Acquiring => tokio::select! {
                    biased;
                    // The deadline is first: a try must not wait for a lock that another acquire of
                    // its owner is about to get.
                    () = deadline.passed(&context.timers) => return Ok(None),
                    () = local.owners.settled(owner) => {}
                    // The future of the other acquire might not be polled.
                    () = context.timers.sleep(STALLED_AFTER) => enters_beside = true,
                },
            }
            entry = match enters_beside {
                true => local.enter_concurrently(owner, self.terms)?,
                false => local.enter(owner, self.terms)?,
            };
        }
    }

    /// Returns the slice: how long the waiters of this process hand the lock over to each other,
    /// counted from a grant. `None` if they do not.
    fn slice(&self) -> Option<Duration> {
        self.hand_over_time().filter(|_| K::HAS_SLICE)
    }

    /// Returns how long the waiters of the process may use one grant; `None` if each waiter needs
    /// its own grant.
    fn hand_over_time(&self) -> Option<Duration> {
        let Lock {
            context, settings, ..
        } = self.lock;
        // A composite lock also waits for its other members, so a lock that is handed over to one
        // member would stay held for a long time. And if requests cost nothing, a hand-over saves
        // nothing.
        let is_member = self.lock.member.is_some();
        let is_useful = !is_member && !context.backend.is_in_process();
        (is_useful && !settings.local_hand_over.is_zero()).then_some(settings.local_hand_over)
    }

    /// Returns whether this acquire can take over a hold that was granted to another waiter.
    fn can_take_over(&self) -> bool {
        let renewed = self.terms.renew_every.is_some() && self.terms.max_hold.is_none();
        renewed && self.lock.owner.is_none()
    }

    /// Returns the data that a holder needs to hand its hold over to this waiter; `None` if this
    /// waiter can't take over a hold.
    fn hold_waiter(&self, slice: Option<Duration>) -> Option<HoldWaiter> {
        let slice = slice.filter(|_| self.can_take_over())?;
        let hold_waiter = HoldWaiter::new(self.terms, 1, slice);
        let pending = self.pending_undo.lock();
        let place = pending
            .as_ref()
            .map(|place| place.hold().steps.wire_id().to_owned());
        Some(hold_waiter.with_place(place))
    }

    /// Returns how long other tasks can enter the hold of this acquire; `None` if the hold is not
    /// shared.
    fn joinable_for(&self) -> Option<Duration> {
        let is_shared = K::is_shared(self.lock) && self.can_take_over();
        self.hand_over_time().filter(|_| is_shared)
    }

    async fn until(&self, deadline: Deadline) -> Result<Option<Share>> {
        let context = &self.lock.context;
        let line = match (deadline, K::line(self.lock)) {
            // An acquire that sends only one request takes no place.
            (Deadline::Now, LineMode::OnServer { .. }) => LineMode::HeadAsks,
            (_, line) => line,
        };
        let mut granted = self.wait_for_grant(deadline, line, false).await?;
        while let Some(LockGrant::GivenBack) = granted {
            // If the place still exists on the server, its undo gives it up.
            drop(self.take_pending_undo());
            if deadline.has_passed(context.clock) {
                return Ok(None);
            }
            granted = self.wait_for_grant(deadline, line, true).await?;
        }
        let slice = self.slice();
        Ok(granted.and_then(|granted| {
            let held = |undo| Held::new(&context.live_holds, undo, self.reentry_owner(), slice);
            Some(match granted {
                LockGrant::AtOnce(undo) => {
                    context.watchdog.watch(undo.hold());
                    Share::new(Arc::clone(context), held(undo))
                }
                LockGrant::InLine(undo) => {
                    context.watchdog.watch(undo.hold());
                    let held = held(undo);
                    held.set_contended();
                    Share::new(Arc::clone(context), held)
                }
                // The watchdog has watched this hold since its first holder.
                LockGrant::HandedOver(undo) => Share::handed_over(Arc::clone(context), held(undo)),
                LockGrant::Joined(share) => share,
                LockGrant::GivenBack => return None,
            })
        }))
    }

    /// Waits until this acquire gets a hold. `was_held` says whether a server has already answered
    /// that the lock is held.
    async fn wait_for_grant(
        &self,
        deadline: Deadline,
        line: LineMode,
        was_held: bool,
    ) -> Result<Option<LockGrant>> {
        let context = &self.lock.context;
        let channel = match line {
            LineMode::OnServer { .. } => self.take_place(),
            _ => Arc::clone(&self.lock.channel),
        };
        let slice = self.slice();
        let member = self.lock.member.as_ref();
        let was_held = was_held || self.lock.kind.was_held();
        let wait = Wait {
            context,
            key: self.key,
            line_key: &self.line_key,
            channels: &[(context.backend.channels(), &channel)],
            settings: &self.lock.settings,
            deadline,
            line,
            place: None,
            was_held: was_held || member.is_some_and(|member| member.was_held),
            span: Some(self.acquiring.span()),
        };
        match deadline {
            // An acquire that sends only one request takes no place.
            Deadline::Now => wait.once(&LockWaiter::without_place(self, deadline)).await,
            _ => match context.locals.of(&self.line_key).sole_waiter(line) {
                Ok(first) => self.as_sole_waiter(wait, first, slice).await,
                Err(local) => {
                    let place = match self.hold_waiter(slice) {
                        Some(hold_waiter) => local.line_up_for_hold(line, hold_waiter),
                        None => local.line_up(line),
                    };
                    self.in_line(wait, &place, slice, None).await
                }
            },
        }
    }

    /// Returns the owner, and the record that notes its hold, so that the owner can re-enter.
    fn reentry_owner(&self) -> Option<(RecordRef, Owner)> {
        let owner = self.lock.owner.clone()?;
        Some((self.lock.context.locals.of(&self.line_key), owner))
    }

    /// Gives the waiter one id for all its requests. Returns the channel of that id, on which
    /// releases notify the waiter.
    fn take_place(&self) -> Arc<str> {
        let id = self.lock.context.fresh_wire_id();
        let channel = format!("{}:{id}", self.lock.channel);
        // Arm the undo before the first request, and keep it between two requests: if a sleeping
        // wait is dropped, no request is under way, but the waiter's place is on the server.
        self.set_pending_undo(self.arm(K::waiter(self.lock, self.key, id)));
        channel.into()
    }

    fn set_pending_undo(&self, undo: Undo) {
        *self.pending_undo.lock() = Some(undo);
    }

    fn has_place(&self) -> bool {
        self.pending_undo.lock().is_some()
    }

    fn take_pending_undo(&self) -> Option<Undo> {
        // Take the undo out of the field: while a request is under way, its future must own the
        // undo, so that dropping the future undoes the request.
        let mut pending = self.pending_undo.lock();
        pending.take()
    }

    /// Arms an undo for a hold. Call this before the request is sent: if the future is dropped
    /// before the answer arrives, the lock must not stay held for a whole lease.
    fn arm(&self, steps: Box<dyn HoldSteps>) -> Undo {
        let context = &self.lock.context;
        let hold = Grant::new(
            self.key.clone(),
            steps,
            self.terms,
            context.clock,
            context.margin,
            Asked {
                lease: self.terms.first_lease(),
                at: context.clock.now(),
            },
            self.acquiring.observed().clone(),
        );
        Undo::arm(&context.cleanup, hold)
    }

    /// Returns the connection for the requests of this acquire.
    fn route(&self) -> Route {
        Route::of(self.terms.acknowledged)
    }

    /// Sends one request for the hold that `undo` would end. With `keeps_place`, the undo is kept
    /// for the next request. Otherwise, if this function does not return a grant, the undo gives
    /// back anything that was granted.
    async fn ask_for(
        &self,
        mut undo: Undo,
        keeps_place: bool,
        enlistment: Option<&Enlistment<'_>>,
    ) -> Result<Answer<Undo>, Failure> {
        let backend = &self.lock.context.backend;
        let hold = Arc::clone(undo.hold());
        let (steps, lease) = (&hold.steps, self.terms.first_lease());
        let caller = enlistment.and_then(Enlistment::caller);
        let list_state = enlistment.map(|enlistment| &enlistment.state);
        let enlisting = caller.and_then(|caller| steps.acquire_and_enlist(lease, caller));
        if let (Some(list_state), Some(caller), Some(_)) = (list_state, caller, &enlisting) {
            list_state.enlist(steps.delist(caller));
        }
        let operation = enlisting.unwrap_or_else(|| steps.acquire(lease));
        let reply = backend.submit_by(operation, self.route());
        undo.watch(&reply);
        let gives = |reply: &Value| {
            let asked = hold.steps.read_acquire(reply.clone());
            !matches!(asked, Some(AcquireReply::Busy { .. }))
        };
        let asked = match accept_refusal(reply.await, gives) {
            Ok(reply) => hold.steps.read_acquire(reply),
            Err(failure) => {
                self.refused(undo, &failure, keeps_place);
                return Err(failure);
            }
        };
        match asked {
            Some(AcquireReply::Granted { token }) => {
                // Note the grant before checking it: even a grant that arrives after the end of its
                // lease must be given back, because the server may still have it.
                undo.granted();
                if let Some(list_state) = list_state {
                    list_state.granted();
                }
                if hold.granted(token) {
                    return Ok(Answer::Granted(undo));
                }
                // The undo gives back the grant, and with it the waiter's place, which has the same
                // id.
                Err(backend.granted_too_late())
            }
            Some(AcquireReply::Busy { ttl_ms, before }) => {
                if let Some(list_state) = list_state {
                    list_state.answered(before);
                }
                if keeps_place {
                    undo.mark_queued();
                    self.set_pending_undo(undo);
                } else {
                    // A refused request leaves nothing on the server, so no release is needed: a
                    // release for each refusal would double the requests of every wait.
                    undo.disarm();
                }
                Ok(self.busy(ttl_ms))
            }
            // The undo is still armed and is dropped here: a reply that can't be read may have been
            // a grant.
            None => Err(backend.malformed()),
        }
    }

    /// Handles the failure of a request for the hold that `undo` would end.
    fn refused(&self, mut undo: Undo, failure: &Failure, keeps_place: bool) {
        if let Cause::Guarded { remaining } = failure.cause {
            self.report_held_for(remaining);
        }
        if matches!(failure.cause, Cause::Unconfirmed(_)) {
            // The reply has arrived, so a single release gives the grant back.
            undo.granted();
            if keeps_place {
                // The next request has the same id and finds the grant, which the replicas may have
                // confirmed in the meantime.
                undo.mark_queued();
            }
        } else {
            undo.failed(failure.outcome);
        }
        if keeps_place {
            self.set_pending_undo(undo);
        }
    }

    /// Keeps the place of this waiter on the server, with one request for several waiters. `None`
    /// if this waiter must send its own request.
    async fn keep_place(&self, due: Duration) -> Option<(usize, place_renewals::PlacesRenewed)> {
        let context = &self.lock.context;
        // Requests to a backend in this process cost nothing, so there is nothing to share. The
        // requests for an acknowledged hold use a separate connection. And the timers of one
        // runtime must not be polled by another one.
        if context.backend.is_in_process()
            || self.route() != Route::Plain
            || !context.timers.are_here()
        {
            return None;
        }
        let waiter = {
            let pending = self.pending_undo.lock();
            let place = pending.as_ref().filter(|undo| undo.has_place())?;
            Arc::clone(place.hold())
        };
        let local = context.locals.find(&self.line_key)?;
        local
            .place_renewals
            .renew(&context.backend, &context.timers, &waiter, due)
            .await
    }

    /// Reads the answer for the place with this `number`; `None` if its waiter must send its own
    /// request.
    fn read_kept_place<T>(
        &self,
        number: usize,
        answered: place_renewals::PlacesRenewed,
    ) -> Option<TimedAnswer<T>> {
        let place_renewals::PlacesRenewed { sent, reply } = answered;
        let answer = match reply {
            Ok(Value::List(items)) => {
                let [Value::Int(ttl_ms), alone @ ..] = &items[..] else {
                    return None;
                };
                if alone.contains(&Value::Int(i64::try_from(number).ok()?)) {
                    return None;
                }
                Ok(self.busy(*ttl_ms))
            }
            Err(failure) if failure.may_heal() && failure.cause != Cause::Late => Err(failure),
            // The reply was too late, or is an error that the waiter's own request will report.
            _ => return None,
        };
        Some(TimedAnswer { sent, answer })
    }

    /// Returns the answer that the lock is held, and reports it to the composite lock, if this lock
    /// is a member of one.
    fn busy<T>(&self, ttl_ms: i64) -> Answer<T> {
        let ttl = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
        if let Some(ttl) = ttl {
            self.report_held_for(ttl);
        }
        Answer::Busy { ttl }
    }

    /// Reports to the composite lock, if this lock is a member of one, how much longer the lock is
    /// held.
    fn report_held_for(&self, ttl: Duration) {
        if let Some(member) = &self.lock.member {
            member.held_for.get_or_init(|| ttl);
        }
    }
}

impl<K: Named> LockAcquire<'_, K> {
    /// Requests the lock as the first waiter of the process. Most locks are free and have no other
    /// waiters.
    async fn as_sole_waiter(
        &self,
        wait: Wait<'_>,
        first: SoleWaiter,
        slice: Option<Duration>,
    ) -> Result<Option<LockGrant>> {
        let first_answer = match wait
            .as_sole_waiter(&LockWaiter::without_place(self, wait.deadline), &first)
            .await
        {
            None => return wait.ended_unanswered(),
            Some(TimedAnswer {
                answer: Ok(Answer::Granted(granted)),
                sent,
            }) => return Ok(Some(self.sole_waiter_has(granted, first, slice, sent))),
            Some(first_answer) => first_answer,
        };
        let Some(place) = first.line_up(self.hold_waiter(slice)) else {
            return wait.ended_unanswered();
        };
        if slice.is_some() {
            LockWaiter::in_place(self, &place, slice, wait.deadline)
                .report_answer(&place, None, false);
        }
        self.in_line(wait, &place, slice, Some(first_answer)).await
    }

    /// Returns the grant of the first waiter. The grant counts even if other waiters of this
    /// process have begun a slice in the meantime: the answer may have arrived long before this
    /// waiter was polled again.
    fn sole_waiter_has(
        &self,
        granted: LockGrant,
        first: SoleWaiter,
        slice: Option<Duration>,
        sent: Moment,
    ) -> LockGrant {
        // Report the server's answer to the waiters behind this one.
        let Some(place) = first.leave().and_then(|followed| followed.line_up(None)) else {
            return granted;
        };
        place.granted(sent);
        if slice.is_some() {
            LockWaiter::in_place(self, &place, slice, Deadline::Never)
                .report_answer(&place, None, true);
        }
        match granted {
            LockGrant::AtOnce(undo) => LockGrant::InLine(undo),
            other => other,
        }
    }

    /// Waits in line. The future is boxed, because few acquires have to wait, and the others need
    /// not carry this state.
    async fn in_line(
        &self,
        wait: Wait<'_>,
        place: &Place,
        slice: Option<Duration>,
        first_answer: Option<TimedAnswer<LockGrant>>,
    ) -> Result<Option<LockGrant>> {
        // Register the wait here and not before the first request, because most locks are free.
        let _waiting = match (&self.lock.owner, wait.deadline) {
            (Some(owner), Deadline::Never) => {
                let locals = &self.lock.context.locals;
                Some(locals.begin_unlimited_wait(&self.line_key, owner)?)
            }
            _ => None,
        };
        let waiter = LockWaiter::in_place(self, place, slice, wait.deadline);
        Box::pin(async {
            let own = self.own_channel(slice, wait.line);
            let mut channels = wait.channels.to_vec();
            channels.extend(
                own.iter()
                    .map(|own| (self.lock.context.backend.channels(), &**own)),
            );
            let wait = Wait {
                place: Some(place),
                channels: &channels,
                ..wait
            };
            wait.continue_from(&waiter, first_answer).await
        })
        .await
    }
}

impl<K: Named> LockAcquire<'_, K> {
    /// Returns the channel by which a release checks whether this client is still subscribed.
    /// `None` if this client is never notified by its number.
    fn own_channel(&self, slice: Option<Duration>, line: LineMode) -> Option<Arc<str>> {
        let Lock {
            context, channel, ..
        } = self.lock;
        let can_be_notified = slice.is_some() && !matches!(line, LineMode::OnServer { .. });
        own_channel(context, channel).filter(|_| can_be_notified)
    }
}

/// The hold that a waiter gets.
enum LockGrant {
    /// A hold that the server granted to a waiter that is not in line.
    AtOnce(Undo),
    /// A hold that the server granted to a waiter in line.
    InLine(Undo),
    /// A hold that the previous holder, in this process, handed over.
    HandedOver(Undo),
    /// A hold that readers of this process share.
    Joined(Share),
    /// No hold: the waiter's place on the server was granted the lock, but that hold has been given
    /// back, and the place with it. The waiter starts over with another id.
    GivenBack,
}

/// One waiter. It has a `place` only if the waiters of its line hand the lock over to each other.
struct LockWaiter<'a, K> {
    acquire: &'a LockAcquire<'a, K>,
    place: Option<&'a Place>,
    /// Whether the waiter has a place on the server.
    is_queued: bool,
    slice: Duration,
    deadline: Deadline,
    enlistment: Enlistment<'a>,
}

impl<'a, K> LockWaiter<'a, K> {
    /// Creates a waiter that sends only one request, or that is the first in line.
    fn without_place(acquire: &'a LockAcquire<'a, K>, deadline: Deadline) -> Self {
        Self {
            acquire,
            place: None,
            is_queued: false,
            slice: Duration::ZERO,
            deadline,
            enlistment: Enlistment::new(
                &acquire.lock.context.backend,
                Route::of(acquire.terms.acknowledged),
            ),
        }
    }

    fn in_place(
        acquire: &'a LockAcquire<'a, K>,
        place: &'a Place,
        slice: Option<Duration>,
        deadline: Deadline,
    ) -> Self {
        Self {
            place: slice.map(|_| place),
            is_queued: place.is_on_server(),
            slice: slice.unwrap_or_default(),
            ..Self::without_place(acquire, deadline)
        }
    }
}

impl<K: Named> Ask for LockWaiter<'_, K> {
    type Grant = LockGrant;

    async fn ask(&self) -> Result<Answer<LockGrant>, Failure> {
        if let Some(slice) = self.acquire.joinable_for() {
            // Boxed, because other acquires need not carry this state.
            return Box::pin(self.acquire.ask_shared(slice, self.deadline)).await;
        }
        if self.is_queued && !self.acquire.has_place() {
            // The hold for this waiter's place in the queue was granted too late and has been given
            // back.
            return Ok(Answer::Granted(LockGrant::GivenBack));
        }
        if let Some(place) = self.place.filter(|_| self.is_queued) {
            return self.ask_in_line(place).await;
        }
        let clock = self.acquire.lock.context.clock;
        let given_back = self.place.and_then(|place| {
            // Read this before sending the request, so that it does not include anything that is
            // given back later.
            place.slice().lock().given_back(clock.now())
        });
        // A waiter without a slice is never notified by its number, so it sends a request at each
        // message. In a cluster, a release does not know whether any client receives its message.
        let counts = self.acquire.lock.context.backend.counts_listeners();
        let enlistment = self.place.filter(|_| counts).map(|_| &self.enlistment);
        let answer = self.acquire.ask(enlistment).await?;
        if let Some(place) = self.place {
            let granted = matches!(answer, Answer::Granted(_));
            self.report_answer(place, given_back, granted);
        }
        Ok(answer.map(|undo| match self.place {
            None => LockGrant::AtOnce(undo),
            Some(_) => LockGrant::InLine(undo),
        }))
    }

    fn not_before(&self) -> Option<NotBefore> {
        let now = self.acquire.lock.context.clock.now();
        // Places on the server are first come, first served, so a waiter requests its place at
        // once.
        let place = self
            .place
            .filter(|place| !place.is_on_server() || place.has_asked());
        let slice = place?.slice().lock();
        let own = slice.ours_until(now, self.slice).map(NotBefore::Own);
        own.or_else(|| slice.not_before(now).map(NotBefore::Others))
    }

    async fn renew_place(&self, due: Duration) -> Option<TimedAnswer<LockGrant>> {
        if !self.place.is_none_or(Place::may_ask_in_line) {
            // A hold was handed over to the waiter. The waiter has it or has given it back.
            return None;
        }
        let (number, answered) = self.acquire.keep_place(due).await?;
        self.acquire.read_kept_place(number, answered)
    }

    fn before_ask(&self, listeners: &[Listener]) {
        self.enlistment.state.heard(listeners);
    }

    fn clients_ahead(&self) -> Option<u32> {
        self.enlistment.state.before()
    }

    async fn granted_locally(&self) -> LockGrant {
        match self.place {
            Some(place) => {
                let mut undo = tokio::select! {
                    biased;
                    undo = place.handed_over() => undo,
                    () = place.was_given_back() => return LockGrant::GivenBack,
                };
                // This code never runs during a request, so the acquire still has the undo for the
                // place.
                match self.acquire.take_pending_undo() {
                    Some(own) => place.tie_place_to(&mut undo, own),
                    // The waiter gave up its last request before the answer arrived.
                    None if place.owns(&undo) => {
                        place.gave_up(undo);
                        return std::future::pending().await;
                    }
                    None => {}
                }
                LockGrant::HandedOver(undo)
            }
            None => std::future::pending().await,
        }
    }
}

impl<K: Named> LockWaiter<'_, K> {
    /// Requests the lock, and a place in the line on the server.
    async fn ask_in_line(&self, place: &Place) -> Result<Answer<LockGrant>, Failure> {
        if !place.may_ask_in_line() {
            // A hold was handed over to the waiter. The waiter has it or has given it back. The
            // wait notices this before it sleeps.
            let ttl = Some(Duration::ZERO);
            return Ok(Answer::Busy { ttl });
        }
        Ok(self.acquire.ask(None).await?.map(|undo| {
            if !place.accept_own_grant() {
                return LockGrant::GivenBack;
            }
            let now = self.acquire.lock.context.clock.now();
            place.slice().lock().begin(now);
            LockGrant::InLine(undo)
        }))
    }
}

impl<K> LockWaiter<'_, K> {
    fn report_answer(&self, place: &Place, given_back: Option<i64>, granted: bool) {
        let has_others = place.has_others();
        let mut slice = place.slice().lock();
        // A holder without waiters does not begin a slice, so that nothing is kept in memory for
        // its name.
        let begins = granted && (has_others || !slice.is_idle());
        slice.answered(&slice::SliceReport {
            given_back,
            // A lock counts as one free permit if it was granted, and as none if another client has
            // it.
            free: granted.into(),
            none_left: true,
            granted: begins,
            now: self.acquire.lock.context.clock.now(),
        });
    }
}

impl<K: Named> LockAcquire<'_, K> {
    /// Enters a hold of this process, or requests a hold that other tasks may enter.
    async fn ask_shared(
        &self,
        slice: Duration,
        deadline: Deadline,
    ) -> Result<Answer<LockGrant>, Failure> {
        let context = &self.lock.context;
        let local = context.locals.of(&self.line_key);
        // Without enough time, this wait could end without an answer because the request of another
        // task was late.
        let has_time = !deadline.is_before(context.clock.now() + TIME_FOR_ANSWER);
        let in_flight = match local
            .join_shared_hold(self.terms, has_time, &context.timers)
            .await
        {
            Join::Entered(held, joined) => {
                let share = Share::of_reader(Arc::clone(context), held, Some(joined));
                return Ok(Answer::Granted(LockGrant::Joined(share)));
            }
            Join::Refused(ttl) => return Ok(Answer::Busy { ttl }),
            Join::Ask(in_flight) => in_flight,
        };
        Ok(match self.ask(None).await? {
            Answer::Granted(undo) => {
                context.watchdog.watch(undo.hold());
                let until = context.clock.now() + slice;
                let held = Held::shared(&context.live_holds, undo, local.clone());
                let grace = || {
                    let joined = held.hold().share(self.terms)?;
                    let grace =
                        Share::of_reader(Arc::clone(context), Arc::clone(&held), Some(joined));
                    Some(Box::new(grace) as Grace)
                };
                if let Some(grace_period) = in_flight.publish(&held, until, grace) {
                    context.cleanup.spawn_detached(grace_period.end());
                }
                let share = Share::of_reader(Arc::clone(context), held, None);
                Answer::Granted(LockGrant::Joined(share))
            }
            Answer::Busy { ttl } => {
                in_flight.refused(ttl);
                Answer::Busy { ttl }
            }
            Answer::Later {
                within,
                fingerprint,
            } => Answer::Later {
                within,
                fingerprint,
            },
        })
    }

    async fn ask(&self, enlistment: Option<&Enlistment<'_>>) -> Result<Answer<Undo>, Failure> {
        let (undo, keeps_place) = match self.take_pending_undo() {
            Some(undo) => {
                // Call this before sending: a lease counts from the request that got the answer,
                // and the first request of this wait may be minutes old.
                undo.hold().requested_again();
                (undo, true)
            }
            // Each request is for a new hold, so that it can't be mistaken for another request.
            None => {
                let id = self.lock.context.fresh_wire_id();
                (self.arm(K::hold(self.lock, self.key, id)), false)
            }
        };
        self.ask_for(undo, keeps_place, enlistment).await
    }
}
