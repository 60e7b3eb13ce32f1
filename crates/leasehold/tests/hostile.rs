//! Servers and publishers that send garbage: half a reply, too much, or a reply for another client.
//! No input makes the code panic, a call hang or memory grow, and the client never reports a hold
//! that was not granted.
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
