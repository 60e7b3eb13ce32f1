//! Every check on every exclusive lock, with the versions of Redisson in `CAST`.

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
async fn fair_waiter_that_gives_up_leaves_queue() {
    checks::fair_waiter_that_gives_up_leaves_queue(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_fair_waiter_is_skipped_after_timeout() {
    checks::killed_fair_waiter_is_skipped_after_timeout(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_the_holds_of_all() {
    checks::tokens_grow_over_the_holds_of_all(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_shared_reader_lets_writer_in() {
    checks::last_shared_reader_lets_writer_in(CAST).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_downgrade_wakes_the_readers_of_all() {
    checks::our_downgrade_wakes_the_readers_of_all(CAST).await;
}
