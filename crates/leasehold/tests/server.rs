//! Faults that only a real server can cause: it refuses, vanishes, restarts empty, loses a reply,
//! runs out of memory. Every test waits for the fault it expects; a fault that did not happen fails
//! the test.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "server"]
mod server {
    mod acknowledged;
    mod addresses;
    mod batches;
    mod child;
    mod clocks;
    mod company;
    mod connections;
    mod elections;
    mod ends;
    mod fair;
    mod faults;
    mod fences;
    mod forks;
    mod group;
    mod guard;
    mod keys;
    mod login;
    mod long_outages;
    mod lost;
    mod majority;
    mod matrix;
    mod messages;
    #[cfg(feature = "metrics")]
    mod metrics;
    mod moved;
    mod nemesis;
    mod outages;
    mod permissions;
    mod plain_threads;
    mod presence;
    mod processes;
    mod renewal;
    mod rw;
    mod scene;
    mod slots;
    mod spans;
    mod states;
    mod synchronizers;
    mod tickets;
    #[cfg(feature = "tls")]
    mod tls;
    mod tokens;
    mod warnings;
}
