//! Writes `docs/performance.md`: a template with the results filled in.

use std::fs;
use std::path::Path;

use crate::floors::Floor;
use crate::machine::Machine;
use crate::results::Results;
use crate::table::{self, Sheet};
use crate::{Result, plots, scenario};

const TEMPLATE: &str = include_str!("page.md");

/// Writes the page, and its plots into the folder `performance` beside it.
pub(crate) fn write(file: &Path, results: &Results, floors: &[Floor]) -> Result<()> {
    let plots = file.with_extension("");
    fs::create_dir_all(&plots)?;
    for (name, svg) in plots::all(results)? {
        fs::write(plots.join(name), svg)?;
    }
    Ok(fs::write(file, text(results, floors))?)
}

fn text(results: &Results, floors: &[Floor]) -> String {
    let rounds = results.rows.iter().map(|row| row.rounds.len()).max();
    let rounds = format!(
        "{} rounds of {:.1} s",
        rounds.unwrap_or(0),
        results.run_ms as f64 / 1000.0
    );
    TEMPLATE
        .replace("{machine}", &machine(&results.machine))
        .replace("{rounds}", &rounds)
        .replace("{floors}", &verdicts(results, floors))
        .replace("{scenarios}", &scenarios())
        .replace("{tables}", &tables(results))
        .replace("{skipped}", &skipped(results))
}

fn machine(machine: &Machine) -> String {
    let Machine {
        date,
        cpu,
        cores,
        system,
        load,
        server,
        java,
        leasehold,
        redis_crate,
        rslock,
        debug,
    } = machine;
    let build = match debug {
        true => "debug build",
        false => "release build",
    };
    markdown(&Sheet {
        title: "",
        head: vec!["", ""],
        rows: [
            ("date", date.clone()),
            ("machine", format!("{cores} cores of {cpu}, {system}")),
            ("load average at the start", load.clone()),
            ("server", format!("{server}, on the same machine")),
            ("Leasehold", format!("{leasehold}, {build}")),
            ("Redisson", format!("3.16.8 and 4.7.0, on Java {java}")),
            ("crates", format!("redis {redis_crate}, rslock {rslock}")),
        ]
        .map(|(what, value)| vec![what.to_owned(), value])
        .to_vec(),
    })
}

fn verdicts(results: &Results, floors: &[Floor]) -> String {
    markdown(&Sheet {
        title: "",
        head: vec!["goal", "this run"],
        rows: floors
            .iter()
            .map(|floor| vec![format!("`{floor}`"), floor.judge(results).to_string()])
            .collect(),
    })
}

fn scenarios() -> String {
    let rows = scenario::ALL.iter();
    markdown(&Sheet {
        title: "",
        head: vec!["scenario", "what it is"],
        rows: rows
            .map(|it| vec![format!("`{}`", it.name), it.what.to_owned()])
            .collect(),
    })
}

fn tables(results: &Results) -> String {
    let sheets = table::sheets(results).into_iter();
    sheets
        .map(|sheet| format!("### {}\n\n{}", sheet.title, markdown(&sheet)))
        .collect::<Vec<_>>()
        .join("\n")
}

fn skipped(results: &Results) -> String {
    if results.skipped.is_empty() {
        return "Nothing was left out.\n".to_owned();
    }
    let lines = results.skipped.iter();
    lines.map(|skipped| format!("- {skipped}\n")).collect()
}

fn markdown(sheet: &Sheet) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = sheet.head.iter().map(|it| (*it).to_owned()).collect();
    let mut text = line(&head);
    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    for row in &sheet.rows {
        text.push_str(&line(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::figure::Figure;
    use crate::results::tests::row;

    fn results() -> Results {
        Results {
            machine: Machine::default(),
            run_ms: 1500,
            rows: vec![row("hot-64", "leasehold", Figure::Commands, &[1.0, 3.0])],
            skipped: Vec::new(),
        }
    }

    #[test]
    fn page_has_rows_rounds_and_verdicts() {
        let floors = crate::floors::parse("hot-64 commands <= 2").expect("a floor");
        let text = text(&results(), &floors);
        assert!(text.contains("2 rounds of 1.5 s"), "{text}");
        assert!(text.contains("| `hot-64 commands <= 2` | missed: 3.00 |"));
        assert!(text.contains("| hot-64 | leasehold | 3.00 |"), "{text}");
        let left: Vec<_> = text.match_indices("{").collect();
        assert!(
            left.is_empty(),
            "a place of the template is empty: {left:?}"
        );
    }

    /// Checks that the page shows exactly the scenarios that exist.
    #[test]
    fn rows_of_the_page_are_the_scenarios() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md");
        let page = fs::read_to_string(page).expect("the page is there");
        let rows = |line: &str| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let (scenario, system) = (cells.next()?.to_owned(), cells.next()?.to_owned());
            let is_system = system.parse::<crate::system::System>().is_ok();
            is_system.then_some((scenario, system))
        };
        let measured: BTreeSet<_> = page.lines().filter_map(rows).collect();
        let expected: BTreeSet<_> = scenario::ALL
            .iter()
            .flat_map(|scenario| {
                let row =
                    |system: &crate::system::System| (scenario.name.to_owned(), system.to_string());
                scenario.systems.iter().map(row)
            })
            .collect();
        assert_eq!(measured, expected, "write the page anew: `--page`");
    }

    #[test]
    fn page_and_readme_show_the_plots() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |file: &str| fs::read_to_string(root.join(file)).expect("it is there");
        for (name, _) in plots::all(&results()).expect("plots of little") {
            assert!(root.join("docs/performance").join(name).exists(), "{name}");
            assert!(TEMPLATE.contains(name), "{name}");
        }
        assert!(read("README.md").contains("docs/performance/throughput.svg"));
    }
}
