//! The picture: a row for each worker that shows when it held the lock.

use std::fmt::Write as _;
use std::time::Duration;

use super::story::{Row, Story};

/// Number of moments to draw.
const COLUMNS: u64 = 72;

/// The characters of the picture.
pub(super) struct Marks {
    holds: char,
    waits: char,
    killed: char,
}

impl Marks {
    pub(super) fn new(ascii: bool) -> Self {
        let (holds, waits, killed) = if ascii {
            ('#', '.', 'x')
        } else {
            ('█', '·', '✗')
        };
        Self {
            holds,
            waits,
            killed,
        }
    }
}

/// Returns whether the terminal probably shows more than ASCII.
pub(super) fn locale_is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|locale| !locale.is_empty())
        .is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        })
}

/// Draws the picture. Each column is a moment and not a span of time, in which several workers
/// could have held the lock one after the other.
pub(super) fn draw(story: &Story, marks: &Marks, with_lock: bool) -> String {
    let (start, end) = story.bounds();
    let labels = story.rows().iter().map(|row| row.label.len());
    let width = labels.max().unwrap_or(0);
    let mut text = String::from("\n");
    for row in story.rows() {
        let cells: String = (0..COLUMNS)
            .map(|column| cell(row, marks, start, end, column))
            .collect();
        // Writing to a string can't fail.
        let _ = writeln!(text, "{:width$}  {}", row.label, cells.trim_end());
    }
    let total = end - start;
    let what = if with_lock {
        format!(
            "{} holds the lock   {} waits for it",
            marks.holds, marks.waits
        )
    } else {
        format!("{} sells", marks.holds)
    };
    let killed = if story.rows().iter().any(|row| row.killed_at.is_some()) {
        format!("   {} killed", marks.killed)
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "{:width$}  {what}{killed}   {:.1?} in all, {:.1?} per column",
        "",
        Duration::from_nanos(total),
        Duration::from_nanos(total / COLUMNS),
    );
    text
}

fn cell(row: &Row, marks: &Marks, start: u64, end: u64, column: u64) -> char {
    let edge = |column: u64| {
        let offset = u128::from(end - start) * u128::from(column) / u128::from(COLUMNS);
        start + u64::try_from(offset).unwrap_or(u64::MAX)
    };
    let (from, until) = (edge(column), edge(column + 1));
    let middle = from + (until - from) / 2;
    let last = column + 1 == COLUMNS;
    match row.killed_at {
        Some(at) if at < from => ' ',
        Some(at) if at < until || last => marks.killed,
        _ if row.holds_at(middle) => marks.holds,
        _ if row.waits_at(middle) => marks.waits,
        _ => ' ',
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Event;
    use super::*;

    fn two_workers() -> Story {
        let mut story = Story::new(vec!["a".into(), "b".into()]);
        for (worker, asked, from, until) in [(0, 0, 0, 36), (1, 0, 36, 72)] {
            story.said(worker, &Event::Asked { at: asked });
            let valid_until = 1000;
            let acquired = Event::Acquired {
                at: from,
                valid_until,
            };
            story.said(worker, &acquired);
            let releasing = Event::Releasing {
                at: until,
                valid_until,
            };
            story.said(worker, &releasing);
        }
        story
    }

    #[test]
    fn rows_draw_waits_and_holds_in_columns() {
        let picture = draw(&two_workers(), &Marks::new(true), true);
        let rows: Vec<&str> = picture.lines().skip(1).collect();
        assert_eq!(rows[0], format!("a  {}", "#".repeat(36)));
        assert_eq!(rows[1], format!("b  {}{}", ".".repeat(36), "#".repeat(36)));
        assert!(rows[2].contains("# holds the lock   . waits for it   72.0ns"));
        assert!(picture.is_ascii());
    }

    #[test]
    fn killed_worker_ends_with_its_mark() {
        let mut story = two_workers();
        story.ended(0, true, 40);
        let picture = draw(&story, &Marks::new(false), true);
        let row = format!("a  {}{}✗\n", "█".repeat(36), " ".repeat(4));
        assert!(picture.contains(&row), "{picture}");
        assert!(picture.contains("✗ killed"), "{picture}");
    }
}
