//! Macros for the methods of the facade. Each method forwards to the async method of the same name,
//! whose docs say what it does.
//!
//! Each line of a macro call is `"What it does" name(value: Type) -> Output;`. The type around it
//! has `twin()`, the async handle, and `runtime()`; `by name` takes the handle from `name()` instead.

/// Methods that block until the async method of the same name is done. With `=> wrap` the result
/// goes through that method of the type, which turns the async guard into a blocking one.
macro_rules! waits {
    ($twin:ident: $($lines:tt)+) => {
        $crate::blocking::forward::waits! { $twin by twin: $($lines)+ }
    };
    ($twin:ident by $through:ident: $(
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
            /// As the async method.
            $(#[$meta])*
            pub fn $name(&self $(, $value: $type)*) -> crate::error::Result<$out> {
                let name = concat!(stringify!($twin), "::", stringify!($name));
                // The future is made before `block_on` looks whether this thread may wait. It does
                // nothing until it is polled: if that look panics, nothing was sent.
                let result = self.runtime().block_on(name, self.$through().$name($($value),*));
                $( let result = self.$wrap(result); )?
                result
            }
        )+
    };
}

/// Methods that answer without waiting.
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

/// Setters of a handle. The type around them has `with`, which changes the async handle.
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

/// How long a hold lasts.
macro_rules! lease_setters {
    ($twin:ident) => {
        // By its path: the files that use this macro need not import `setters`.
        $crate::blocking::forward::setters! { $twin:
            "Sets the lease of renewed holds" lease(lease: std::time::Duration);
            "Sets a fixed lease" fixed_lease(lease: std::time::Duration);
            "Sets how often holds are renewed" renew_every(period: std::time::Duration);
            "Sets how long a hold may last in total" max_hold(limit: std::time::Duration);
        }
    };
}

/// How a waiter waits.
macro_rules! wait_setters {
    ($twin:ident) => {
        $crate::blocking::forward::setters! { $twin:
            "Sets how a waiter waits" wait_strategy(strategy: $crate::config::WaitStrategy);
            "Sets how often a waiter asks by itself" poll_interval(interval: std::time::Duration);
            "Sets how long a wait outlasts an outage" outage_timeout(timeout: std::time::Duration);
        }
    };
}

/// What an acquire does where there is no semaphore.
macro_rules! must_exist_setter {
    ($twin:ident) => {
        $crate::blocking::forward::setters! { $twin:
            "Sets whether there must be a semaphore" must_exist(must: bool);
        }
    };
}

pub(super) use {lease_setters, must_exist_setter, reads, setters, wait_setters, waits};
