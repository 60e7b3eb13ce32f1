//! What a server has said of itself when the present connection to it was opened.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::sync::Mutex;

/// What is known of a server. Each client has its own, which it learns by connecting.
#[derive(Debug, Default)]
pub(crate) struct About(Mutex<Known>);

#[derive(Clone, Debug, Default)]
struct Known {
    started: Option<Moment>,
    run_id: Option<Arc<str>>,
}

impl About {
    /// A connection is up since `now`. The server has said on it how long it has been up at
    /// least, and which start of a server it is; `None` where it has not said so.
    pub(crate) fn connected(&self, now: Moment, uptime: Option<Duration>, run_id: Option<&str>) {
        // All of it anew: the address may be another server's by now. One that does not say how
        // old it is may have been started just now, and what it forgot nobody can look up; so it
        // counts as if it had.
        let known = Known {
            started: Some(now - uptime.unwrap_or_default()),
            run_id: run_id.map(Arc::from),
        };
        *self.0.lock() = known;
    }

    /// When the server started at the latest; `None` before the first connection.
    pub(crate) fn started(&self) -> Option<Moment> {
        self.known().started
    }

    /// The id that no other server has, and this one only until it is started again.
    #[cfg_attr(not(any(feature = "redis", test)), expect(dead_code))]
    pub(crate) fn run_id(&self) -> Option<Arc<str>> {
        self.known().run_id
    }

    fn known(&self) -> Known {
        let known = self.0.lock();
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_of_unknown_age_counts_as_new() {
        let about = About::default();
        assert_eq!(about.started(), None);
        let (first, second) = (Moment::from_millis(90_000), Moment::from_millis(95_000));
        about.connected(first, Some(Duration::from_secs(60)), Some("a"));
        assert_eq!(about.started(), Some(Moment::from_millis(30_000)));
        about.connected(second, None, None);
        assert_eq!(about.started(), Some(second));
        assert_eq!(about.run_id(), None, "it may be another one");
        about.connected(second, Some(Duration::MAX), Some("b"));
        assert_eq!(about.started(), Some(Moment::default()));
    }
}
