//! Faults that only a cluster can cause: slots that move, masters that change, nodes that redirect
//! a client to each other. Every test waits for the fault it expects.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "cluster"]
mod cluster {
    mod account;
    mod acknowledged;
    mod bad_input;
    mod company;
    mod crew;
    mod declared;
    mod ends;
    mod mapped;
    #[cfg(feature = "metrics")]
    mod metrics;
    mod moving;
    mod nemesis;
    #[cfg(feature = "tls")]
    mod on_tls;
    mod partition;
    mod proxied;
    mod wake_ups;
    mod watch;
    mod worker;
}
