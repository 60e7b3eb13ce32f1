//! Semaphores and latches when things go wrong: requests and messages that are lost, late
//! or doubled, servers that are out of memory, processes that are killed.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "synchronizers/absence.rs"]
mod absence;
#[path = "synchronizers/denied.rs"]
mod denied;
#[path = "synchronizers/faults.rs"]
mod faults;
#[path = "synchronizers/namesakes.rs"]
mod namesakes;
#[path = "synchronizers/servers.rs"]
mod servers;
#[path = "synchronizers/soak.rs"]
mod soak;
#[path = "synchronizers/together.rs"]
mod together;
#[path = "synchronizers/waiters.rs"]
mod waiters;
#[path = "server/warnings.rs"]
mod warnings;
