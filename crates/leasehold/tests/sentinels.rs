//! A master that is replaced by another server, and the sentinels that report it: some of them
//! down, wrong, or late. Every test waits for the fault it expects.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "sentinels"]
mod sentinels {
    #[path = "../cluster/account.rs"]
    mod account;
    mod acknowledged;
    mod asked;
    mod bad_input;
    mod both_connections;
    mod company;
    mod elections;
    mod failovers;
    mod fencing;
    mod guard;
    mod nemesis;
    mod watch;
    #[path = "../cluster/worker.rs"]
    mod worker;
}
