//! Every check on semaphores and latches, with the versions of Redisson in `CAST`.

use super::CAST;
use crate::permits::{self, Sort};

macro_rules! each_sort {
    ($module:ident, $sort:expr, $killed:ident) => {
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn exhausted_semaphore_refuses_within_wait_limit() {
                permits::exhausted_semaphore_refuses_within_wait_limit(CAST, $sort).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn all_waiters_are_woken_in_turn() {
                permits::all_waiters_are_woken_in_turn(CAST, $sort).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn $killed() {
                permits::the_permit_of_a_killed_process(CAST, $sort).await;
            }
        }
    };
}

each_sort!(
    counted,
    Sort::Counted,
    the_permit_of_a_killed_process_is_given_back_by_any_other
);
each_sort!(
    leased,
    Sort::Leased,
    the_permit_of_a_killed_process_comes_back_after_its_lease
);

#[tokio::test(flavor = "multi_thread")]
async fn renewed_permit_stays_refused_to_java() {
    permits::renewed_permit_stays_refused_to_java(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_count_down_wakes_latch_waiters_everywhere() {
    permits::last_count_down_wakes_latch_waiters_everywhere(CAST).await;
}
