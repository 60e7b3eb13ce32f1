//! One member of the hold of a composite lock.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::Either;
use tokio::time::Instant;

use crate::clock::{Clock, Moment, Timers};
use crate::context::Context;
use crate::hold::{Hold, LastReport};
use crate::loss::LossReason;
use crate::sync::Mutex;

pub(super) struct MemberHold {
    /// The hold that the acquire was granted.
    first: Hold,
    /// The hold with which the member last rejoined, on a server that had forgotten the previous
    /// hold.
    rejoined: Mutex<Option<Hold>>,
    clock: Clock,
    timers: Timers,
    member: String,
    /// Whether all clients reject the vote of a server that started too recently.
    distrusts_restarted: bool,
    limit: OnceLock<(Moment, Duration)>,
    progress: OnceLock<(Duration, Arc<LastReport>)>,
}

impl MemberHold {
    pub(super) fn new(
        hold: &Hold,
        context: &Context,
        member: String,
        distrusts_restarted: bool,
    ) -> Self {
        Self {
            first: hold.clone(),
            rejoined: Mutex::default(),
            clock: context.clock,
            timers: context.timers.clone(),
            member,
            distrusts_restarted,
            limit: OnceLock::new(),
            progress: OnceLock::new(),
        }
    }

    pub(super) fn first(&self) -> &Hold {
        &self.first
    }

    /// Returns the current hold.
    pub(super) fn hold(&self) -> Hold {
        let rejoined = self.rejoined.lock();
        rejoined.as_ref().unwrap_or(&self.first).clone()
    }

    /// Makes `hold` the current hold.
    pub(super) fn replace(&self, hold: Hold) {
        let before = self.rejoined.lock().replace(hold);
        // Drop the previous hold only after unlocking, because this may be the last reference to a
        // grant.
        drop(before);
    }

    /// Returns why the member no longer counts as held; `None` while it does.
    pub(super) fn loss(&self) -> Option<LossReason> {
        let hold = self.hold();
        let reason = hold.loss()?;
        self.counts_until(&hold).is_none().then_some(reason)
    }

    /// Returns whether the member counts as held although its server has forgotten it.
    pub(super) fn still_counts(&self) -> bool {
        self.counts_until(&self.hold()).is_some()
    }

    fn counts_until(&self, hold: &Hold) -> Option<Moment> {
        let until = hold.counts_until().filter(|_| self.distrusts_restarted)?;
        (self.clock.now() < until).then_some(until)
    }

    /// Returns whether the member would now count as held if its server had forgotten it and had no
    /// vote until `until`.
    pub(super) fn would_have_counted(&self, until: Option<Moment>) -> bool {
        self.distrusts_restarted && until.is_some_and(|until| self.clock.now() < until)
    }

    /// Resolves when the member's loss must be checked again; never if the member was lost for good
    /// at the time of the call. So check for a loss after this call.
    pub(super) fn wait_for_change(&self) -> impl Future<Output = ()> + Send + use<> {
        let (hold, timers) = (self.hold(), self.timers.clone());
        if hold.loss().is_some() {
            // Read this after the loss, which sets it.
            let until = self.counts_until(&hold);
            return Either::Left(async move {
                match until {
                    Some(until) => timers.sleep_until(until).await,
                    None => std::future::pending().await,
                }
            });
        }
        Either::Right(async move {
            hold.lost(&timers).await;
        })
    }

    /// Returns the member's loss as a loss of the composite hold.
    pub(super) fn lost(&self, reason: LossReason) -> LossReason {
        LossReason::Member {
            member: self.member.clone(),
            reason: Box::new(reason),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        let hold = self.hold();
        let until = self.counts_until(&hold);
        self.clock
            .to_instant(until.unwrap_or_else(|| hold.deadline()))
    }

    #[cfg(feature = "testing")]
    pub(super) fn confirmed_at(&self) -> Instant {
        self.clock.to_instant(self.hold().confirmed_at())
    }

    /// Limits the composite hold to `limit` from now. Returns the moment on this client's clock
    /// from which the limit counts.
    pub(super) fn start_limit(&self, limit: Duration) -> Moment {
        self.limit.get_or_init(|| (self.clock.now(), limit)).0
    }

    /// Returns the moment from which the maximum hold time of the composite hold counts, and the
    /// length of that time.
    pub(super) fn limit(&self) -> Option<(Moment, Duration)> {
        self.limit.get().copied()
    }

    /// Makes the member's hold depend on reports of progress, also after the member has rejoined.
    pub(super) fn set_progress(&self, within: Duration, reports: Arc<LastReport>) {
        // This is set once, by the acquire.
        let _ = self.progress.set((within, reports));
    }

    /// Returns the time in which the work must report progress, and where it reports.
    pub(super) fn progress(&self) -> Option<&(Duration, Arc<LastReport>)> {
        self.progress.get()
    }

    pub(super) fn timers(&self) -> &Timers {
        &self.timers
    }
}
