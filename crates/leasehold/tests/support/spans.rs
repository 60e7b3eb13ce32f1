//! A subscriber that records the spans, and the table of `docs/tracing.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use super::metrics::root;

/// A span. Its number is its position in the order in which the spans began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) parent: Option<usize>,
    pub(crate) follows: Vec<usize>,
    handles: usize,
}

impl Seen {
    pub(crate) fn is(&self, attribute: &str, word: &str) -> bool {
        self.attributes.get(attribute).is_some_and(|is| is == word)
    }

    pub(crate) fn number_of(&self, attribute: &str) -> u64 {
        self.attributes[attribute].parse().unwrap()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.handles > 0
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let name = field.name().to_owned();
        self.attributes.insert(name, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let name = field.name().to_owned();
        self.attributes.insert(name, value.to_owned());
    }
}

/// All spans of this thread.
#[derive(Clone, Default)]
pub(crate) struct Spans(Arc<Mutex<Vec<Seen>>>);

impl Spans {
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let spans = Self::default();
        let guard = tracing::subscriber::set_default(spans.clone());
        (spans, guard)
    }

    fn table(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        change(&mut self.table()[place(id)]);
    }

    pub(crate) fn all(&self, name: &str) -> Vec<Seen> {
        let table = self.table();
        let named = table.iter().filter(|span| span.name == name);
        named.cloned().collect()
    }

    pub(crate) fn at(&self, number: usize) -> Seen {
        self.table()[number].clone()
    }

    /// Returns the spans, each with the attributes that had a value.
    pub(crate) fn words(&self) -> BTreeSet<(String, String)> {
        let table = self.table();
        let words = table.iter().flat_map(|span| {
            let attributes = span.attributes.keys();
            attributes.map(|attribute| (span.name.clone(), attribute.clone()))
        });
        words.collect()
    }
}

fn place(id: &Id) -> usize {
    usize::try_from(id.into_u64()).unwrap() - 1
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == "leasehold"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut table = self.table();
        let mut seen = Seen {
            number: table.len(),
            name: attributes.metadata().name().to_owned(),
            parent: attributes.parent().map(place),
            handles: 1,
            ..Seen::default()
        };
        attributes.record(&mut seen);
        table.push(seen);
        Id::from_u64(table.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.with(id, |span| values.record(span));
    }

    fn record_follows_from(&self, id: &Id, other: &Id) {
        let other = place(other);
        // Some subscribers can't record this for a span that has ended.
        assert!(self.at(other).is_open(), "{:?}", self.at(other));
        self.with(id, |span| span.follows.push(other));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.with(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.with(&id, |span| span.handles -= 1);
        !self.at(place(&id)).is_open()
    }

    fn event(&self, _event: &Event<'_>) {}
    fn enter(&self, _id: &Id) {}
    fn exit(&self, _id: &Id) {}
}

/// Returns the spans and attributes of `docs/tracing.md`.
pub(crate) fn documented_spans() -> BTreeSet<(String, String)> {
    let page = fs::read_to_string(root().join("docs/tracing.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `leasehold.")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        let attribute = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((format!("leasehold.{name}"), attribute.to_owned()))
    });
    rows.collect()
}
