//! The facts that a server reported about itself when the current connection to it was opened.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::sync::Mutex;

/// The facts known about a server. Each client keeps its own facts, and updates them at each
/// connection.
#[derive(Debug, Default)]
pub(crate) struct About(Mutex<KnownFacts>);

#[derive(Clone, Debug, Default)]
struct KnownFacts {
    /// The time at which the server reported these facts.
    reported_at: Moment,
    started: Option<Moment>,
    run_id: Option<Arc<str>>,
    /// The last id that was reported. It is kept even if the server on the current connection does
    /// not report one.
    last_run_id: Option<Arc<str>>,
    /// The time at which a connection reported a different id from the connection before it, and
    /// the earliest time at which the new server can have started.
    replaced: Option<(Moment, Moment)>,
}

/// The time for which a server has been up, as precisely as the server reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl About {
    /// Notes what a server reported at `now` on a new connection: how long it has been up, and the
    /// id of its current start. Each is `None` if the server did not report it. If two connections
    /// call this in the wrong order, the later report still counts.
    pub(crate) fn connected(&self, now: Moment, uptime: Option<Uptime>, run_id: Option<&str>) {
        let mut before = self.0.lock();
        if now < before.reported_at {
            return;
        }
        // All facts are replaced, because another server may have the address now. A server that
        // does not report its age counts as just started: it may have lost its data.
        let run_id: Option<Arc<str>> = run_id.map(Arc::from);
        // A missing id proves nothing, and neither does the first id.
        let is_another =
            before.last_run_id.is_some() && run_id.is_some() && before.last_run_id != run_id;
        let replaced = uptime.filter(|_| is_another);
        *before = KnownFacts {
            reported_at: now,
            started: Some(now - uptime.map_or(Duration::ZERO, |uptime| uptime.least)),
            last_run_id: run_id.clone().or_else(|| before.last_run_id.clone()),
            run_id,
            replaced: match replaced {
                Some(uptime) => Some((now, now - uptime.most)),
                None => before.replaced,
            },
        };
    }

    /// Returns the earliest time at which the server can have started, if a connection has reported
    /// since `sent` that the server was replaced or restarted.
    pub(crate) fn replaced_since(&self, sent: Moment) -> Option<Moment> {
        let (reported_at, earliest) = self.known().replaced?;
        (sent <= reported_at).then_some(earliest)
    }

    /// Returns the latest time at which the server can have started; `None` before the first
    /// connection.
    pub(crate) fn started(&self) -> Option<Moment> {
        self.known().started
    }

    /// Returns the id of the server's current start. No other server has it, and a restart changes
    /// it.
    #[cfg_attr(not(any(feature = "redis", test)), expect(dead_code))]
    pub(crate) fn run_id(&self) -> Option<Arc<str>> {
        self.known().run_id
    }

    fn known(&self) -> KnownFacts {
        let known = self.0.lock();
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(seconds: u64) -> Option<Uptime> {
        let least = Duration::from_secs(seconds);
        Some(Uptime {
            least,
            most: least + Duration::from_secs(2),
        })
    }

    #[test]
    fn only_another_id_tells_of_another_server() {
        let about = About::default();
        let at = |seconds: u64| Moment::from_millis(seconds * 1000);
        about.connected(at(100), up(60), Some("a"));
        about.connected(at(110), up(70), Some("a"));
        // The server may have been restarted, or not.
        about.connected(at(120), None, None);
        about.connected(at(130), up(90), Some("a"));
        assert_eq!(about.replaced_since(at(0)), None);
        about.connected(at(140), None, None);
        about.connected(at(150), up(5), Some("b"));
        assert_eq!(about.replaced_since(at(150)), Some(at(143)));
        assert_eq!(about.replaced_since(at(151)), None);
        about.connected(at(160), up(15), Some("b"));
        assert_eq!(about.replaced_since(at(149)), Some(at(143)));
    }

    #[test]
    fn older_word_changes_nothing() {
        let about = About::default();
        let at = |seconds: u64| Moment::from_millis(seconds * 1000);
        about.connected(at(100), up(60), Some("a"));
        about.connected(at(110), up(5), Some("b"));
        about.connected(at(105), up(65), Some("a"));
        assert_eq!(about.run_id().as_deref(), Some("b"));
        assert_eq!(about.started(), Some(at(105)));
        assert_eq!(about.replaced_since(at(110)), Some(at(103)));
    }

    #[test]
    fn server_of_unknown_age_counts_as_new() {
        let about = About::default();
        assert_eq!(about.started(), None);
        let (first, second) = (Moment::from_millis(90_000), Moment::from_millis(95_000));
        about.connected(first, up(60), Some("a"));
        assert_eq!(about.started(), Some(Moment::from_millis(30_000)));
        about.connected(second, None, None);
        assert_eq!(about.started(), Some(second));
        assert_eq!(about.run_id(), None, "it may be another one");
        let ages = Uptime {
            least: Duration::MAX,
            most: Duration::MAX,
        };
        about.connected(second, Some(ages), Some("b"));
        assert_eq!(about.started(), Some(Moment::default()));
    }
}
