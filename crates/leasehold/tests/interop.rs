//! The library beside a live Redisson, in both versions for which the wire format is promised.
#![allow(clippy::duplicate_mod, reason = "mounted once per version on purpose")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test"
)]

mod support;

/// Generates tests of the checks on one primitive, in a module of its name.
macro_rules! each_check {
    ($primitive:ident, $what:expr) => {
        crate::each_check!(@ $primitive, $what, [
            a_forced_unlock_wakes_who_waits_and_is_told_the_holder,
        ]);
    };
    ($primitive:ident, $what:expr; without force) => {
        crate::each_check!(@ $primitive, $what, []);
    };
    (@ $primitive:ident, $what:expr, [$($more:ident,)?]) => {
        crate::each_check!(@@ $primitive, $what, [
            a_try_is_refused_while_another_side_holds,
            a_timed_try_is_refused_in_its_time_or_served,
            all_waiters_are_woken_in_turn,
            a_lease_that_ends_lets_the_other_side_in,
            a_killed_process_holds_up_the_others_for_its_lease_only,
            each_watchdog_keeps_a_hold_that_is_still_refused_to_the_others,
            $($more,)?
        ]);
    };
    (@@ $primitive:ident, $what:expr, [$($check:ident,)+]) => {
        mod $primitive {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $check() {
                    checks::$check(CAST, $what).await;
                }
            )+
        }
    };
}
use each_check;

#[path = "interop/between.rs"]
mod between;
#[path = "interop/checks.rs"]
mod checks;
#[path = "interop/child.rs"]
mod child;
#[path = "interop/company.rs"]
mod company;
#[path = "interop/counts.rs"]
mod counts;
#[path = "interop/failovers.rs"]
mod failovers;
#[path = "interop/golden.rs"]
mod golden;
#[path = "interop/golden_fair.rs"]
mod golden_fair;
#[path = "interop/golden_rw.rs"]
mod golden_rw;
#[path = "interop/javas.rs"]
mod javas;
#[path = "interop/matrix.rs"]
mod matrix;
#[path = "interop/permits.rs"]
mod permits;
#[path = "interop/prefixed.rs"]
mod prefixed;
#[path = "interop/recording.rs"]
mod recording;
#[path = "interop/scene.rs"]
mod scene;
#[path = "interop/sides.rs"]
mod sides;
#[path = "interop/stress.rs"]
mod stress;
#[path = "interop/together.rs"]
mod together;
#[path = "interop/topology.rs"]
mod topology;
#[path = "interop/weaknesses.rs"]
mod weaknesses;
#[path = "interop/what.rs"]
mod what;

#[path = "interop"]
mod with_3_16_8 {
    pub(super) const VERSION: leasehold_testkit::RedissonVersion =
        leasehold_testkit::RedissonVersion::V3_16_8;
    pub(super) const CAST: &[leasehold_testkit::RedissonVersion] = &[VERSION];
    mod each_count;
    mod each_lock;
    mod fair;
    mod lock;
    mod members;
    mod methods;
    mod recipes;
    mod rw;
    mod suspects;
    mod synchronizers;
    mod wire;
}

#[path = "interop"]
mod with_4_7_0 {
    pub(super) const VERSION: leasehold_testkit::RedissonVersion =
        leasehold_testkit::RedissonVersion::V4_7_0;
    pub(super) const CAST: &[leasehold_testkit::RedissonVersion] = &[VERSION];
    mod each_count;
    mod each_group;
    mod each_lock;
    mod fair;
    mod fenced;
    mod group;
    mod lock;
    mod members;
    mod methods;
    mod recipes;
    mod rw;
    mod suspects;
    mod suspects_newer;
    mod synchronizers;
    mod wire;
}

/// Both versions of Redisson and this library at once, on one name.
#[path = "interop"]
mod with_both {
    pub(super) const CAST: &[leasehold_testkit::RedissonVersion] =
        &leasehold_testkit::RedissonVersion::ALL;
    mod each_count;
    mod each_lock;
}
