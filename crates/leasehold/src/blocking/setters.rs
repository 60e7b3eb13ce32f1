//! The settings that handles have in common: forwards to the async ones.

/// Setters of a handle, each a forward to that of its async twin.
macro_rules! setters {
    ($twin:ident: $($what:literal $name:ident($value:ident: $type:ty);)+) => {
        $(
            #[doc = concat!(
                $what, "; see [`", stringify!($twin), "::", stringify!($name),
                "`](crate::", stringify!($twin), "::", stringify!($name), ")."
            )]
            #[must_use]
            pub fn $name(self, $value: $type) -> Self {
                self.with(|inner| inner.$name($value))
            }
        )+
    };
}

/// How a hold lasts.
macro_rules! lease_setters {
    ($twin:ident) => {
        $crate::blocking::setters::setters! { $twin:
            "Sets the lease of renewed holds" lease(lease: std::time::Duration);
            "Sets a fixed lease" fixed_lease(lease: std::time::Duration);
            "Sets how often holds are renewed" renew_every(period: std::time::Duration);
            "Sets how long a hold may last" max_hold(limit: std::time::Duration);
        }
    };
}

/// How a waiter waits.
macro_rules! wait_setters {
    ($twin:ident) => {
        $crate::blocking::setters::setters! { $twin:
            "Sets how to wait" wait_strategy(strategy: $crate::WaitStrategy);
            "Sets what a lost message costs" poll_cap(cap: std::time::Duration);
            "Sets how long an outage is waited out" outage_limit(limit: std::time::Duration);
        }
    };
}

/// What an acquire does where there is no semaphore.
macro_rules! must_exist_setter {
    ($twin:ident) => {
        $crate::blocking::setters::setters! { $twin:
            "Sets whether there must be a semaphore" must_exist(must: bool);
        }
    };
}

pub(super) use {lease_setters, must_exist_setter, setters, wait_setters};
