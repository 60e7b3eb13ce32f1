//! The settings that handles have in common; each handle keeps its own in
//! [`Settings`](crate::config::Settings).

/// How a hold lasts, for a handle whose acquires give holds.
macro_rules! lease_setters {
    ($(#[$max_hold:meta])*) => {
        /// Sets a fixed lease: how long a hold lasts. It is not renewed, and ends by
        /// itself if it is not released.
        ///
        /// At least 10 ms (100 ms when renewed), at most 2^53 ms. Without this call the
        /// lease is the client's (30 s) and is renewed.
        #[doc(alias = "leaseTime")]
        #[must_use]
        pub fn lease(mut self, lease: Duration) -> Self {
            self.settings.lease = lease;
            self.settings.renewed = false;
            self
        }

        /// Sets whether a hold is renewed in the background until it is released. On
        /// by default; [`lease`](Self::lease) turns it off, so that a renewed hold with
        /// a lease of its own is `.lease(secs(5)).renewed(true)`.
        #[doc(alias = "lockWatchdogTimeout")]
        #[must_use]
        pub fn renewed(mut self, renewed: bool) -> Self {
            self.settings.renewed = renewed;
            self
        }

        /// Sets how often a hold is renewed, and turns renewal on. A third of the lease
        /// by default, at least 1 ms, at most half the lease. A renewal comes up to a fifth
        /// of that earlier, so that many holds are not renewed in one burst.
        #[must_use]
        pub fn renew_every(mut self, period: Duration) -> Self {
            self.settings.renew_every = Some(period);
            self.settings.renewed = true;
            self
        }

        /// Sets how long a hold may last in all, renewed or not. When that time is over
        /// the holder is told ([`LossReason::MaxHold`](crate::LossReason::MaxHold)) and
        /// what it holds is released. No limit by default; at least 1 ms.
        $(#[$max_hold])*
        #[must_use]
        pub fn max_hold(mut self, limit: Duration) -> Self {
            self.settings.max_hold = Some(limit);
            self
        }
    };
}

/// How a waiter waits.
macro_rules! wait_setters {
    ($(#[$poll_cap:meta])*) => {
        /// Sets how a waiter learns that it may ask again. [`WaitStrategy::PubSub`] by
        /// default.
        #[must_use]
        pub fn wait_strategy(mut self, strategy: WaitStrategy) -> Self {
            self.settings.strategy = strategy;
            self
        }

        /// Sets how often a waiter asks although nothing has woken it: what a lost
        /// message costs at most. 1 s by default, at least 1 ms.
        $(#[$poll_cap])*
        #[must_use]
        pub fn poll_cap(mut self, cap: Duration) -> Self {
            self.settings.poll_cap = cap;
            self
        }

        /// Sets how long a wait goes on while no server answers, before it ends with
        /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), or with
        /// `OutcomeUnknown` if a request may have run. 30 s by default.
        #[must_use]
        pub fn outage_limit(mut self, limit: Duration) -> Self {
            self.settings.outage_limit = limit;
            self
        }
    };
}

pub(crate) use {lease_setters, wait_setters};
