//! Beside a live Redisson, in both versions that the wire format is promised for.
#![allow(clippy::duplicate_mod, reason = "mounted once per version on purpose")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

#[path = "interop/child.rs"]
mod child;
#[path = "interop/golden.rs"]
mod golden;
#[path = "interop/together.rs"]
mod together;

#[path = "interop"]
mod with_3_16_8 {
    pub(super) const VERSION: leasehold_testkit::RedissonVersion =
        leasehold_testkit::RedissonVersion::V3_16_8;
    mod lock;
}

#[path = "interop"]
mod with_4_7_0 {
    pub(super) const VERSION: leasehold_testkit::RedissonVersion =
        leasehold_testkit::RedissonVersion::V4_7_0;
    mod lock;
}
