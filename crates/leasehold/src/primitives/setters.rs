//! The settings that handles have in common. Each handle keeps its own in
//! [`Settings`](crate::config::Settings).

/// Setters for how long a hold lasts, for handles that acquire holds.
macro_rules! lease_setters {
    ($(#[$max_hold:meta])*) => {
        /// Sets the lease of renewed holds: how long a hold outlasts a process that is killed. The
        /// hold is renewed in the background until it is released.
        ///
        /// At least 100 ms, at most 2^53 ms. The default is the client's lease (30 s). Can't be
        /// combined with [`fixed_lease`](Self::fixed_lease).
        #[doc(alias = "lockWatchdogTimeout")]
        #[must_use]
        pub fn lease(mut self, lease: Duration) -> Self {
            // Checked when the handle is used: a setter returns no error, and a check here would
            // depend on the order of the setters.
            self.settings.lease = Some(lease);
            self
        }

        /// Sets a fixed lease: how long a hold lasts. The hold is not renewed, and ends by itself
        /// if it is not released.
        ///
        /// At least 10 ms, at most 2^53 ms. The order of the setters makes no difference. A handle
        /// with both a fixed lease and a [`lease`](Self::lease) or a
        /// [`renew_every`](Self::renew_every) fails with [`Misuse`](crate::ErrorKind::Misuse) when
        /// it is used.
        #[doc(alias = "leaseTime")]
        #[must_use]
        pub fn fixed_lease(mut self, lease: Duration) -> Self {
            self.settings.fixed_lease = Some(lease);
            self
        }

        /// Sets how often a hold is renewed. The default is a third of the lease. At least 1 ms, at
        /// most half the lease. Each renewal is sent earlier by up to a fifth of the period, so
        /// that many holds are not renewed in one burst. Can't be combined with
        /// [`fixed_lease`](Self::fixed_lease).
        #[must_use]
        pub fn renew_every(mut self, period: Duration) -> Self {
            self.settings.renew_every = Some(period);
            self
        }

        /// Sets how long a hold may last in total, renewed or not. When that time is over, the hold
        /// is released and the holder is notified
        /// ([`LossReason::MaxHold`](crate::LossReason::MaxHold)). No limit by default; at least 1
        /// ms.
        $(#[$max_hold])*
        #[must_use]
        pub fn max_hold(mut self, limit: Duration) -> Self {
            self.settings.max_hold = Some(limit);
            self
        }
    };
}

/// Setters for how a waiter waits.
macro_rules! wait_setters {
    ($(#[$poll_interval:meta])*) => {
        /// Sets how a waiter learns that it may ask again. The default is [`WaitStrategy::PubSub`].
        #[must_use]
        pub fn wait_strategy(mut self, strategy: WaitStrategy) -> Self {
            self.settings.strategy = strategy;
            self
        }

        /// Sets how often a waiter asks when nothing wakes it. This is the longest delay that a
        /// lost message can cause. At least 1 ms.
        ///
        /// By default a waiter asks after 1 s. While it is subscribed and nothing wakes it, it
        /// doubles its pause up to 5 s. The next message or connection resets the pause.
        ///
        /// Where releases call one client after the other, as on a single server, the clients after
        /// the fourth ask less often by default. There, each client asks at least every 10 s, even
        /// with a longer interval. Otherwise the server would forget its place.
        $(#[$poll_interval])*
        #[must_use]
        pub fn poll_interval(mut self, interval: Duration) -> Self {
            self.settings.poll_interval = Some(interval);
            self
        }

        /// Sets how long a wait goes on while no server answers. Then it ends with
        /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), or with `OutcomeUnknown` if a
        /// request may have run. 30 s by default. Any duration is allowed.
        ///
        /// The time counts from the first unanswered request, or from the start of this wait if
        /// that is later. It also counts while other waiters of this process are first. A request
        /// counts as unanswered after the client's reply timeout, so no wait ends before that.
        #[must_use]
        pub fn outage_timeout(mut self, timeout: Duration) -> Self {
            self.settings.outage_timeout = timeout;
            self
        }
    };
}

/// Setter for what an acquire does when the semaphore does not exist.
macro_rules! must_exist_setter {
    () => {
        /// Sets whether the semaphore must exist. With `true`, an acquire fails at once with
        /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if no client has made the semaphore.
        /// If the semaphore is deleted during a wait, the waiter fails in the same way when it next
        /// asks.
        ///
        /// Off by default: as in Redisson, the semaphore may be made later, and its waiters get
        /// permits then. A wait that finds no semaphore warns once through `tracing`, with the
        /// name.
        #[must_use]
        pub fn must_exist(mut self, must: bool) -> Self {
            self.must_exist = must;
            self
        }
    };
}

pub(crate) use {lease_setters, must_exist_setter, wait_setters};
