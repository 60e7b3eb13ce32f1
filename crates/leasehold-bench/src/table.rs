//! The tables that are printed on the terminal and on the page.

use comfy_table::Table;

use crate::figure::{Figure, short};
use crate::results::{Results, Row};
use crate::scenario;

/// A table: its title, its headings, and its cells in rows.
pub(crate) struct Sheet {
    pub(crate) title: &'static str,
    pub(crate) head: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A kind of table. It contains the rows that have the first figure in `figures`.
struct Kind {
    title: &'static str,
    figures: &'static [Figure],
}

use Figure::{
    ClientPercent, ClientUs, Commands, Heap, Least, Lost, Max, Most, P50, P99, Pairs, Rss, Scripts,
    ServerBytes, ServerPercent, ServerUs, Validity, WaiterMax, WaiterP50, WaiterP99, WaiterPairs,
};

/// The kinds of tables. A row appears in each table whose first figure it has.
const KINDS: [Kind; 5] = [
    Kind {
        title: "Pairs of acquire and release",
        figures: &[
            Commands, Pairs, P50, P99, Max, Scripts, ServerUs, ClientUs, Least, Most,
        ],
    },
    Kind {
        title: "One waiter that competes with 64 tasks of another process",
        figures: &[WaiterPairs, WaiterP50, WaiterP99, WaiterMax],
    },
    Kind {
        title: "A lock that another client gets just after its slot has moved or its master has been replaced",
        figures: &[P50, P99, Max],
    },
    Kind {
        title: "Locks that are held and renewed",
        figures: &[
            ClientPercent,
            ServerPercent,
            Validity,
            Rss,
            Heap,
            ServerBytes,
            Lost,
        ],
    },
    Kind {
        title: "Memory of a waiter",
        figures: &[Rss, Heap],
    },
];

/// Returns the tables that have at least one row.
pub(crate) fn sheets(results: &Results) -> Vec<Sheet> {
    let sheets = KINDS.iter().map(|kind| {
        let rows = results.rows.iter().filter(|row| kind.has(row));
        Sheet {
            title: kind.title,
            head: ["scenario", "system"]
                .into_iter()
                .chain(kind.figures.iter().map(|figure| figure.heading()))
                .collect(),
            rows: rows.map(|row| kind.cells(row)).collect(),
        }
    });
    sheets.filter(|sheet| !sheet.rows.is_empty()).collect()
}

impl Kind {
    fn has(&self, row: &Row) -> bool {
        let first = self.figures[0];
        // Rows of held locks also have `Rss`, and rows of pairs also have `P50`, but both appear in
        // tables of their own.
        let is_elsewhere = match first {
            Rss => row.spread(ClientPercent).is_some(),
            P50 => row.spread(Commands).is_some(),
            _ => false,
        };
        row.spread(first).is_some() && !is_elsewhere
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let figures = self.figures.iter().map(|figure| cell(row, *figure));
        [row.scenario.clone(), row.system.clone()]
            .into_iter()
            .chain(figures)
            .collect()
    }
}

/// Returns the median. For figures that readers may want to compare, also returns the minimum and
/// the maximum.
fn cell(row: &Row, figure: Figure) -> String {
    let Some(spread) = row.spread(figure) else {
        return "-".to_owned();
    };
    let median = short(spread.median);
    match figure {
        Pairs | WaiterPairs | ClientPercent | ServerPercent if row.rounds.len() > 1 => {
            let (least, most) = (short(spread.least), short(spread.most));
            format!("{median} ({least} to {most})")
        }
        _ => median,
    }
}

/// Returns all tables, for the terminal.
pub(crate) fn all(results: &Results) -> String {
    let mut text = String::new();
    for sheet in sheets(results) {
        let mut table = Table::new();
        table.set_header(&sheet.head);
        table.add_rows(&sheet.rows);
        text.push_str(&format!("{}\n{table}\n", sheet.title));
    }
    for skipped in &results.skipped {
        text.push_str(&format!("{skipped}\n"));
    }
    text
}

/// Returns the list of scenarios, each with its description and its systems.
pub(crate) fn list() -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    for scenario in scenario::ALL {
        let systems: Vec<_> = scenario.systems.iter().map(|it| it.name()).collect();
        table.add_row([scenario.name, scenario.what, &systems.join(" ")]);
    }
    format!("{table}\n")
}
