//! Every check on every exclusive lock, with the Redissons that take part in this mount.

use super::CAST;
use crate::{checks, what::What};

crate::each_check!(plain, What::Plain);
crate::each_check!(spin, What::Spin);
crate::each_check!(fenced, What::Fenced);
crate::each_check!(fair, What::Fair);
crate::each_check!(write, What::Write);
crate::each_check!(multi, What::Multi; without force);
crate::each_check!(red, What::Red; without force);

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_leaves_the_line_to_those_behind() {
    checks::a_waiter_that_gives_up_leaves_the_line_to_those_behind(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_killed_is_passed_over_in_its_time() {
    checks::a_waiter_that_is_killed_is_passed_over_in_its_time(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_the_holds_of_all() {
    checks::tokens_grow_over_the_holds_of_all(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_all_share_and_the_last_one_lets_a_writer_in() {
    checks::readers_of_all_share_and_the_last_one_lets_a_writer_in(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_downgrade_wakes_the_readers_of_all() {
    checks::our_downgrade_wakes_the_readers_of_all(CAST).await;
}
