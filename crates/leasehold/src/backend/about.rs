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
    /// When the server has said it.
    told: Moment,
    started: Option<Moment>,
    run_id: Option<Arc<str>>,
    /// The last id that was told, also if the server of the present connection tells none.
    last_run_id: Option<Arc<str>>,
    /// When a connection told another id than the one before, and when that server started at the
    /// earliest.
    replaced: Option<(Moment, Moment)>,
}

/// For how long a server has been up, as far as it tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl About {
    /// A server has said at `now`, on a new connection, how long it has been up and which start of
    /// a server it is; `None` where it has not said so. Of two connections the one that heard it
    /// later knows better, whichever of them comes first to say so here.
    pub(crate) fn connected(&self, now: Moment, uptime: Option<Uptime>, run_id: Option<&str>) {
        let mut before = self.0.lock();
        if now < before.told {
            return;
        }
        // All of it anew: the address may be another server's by now. One that does not say how
        // old it is may have been started just now, and what it forgot nobody can look up; so it
        // counts as if it had.
        let run_id: Option<Arc<str>> = run_id.map(Arc::from);
        // An id that is not told proves nothing, and nor does the first one.
        let is_another =
            before.last_run_id.is_some() && run_id.is_some() && before.last_run_id != run_id;
        let replaced = uptime.filter(|_| is_another);
        *before = Known {
            told: now,
            started: Some(now - uptime.map_or(Duration::ZERO, |uptime| uptime.least)),
            last_run_id: run_id.clone().or_else(|| before.last_run_id.clone()),
            run_id,
            replaced: match replaced {
                Some(uptime) => Some((now, now - uptime.most)),
                None => before.replaced,
            },
        };
    }

    /// If a connection has told since `sent` that the server is another one by now, or was started
    /// again: when that server started at the earliest.
    pub(crate) fn replaced_since(&self, sent: Moment) -> Option<Moment> {
        let (told, earliest) = self.known().replaced?;
        (sent <= told).then_some(earliest)
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
        // It may have been started again, and it may not.
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
