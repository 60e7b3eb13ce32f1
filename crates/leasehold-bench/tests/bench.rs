//! Tests of the bench program, with everything as small as possible.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use leasehold_testkit::redisson::java_available;
use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leasehold-bench"))
        .args(args)
        .output()
        .expect("the bench can be started")
}

fn printed(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Returns scenario and system of each row that `--list` announces.
fn announced() -> BTreeSet<(String, String)> {
    let list = bench(&["--list"]);
    assert!(list.status.success(), "{}", printed(&list));
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let rows = list.lines().flat_map(|line| {
        let scenario = line.split_whitespace().next().unwrap_or_default();
        let systems = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        let systems = systems.last().unwrap_or_default().split(' ');
        systems.map(|system| (scenario.to_owned(), system.to_owned()))
    });
    rows.collect()
}

#[test]
fn every_scenario_runs_with_every_system() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("figures.json");
    let output = bench(&["--tiny", "--json", file.to_str().expect("a path")]);
    assert!(output.status.success(), "{}", printed(&output));
    let results = std::fs::read_to_string(file).expect("the figures");
    let results: Value = serde_json::from_str(&results).expect("JSON");
    let text = |row: &Value, field: &str| row[field].as_str().expect("a text").to_owned();
    let rows = results["rows"].as_array().expect("rows").iter();
    let measured: BTreeSet<_> = rows
        .map(|row| (text(row, "scenario"), text(row, "system")))
        .collect();
    let can_run =
        |(_, system): &(String, String)| java_available() || !system.starts_with("redisson");
    // The waiter of such a scenario is a Redisson, with every system that competes with it.
    let needs_java = |(scenario, _): &(String, String)| scenario.ends_with("-java");
    // The server on the path may not be able to confirm that data is on its disk.
    let skipped = results["skipped"].as_array().expect("rows").iter();
    let without_waitaof: BTreeSet<_> = skipped
        .filter(|row| text(row, "why").contains("WAITAOF"))
        .map(|row| (text(row, "scenario"), text(row, "system")))
        .collect();
    let is_on_disk = |(_, system): &(String, String)| system == "leasehold-on-disk";
    assert!(
        without_waitaof.iter().all(is_on_disk),
        "{without_waitaof:?}"
    );
    let expected: BTreeSet<_> = announced()
        .into_iter()
        .filter(|row| can_run(row) && (java_available() || !needs_java(row)))
        .filter(|row| !without_waitaof.contains(row))
        .collect();
    assert_eq!(measured, expected, "{}", printed(&output));
}

#[test]
fn missed_floor_ends_with_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |floors: &str| {
        let file = dir.path().join("floors");
        std::fs::write(&file, floors).expect("the folder is ours");
        let file = file.to_str().expect("a path");
        let scenario = [
            "--tiny",
            "--scenario",
            "re-entrant",
            "--system",
            "leasehold",
        ];
        bench(&[&scenario[..], &["--check", file]].concat())
    };
    let output = check("re-entrant commands <= 1000");
    assert!(output.status.success(), "{}", printed(&output));
    let output = check("re-entrant commands >= 1000");
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    assert!(
        printed(&output).contains("missed: "),
        "{}",
        printed(&output)
    );
    // The figure was not measured, so there is no verdict.
    let output = check("re-entrant pairs/s >= 1 x redisson-4.7.0");
    assert!(
        printed(&output).contains("not measured"),
        "{}",
        printed(&output)
    );
    let output = check("no-such-scenario pairs/s >= 1");
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
}

/// Checks that the floors of the short form detect a release that is not handed over.
#[test]
fn short_form_finds_a_lost_hand_over() {
    let args = ["--short", "--check", "--scenario", "hot-64"];
    let output = bench(&args);
    assert!(output.status.success(), "{}", printed(&output));
    let output = bench(&[&args[..], &["--no-hand-over"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
}

#[test]
fn page_is_written_from_figures() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).to_str().expect("a path").to_owned();
    let (figures, page) = (path("figures.json"), path("page.md"));
    let scenario = [
        "--tiny",
        "--scenario",
        "hot-2,hot-8",
        "--system",
        "leasehold",
    ];
    let output = bench(&[&scenario[..], &["--json", &figures]].concat());
    assert!(output.status.success(), "{}", printed(&output));
    let output = bench(&["--from", &figures, "--page", &page]);
    assert!(output.status.success(), "{}", printed(&output));
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains("| hot-8 | leasehold | "), "{page}");
    let plot = std::fs::read_to_string(path("page/throughput.svg")).expect("a plot");
    assert!(plot.contains("<svg") && plot.contains("tasks"), "{plot}");
}
