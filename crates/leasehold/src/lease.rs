//! A hold: one grant of the server, how long it is valid, and whether it has been lost. Users
//! have guards of it; several guards may share one hold.

mod claims;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::failure::Failure;
use crate::backend::step::{Operation, Value};
use crate::clock::{Clock, Moment};
use crate::config::Terms;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::loss::LossReason;
use crate::sync::Mutex;
pub(crate) use claims::ClaimId;
use claims::Claims;

/// How much earlier the holder's deadline is than the server's: clocks drift, and servers count
/// in whole milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SafetyMargin {
    pub(crate) drift: f64,
}

impl SafetyMargin {
    const ROUNDING: Duration = Duration::from_millis(2);

    /// The end of a hold whose confirmed request was sent at `sent`.
    fn end(self, sent: Moment, lease: Duration) -> Moment {
        let drift = lease.mul_f64(self.drift);
        sent + lease.saturating_sub(drift).saturating_sub(Self::ROUNDING)
    }
}

/// The operations on one hold: what a primitive adds to the mechanism.
pub(crate) trait HoldSteps: Send + Sync {
    /// Asks for the hold. Asked again for a hold that is there, it takes nothing more.
    fn acquire(&self, lease: Duration) -> Operation;
    /// Reads that reply; `None` when it makes no sense.
    fn read_acquire(&self, reply: Value) -> Option<Asked>;
    /// Extends the hold to at least `lease` from now; if more than `most` is left, shortens it to
    /// `lease`. Replies the time left in ms, or 0 when the hold is not there.
    fn renew(&self, lease: Duration, most: Option<Duration>) -> Operation;
    /// Gives the hold back. Replies 1, or 0 when it is not there.
    fn release(&self) -> Operation;
    /// Reads from such a reply why the hold, or a part of it, is not there. `None`: it does not
    /// say.
    fn read_release(&self, _reply: &Value) -> Option<LossReason> {
        None
    }

    /// The longest time until nothing of the hold keeps anybody out, if it is neither renewed nor
    /// given back.
    fn gone_within(&self, lease: Duration) -> Duration {
        lease
    }
    /// Asks why the hold is not there.
    fn why_lost(&self) -> Operation;
    /// The id of the hold on the wire.
    fn wire_id(&self) -> &str;
    /// An unused wire id that belongs to this hold. Returned once.
    fn take_read_id(&self) -> Option<String> {
        None
    }
    /// Reads that reply. `None`: nothing says why.
    fn read_why_lost(&self, reply: Value) -> Option<LossReason>;
    /// Why such a hold has no fencing token, and what to do. `None` when it can have one: it
    /// keeps everybody else out, and is one field of the hash that has the lock's name.
    fn unfenced(&self) -> Option<&'static str> {
        None
    }
}

/// The server's answer to a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// With the fencing token, where one was asked for.
    Granted { token: Option<u64> },
    /// Somebody is in the way for `ttl_ms`; negative when that never expires.
    Busy { ttl_ms: i64 },
}

/// One grant of the server.
pub(crate) struct Hold {
    pub(crate) key: Key,
    /// Counts the holds of this process; also their order in the watchdog.
    pub(crate) number: u64,
    pub(crate) steps: Box<dyn HoldSteps>,
    clock: Clock,
    margin: SafetyMargin,
    state: Mutex<State>,
    /// When the watchdog looks at it next, in nanoseconds; [`NEVER`] when it does not. Written
    /// with the watchdog's table locked.
    due: AtomicU64,
    /// Notified when the hold is lost or its deadline has moved.
    changed: Notify,
}

/// A number that no other hold of this process has.
pub(crate) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// The cause of a renewal that is on its way.
const NO_REPLY_YET: &str = "no reply yet";
/// No time: the watchdog does not look at such a hold.
const NEVER: u64 = u64::MAX;
/// The latest time that can be noted, 584 years after the clock began.
const LATEST: Moment = Moment::from_nanos(u64::MAX - 1);

struct State {
    /// What its guards want.
    claims: Claims,
    /// The longest lease that was asked for: the server may keep the hold that long.
    longest_asked: Duration,
    /// Until when the guards have it: no longer than they want, nor than the server keeps
    /// it for sure.
    valid_until: Moment,
    /// Until when the server keeps it for sure.
    kept_until: Moment,
    /// When the last confirmed request left; before the first, when that did.
    confirmed_at: Moment,
    /// The last guard has gone: nobody joins it any more.
    left: bool,
    /// How many waits need it meanwhile: it is renewed for them, whatever its terms are.
    kept: usize,
    /// Released, or left to its lease: nothing is reported any more.
    over: bool,
    /// Its fencing token.
    token: Option<u64>,
    /// The token of several locks to which this hold's lock was raised.
    raised_to: Option<u64>,
    /// Its client was closed: it is not renewed any more.
    closed: bool,
    lost: Option<LossReason>,
    failing: Option<(Moment, Cow<'static, str>)>,
}

/// What the watchdog has to do about a hold.
#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing any more: it was released, or the server has ended it as well.
    Nothing,
    /// Nothing yet.
    Later,
    /// To ask the server for this lease.
    Renew {
        lease: Duration,
        /// It is the first renewal since one was confirmed.
        first: bool,
    },
    /// To give it back: its guards have lost it for this reason, and the server keeps it still.
    End(LossReason),
}

/// When the watchdog looks at a hold, and by how much earlier a renewal may travel with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) at: Moment,
    pub(crate) earlier: Duration,
}

/// A guard that shares a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    pub(crate) claim: ClaimId,
    /// It wants more than the server has confirmed.
    pub(crate) must_confirm: bool,
}

/// What a guard that leaves has to do about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Others still share the hold.
    Shared,
    /// The last one: give it back.
    Last,
    /// The last one, but it stays until its lease ends.
    LeftToLease,
}

impl Hold {
    pub(crate) fn new(
        key: Key,
        steps: Box<dyn HoldSteps>,
        terms: Terms,
        clock: Clock,
        margin: SafetyMargin,
        asked_at: Moment,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            number: next_number(),
            steps,
            clock,
            margin,
            state: Mutex::new(State {
                claims: Claims::new(terms, asked_at),
                longest_asked: terms.lease,
                valid_until: asked_at,
                kept_until: asked_at,
                confirmed_at: asked_at,
                left: false,
                kept: 0,
                over: false,
                token: None,
                raised_to: None,
                closed: false,
                lost: None,
                failing: None,
            }),
            due: AtomicU64::new(NEVER),
            changed: Notify::new(),
        })
    }

    /// Terms that are good enough for all its guards.
    pub(crate) fn terms(&self) -> Terms {
        self.state.lock().claims.terms()
    }

    /// What one guard asked for.
    pub(crate) fn terms_of(&self, claim: ClaimId) -> Terms {
        self.state.lock().claims.terms_of(claim)
    }

    /// The longest lease that was asked for: the server may keep the hold that long.
    pub(crate) fn longest_asked(&self) -> Duration {
        self.state.lock().longest_asked
    }

    /// What the watchdog has to do about it now. A renewal counts as sent.
    pub(crate) fn due(&self, now: Moment) -> Due {
        let mut state = self.state.lock();
        if state.over {
            return Due::Nothing;
        }
        if let Some(reason) = state.check(now).cloned() {
            return match state.outlasts(&reason) {
                true => Due::End(reason),
                false => Due::Nothing,
            };
        }
        match state.watch_every() {
            Some(_) => Due::Renew {
                lease: state.lease_to_keep(now),
                first: state.asked_to_renew(now),
            },
            None => Due::Later,
        }
    }

    /// When the watchdog looks at it next: one renewal period after it was confirmed last, by
    /// `part` of the period earlier, or when it has to end. `None`: never.
    pub(crate) fn next_look(&self, part: f64) -> Option<Look> {
        let state = self.state.lock();
        let renewal = state.watch_every();
        let renewal = renewal.map(|period| state.confirmed_at + period.mul_f64(1.0 - part));
        let at = renewal.into_iter().chain(state.must_end_at()).min()?;
        state.look_at(at)
    }

    /// The same, if it looks at `at` whatever the terms are.
    pub(crate) fn look_at(&self, at: Moment) -> Option<Look> {
        self.state.lock().look_at(at)
    }

    /// From here on its lease is a fixed one, whatever its terms are.
    pub(crate) fn stop_renewing(&self) {
        self.state.lock().closed = true;
    }

    /// Renews it for a wait, or no longer.
    pub(crate) fn keep(&self, keep: bool) {
        let mut state = self.state.lock();
        state.kept = if keep { state.kept + 1 } else { state.kept - 1 };
    }

    /// One more request for it leaves: a grant counts from here. (Until then nobody has the hold,
    /// so a grant that came too late for the request before is no loss.)
    pub(crate) fn asked_again(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        (state.valid_until, state.kept_until) = (now, now);
        state.confirmed_at = now;
        state.claims.start_again(now);
        state.lost = None;
    }

    /// The server has answered "yours" to the request for it. `false` if the answer
    /// took longer than the lease.
    pub(crate) fn granted(&self, token: Option<u64>) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.token = token;
        // Counted from before the request left, never from the reply: the server's lease began
        // at some time between the two.
        let end = self.margin.end(state.confirmed_at, state.longest_asked);
        (state.valid_until, state.kept_until) = (end, end);
        state.check(now).is_none()
    }

    /// The fencing token that came with the grant, or was drawn later.
    pub(crate) fn token(&self) -> Option<u64> {
        self.state.lock().token
    }

    /// A token was drawn for it. Returns its token: the first one that was drawn.
    pub(crate) fn set_token(&self, token: u64) -> u64 {
        // Guards may draw at the same time, and a hold has one token, whoever asks.
        *self.state.lock().token.get_or_insert(token)
    }

    /// Its lock gives no token below this one any more.
    pub(crate) fn raised(&self, token: u64) {
        let mut state = self.state.lock();
        state.raised_to = state.raised_to.max(Some(token));
    }

    /// The greatest token that its lock was raised to for it.
    pub(crate) fn raised_to(&self) -> Option<u64> {
        self.state.lock().raised_to
    }

    /// The lease to ask for now: what its guards want, all of it or what is left of a
    /// fixed one.
    pub(crate) fn lease_to_ask(&self, now: Moment) -> Duration {
        self.state.lock().wants(now)
    }

    /// The time from which its present lease counts.
    #[cfg(feature = "testing")]
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.state.lock().confirmed_at
    }

    /// The server has confirmed `lease` from a request that left at `sent`. A hold
    /// that is lost stays lost, whatever comes later. Returns the longest lease that was asked
    /// for until now.
    pub(crate) fn confirmed(&self, sent: Moment, lease: Duration) -> Duration {
        let mut state = self.state.lock();
        let longest = state.longest_asked;
        // Lost is final: the holder has been told, and somebody else may have the lock by now.
        if state.check(self.clock.now()).is_some() {
            return longest;
        }
        // The latest end, whichever answer comes last: no request makes a hold shorter on the
        // server, so renewals may overlap.
        state.kept_until = state.kept_until.max(self.margin.end(sent, lease));
        // A guard that wanted more may have gone since.
        let wanted = lease.min(state.wants(sent));
        state.valid_until = state.valid_until.max(self.margin.end(sent, wanted));
        state.confirmed_at = state.confirmed_at.max(sent);
        state.failing = None;
        drop(state);
        self.changed.notify_waiters();
        longest
    }

    /// A renewal leaves that the watchdog has not asked for. `true` for the first one after a
    /// confirmation.
    pub(crate) fn asked_to_renew(&self, sent: Moment) -> bool {
        self.state.lock().asked_to_renew(sent)
    }

    /// A renewal that left at `sent` has failed.
    pub(crate) fn failed_to_renew(&self, sent: Moment, failure: &Failure) {
        let cause = format!("{}: {}", failure.address, failure.cause);
        let mut state = self.state.lock();
        if state.reasserts_fixed_lease() {
            return;
        }
        let since = state.failing.take().map_or(sent, |(since, _)| since);
        state.failing = Some((since, cause.into()));
    }

    /// Lost for good, unless it was lost or released before.
    pub(crate) fn lose(&self, reason: LossReason) {
        let mut state = self.state.lock();
        if state.over || state.check(self.clock.now()).is_some() {
            return;
        }
        state.lost = Some(reason);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Why it is lost; `None` while it is good.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.state.lock().check(self.clock.now()).cloned()
    }

    /// How it will be lost at its deadline unless a renewal gets through; `None` while
    /// they are answered soon.
    pub(crate) fn renewal_failure(&self) -> Option<LossReason> {
        let now = self.clock.now();
        let state = self.state.lock();
        // A renewal that has left just now is no failure yet.
        let soon = state.claims.terms().lease / 20;
        let (since, cause) = state.failing.as_ref()?;
        let on_its_way = cause == NO_REPLY_YET && now.saturating_sub(*since) < soon;
        (!on_its_way).then(|| state.renewal_failure(now)).flatten()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.loss() {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&self.key, reason)),
        }
    }

    /// Until when its guards have it for sure.
    pub(crate) fn valid_until(&self) -> Moment {
        self.state.lock().valid_until
    }

    /// When the holder has to have stopped: then, or when its maximum hold time is over.
    pub(crate) fn deadline(&self) -> Moment {
        self.state.lock().deadline()
    }

    /// Resolves when it is lost: at its deadline at the latest, even if the server says nothing.
    pub(crate) async fn lost(&self) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is read, or a loss between the two
            // would be missed.
            changed.as_mut().enable();
            if let Some(reason) = self.loss() {
                return reason;
            }
            if self.is_over() {
                // Given back in time: it can't be lost any more.
                return std::future::pending().await;
            }
            // The deadline comes by our own clock: a holder whose network is gone has to stop
            // before anybody else can have the lock.
            tokio::select! {
                biased;
                () = changed => {}
                () = self.clock.sleep_until(self.deadline()) => {}
            }
        }
    }

    /// One more guard shares the hold, on terms of its own. `None` if the hold is lost or ends;
    /// an error if the lease is longer than others count on.
    pub(crate) fn join(&self, terms: Terms) -> Result<Option<Joined>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.left || state.over || state.check(now).is_some() {
            return Ok(None);
        }
        state
            .claims
            .check(terms.lease, terms.longest_lease, &self.key)?;
        let must_confirm = match terms.renew_every {
            // A fixed lease counts from this re-entry, as if its guard were alone.
            None => state.valid_until < self.margin.end(now, terms.lease),
            // The watchdog sees to a renewed lease, unless this one is longer than the others, or
            // less than a third of it is left.
            Some(_) => {
                let left = state.valid_until.saturating_sub(now);
                state.claims.renewed_lease() < Some(terms.lease) || left < terms.lease / 3
            }
        };
        let claim = state.claims.add(terms, now);
        state.longest_asked = state.longest_asked.max(terms.lease);
        drop(state);
        // With the guard's limit the deadline may come earlier.
        self.changed.notify_waiters();
        Ok(Some(Joined {
            claim,
            must_confirm,
        }))
    }

    /// One guard less, and with it its claim.
    pub(crate) fn leave(&self, claim: ClaimId) -> Leaving {
        let now = self.clock.now();
        let mut state = self.state.lock();
        // Judged first: a hold whose time is over stays lost without the guard whose limit that
        // was.
        state.check(now);
        if !state.claims.remove(claim) {
            return state.nobody_left();
        }
        // What the guard added goes with it, although the server keeps the hold for longer. The
        // watchdog gives it back when the remaining claims are over (`is_cut`).
        let wanted = self.margin.end(now, state.wants(now));
        state.valid_until = state.valid_until.min(wanted);
        drop(state);
        self.changed.notify_waiters();
        Leaving::Shared
    }

    /// One guard less, for which the hold is left to its lease when the last one goes.
    pub(crate) fn forget(&self, claim: ClaimId) -> Leaving {
        let mut state = self.state.lock();
        if state.claims.forget(claim) {
            return Leaving::Shared;
        }
        state.nobody_left()
    }

    /// Ends the hold here if this is its last guard, which would have to give it back.
    pub(crate) fn end_with_last(&self) -> bool {
        // Ended under the lock under which guards are counted: nobody joins in between.
        let mut state = self.state.lock();
        let last = state.claims.guards() == 1 && !state.claims.any_forgotten();
        if last {
            (state.left, state.over) = (true, true);
        }
        last
    }

    pub(crate) fn guards(&self) -> usize {
        self.state.lock().claims.guards()
    }

    /// Given back: nothing more to renew or to report.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// A guard wants it to last `lease` from now at least. An error, and nothing has changed,
    /// if that is longer than others count on.
    pub(crate) fn raise(&self, claim: ClaimId, lease: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.claims.check(lease, None, &self.key)?;
        state.claims.raise(claim, lease, now);
        // Before the request leaves: the server may grant it whether its answer comes or not.
        state.longest_asked = state.longest_asked.max(lease);
        Ok(())
    }

    /// A guard holds for no longer than `limit` from now.
    pub(crate) fn limit(&self, claim: ClaimId, limit: Duration) {
        let now = self.clock.now();
        self.state.lock().claims.limit(claim, limit, now);
        self.changed.notify_waiters();
    }

    /// Whether the server still keeps it when its guards have lost it for this reason.
    pub(crate) fn outlasts(&self, reason: &LossReason) -> bool {
        self.state.lock().outlasts(reason)
    }

    /// Notes when the watchdog looks at it next, and returns what was noted. Called with the
    /// watchdog's table locked.
    pub(crate) fn set_due(&self, due: Option<Moment>) -> Option<Moment> {
        let nanos = due.map_or(NEVER, Moment::as_nanos);
        let before = self.due.swap(nanos, Ordering::Relaxed);
        (before != NEVER).then(|| Moment::from_nanos(before))
    }
}

impl State {
    /// How often the watchdog has to do with it; `None` for a fixed lease that nobody keeps.
    fn watch_every(&self) -> Option<Duration> {
        let terms = self.claims.terms();
        if self.closed {
            return terms.remind_every;
        }
        let kept = (self.kept > 0).then(|| terms.lease / 3);
        terms.watch_every().into_iter().chain(kept).min()
    }

    fn look_at(&self, at: Moment) -> Option<Look> {
        if self.over {
            return None;
        }
        let end = self.must_end_at().unwrap_or(LATEST);
        let earlier = match end <= at {
            true => Duration::ZERO,
            false => self.watch_every().unwrap_or_default() / 20,
        };
        let at = at.min(end).min(LATEST);
        Some(Look { at, earlier })
    }

    /// When it is to be given back although the server would keep it: its maximum hold time
    /// is over, or what the guards want that remain.
    fn must_end_at(&self) -> Option<Moment> {
        let limit = self.claims.first_limit().map(|(end, _)| end);
        let cut = self.is_cut().then_some(self.valid_until);
        limit.into_iter().chain(cut).min()
    }

    /// Whether the server still keeps it when its guards have lost it for this reason.
    fn outlasts(&self, reason: &LossReason) -> bool {
        matches!(reason, LossReason::MaxHold { .. }) || self.is_cut()
    }

    /// The lease that the watchdog asks for: what its guards want, all of it or what is left of
    /// a fixed one. Once the client is closed, that only reminds the server of what is left.
    fn lease_to_keep(&self, now: Moment) -> Duration {
        let wanted = self.wants(now);
        match self.closed {
            true => wanted.min(self.kept_until.saturating_sub(now)),
            false => wanted,
        }
    }

    /// A renewal leaves. Until it is confirmed, it counts as failing; but not a reminder of
    /// a fixed lease, which ends when it ends. `true` for the first one after a
    /// confirmation.
    fn asked_to_renew(&mut self, sent: Moment) -> bool {
        if self.reasserts_fixed_lease() {
            return false;
        }
        let first = self.failing.is_none();
        self.failing
            .get_or_insert_with(|| (sent, NO_REPLY_YET.into()));
        first
    }

    /// Whether the watchdog only reminds the server of it.
    fn reasserts_fixed_lease(&self) -> bool {
        let terms = self.claims.terms();
        terms.remind_every.is_some()
            && (self.closed || terms.reasserts_fixed_lease() && self.kept == 0)
    }

    /// How long it has to last if a request for it leaves now.
    fn wants(&self, now: Moment) -> Duration {
        match self.kept {
            0 => self.claims.want(now),
            _ => self.claims.terms().lease,
        }
    }

    /// Whether a guard that wanted more than the others has gone: the server keeps it for
    /// longer than they want.
    fn is_cut(&self) -> bool {
        // With a margin: of a fixed lease a little less is left when a request for it leaves than
        // when it was counted.
        self.valid_until + SafetyMargin::ROUNDING < self.kept_until
    }

    /// The last guard goes.
    fn nobody_left(&mut self) -> Leaving {
        self.left = true;
        // A guard that was forgotten counts on the hold until its lease ends.
        if self.claims.any_forgotten() {
            self.over = true;
            return Leaving::LeftToLease;
        }
        Leaving::Last
    }

    /// Judges by the clock, so that a late timer can't keep a dead hold alive.
    fn check(&mut self, now: Moment) -> Option<&LossReason> {
        if self.lost.is_none() && !self.over && now >= self.deadline() {
            self.lost = Some(match self.claims.first_limit() {
                Some((end, limit)) if end <= self.valid_until => LossReason::MaxHold { limit },
                _ if self.closed && self.claims.terms().renew_every.is_some() => LossReason::Closed,
                _ => self.renewal_failure(now).unwrap_or(LossReason::Expired),
            });
        }
        self.lost.as_ref()
    }

    fn deadline(&self) -> Moment {
        self.claims
            .first_limit()
            .map_or(self.valid_until, |(end, _)| end.min(self.valid_until))
    }

    fn renewal_failure(&self, now: Moment) -> Option<LossReason> {
        let (since, cause) = self.failing.as_ref()?;
        Some(LossReason::RenewalFailed {
            since: now.saturating_sub(*since),
            cause: cause.clone().into_owned(),
        })
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.key)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_ends_by_the_drift_and_two_milliseconds_before_its_lease() {
        let margin = SafetyMargin { drift: 0.01 };
        let sent = Moment::from_millis(1_000);
        let end = |lease| margin.end(sent, Duration::from_millis(lease));
        assert_eq!(end(10_000), Moment::from_millis(1_000 + 9_898));
        assert_eq!(end(1), sent, "and not before it was asked for");
        let exact = SafetyMargin { drift: 0.0 };
        let lease = Duration::from_millis(10);
        assert_eq!(exact.end(sent, lease), Moment::from_millis(1_008));
    }
}
