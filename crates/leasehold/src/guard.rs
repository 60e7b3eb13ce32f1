//! The common part of all guards: a share in a hold, and the ways to give it up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::route::Route;
use crate::backend::step::Operation;
use crate::clock::Moment;
use crate::config::{MIN_LEASE, Terms, check_lease};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::hold::watchdog::{Renewed, try_renew};
use crate::hold::{ClaimId, Grant, GuardExit, Hold, Joined, LastReport, Limit, next_number};
use crate::leave::keep_for::{KeepForRequest, SEVERAL_HOLDERS, cannot_keep};
use crate::leave::{LeftBy, confirmed, in_task, leave};
use crate::local::reentry::Held;
use crate::loss::LossReason;
use crate::observe::{Ended, Entry};
use crate::owner::Owner;

/// One guard's share in a hold. A share that is dropped is given up in the background.
pub(crate) struct Share {
    context: Arc<Context>,
    held: Arc<Held>,
    /// The claim of this guard on the hold.
    claim: ClaimId,
    given_up: bool,
    /// The number of the holder. Readers that share a hold have different numbers.
    number: u64,
    /// Whether the server granted the hold to this guard's own request.
    has_own_grant: bool,
    /// Whether the guard belongs to one of several readers that share the hold. Each reader learns
    /// from the server whether it had the lock.
    shares_read_hold: bool,
    /// Whether the hold is being converted into another one, as in a downgrade: no guard may join
    /// it, and it is not renewed.
    is_converting: bool,
    /// The duration of the guard's acquire.
    waited: Duration,
    /// Where the guard reports progress; `None` if its hold does not depend on its reports.
    reports: Option<Arc<LastReport>>,
}

impl Share {
    /// Returns the first share in a new hold.
    pub(crate) fn new(context: Arc<Context>, held: Arc<Held>) -> Self {
        Self::with_claim(context, held, ClaimId::FIRST)
    }

    /// Returns the share of the next holder, to whom the hold was handed over.
    pub(crate) fn handed_over(context: Arc<Context>, held: Arc<Held>) -> Self {
        let mut share = Self::new(context, held);
        share.has_own_grant = false;
        share
    }

    /// Returns the share of a reader in a hold that other readers may join. The reader is the first
    /// one in the hold, or has joined it.
    pub(crate) fn of_reader(
        context: Arc<Context>,
        held: Arc<Held>,
        joined: Option<Joined>,
    ) -> Self {
        let claim = joined.map_or(ClaimId::FIRST, |joined| joined.claim);
        let mut share = Self::with_claim(context, held, claim);
        share.shares_read_hold = true;
        if joined.is_some() {
            share.number = next_number();
        }
        share
    }

    /// Returns another share in a hold, for a guard that has joined it.
    pub(crate) fn joined(context: Arc<Context>, held: Arc<Held>, joined: Joined) -> Self {
        Self::with_claim(context, held, joined.claim)
    }

    fn with_claim(context: Arc<Context>, held: Arc<Held>, claim: ClaimId) -> Self {
        Self {
            number: held.hold().number,
            context,
            held,
            claim,
            given_up: false,
            has_own_grant: claim == ClaimId::FIRST,
            shares_read_hold: false,
            is_converting: false,
            waited: Duration::ZERO,
            reports: None,
        }
    }

    /// Notes the acquire that has led to this share.
    pub(crate) fn after(mut self, ended: Ended) -> Self {
        self.waited = ended.waited;
        if ended.is_enabled() {
            self.hold().acquired(&ended, self.entry());
        }
        self
    }

    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns how the acquire has obtained the hold.
    pub(crate) fn entry(&self) -> Entry {
        match self.claim == ClaimId::FIRST {
            true => Entry::Granted,
            false => Entry::Joined,
        }
    }

    /// Returns the terms that this guard asked for.
    pub(crate) fn terms(&self) -> Terms {
        self.hold().terms_of(self.claim)
    }

    /// Resolves with the reason when this guard's hold is lost. The future does not borrow the
    /// share: if it lives on in another task, the guard's drop must still release the lock.
    pub(crate) fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let (hold, claim) = (
            self.hold().clone(),
            self.shares_read_hold.then_some(self.claim),
        );
        let timers = self.context.timers.clone();
        async move {
            match claim {
                Some(claim) => hold.lost_by(claim, &timers).await,
                None => hold.lost(&timers).await,
            }
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn has_own_grant(&self) -> bool {
        self.has_own_grant
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    pub(crate) fn hold(&self) -> &Hold {
        self.held.hold()
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.held.owner()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Gives the share up, and reports whether the lock was held until now.
    pub(crate) async fn release(self) -> Result<()> {
        let span = self.hold().release_span();
        let held = span.is_enabled().then(|| Arc::clone(&self.held));
        let result = self.give_up().await;
        if let Some(held) = held {
            span.released(&result, held.was_handed_over());
        }
        result
    }

    async fn give_up(mut self) -> Result<()> {
        // Set `given_up` first: if this future is dropped, the share must not leave the hold a
        // second time. The undo is still armed, and then sends the release.
        self.given_up = true;
        let hold = Arc::clone(self.hold());
        // Read the loss before the guard leaves: the reason may be this guard's own maximum hold
        // time, which no longer counts afterwards.
        let loss = hold.loss();
        // Register for the confirmation before this share leaves: the last share may be given up at
        // any time, and the server's reply to that release also applies to this share.
        let confirmation =
            (self.shares_read_hold && loss.is_none()).then(|| hold.await_confirmation());
        match hold.leave(self.claim) {
            GuardExit::Shared { moves_due } => {
                self.reschedule(moves_due);
                if let Some(confirmation) = confirmation {
                    return confirmed(&self.context, &hold, confirmation).await;
                }
            }
            GuardExit::LeftToLease => self.leave_to_lease(),
            GuardExit::Last => {
                drop(confirmation);
                // Check the process only here, so that the end of a re-entry costs no system call.
                self.context.check_process(&hold.key)?;
                if let Some(kept) = self.keep_for_the_rest() {
                    return kept.await;
                }
                let by = LeftBy::Release { loss };
                return leave(&self.context, &self.held, by).confirmed().await;
            }
        }
        match loss {
            None => Ok(()),
            Some(reason) => Err(Error::lost(&hold.key, reason)),
        }
    }

    /// Prepares the hold for its conversion into another one: no guard can join it, and it is not
    /// renewed. Returns `false` and changes nothing if other guards share it.
    pub(crate) fn begin_conversion(&mut self) -> bool {
        self.is_converting = self.hold().end_if_last_guard();
        if self.is_converting {
            self.context.watchdog.remove(self.hold());
        }
        self.is_converting
    }

    /// Notes that the hold was converted into another one. If the share is dropped without this,
    /// the hold is released.
    pub(crate) fn finish_conversion(mut self) {
        self.given_up = true;
        self.held.disarm();
        self.clear_owner();
    }

    /// Notes, after `begin_conversion`, that a ticket now has the hold. If the share is dropped
    /// without this, the hold is released.
    pub(crate) fn hand_out(mut self) {
        self.given_up = true;
        self.hold().handed_out();
        self.leave_to_lease();
    }

    /// Leaves the hold to expire with its lease: nothing is sent, nothing is renewed.
    pub(crate) fn forget(mut self) {
        self.given_up = true;
        if self.hold().forget(self.claim) == GuardExit::LeftToLease {
            self.leave_to_lease();
        }
    }

    /// Sets the lease to `span` from now, even if that shortens it, and lets the hold expire with
    /// this lease.
    pub(crate) async fn keep_for(mut self, span: Duration) -> Result<()> {
        let (context, hold) = (Arc::clone(&self.context), Arc::clone(self.hold()));
        check_lease(span, &hold.key)?;
        context.check_lease(span, &hold.key)?;
        hold.check()?;
        let span = span.max(hold.rest_of_min_hold().unwrap_or_default());
        let Some(operation) = hold.steps.keep_for(span) else {
            return Err(cannot_keep(&hold.key, SEVERAL_HOLDERS));
        };
        // The hold ends here, before the request is sent, so that no renewal starts after this
        // point. If a renewal is about to be sent or in flight, and arrives after the request, the
        // server refuses it.
        if !self.begin_conversion() {
            return Err(cannot_keep(&hold.key, self.sharing_reason()));
        }
        self.keep(operation, hold.route()).await
    }

    /// Sends this operation, which sets the lease, and lets the hold expire with that lease. In
    /// this process, the hold has already ended.
    fn keep(
        &mut self,
        operation: Operation,
        route: Route,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (context, hold) = (Arc::clone(&self.context), Arc::clone(self.hold()));
        let (keeping, first) = KeepForRequest::send(&context, &self.held, operation, route);
        // Give the share up only after the request was sent, because the owner's next request must
        // run after this one. Don't wait for the reply: even with an unknown outcome, the hold
        // expires with its lease, old or new.
        self.given_up = true;
        self.leave_to_lease();
        async move {
            if !hold.has_confirmation_waiters() {
                return keeping.answered(first).await;
            }
            // Earlier holders wait for the same reply.
            in_task(&context, &hold, keeping.answered(first)).await
        }
    }

    /// Keeps the lock locked for the rest of its minimum time, after its last guard has left.
    /// `None` if that time has passed.
    fn keep_for_the_rest(&mut self) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        let rest = self.hold().rest_of_min_hold()?;
        let operation = self.hold().steps.keep_for(rest.max(MIN_LEASE))?;
        self.hold().end();
        // Like a release, this request needs no replicas: they have confirmed the minimum time
        // before the work began.
        let route = self.hold().undo_route();
        Some(self.keep(operation, route))
    }

    /// Returns why the hold can't end with this guard.
    fn sharing_reason(&self) -> &'static str {
        match self.hold().guards() {
            0 | 1 => "another guard of its owner was forgotten",
            _ => "other guards of its owner share it",
        }
    }

    fn leave_to_lease(&self) {
        self.held.disarm();
        self.context.watchdog.remove(self.hold());
        self.clear_owner();
        self.context.leave_queue(self.hold());
    }

    fn clear_owner(&self) {
        self.held.clear_owner();
    }

    /// Extends the hold to at least `lease` from now.
    pub(crate) async fn extend(&self, lease: Duration) -> Result<()> {
        let hold = self.hold();
        self.context.check_process(&hold.key)?;
        check_lease(lease, &hold.key)?;
        self.context.check_lease(lease, &hold.key)?;
        hold.check()?;
        // This raises only the guard's claim. The deadline moves when the server has confirmed the
        // lease.
        hold.raise(self.claim, lease)?;
        self.confirm().await
    }

    /// Makes sure that the hold lasts as long as a re-entry wants. This costs a round trip only if
    /// the re-entry wants more time than the server has confirmed.
    pub(crate) async fn confirm_reentry(&self, joined: Joined) -> Result<()> {
        if joined.must_confirm {
            let mut minimum = MinimumOfReentry {
                share: self,
                is_confirmed: false,
            };
            self.confirm().await?;
            minimum.is_confirmed = true;
            return Ok(());
        }
        self.reschedule(joined.moves_due);
        Ok(())
    }

    /// Updates the watchdog if a guard that has joined or left has changed the time at which the
    /// hold is due. Most guards don't change it, so a re-entry usually costs nothing.
    pub(crate) fn reschedule(&self, moves_due: bool) {
        if moves_due {
            self.context.watchdog.watch(self.hold());
        }
    }

    /// Ends the hold no later than `limit` after `since`.
    pub(crate) fn limit(&self, limit: Duration, since: Moment) {
        self.hold().limit(self.claim, limit, since);
        self.context.watchdog.watch(self.hold());
    }

    /// Prepares the guard for reports of progress, if its hold depends on them.
    pub(crate) fn reporting(mut self, within: Option<Duration>) -> Self {
        if within.is_some() {
            self.reports = Some(self.hold().reports());
        }
        self
    }

    /// Returns where the guard reports progress; `None` if its hold does not depend on its reports.
    pub(crate) fn reports(&self) -> Option<&Arc<LastReport>> {
        self.reports.as_ref()
    }

    /// Makes the hold depend on reports of progress. `earlier` has the reports for an earlier hold:
    /// if it is given, time counts from the last of these reports, otherwise from now.
    pub(crate) fn want_progress(&mut self, within: Duration, earlier: Option<Arc<LastReport>>) {
        let reports = self.hold().want_progress(self.claim, within, earlier);
        self.context.watchdog.watch(self.hold());
        self.reports = Some(reports);
    }

    /// Returns the time in which the guard's work must report progress, and where it reports.
    pub(crate) fn progress(&self) -> Option<(Duration, Arc<LastReport>)> {
        let reports = self.reports.as_ref()?;
        Some((self.terms().progress_within?, Arc::clone(reports)))
    }

    /// Resolves with the time since the last report of progress when the work has stalled.
    pub(crate) fn stalled(&self) -> impl Future<Output = Duration> + Send + use<> {
        let (hold, timers) = (self.hold().clone(), self.context.timers.clone());
        async move { hold.stalled(&timers).await }
    }

    /// Lets the hold continue the work of its predecessor: the predecessor's progress handles also
    /// report for this hold.
    pub(crate) fn inherit_progress(&mut self, before: Option<(Duration, Arc<LastReport>)>) {
        if let Some((within, reports)) = before {
            self.want_progress(within, Some(reports));
        }
    }

    /// Returns the end and the length of this guard's maximum hold time.
    pub(crate) fn max_hold_limit(&self) -> Option<Limit> {
        self.hold().limit_of(self.claim)
    }

    /// Ends the hold no later than its predecessor would have ended.
    pub(crate) fn inherit_limit(&self, before: Option<Limit>) {
        if let Some((end, limit)) = before {
            self.limit(limit, end - limit);
        }
    }

    /// Asks the server for the lease that the guards want. Fails if the hold is lost, or no server
    /// answers.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let hold = self.hold();
        // Request the full lease that the guards want, although the watchdog may request less: an
        // extension works even after the client was closed.
        let lease = hold.lease_to_request(self.context.clock.now());
        match try_renew(&self.context.backend, &self.context.timers, hold, lease).await {
            Ok(Renewed::Yes) => {
                self.context.watchdog.watch(hold);
                // The reply may have arrived after the hold was lost.
                hold.check()
            }
            Ok(Renewed::Lost) => Err(Error::lost(
                &hold.key,
                hold.loss().unwrap_or(LossReason::Deleted),
            )),
            Err(failure) => Err(failure.into_error_of_renewal(&hold.key)),
        }
    }

    /// Renews the hold, even one with a fixed lease, until the returned value is dropped. This is
    /// for a wait during which the hold must not expire.
    pub(crate) fn renew_for_wait(&self) -> RenewForWait {
        let hold = Arc::clone(self.hold());
        hold.renew_for_wait(true);
        self.context.watchdog.watch(&hold);
        RenewForWait(hold)
    }

    /// Runs `work` until it is done or the lock is lost.
    pub(crate) async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            // Poll this first: after a loss the work must not continue for another step.
            biased;
            reason = self.lost() => Err(Error::lost(&self.hold().key, reason)),
            output = work => Ok(output),
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.hold().deadline()
    }
}

/// The minimum time of a re-entry, which ends if the re-entry fails or is dropped.
struct MinimumOfReentry<'a> {
    share: &'a Share,
    is_confirmed: bool,
}

impl Drop for MinimumOfReentry<'_> {
    fn drop(&mut self) {
        if !self.is_confirmed {
            self.share.hold().end_min_hold_of(self.share.claim);
        }
    }
}

/// A hold that is renewed during a wait.
pub(crate) struct RenewForWait(Arc<Grant>);

impl Drop for RenewForWait {
    fn drop(&mut self) {
        self.0.renew_for_wait(false);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.given_up {
            return;
        }
        let exit = match self.is_converting {
            true => Some(GuardExit::Last),
            false => self.hold().leave_in(self.context.process(), self.claim),
        };
        match exit {
            // Most re-entries end here, without a system call.
            Some(GuardExit::Shared { moves_due: false }) => {}
            // The parent process still has the hold.
            _ if self.context.is_forked() => {}
            None => {}
            Some(GuardExit::Shared { moves_due }) => self.reschedule(moves_due),
            Some(GuardExit::LeftToLease) => self.leave_to_lease(),
            Some(GuardExit::Last) => {
                if let Some(kept) = self.keep_for_the_rest() {
                    // If the request fails, the lock is free when its lease expires.
                    self.context.cleanup.spawn(async move { drop(kept.await) });
                    return;
                }
                let by = LeftBy::Drop {
                    is_converting: self.is_converting,
                };
                leave(&self.context, &self.held, by).in_background();
            }
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = self.hold();
        f.debug_struct("Guard")
            .field("name", &hold.key)
            .field("hold", &self.number)
            .field("loss", &hold.loss())
            .finish_non_exhaustive()
    }
}
