//! Macros for the methods of the facade. Each method forwards to the async method of the same name,
//! whose documentation describes it.
//!
//! Each line of a macro call is `"What it does" name(value: Type) -> Output;`. The surrounding type
//! has `twin()`, the async handle, and `runtime()`. `by name` takes the handle from `name()`
//! instead.

/// Defines methods that block until the async method of the same name is done. With `=> wrap`, the
/// result passes through that method of the type, which turns the async guard into a blocking one.
/// Another thread can't interrupt these methods: see `waits` for methods that it can.
macro_rules! calls {
    ($twin:ident: $($lines:tt)+) => {
        $crate::blocking::forward::forwards! { $twin by twin, block_on: $($lines)+ }
    };
    ($twin:ident by $through:ident: $($lines:tt)+) => {
        $crate::blocking::forward::forwards! { $twin by $through, block_on: $($lines)+ }
    };
}

/// Defines methods like `calls`, but an [`Interrupt`](super::Interrupt) ends their waits. The
/// futures of these methods must leave nothing behind when they are dropped.
macro_rules! waits {
    ($twin:ident: $($lines:tt)+) => {
        $crate::blocking::forward::forwards! { $twin by twin, wait_on: $($lines)+ }
    };
}

/// Defines the methods of `calls` and `waits`. `run` is the method of the runtime that runs the
/// future.
macro_rules! forwards {
    ($twin:ident by $through:ident, $run:ident: $(
        $what:literal $(#[$meta:meta])*
        $name:ident($($value:ident: $type:ty),*) -> $out:ty $(=> $wrap:ident)?;
    )+) => {
        $(
            #[doc = concat!(
                $what, "; see [`", stringify!($twin), "::", stringify!($name),
                "`](crate::", stringify!($twin), "::", stringify!($name), ")."
            )]
            ///
            /// # Errors
            ///
            /// Returns the same errors as the async method.
            $(#[$meta])*
            pub fn $name(&self $(, $value: $type)*) -> crate::error::Result<$out> {
                let name = concat!(stringify!($twin), "::", stringify!($name));
                // The future is made before the runtime checks whether this thread may wait. The
                // future does nothing until it is polled, so if that check panics, nothing was
                // sent.
                let result = self.runtime().$run(name, self.$through().$name($($value),*));
                $( let result = self.$wrap(result); )?
                result
            }
        )+
    };
}

/// Defines methods that answer without waiting.
macro_rules! reads {
    ($twin:ident: $($lines:tt)+) => {
        $crate::blocking::forward::reads! { $twin by twin: $($lines)+ }
    };
    ($twin:ident by $through:ident: $($what:literal $name:ident() -> $out:ty;)+) => {
        $(
            #[doc = concat!(
                $what, "; see [`", stringify!($twin), "::", stringify!($name),
                "`](crate::", stringify!($twin), "::", stringify!($name), ")."
            )]
            #[must_use]
            pub fn $name(&self) -> $out {
                self.$through().$name()
            }
        )+
    };
}

/// Defines methods that wait for an event of a guard for a limited time. `by` names the async method
/// whose future resolves at the event.
macro_rules! limited {
    ($twin:ident: $($lines:tt)+) => {
        $crate::blocking::forward::limited! { $twin through twin: $($lines)+ }
    };
    ($twin:ident through $through:ident: $(
        $what:literal $name:ident(wait: Duration) -> Option<$out:ty> by $method:ident;
    )+) => {
        $(
            #[doc = concat!(
                $what, "; see [`", stringify!($twin), "::", stringify!($method),
                "`](crate::", stringify!($twin), "::", stringify!($method), ")."
            )]
            /// Waits for this at most `wait`. Returns `None` if it does not happen within this
            /// time.
            #[must_use]
            pub fn $name(&self, wait: std::time::Duration) -> Option<$out> {
                let name = concat!(stringify!($twin), "::", stringify!($method));
                let guard = self.$through();
                let limited = guard.timers().timeout(wait, guard.$method());
                self.runtime.block_on(name, limited)
            }
        )+
    };
}

/// Defines setters of a handle. The surrounding type has `with`, which changes the async handle.
macro_rules! setters {
    ($twin:ident: $($what:literal $name:ident($($value:ident: $type:ty)?);)+) => {
        $(
            #[doc = concat!(
                $what, "; see [`", stringify!($twin), "::", stringify!($name),
                "`](crate::", stringify!($twin), "::", stringify!($name), ")."
            )]
            #[must_use = "the setting is only in the returned value"]
            pub fn $name(self $(, $value: $type)?) -> Self {
                self.with(|inner| inner.$name($($value)?))
            }
        )+
    };
}

/// Defines the settings for the duration of a hold.
macro_rules! lease_setters {
    ($twin:ident) => {
        // Use the full path, so that the files that use this macro need not import `setters`.
        $crate::blocking::forward::setters! { $twin:
            "Sets the lease of renewed holds" lease(lease: std::time::Duration);
            "Sets a fixed lease" fixed_lease(lease: std::time::Duration);
            "Sets how often a hold is renewed" renew_every(period: std::time::Duration);
            "Sets how long a hold may last in total" max_hold(limit: std::time::Duration);
            "Sets the time in which the holder's work must report progress" progress_within(within: std::time::Duration);
        }
    };
}

/// Defines the settings for waiting.
macro_rules! wait_setters {
    ($twin:ident) => {
        $crate::blocking::forward::setters! { $twin:
            "Sets how a waiter learns that it should send its request again" wait_strategy(strategy: $crate::config::WaitStrategy);
            "Sets how often a waiter sends a request while no message wakes it" poll_interval(interval: std::time::Duration);
            "Sets how long a wait continues while no server answers" outage_timeout(timeout: std::time::Duration);
        }
    };
}

/// Defines the setting for an acquire of a semaphore that does not exist.
macro_rules! must_exist_setter {
    ($twin:ident) => {
        $crate::blocking::forward::setters! { $twin:
            "Sets whether the semaphore must exist" must_exist(must: bool);
        }
    };
}

pub(super) use {
    calls, forwards, lease_setters, limited, must_exist_setter, reads, setters, wait_setters, waits,
};
