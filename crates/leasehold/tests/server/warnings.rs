//! The log of this thread, for tests of warnings that must appear once.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The warnings and errors since this was made, on the thread that made it.
pub(crate) struct Warnings {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
    _other: Dispatch,
}

impl Warnings {
    pub(crate) fn listen() -> Self {
        let lines = Arc::default();
        // With only one subscriber, a warning is disabled for all threads if a thread without a
        // subscriber reaches it first.
        let other = Dispatch::new(Listener(Arc::default()));
        let guard = set_default(Listener(Arc::clone(&lines)));
        Self {
            lines,
            _guard: guard,
            _other: other,
        }
    }

    /// Counts the lines that contain `what`.
    pub(crate) fn count(&self, what: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.contains(what)).count()
    }
}

struct Listener(Arc<Mutex<Vec<String>>>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
