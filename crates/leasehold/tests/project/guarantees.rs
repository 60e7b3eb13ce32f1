//! `docs/guarantees.md` and `docs/scenarios.md` name tests and mutants that exist; the first has no
//! empty cell, and the second counts its own rows.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    read("docs/guarantees.md")
}

pub(super) fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

/// Returns the rows of the tables of promises, without their heads: sentence, shown by, mutants,
/// end.
fn rows(page: &str) -> Vec<Vec<String>> {
    let (mut of_promises, mut before) = (false, "");
    page.lines()
        .filter(|line| {
            let is_head = line.starts_with('|') && !before.starts_with('|');
            before = line;
            if is_head {
                of_promises = line.starts_with("| The promise");
            }
            line.starts_with('|') && of_promises && !is_head && !line.starts_with("|---")
        })
        .map(|line| {
            let inner = line.trim_matches('|');
            inner.split('|').map(|cell| cell.trim().into()).collect()
        })
        .collect()
}

/// Returns the texts between backticks.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns an error about a name whose test or file does not exist; nothing for a name that refers
/// to neither.
pub(super) fn missing(name: &str) -> Option<String> {
    if name.ends_with(".patch") {
        return (!root().join(name).is_file()).then(|| format!("there is no {name}"));
    }
    let (file, function) = name.split_once('#')?;
    let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
    (!text.contains(&format!("fn {function}("))).then(|| format!("no `{function}` in {file}"))
}

#[test]
fn every_name_exists() {
    let page = page();
    let wrong: Vec<_> = names(&page).filter_map(missing).collect();
    assert!(wrong.is_empty(), "docs/guarantees.md: {wrong:#?}");
}

#[test]
fn every_trouble_has_its_test_or_a_reason() {
    let page = read("docs/scenarios.md");
    let wrong: Vec<_> = names(&page).filter_map(missing).collect();
    assert!(wrong.is_empty(), "docs/scenarios.md: {wrong:#?}");
    let rows: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .filter(|line| !line.starts_with("Trouble |"))
        .collect();
    let run = rows.iter().filter(|row| row.contains(".rs#")).count();
    for row in &rows {
        assert_eq!(row.matches(" | ").count(), 3, "not four cells: {row}");
        assert!(row.contains(".rs#") || row.contains("| not run: "), "{row}");
    }
    let counted = format!("{run} of {} troubles are made by a test", rows.len());
    assert!(page.contains(&counted), "it has to say: {counted}");
}

#[test]
fn every_guarantee_has_test_mutant_and_end() {
    let rows = rows(&page());
    assert!(rows.len() > 20);
    for row in rows {
        let [promise, shown_by, mutants, end] = &row[..] else {
            panic!("not four cells: {row:?}");
        };
        let has = |cell: &str, mark: &str| names(cell).any(|name| name.contains(mark));
        assert!(!promise.is_empty());
        assert!(has(shown_by, "#"), "no test for: {promise}");
        assert!(has(mutants, ".patch"), "no mutant for: {promise}");
        assert!(has(end, "#"), "no test for the end of: {promise}");
    }
}

#[test]
fn every_mutant_is_named_by_what_catches_it() {
    let page = page();
    for entry in std::fs::read_dir(root().join("mutants")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let patch = std::fs::read_to_string(&path).unwrap();
        let head = |field: &str| {
            let start = format!("# {field}: ");
            let line = patch.lines().find_map(|line| line.strip_prefix(&start));
            line.unwrap_or_else(|| panic!("{name} does not say `{field}`"))
        };
        assert!(!head("What").is_empty());
        assert!(
            ["sim", "test"].contains(&head("Caught by").split(' ').next().unwrap()),
            "{name}"
        );
        assert!(
            page.contains(&format!("mutants/{name}")),
            "docs/guarantees.md does not name {name}"
        );
    }
}

#[test]
fn a_name_that_does_not_exist_is_found() {
    assert!(missing("mutants/none.patch").is_some());
    assert!(missing("crates/leasehold/src/testing/history.rs#no_such_function").is_some());
    assert!(missing("crates/leasehold/src/testing/history.rs#check").is_none());
    assert!(missing("valid_until").is_none());
}
