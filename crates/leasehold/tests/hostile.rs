//! Servers and publishers that send what they should not: garbage, half of it, too much
//! of it, and what was meant for somebody else. Whatever comes, no code panics, no call
//! hangs, nothing grows, and no lock is said to be held that was not granted.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "hostile"]
mod hostile {
    mod calls;
    mod fuzz;
    mod messages;
    mod mutate;
    mod numbers;
    mod oracle;
    mod process;
    mod replies;
    mod session;
}
