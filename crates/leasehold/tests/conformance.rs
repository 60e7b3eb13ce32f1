//! What every backend has to do: each module below is mounted once per backend, so
//! a new test runs on all of them, and a failing name says where.
#![allow(clippy::duplicate_mod, reason = "mounted once per backend on purpose")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "conformance"]
mod on_embedded {
    pub(super) use crate::support::embedded_place as place;
    /// The shortest lease with room for a busy machine.
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod cancel;
    mod input;
    mod lock;
    mod wait;
}

#[path = "conformance"]
mod on_server {
    pub(super) use crate::support::server_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod cancel;
    mod input;
    mod lock;
    mod wait;
}

#[path = "conformance"]
mod on_server_with_resp3 {
    pub(super) use crate::support::resp3_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod lock;
    mod wait;
}

#[path = "conformance"]
mod on_unix_socket {
    pub(super) use crate::support::unix_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod lock;
}

#[cfg(feature = "tls")]
#[path = "conformance"]
mod on_tls {
    pub(super) use crate::support::tls_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod lock;
}
