//! The table of metrics in `docs/metrics.md`.

use std::fs;
use std::path::{Path, PathBuf};

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) prometheus: String,
    pub(crate) kind: String,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn documented() -> Vec<Metric> {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `leasehold."));
    let metrics = rows.map(|row| {
        let mut cells = row
            .split('|')
            .skip(1)
            .map(|cell| cell.trim().trim_matches('`'));
        let mut cell = || cells.next().unwrap().to_owned();
        Metric {
            name: cell(),
            prometheus: cell(),
            kind: cell(),
        }
    });
    let metrics: Vec<_> = metrics.collect();
    assert_eq!(metrics.len(), 14);
    metrics
}
