//! Futures that are dropped before their end.

use std::pin::pin;
use std::task::Poll;

/// Polls `future` up to `polls` times, each time it is woken, and then drops it.
pub(crate) async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The future is dropped here, without being woken once more.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
