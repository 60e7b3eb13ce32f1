//! A master that is another server from one moment to the next, and the sentinels that say so: some
//! of them gone, wrong, or late. Every test waits for what it expects.
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
    mod failovers;
    mod fencing;
    mod guard;
    mod nemesis;
    #[path = "../cluster/worker.rs"]
    mod worker;
}
