//! Tasks that don't poll what they wait for all the time, as a loop around `select!` does.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Sleep, sleep};

/// The longest time for which a future is not polled.
const LONGEST_MS: u64 = 700;

/// Polls a future, and in so many of a hundred cases does not poll it for a while after that.
/// `stalls` is called then.
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
            // Polled once, so that its end wakes the task.
            if begins.as_mut().poll(context).is_pending() {
                pause = Some(begins);
                stalls();
            }
        }
        polled
    })
    .await
}
