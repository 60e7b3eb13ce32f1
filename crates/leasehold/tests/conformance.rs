//! The duties of every backend. Each module below is mounted once per backend, so a new test runs
//! on all of them, and the name of a failing test shows its backend.
#![allow(clippy::duplicate_mod, reason = "mounted once per backend on purpose")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "conformance/hooks.rs"]
mod hooks;
#[path = "server/warnings.rs"]
mod warnings;

#[path = "conformance"]
mod on_embedded {
    pub(super) use crate::support::embedded_place as place;
    pub(super) use crate::support::plain_lock as lock_of;
    /// The shortest lease with room for a busy machine.
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod any;
    mod back_off;
    mod cancel;
    mod cancel_wholes;
    mod deadlock;
    mod election;
    mod election_cancel;
    mod expirable;
    mod fair;
    mod fenced;
    mod forced;
    mod group;
    mod input;
    mod kinds;
    mod latch;
    mod lock;
    mod multi;
    mod name;
    mod non_reentrant;
    mod re_entry;
    mod red;
    mod rw;
    mod rw_cancel;
    mod rw_turns;
    mod semaphore;
    mod slot;
    mod ticket;
    mod ticket_cancel;
    mod tokens;
    mod unpolled;
    mod wait;
    mod watch;
}

#[path = "conformance"]
mod on_server {
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) use crate::support::server_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod any;
    mod back_off;
    mod cancel;
    mod cancel_wholes;
    mod deadlock;
    mod election;
    mod election_cancel;
    mod expirable;
    mod fair;
    mod fenced;
    mod forced;
    mod group;
    mod input;
    mod kinds;
    mod latch;
    mod lock;
    mod multi;
    mod name;
    mod non_reentrant;
    mod re_entry;
    mod red;
    mod rw;
    mod rw_cancel;
    mod rw_turns;
    mod semaphore;
    mod slot;
    mod ticket;
    mod ticket_cancel;
    mod tokens;
    mod unpolled;
    mod wait;
    mod watch;
}

#[path = "conformance"]
mod on_cluster {
    pub(super) use crate::support::cluster_place as place;
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod any;
    mod back_off;
    mod cancel;
    mod cancel_wholes;
    mod election;
    mod election_cancel;
    mod expirable;
    mod fair;
    mod fenced;
    mod forced;
    mod group;
    mod input;
    mod kinds;
    mod latch;
    mod lock;
    mod multi;
    mod name;
    mod non_reentrant;
    mod re_entry;
    mod red;
    mod rw;
    mod rw_cancel;
    mod rw_turns;
    mod semaphore;
    mod slot;
    mod ticket;
    mod ticket_cancel;
    mod tokens;
    mod unpolled;
    mod wait;
    mod watch;
}

/// Short form on a master after a failover, which takes a while to make.
#[path = "conformance"]
mod on_sentinels {
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) use crate::support::sentinels_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod fenced;
    mod lock;
    mod wait;
}

#[path = "conformance"]
mod on_server_with_resp3 {
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) use crate::support::resp3_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod back_off;
    mod expirable;
    mod forced;
    mod group;
    mod latch;
    mod lock;
    mod multi;
    mod name;
    mod red;
    mod rw;
    mod semaphore;
    mod slot;
    mod ticket;
    mod tokens;
    mod wait;
}

#[path = "conformance"]
mod behind_a_prefix {
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) use crate::support::prefixed_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod any;
    mod election;
    mod expirable;
    mod fair;
    mod group;
    mod latch;
    mod lock;
    mod multi;
    mod rw;
    mod semaphore;
    mod slot;
    mod ticket;
    mod wait;
}

#[path = "conformance"]
mod on_unix_socket {
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) use crate::support::unix_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod back_off;
    mod lock;
    mod rw;
}

#[cfg(feature = "tls")]
#[path = "conformance"]
mod on_tls {
    pub(super) use crate::support::plain_lock as lock_of;
    pub(super) use crate::support::tls_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod back_off;
    mod lock;
    mod rw;
}

/// The tests of the plain lock apply to the fair one.
#[path = "conformance"]
mod fair_on_embedded {
    pub(super) use crate::support::embedded_place as place;
    pub(super) use crate::support::fair_lock as lock_of;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(600);
    mod cancel;
    mod lock;
    mod re_entry;
    mod wait;
}

#[path = "conformance"]
mod fair_on_server {
    pub(super) use crate::support::fair_lock as lock_of;
    pub(super) use crate::support::server_place as place;
    pub(super) const LEASE: std::time::Duration = std::time::Duration::from_millis(2000);
    mod cancel;
    mod lock;
    mod wait;
}

/// The tests of the plain lock, except that the counter of a fenced lock outlives its holds.
#[path = "conformance"]
mod fenced_on_embedded {
    pub(super) use crate::support::embedded_place as place;
    pub(super) use crate::support::fenced_lock as lock_of;
    mod cancel;
}

#[path = "conformance"]
mod fenced_on_server {
    pub(super) use crate::support::fenced_lock as lock_of;
    pub(super) use crate::support::server_place as place;
    mod cancel;
}
