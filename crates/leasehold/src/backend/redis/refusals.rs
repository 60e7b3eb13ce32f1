//! Refusals after which a client disconnects from a server that still answers: the server was
//! demoted, or has been loading its data for too long. Meanwhile the name in the URL may lead to
//! another server, and a client that keeps its connection would never find that out.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::backend::failure::{Cause, Failure};
use crate::clock::Moment;
use crate::sync::Mutex;

/// The time between two lookups of the server's name.
pub(crate) const LOOKUP_EVERY: Duration = Duration::from_secs(2);

/// The refusals of one server.
pub(crate) struct Refusals {
    /// The time for which the server may load its data before the client disconnects.
    loading_limit: Duration,
    /// The time since which the server has replied only that it is loading.
    loading_since: Mutex<Option<Moment>>,
    /// Notified when the client should disconnect.
    should_leave: Notify,
}

impl Refusals {
    pub(crate) fn new(loading_limit: Duration) -> Self {
        Self {
            loading_limit,
            loading_since: Mutex::default(),
            should_leave: Notify::new(),
        }
    }

    /// Notes that the server has run a call, whatever the results of the operations.
    pub(crate) fn ran_a_call(&self) {
        *self.loading_since.lock() = None;
    }

    /// Notes that the server has refused an operation, or an entire call, at `now`.
    pub(crate) fn refused(&self, failure: &Failure, now: Moment) {
        let Cause::NotNow(said) = &failure.cause else {
            return;
        };
        match said.split(' ').next() {
            // The server has become a replica, and the name may already lead to the new master.
            // Other refusals end by themselves.
            Some("READONLY" | "MASTERDOWN") => self.should_leave.notify_one(),
            // Loading usually ends by itself, so the server gets some time.
            Some("LOADING") => {
                let since = *self.loading_since.lock().get_or_insert(now);
                if now.saturating_sub(since) > self.loading_limit {
                    self.should_leave.notify_one();
                }
            }
            _ => {}
        }
    }

    /// Clears the refusals of an earlier connection's server, because another connection is up.
    pub(crate) fn forget(&self) {
        *self.loading_since.lock() = None;
        // Clears a pending notification: it would make the client disconnect from the new server.
        let _ = self.should_leave.notified().now_or_never();
    }

    /// Resolves when the client should disconnect.
    pub(crate) async fn should_leave(&self) {
        self.should_leave.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn left_after(said: &[(&str, u64)]) -> bool {
        let refusals = Refusals::new(Duration::from_secs(3));
        for (text, seconds) in said {
            let failure = Failure::from_reply(text, &Arc::from("redis://h"));
            refusals.refused(&failure, Moment::from_millis(seconds * 1000));
        }
        refusals.should_leave().now_or_never().is_some()
    }

    #[test]
    fn demoted_server_is_dropped_before_loading_one() {
        assert!(left_after(&[("READONLY You can't write", 0)]));
        assert!(left_after(&[(
            "@user_script: 3: -READONLY You can't write",
            0
        )]));
        assert!(left_after(&[("MASTERDOWN Link with MASTER is down", 0)]));
        assert!(!left_after(&[("LOADING", 0), ("LOADING", 2)]));
        assert!(left_after(&[
            ("LOADING", 0),
            ("LOADING", 2),
            ("LOADING", 4)
        ]));
        assert!(!left_after(&[("OOM", 0), ("BUSY", 9), ("NOREPLICAS", 9)]));
        // Only the first word is the code. The rest is a text that may contain any word.
        assert!(!left_after(&[("ERR READONLY", 0)]));
    }

    #[test]
    fn a_call_that_was_run_ends_the_loading() {
        let refusals = Refusals::new(Duration::from_secs(3));
        let loading = Failure::from_reply("LOADING", &Arc::from("redis://h"));
        refusals.refused(&loading, Moment::from_millis(0));
        // Without `ran_a_call`, the client would disconnect at once from a server that restarts
        // hours later, because the loading would count from the first time.
        refusals.ran_a_call();
        refusals.refused(&loading, Moment::from_millis(9000));
        assert!(refusals.should_leave().now_or_never().is_none());
    }
}
