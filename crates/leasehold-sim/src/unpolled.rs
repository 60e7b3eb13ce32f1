//! Tasks that sometimes do not poll their waits, like a loop around `select!`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Sleep, sleep};

/// The longest time for which a future is not polled.
const LONGEST_MS: u64 = 700;

/// Polls a future. After `percent` % of the polls, calls `stalls` and does not poll for a while.
pub(crate) async fn now_and_then<F: Future>(
    percent: u8,
    mut rng: Rng,
    stalls: impl Fn(),
    future: F,
) -> F::Output {
    let mut future = pin!(future);
    let mut pause: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        if let Some(sleep) = &mut pause {
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            pause = None;
        }
        let polled = future.as_mut().poll(context);
        if polled.is_pending() && rng.u8(0..100) < percent {
            let mut begins = Box::pin(sleep(Duration::from_millis(rng.u64(1..=LONGEST_MS))));
            // The sleep is polled once, so that its end wakes the task.
            if begins.as_mut().poll(context).is_pending() {
                pause = Some(begins);
                stalls();
            }
        }
        polled
    })
    .await
}
