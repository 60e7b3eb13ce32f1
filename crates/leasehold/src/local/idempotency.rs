//! Idempotency keys. A request that can't be repeated without harm stores its reply on the server
//! under such a key, its marker. If the request arrives twice, it counts once.
//!
//! A marker expires by itself, but until then it takes memory, and a busy semaphore would fill the
//! server. So each request removes the marker of an earlier request that was answered so long ago
//! that no copy of it can still be on its way. The marker of a request that was sent more than once
//! is never removed but only expires, because the network may still deliver a copy that it has held
//! back for a long time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::key::Key;
use crate::sync::Mutex;

/// The time after which the marker of an answered request may be removed.
const REMOVED_AFTER: Duration = Duration::from_secs(5);
/// The largest number of markers for one name, however fresh they are.
const MAX_MARKERS: usize = 512;
/// The time after which a marker expires on the server.
const MARKER_LIFE: Duration = Duration::from_secs(60);

/// Returns for how long a request may be sent again, counted from its first attempt. The marker
/// exists for longer than that, so that there is time to connect and to reply.
pub(crate) fn repeatable_for(reply_timeout: Duration) -> Duration {
    MARKER_LIFE
        .saturating_sub(Duration::from_secs(10))
        .saturating_sub(reply_timeout)
}

/// The markers that are passed with one request: its own, and one that is no longer needed.
#[derive(Clone, Debug)]
pub(crate) struct Marked {
    pub(crate) marker: String,
    pub(crate) done: String,
}

/// The markers of the answered requests for one name, and the times of the answers.
#[derive(Default)]
pub(crate) struct IdempotencyKeys {
    answered: Mutex<VecDeque<(Moment, String)>>,
}

impl IdempotencyKeys {
    /// Returns the markers of a new request, whose `id` is unique.
    pub(crate) fn mark(&self, key: &Key, id: &str, now: Moment) -> Marked {
        let mut answered = self.answered.lock();
        // Beyond `MAX_MARKERS`, the oldest marker is removed although it is fresh, so that a busy
        // name does not fill the server's memory or ours.
        let too_many = answered.len() > MAX_MARKERS;
        let old = match answered.front() {
            Some((since, _)) if too_many || now.saturating_sub(*since) >= REMOVED_AFTER => {
                answered.pop_front()
            }
            _ => None,
        };
        drop(answered);
        Marked {
            marker: key.idempotency_key(id),
            // A step always removes one marker. If none is old enough, it removes a key that never
            // exists.
            done: old.map_or_else(|| key.idempotency_key("-"), |(_, marker)| marker),
        }
    }

    /// Notes that the request with this marker was sent only once, and answered.
    pub(crate) fn answered(&self, marked: Marked, now: Moment) {
        self.answered.lock().push_back((now, marked.marker));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answered.lock().is_empty()
    }

    /// Returns whether the name is in use: a request was answered recently.
    pub(super) fn are_fresh(&self, now: Moment) -> bool {
        let answered = self.answered.lock();
        let last = answered.back();
        last.is_some_and(|(since, _)| now.saturating_sub(*since) < 2 * REMOVED_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    #[test]
    fn idempotency_key_is_removed_after_duplicate_window() {
        let (markers, key) = (IdempotencyKeys::default(), Key::parse("x").expect("a name"));
        let first = markers.mark(&key, "1", at(0));
        let marker = first.marker.clone();
        markers.answered(first, at(0));
        assert_ne!(markers.mark(&key, "2", at(4)).done, marker);
        assert_eq!(markers.mark(&key, "3", at(6)).done, marker);
        assert_ne!(markers.mark(&key, "4", at(7)).done, marker, "once");
    }

    #[test]
    fn answered_idempotency_keys_are_bounded() {
        let (markers, key) = (IdempotencyKeys::default(), Key::parse("x").expect("a name"));
        for n in 0..5000 {
            let marked = markers.mark(&key, &n.to_string(), at(0));
            markers.answered(marked, at(0));
        }
        assert!(markers.answered.lock().len() <= MAX_MARKERS + 1);
    }
}
