//! What the methods of the facade are made of: forwards to the async twins, whose docs say
//! what they do.
//!
//! Each line of a macro call is `"What it does" name(value: Type) -> Output;`. The type that it
//! stands in has `twin()`, the async handle, and `runtime()`.

/// Methods that block until the async twin of the same name is done. With `=> wrap` the result
/// goes through that method of the type, which makes the twin's guard one of its own.
macro_rules! waits {
    ($twin:ident: $(
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
            /// As its async twin.
            $(#[$meta])*
            pub fn $name(&self $(, $value: $type)*) -> crate::error::Result<$out> {
                let name = concat!(stringify!($twin), "::", stringify!($name));
                let result = self.runtime().block_on(name, self.twin().$name($($value),*));
                $( let result = self.$wrap(result); )?
                result
            }
        )+
    };
}

/// Methods that answer without waiting.
macro_rules! reads {
    ($twin:ident: $($what:literal $name:ident() -> $out:ty;)+) => {
        $(
            #[doc = concat!(
                $what, "; see [`", stringify!($twin), "::", stringify!($name),
                "`](crate::", stringify!($twin), "::", stringify!($name), ")."
            )]
            #[must_use]
            pub fn $name(&self) -> $out {
                self.twin().$name()
            }
        )+
    };
}

/// Setters of a handle. The type has `with`, which changes the async handle.
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
        $crate::blocking::forward::setters! { $twin:
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
        $crate::blocking::forward::setters! { $twin:
            "Sets how to wait" wait_strategy(strategy: $crate::config::WaitStrategy);
            "Sets what a lost message costs" poll_interval(interval: std::time::Duration);
            "Sets how long an outage is waited out" outage_timeout(timeout: std::time::Duration);
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
