//! The settings that handles have in common. Each handle keeps its own values in
//! [`Settings`](crate::config::Settings).

/// Defines the setters for how long a hold lasts, for handles that acquire holds.
macro_rules! lease_setters {
    ($(#[$max_hold:meta])*) => {
        /// Sets the lease of renewed holds. It is the longest time for which a hold outlives a
        /// killed process. The client renews the hold in the background until it is released.
        ///
        /// At least 100 ms, at most 2^53 ms. The default is the client's lease (30 s). Can't be
        /// combined with [`fixed_lease`](Self::fixed_lease).
        #[doc(alias = "lockWatchdogTimeout")]
        #[must_use = "the setting is only in the returned value"]
        pub fn lease(mut self, lease: Duration) -> Self {
            // The value is checked when the handle is used: a setter returns no error, and a check
            // here would depend on the order of the setters.
            self.settings.lease = Some(lease);
            self
        }

        /// Sets a fixed lease: the client does not renew the hold, which ends after this time if it
        /// is not released earlier.
        ///
        /// At least 10 ms, at most 2^53 ms. If a handle has a fixed lease and also a
        /// [`lease`](Self::lease) or a [`renew_every`](Self::renew_every), each use of the handle
        /// fails with [`Misuse`](crate::ErrorKind::Misuse), whatever the order of the setters.
        #[doc(alias = "leaseTime")]
        #[must_use = "the setting is only in the returned value"]
        pub fn fixed_lease(mut self, lease: Duration) -> Self {
            self.settings.fixed_lease = Some(lease);
            self
        }

        /// Sets the time between two renewals of a hold: at least 1 ms, at most half the lease. The
        /// default is a third of the lease. Each renewal is sent up to a fifth of the period early,
        /// so that many holds are not renewed in one burst. Can't be combined with
        /// [`fixed_lease`](Self::fixed_lease).
        #[must_use = "the setting is only in the returned value"]
        pub fn renew_every(mut self, period: Duration) -> Self {
            self.settings.renew_every = Some(period);
            self
        }

        /// Sets how long a hold may last in total, renewed or not: at least 1 ms. When this time
        /// has passed, the client releases the hold, and the holder learns of the loss
        /// ([`LossReason::MaxHold`](crate::LossReason::MaxHold)). By default there is no limit.
        $(#[$max_hold])*
        #[must_use = "the setting is only in the returned value"]
        pub fn max_hold(mut self, limit: Duration) -> Self {
            self.settings.max_hold = Some(limit);
            self
        }

        /// Sets the time in which the holder's work must report progress: at least 10 ms. If the
        /// work does not, the client no longer renews the hold. The hold ends with its last lease,
        /// and the holder learns of the loss ([`LossReason::Stalled`](crate::LossReason::Stalled)).
        /// By default, a hold is renewed whatever its work does.
        ///
        /// Guards report with [`progress`](crate::LockGuard::progress), and the grant counts as the
        /// first report. If an owner has entered the hold several times, the report of any guard
        /// with this setting counts, and the shortest time applies. The time also counts while the
        /// machine sleeps.
        ///
        /// Can't be combined with [`fixed_lease`](Self::fixed_lease).
        #[must_use = "the setting is only in the returned value"]
        pub fn progress_within(mut self, within: Duration) -> Self {
            self.settings.progress_within = Some(within);
            self
        }
    };
}

/// Setters for how a waiter waits.
macro_rules! wait_setters {
    ($(#[$poll_interval:meta])*) => {
        /// Sets how a waiter learns that it should send its request again. The default is
        /// [`WaitStrategy::PubSub`].
        #[must_use = "the setting is only in the returned value"]
        pub fn wait_strategy(mut self, strategy: WaitStrategy) -> Self {
            self.settings.strategy = strategy;
            self
        }

        /// Sets the interval at which a waiter sends requests while no message wakes it: at least 1
        /// ms. This is the longest delay that a lost message can cause.
        ///
        /// By default, a waiter sends the next request after 1 s. While it is subscribed and no
        /// message wakes it, it doubles this pause each time, up to 5 s. A message or a new
        /// connection resets the pause to 1 s.
        ///
        /// Except in a cluster, the server keeps a list of the clients that wait, and a release
        /// wakes the first of them. By default, the clients after the fourth in this list send
        /// requests less often. Each client sends one at least every 10 s, even with a longer
        /// interval, because otherwise the server would remove it from the list.
        $(#[$poll_interval])*
        #[must_use = "the setting is only in the returned value"]
        pub fn poll_interval(mut self, interval: Duration) -> Self {
            self.settings.poll_interval = Some(interval);
            self
        }

        /// Sets how long a wait continues while no server answers. After this time, the wait fails
        /// with [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), or with `OutcomeUnknown`
        /// if a request may have run. 30 s by default. Any duration is allowed.
        ///
        /// The time counts from the first unanswered request, or from the start of this wait if the
        /// wait began later. It also counts while an earlier waiter of this process sends the
        /// requests on behalf of this one. A request counts as unanswered after the client's [reply
        /// timeout](crate::ClientBuilder::reply_timeout), so a wait never fails earlier.
        #[must_use = "the setting is only in the returned value"]
        pub fn outage_timeout(mut self, timeout: Duration) -> Self {
            self.settings.outage_timeout = timeout;
            self
        }
    };
}

/// Defines the setter for what an acquire does when the semaphore does not exist.
macro_rules! must_exist_setter {
    () => {
        /// Sets whether the semaphore must exist. With `true`, an acquire fails at once with
        /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the semaphore does not exist. If
        /// the semaphore is deleted during a wait, the wait fails in the same way with the next
        /// request to the server.
        ///
        /// `false` by default: as in Redisson, an acquire waits until a client creates the
        /// semaphore and a permit is free. A wait that finds no semaphore logs one warning with the
        /// name of the semaphore, through `tracing`.
        #[must_use = "the setting is only in the returned value"]
        pub fn must_exist(mut self, must: bool) -> Self {
            self.must_exist = must;
            self
        }
    };
}

pub(crate) use {lease_setters, must_exist_setter, wait_setters};
