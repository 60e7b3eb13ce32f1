//! Every check on semaphores and latches, with the Redissons that take part in this mount.

use super::CAST;
use crate::permits::{self, Sort};

macro_rules! each_sort {
    ($module:ident, $sort:expr, $killed:ident) => {
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn a_permit_is_refused_in_its_time_while_none_is_free() {
                permits::a_permit_is_refused_in_its_time_while_none_is_free(CAST, $sort).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn all_who_wait_are_woken_one_after_the_other() {
                permits::all_who_wait_are_woken_one_after_the_other(CAST, $sort).await;
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
async fn our_permit_is_renewed_while_it_is_refused_to_java() {
    permits::our_permit_is_renewed_while_it_is_refused_to_java(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_wait_for_a_latch_go_on_whoever_counts_it_down() {
    permits::all_who_wait_for_a_latch_go_on_whoever_counts_it_down(CAST).await;
}
