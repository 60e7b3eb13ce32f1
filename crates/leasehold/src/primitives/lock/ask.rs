//! The common way of acquiring a lock that has one name.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::kind::Named;
use super::{Lock, LockGuard};
use crate::backend::channels::Listener;
use crate::backend::failure::{Cause, Failure, refusal_counts};
use crate::backend::route::Route;
use crate::backend::step::Value;
use crate::clock::Moment;
use crate::config::Terms;
use crate::error::Result;
use crate::guard::Share;
use crate::hold::{Asked, Grant, HoldSteps, Undo};
use crate::key::Key;
use crate::local::crowd::{Keeper, Met};
use crate::local::hand_over::Candidate;
use crate::local::line::{First, Line, Place};
use crate::local::reentry::{Entry, Held};
use crate::local::{Local, stays, turn};
use crate::observe::Acquiring;
use crate::owner::Owner;
use crate::primitives::calls::{Called, own_channel};
use crate::primitives::namesake;
use crate::sync::Mutex;
use crate::wait::{Answer, Answered, Ask, Deadline, FOR_AN_ANSWER, NotBefore, Wait};

/// The longest time for which one branch of an owner waits for another branch's acquire, which
/// might not be polled.
const UNPOLLED: Duration = Duration::from_millis(100);

pub(in crate::primitives) async fn acquire_by<K: Named>(
    lock: &Lock<K>,
    deadline: Deadline,
) -> Result<Option<LockGuard>> {
    let key = lock.key()?;
    let terms = lock.kind.terms(lock.settings.terms(key)?);
    lock.context.check_lease(terms.lease, key)?;
    lock.context.check_acknowledged(terms, key)?;
    // Before any request is sent: a closed client renews nothing, so the new holder would lose the
    // lock at the end of its first lease.
    lock.context.check_open(key)?;
    namesake::look(&lock.context, key);
    let context = &lock.context;
    let observed = context.observer.of(K::OBSERVED, key);
    let acquiring = observed.acquires(key, &context.timers);
    let asker = Asker {
        acquiring: &acquiring,
        lock,
        key,
        line_key: lock.kind.line_key(key),
        terms,
        kept: Mutex::default(),
    };
    let share = match &lock.owner {
        None => acquiring.watch(pin!(asker.until(deadline))).await,
        Some(owner) => match asker.enter_at_once(owner) {
            Entered::Now(share) => share.map(Some),
            // Boxed: otherwise every waiter would carry this state, and few waiters have an owner.
            Entered::Not(local, entry) => {
                let entering = Box::pin(asker.enter_as(owner, deadline, local, entry));
                acquiring.watch(pin!(entering)).await
            }
        },
    };
    let ended = acquiring.ended(&share, Share::way);
    Ok(share?.map(|share| LockGuard::new(share.after(ended))))
}

/// One acquire: its lock, its terms and the place that it keeps.
struct Asker<'a, K> {
    lock: &'a Lock<K>,
    acquiring: &'a Acquiring<'a>,
    key: &'a Key,
    line_key: Key,
    terms: Terms,
    /// The undo that gives up the waiter's place on the server. It is here between two asks, for a
    /// kind whose waiters keep their place.
    kept: Mutex<Option<Undo>>,
}

/// The result of looking at what an owner holds under the name.
enum Entered {
    /// The owner shares a hold of its own, or is not allowed to ask.
    Now(Result<Share>),
    /// The owner must wait.
    Not(Local, Entry),
}

impl<K: Named> Asker<'_, K> {
    /// Looks first at what the owner holds, so that a re-entry never waits behind other waiters.
    /// For most re-entries this is enough.
    fn enter_at_once(&self, owner: &Owner) -> Entered {
        let context = &self.lock.context;
        let local = context.locals.of(&self.line_key);
        match local.enter(owner, self.terms) {
            Ok(Entry::Joined(held, joined)) if !joined.must_confirm => {
                let share = Share::joined(Arc::clone(context), held, joined);
                share.look_again(joined.moves_look);
                Entered::Now(Ok(share))
            }
            Ok(entry) => Entered::Not(local, entry),
            Err(error) => Entered::Now(Err(error)),
        }
    }

    async fn enter_as(
        &self,
        owner: &Owner,
        deadline: Deadline,
        local: Local,
        mut entry: Entry,
    ) -> Result<Option<Share>> {
        let context = &self.lock.context;
        loop {
            let mut insists = false;
            match entry {
                Entry::Ask(asking) => {
                    let share = tokio::select! {
                        biased;
                        share = self.until(deadline) => share?,
                        // Another branch has acquired the lock, and this branch enters that hold.
                        () = local.owners.held_by_another(owner) => {
                            drop(asking);
                            drop(self.kept());
                            entry = local.enter(owner, self.terms)?;
                            continue;
                        }
                    };
                    match &share {
                        // Both branches were granted the lock, as readers can be. This branch gives
                        // its hold back.
                        Some(share) if !asking.holds(share.held()) => {}
                        _ => return Ok(share),
                    }
                }
                Entry::Joined(held, joined) => {
                    // The share exists before the confirmation is requested. If this future is
                    // dropped meanwhile, the share leaves the hold that it has joined.
                    let share = Share::joined(Arc::clone(context), held, joined);
                    match share.enter_again(joined).await {
                        Ok(()) => return Ok(Some(share)),
                        // The hold was lost meanwhile, so this branch asks again.
                        Err(_) if share.hold().loss().is_some() => {}
                        Err(error) => return Err(error),
                    }
                }
                Entry::Acquiring => tokio::select! {
                    biased;
                    // The deadline is first: a try must not wait for a lock that another branch of
                    // its owner is about to get.
                    () = deadline.passed(&context.timers) => return Ok(None),
                    () = local.owners.settled(owner) => {}
                    // The other branch might not be polled.
                    () = context.timers.sleep(UNPOLLED) => insists = true,
                },
            }
            entry = match insists {
                true => local.enter_beside(owner, self.terms)?,
                false => local.enter(owner, self.terms)?,
            };
        }
    }

    /// Returns how long the process keeps the lock, counted from a grant; `None` if its waiters
    /// take no turns.
    fn turn(&self) -> Option<Duration> {
        self.time_together().filter(|_| K::TAKES_TURNS)
    }

    /// Returns how long the waiters of the process may use one grant; `None` if each needs its own.
    fn time_together(&self) -> Option<Duration> {
        let Lock {
            context, settings, ..
        } = self.lock;
        // A member of several locks also waits for the other members, so a lock that is handed over
        // to it would be held for long. And if requests cost nothing, there is nothing to save.
        let is_member = self.lock.member.is_some();
        let saves = !is_member && !context.backend.is_in_process();
        (saves && !settings.local_hand_over.is_zero()).then_some(settings.local_hand_over)
    }

    /// Returns whether this acquire can take over a hold that was granted to another waiter.
    fn is_plain(&self) -> bool {
        let renewed = self.terms.renew_every.is_some() && self.terms.max_hold.is_none();
        renewed && self.lock.owner.is_none()
    }

    /// Describes this waiter as one to which a hold can be handed over; `None` if that is not
    /// possible.
    fn candidate(&self, turn: Option<Duration>) -> Option<Candidate> {
        let turn = turn.filter(|_| self.is_plain())?;
        let candidate = Candidate::new(self.terms, 1, turn);
        let kept = self.kept.lock();
        let place = kept
            .as_ref()
            .map(|place| place.hold().steps.wire_id().to_owned());
        Some(candidate.in_place(place))
    }

    /// Returns how long other tasks can enter the hold of this acquire; `None` if it shares no
    /// hold.
    fn open_for(&self) -> Option<Duration> {
        let is_shared = K::is_shared(self.lock) && self.is_plain();
        self.time_together().filter(|_| is_shared)
    }

    async fn until(&self, deadline: Deadline) -> Result<Option<Share>> {
        let context = &self.lock.context;
        let line = match (deadline, K::line(self.lock)) {
            // An acquire that asks once takes no place.
            (Deadline::Now, Line::OnServer { .. }) => Line::OneAsks,
            (_, line) => line,
        };
        let mut granted = self.granted(deadline, line, false).await?;
        while let Some(Granted::WentBack) = granted {
            // The undo of the place gives back anything that is left of it.
            drop(self.kept());
            if deadline.has_passed(context.clock) {
                return Ok(None);
            }
            granted = self.granted(deadline, line, true).await?;
        }
        let turn = self.turn();
        Ok(granted.and_then(|granted| {
            let held = |undo| Held::new(&context.standing, undo, self.entered_as(), turn);
            Some(match granted {
                Granted::AtOnce(undo) => {
                    context.watchdog.keep(undo.hold());
                    Share::new(Arc::clone(context), held(undo))
                }
                Granted::Asked(undo) => {
                    context.watchdog.keep(undo.hold());
                    let held = held(undo);
                    held.was_waited_for();
                    Share::new(Arc::clone(context), held)
                }
                // The watchdog has kept this hold since its first holder.
                Granted::Handed(undo) => Share::handed_over(Arc::clone(context), held(undo)),
                Granted::Entered(share) => share,
                Granted::WentBack => return None,
            })
        }))
    }

    /// Waits until this acquire gets a hold. `was_held`: a server has already answered that the
    /// lock is held.
    async fn granted(
        &self,
        deadline: Deadline,
        line: Line,
        was_held: bool,
    ) -> Result<Option<Granted>> {
        let context = &self.lock.context;
        let channel = match line {
            Line::OnServer { .. } => self.take_place(),
            _ => Arc::clone(&self.lock.channel),
        };
        let turn = self.turn();
        let member = self.lock.member.as_ref();
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
            told: Some(self.acquiring.span()),
        };
        match deadline {
            // An acquire that asks once takes no place.
            Deadline::Now => wait.once(&Waiter::alone(self, deadline)).await,
            _ => match context.locals.of(&self.line_key).first(line) {
                Ok(first) => self.as_first(wait, first, turn).await,
                Err(local) => {
                    let place = match self.candidate(turn) {
                        Some(candidate) => local.line_up_as(line, candidate),
                        None => local.line_up(line),
                    };
                    self.in_line(wait, &place, turn, None).await
                }
            },
        }
    }

    /// Returns the record and the owner that make a re-entry possible.
    fn entered_as(&self) -> Option<(Local, Owner)> {
        let owner = self.lock.owner.clone()?;
        Some((self.lock.context.locals.of(&self.line_key), owner))
    }

    /// Gives the waiter one id for all its asks. Returns the channel of that id, on which releases
    /// call the waiter.
    fn take_place(&self) -> Arc<str> {
        let id = self.lock.context.fresh_wire_id();
        let channel = format!("{}:{id}", self.lock.channel);
        // Armed before the first ask, and kept between two asks. When a sleeping wait is dropped,
        // no request is on its way, but its place is on the server.
        self.keep(self.arm(K::waiter(self.lock, self.key, id)));
        channel.into()
    }

    fn keep(&self, undo: Undo) {
        *self.kept.lock() = Some(undo);
    }

    fn has_place(&self) -> bool {
        self.kept.lock().is_some()
    }

    fn kept(&self) -> Option<Undo> {
        // Taken out of the field, not borrowed: while a request is on its way, the undo belongs to
        // the future of that request. Dropping that future then undoes the right thing.
        let mut kept = self.kept.lock();
        kept.take()
    }

    /// Arms an undo for a hold. Called before the request is sent: when a future is dropped while
    /// the answer is on its way, the lock must not stay held for a whole lease.
    fn arm(&self, steps: Box<dyn HoldSteps>) -> Undo {
        let context = &self.lock.context;
        let hold = Grant::new(
            self.key.clone(),
            steps,
            self.terms,
            context.clock,
            context.margin,
            // Read before the request is sent. The lease on the server begins later, so a deadline
            // counted from here is earlier than the server's.
            context.clock.now(),
            self.acquiring.observed().clone(),
        );
        Undo::arm(&context.cleanup, hold)
    }

    /// Returns the connection for the requests of this acquire.
    fn route(&self) -> Route {
        Route::of(self.terms.acknowledged)
    }

    /// Asks once for the hold of `undo`. With `keeps_place`, the undo is kept for the next ask.
    /// Without it, the undo gives back anything that was granted if this function returns no grant.
    async fn ask_for(
        &self,
        mut undo: Undo,
        keeps_place: bool,
        called: Option<&Called<'_>>,
    ) -> Result<Answer<Undo>, Failure> {
        let backend = &self.lock.context.backend;
        let hold = Arc::clone(undo.hold());
        let (steps, lease) = (&hold.steps, self.terms.lease);
        let caller = called.and_then(Called::caller);
        let calls = called.map(|called| &called.calls);
        let in_turn = caller.and_then(|caller| steps.acquire_in_turn(lease, caller));
        if let (Some(calls), Some(caller), Some(_)) = (calls, caller, &in_turn) {
            calls.asks(steps.leave_turn(caller));
        }
        let operation = in_turn.unwrap_or_else(|| steps.acquire(lease));
        let reply = backend.submit_by(operation, self.route());
        undo.watch(&reply);
        let gives = |reply: &Value| {
            let asked = hold.steps.read_acquire(reply.clone());
            !matches!(asked, Some(Asked::Busy { .. }))
        };
        let asked = match refusal_counts(reply.await, gives) {
            Ok(reply) => hold.steps.read_acquire(reply),
            Err(failure) => {
                if let Cause::Guarded { left } = failure.cause {
                    self.is_held_for(left);
                }
                if matches!(failure.cause, Cause::Unconfirmed(_)) {
                    // The reply has arrived, so one release after it takes the grant back.
                    undo.granted();
                    if keeps_place {
                        // The next ask has the same id. It finds the grant and has it confirmed.
                        undo.in_line();
                        self.keep(undo);
                    }
                    return Err(failure);
                }
                undo.failed(failure.outcome);
                if keeps_place {
                    self.keep(undo);
                }
                return Err(failure);
            }
        };
        match asked {
            Some(Asked::Granted { token }) => {
                // Before the answer is judged: a grant that arrives after the end of its lease must
                // be given back too, because the server may still have it.
                undo.granted();
                if let Some(calls) = calls {
                    calls.granted();
                }
                if hold.granted(token) {
                    return Ok(Answer::Granted(undo));
                }
                // The undo gives back the grant, and with it the id of a place.
                Err(backend.granted_too_late())
            }
            Some(Asked::Busy { ttl_ms, before }) => {
                if let Some(calls) = calls {
                    calls.answered(before);
                }
                if keeps_place {
                    undo.in_line();
                    self.keep(undo);
                } else {
                    // A refused request leaves nothing on the server. A release for each refusal
                    // would double the requests of every wait.
                    undo.disarm();
                }
                Ok(self.busy(ttl_ms))
            }
            // The undo is still armed and is dropped here: a reply that can't be read may have been
            // a grant.
            None => Err(backend.malformed()),
        }
    }

    /// Keeps the place of this waiter in one request with others; `None` if it must ask by itself.
    async fn stays(&self, due: Duration) -> Option<(usize, stays::Answered)> {
        let context = &self.lock.context;
        // Requests to a backend in this process cost nothing, so there is nothing to share. The
        // requests of an acknowledged hold have a connection of their own. And timers of one
        // runtime must not be polled by another one.
        if context.backend.is_in_process()
            || self.route() != Route::Plain
            || !context.timers.are_here()
        {
            return None;
        }
        let waiter = {
            let kept = self.kept.lock();
            let place = kept.as_ref().filter(|undo| undo.has_place())?;
            Arc::clone(place.hold())
        };
        let local = context.locals.known(&self.line_key)?;
        local
            .stays
            .keep(&context.backend, &context.timers, &waiter, due)
            .await
    }

    /// Reads the answer for the place with this number; `None` if its waiter must ask by itself.
    fn stayed<T>(&self, number: usize, answered: stays::Answered) -> Option<Answered<T>> {
        let stays::Answered { sent, reply } = answered;
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
            // Too late, or an error that the waiter's own request explains.
            _ => return None,
        };
        Some(Answered { sent, answer })
    }

    /// Returns the answer that the lock is held, and reports it to the lock of which this one is a
    /// member.
    fn busy<T>(&self, ttl_ms: i64) -> Answer<T> {
        let ttl = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
        if let Some(ttl) = ttl {
            self.is_held_for(ttl);
        }
        Answer::Busy { ttl }
    }

    /// Reports how long the lock stays held to the lock of which this one is a member.
    fn is_held_for(&self, ttl: Duration) {
        if let Some(member) = &self.lock.member {
            member.held_for.get_or_init(|| ttl);
        }
    }
}

impl<K: Named> Asker<'_, K> {
    /// Asks as the first waiter of the process. Most locks are free and have no other waiters.
    async fn as_first(
        &self,
        wait: Wait<'_>,
        first: First,
        turn: Option<Duration>,
    ) -> Result<Option<Granted>> {
        let met = match wait
            .as_first(&Waiter::alone(self, wait.deadline), &first)
            .await
        {
            None => return wait.ended_unanswered(),
            Some(Answered {
                answer: Ok(Answer::Granted(granted)),
                sent,
            }) => return Ok(Some(self.first_has(granted, first, turn, sent))),
            Some(met) => met,
        };
        let Some(place) = first.line_up(self.candidate(turn)) else {
            return wait.ended_unanswered();
        };
        if turn.is_some() {
            Waiter::in_place(self, &place, turn, wait.deadline).answered(&place, None, false);
        }
        self.in_line(wait, &place, turn, Some(met)).await
    }

    /// Takes the grant of the first waiter. This waiter needs no turn, even if another waiter has
    /// the turn already: the answer may have arrived long before this waiter was polled again.
    fn first_has(
        &self,
        granted: Granted,
        first: First,
        turn: Option<Duration>,
        sent: Moment,
    ) -> Granted {
        // Report the server's answer to the waiters behind this one.
        let Some(place) = first.leave().and_then(|followed| followed.line_up(None)) else {
            return granted;
        };
        place.granted(sent);
        if turn.is_some() {
            Waiter::in_place(self, &place, turn, Deadline::Never).answered(&place, None, true);
        }
        match granted {
            Granted::AtOnce(undo) => Granted::Asked(undo),
            other => other,
        }
    }

    /// Waits in line. Boxed: few acquires have to wait, and the others need not carry this state.
    async fn in_line(
        &self,
        wait: Wait<'_>,
        place: &Place,
        turn: Option<Duration>,
        met: Option<Answered<Granted>>,
    ) -> Result<Option<Granted>> {
        // Registered here, not before the first ask: most locks are free.
        let _waiting = match (&self.lock.owner, wait.deadline) {
            (Some(owner), Deadline::Never) => {
                let locals = &self.lock.context.locals;
                Some(locals.waits_for_ever(&self.line_key, owner)?)
            }
            _ => None,
        };
        let waiter = Waiter::in_place(self, place, turn, wait.deadline);
        Box::pin(async {
            let own = self.own_channel(turn, wait.line);
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
            wait.on_from(&waiter, met).await
        })
        .await
    }
}

impl<K: Named> Asker<'_, K> {
    /// Returns the channel by which a release sees that this client still listens. `None` if no
    /// release calls this client.
    fn own_channel(&self, turn: Option<Duration>, line: Line) -> Option<Arc<str>> {
        let Lock {
            context, channel, ..
        } = self.lock;
        let is_called = turn.is_some() && !matches!(line, Line::OnServer { .. });
        own_channel(context, channel).filter(|_| is_called)
    }
}

/// The hold that a waiter gets.
enum Granted {
    /// Granted by the server to a waiter that is not in line.
    AtOnce(Undo),
    /// Granted by the server to a waiter in line.
    Asked(Undo),
    /// Handed over by the previous holder, in this process.
    Handed(Undo),
    /// A hold that readers of this process share.
    Entered(Share),
    /// No hold: a hold for the waiter's place on the server has been given back, and the id of the
    /// place with it. The waiter begins again with another id.
    WentBack,
}

/// One waiter, with its place if its line takes turns.
struct Waiter<'a, K> {
    asker: &'a Asker<'a, K>,
    place: Option<&'a Place>,
    /// Whether the waiter has a place on the server.
    queues: bool,
    turn: Duration,
    deadline: Deadline,
    called: Called<'a>,
}

impl<'a, K> Waiter<'a, K> {
    /// Creates a waiter that asks only once, or that is the first in line.
    fn alone(asker: &'a Asker<'a, K>, deadline: Deadline) -> Self {
        Self {
            asker,
            place: None,
            queues: false,
            turn: Duration::ZERO,
            deadline,
            called: Called::new(
                &asker.lock.context.backend,
                Route::of(asker.terms.acknowledged),
            ),
        }
    }

    fn in_place(
        asker: &'a Asker<'a, K>,
        place: &'a Place,
        turn: Option<Duration>,
        deadline: Deadline,
    ) -> Self {
        Self {
            place: turn.map(|_| place),
            queues: place.is_on_server(),
            turn: turn.unwrap_or_default(),
            ..Self::alone(asker, deadline)
        }
    }
}

impl<K: Named> Ask for Waiter<'_, K> {
    type Grant = Granted;

    async fn ask(&self) -> Result<Answer<Granted>, Failure> {
        if let Some(turn) = self.asker.open_for() {
            // Boxed: other acquires need not carry this state.
            return Box::pin(self.asker.ask_together(turn, self.deadline)).await;
        }
        if self.queues && !self.asker.has_place() {
            // The hold of the place was granted too late and has been given back.
            return Ok(Answer::Granted(Granted::WentBack));
        }
        if let Some(place) = self.place.filter(|_| self.queues) {
            return self.ask_in_line(place).await;
        }
        let clock = self.asker.lock.context.clock;
        let given_back = self.place.and_then(|place| {
            // Read before the request is sent: it does not cover anything that is given back later.
            place.turns().lock().given_back(clock.now())
        });
        // No release calls a waiter that takes no turns, so it asks at each message. In a cluster a
        // release does not know whether any client hears a call.
        let counts = self.asker.lock.context.backend.counts_listeners();
        let calls = self.place.filter(|_| counts).map(|_| &self.called);
        let answer = self.asker.ask(calls).await?;
        if let Some(place) = self.place {
            let granted = matches!(answer, Answer::Granted(_));
            self.answered(place, given_back, granted);
        }
        Ok(match answer {
            Answer::Granted(undo) if self.place.is_none() => Answer::Granted(Granted::AtOnce(undo)),
            Answer::Granted(undo) => Answer::Granted(Granted::Asked(undo)),
            Answer::Busy { ttl } => Answer::Busy { ttl },
            Answer::Later { within, evidence } => Answer::Later { within, evidence },
        })
    }

    fn not_before(&self) -> Option<NotBefore> {
        let now = self.asker.lock.context.clock.now();
        // Places on the server are first come, first served, so a waiter asks for one at once.
        let place = self
            .place
            .filter(|place| !place.is_on_server() || place.has_asked());
        let turns = place?.turns().lock();
        let own = turns.ours_until(now, self.turn).map(NotBefore::Own);
        own.or_else(|| turns.not_before(now).map(NotBefore::Others))
    }

    async fn stays(&self, due: Duration) -> Option<Answered<Granted>> {
        if !self.place.is_none_or(Place::may_ask_in_line) {
            // The waiter has been given a hold, or has had one.
            return None;
        }
        let (number, answered) = self.asker.stays(due).await?;
        self.asker.stayed(number, answered)
    }

    fn heard(&self, listeners: &[Listener]) {
        self.called.calls.heard(listeners);
    }

    fn before(&self) -> Option<u32> {
        self.called.calls.before()
    }

    async fn meanwhile(&self) -> Granted {
        match self.place {
            Some(place) => {
                let mut undo = tokio::select! {
                    biased;
                    undo = place.handed() => undo,
                    () = place.has_gone_back() => return Granted::WentBack,
                };
                // This never runs during an ask, so the undo of the place is here.
                match self.asker.kept() {
                    Some(own) => place.goes_with(&mut undo, own),
                    // The time for the ask was up before it was answered.
                    None if place.owns(&undo) => {
                        place.gave_up(undo);
                        return std::future::pending().await;
                    }
                    None => {}
                }
                Granted::Handed(undo)
            }
            None => std::future::pending().await,
        }
    }
}

impl<K: Named> Waiter<'_, K> {
    /// Asks for the lock, and for a place in the line on the server.
    async fn ask_in_line(&self, place: &Place) -> Result<Answer<Granted>, Failure> {
        if !place.may_ask_in_line() {
            // The waiter has been given a hold, or has had one. The wait notices this before it
            // sleeps.
            let ttl = Some(Duration::ZERO);
            return Ok(Answer::Busy { ttl });
        }
        Ok(match self.asker.ask(None).await? {
            Answer::Granted(undo) if place.takes_its_own() => {
                let now = self.asker.lock.context.clock.now();
                place.turns().lock().holds(now);
                Answer::Granted(Granted::Asked(undo))
            }
            Answer::Granted(_) => Answer::Granted(Granted::WentBack),
            Answer::Busy { ttl } => Answer::Busy { ttl },
            Answer::Later { within, evidence } => Answer::Later { within, evidence },
        })
    }
}

impl<K> Waiter<'_, K> {
    fn answered(&self, place: &Place, given_back: Option<i64>, granted: bool) {
        let has_others = place.has_others();
        let mut turns = place.turns().lock();
        // A lone holder begins no turn: nothing must be remembered for its name.
        let begins = granted && (has_others || !turns.is_idle());
        turns.answered(&turn::Asked {
            given_back,
            // If it was not free, another client has it.
            free: granted.into(),
            none_left: true,
            granted: begins,
            now: self.asker.lock.context.clock.now(),
        });
    }
}

impl<K: Named> Asker<'_, K> {
    /// Enters a hold of this process, or asks for a hold that other tasks may enter.
    async fn ask_together(
        &self,
        turn: Duration,
        deadline: Deadline,
    ) -> Result<Answer<Granted>, Failure> {
        let context = &self.lock.context;
        let local = context.locals.of(&self.line_key);
        // Without enough time, this wait could end unanswered because the request of another task
        // was late.
        let has_time = !deadline.comes_before(context.clock.now() + FOR_AN_ANSWER);
        let asking = match local.meet(self.terms, has_time, &context.timers).await {
            Met::Entered(held, joined) => {
                let share = Share::of_crowd(Arc::clone(context), held, Some(joined));
                return Ok(Answer::Granted(Granted::Entered(share)));
            }
            Met::Refused(ttl) => return Ok(Answer::Busy { ttl }),
            Met::Ask(asking) => asking,
        };
        Ok(match self.ask(None).await? {
            Answer::Granted(undo) => {
                context.watchdog.keep(undo.hold());
                let until = context.clock.now() + turn;
                let held = Held::of_crowd(&context.standing, undo, local.clone());
                let keeper = || {
                    let joined = held.hold().share(self.terms)?;
                    let keeper =
                        Share::of_crowd(Arc::clone(context), Arc::clone(&held), Some(joined));
                    Some(Box::new(keeper) as Keeper)
                };
                if let Some(kept) = asking.opens(&held, until, keeper) {
                    context.cleanup.carry(kept.ends());
                }
                let share = Share::of_crowd(Arc::clone(context), held, None);
                Answer::Granted(Granted::Entered(share))
            }
            Answer::Busy { ttl } => {
                asking.refused(ttl);
                Answer::Busy { ttl }
            }
            Answer::Later { within, evidence } => Answer::Later { within, evidence },
        })
    }

    async fn ask(&self, called: Option<&Called<'_>>) -> Result<Answer<Undo>, Failure> {
        let (undo, keeps_place) = match self.kept() {
            Some(undo) => {
                // Before the request is sent: a grant counts from the ask that is answered. The
                // first ask of the wait may be minutes ago.
                undo.hold().asked_again();
                (undo, true)
            }
            // Each ask has a new hold, so that its request can't be mistaken for another one.
            None => {
                let id = self.lock.context.fresh_wire_id();
                (self.arm(K::hold(self.lock, self.key, id)), false)
            }
        };
        self.ask_for(undo, keeps_place, called).await
    }
}
