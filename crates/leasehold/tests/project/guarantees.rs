//! The pages in `docs/evidence`, and the pages beside them, name tests and mutants that exist. Each
//! promise has a test, a mutant and a limit. `docs/scenarios.md` counts its own rows.

use std::collections::{BTreeMap, HashSet};

use super::root;
use crate::support::sources::files;

/// The folder of the pages with every promise.
const EVIDENCE: &str = "docs/evidence";

/// Further pages that name tests.
const PAGES: [&str; 3] = [
    "docs/guarantees.md",
    "docs/topologies.md",
    "docs/failures.md",
];

pub(super) fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

/// Returns the pages of evidence as one text.
fn evidence() -> String {
    let pages = files(&root().join(EVIDENCE), &["md"]);
    let texts = pages
        .iter()
        .map(|page| std::fs::read_to_string(page).unwrap());
    texts.collect::<Vec<_>>().join("\n# \n")
}

/// A promise, and its evidence.
struct Promise<'a> {
    text: &'a str,
    shown_by: &'a str,
    mutants: &'a str,
    ends: &'a str,
}

/// Returns the promises of a page. Each begins with a line in bold letters, and lists follow it.
fn promises(page: &str) -> Vec<Promise<'_>> {
    let blocks = page.split("\n**").skip(1);
    let promises = blocks.map(|block| {
        let block = block.split("\n#").next().unwrap_or_default();
        let mut rest = block;
        let mut before = |mark| {
            let (part, after) = rest.split_at(rest.find(mark).unwrap_or(rest.len()));
            rest = after;
            part.trim()
        };
        let [text, shown_by, mutants] =
            ["\n- Shown by\n", "\n- Mutants: ", "\n- Ends"].map(&mut before);
        Promise {
            text,
            shown_by,
            mutants,
            ends: rest.trim(),
        }
    });
    promises.collect()
}

/// Returns the sections of all files of mutants, by name.
fn mutants() -> BTreeMap<String, String> {
    let files = files(&root().join("mutants"), &["toml"]);
    let sections = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        let sections = text.split("\n[").skip(1).filter_map(|section| {
            let (name, fields) = section.split_once("]\n")?;
            // A change of a mutant begins with two brackets.
            (!name.starts_with('[')).then(|| (name.to_owned(), fields.to_owned()))
        });
        sections.collect::<Vec<_>>()
    });
    let mut mutants = BTreeMap::new();
    for (name, fields) in sections {
        let before = mutants.insert(name.clone(), fields);
        assert!(before.is_none(), "{name}: two mutants have this name");
    }
    mutants
}

/// Returns the texts between backticks.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns an error about a test that does not exist; nothing for a name that is not a test's.
pub(super) fn missing(name: &str) -> Option<String> {
    let (file, function) = name.split_once('#')?;
    let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
    (!text.contains(&format!("fn {function}("))).then(|| format!("no `{function}` in {file}"))
}

#[test]
fn every_name_exists() {
    let pages = PAGES.map(read).into_iter().chain([evidence()]);
    for page in pages {
        let wrong: Vec<_> = names(&page).filter_map(missing).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
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
    let counted = format!("Tests cause {run} of these {} troubles", rows.len());
    assert!(page.contains(&counted), "it has to say: {counted}");
}

#[test]
fn every_guarantee_has_test_mutant_and_end() {
    let (evidence, all_mutants) = (evidence(), mutants());
    let promises = promises(&evidence);
    assert!(promises.len() > 190, "{}", promises.len());
    let mut texts = HashSet::new();
    for Promise {
        text,
        shown_by,
        mutants,
        ends,
    } in promises
    {
        let has = |list: &str, mark: &str| names(list).any(|name| name.contains(mark));
        assert!(text.contains(".**"), "no sentence: {text}");
        assert!(texts.insert(text), "more than once: {text}");
        assert!(has(shown_by, "#"), "no test for: {text}");
        // The other names are options of the simulator.
        let named: Vec<_> = names(mutants)
            .filter(|name| !name.starts_with('-'))
            .collect();
        assert!(!named.is_empty(), "no mutant for: {text}");
        for name in named {
            assert!(all_mutants.contains_key(name), "{name}, for: {text}");
        }
        assert!(has(ends, "#"), "no test for the end of: {text}");
    }
}

#[test]
fn a_promise_without_an_end_is_found() {
    let page = "# A\n\n**It works.** So\n\n- Shown by\n  - `a#b`\n- Mutants: `c`\n- Ends: `d#e`\n\n**No.**\n";
    let [whole, bare] = &promises(page)[..] else {
        panic!("two promises");
    };
    assert_eq!(whole.text, "It works.** So");
    assert_eq!(names(whole.shown_by).collect::<Vec<_>>(), ["a#b"]);
    assert_eq!(names(whole.mutants).collect::<Vec<_>>(), ["c"]);
    assert_eq!(names(whole.ends).collect::<Vec<_>>(), ["d#e"]);
    assert_eq!((bare.shown_by, bare.mutants, bare.ends), ("", "", ""));
}

#[test]
fn every_mutant_is_named_by_what_catches_it() {
    let (page, mutants) = (evidence(), mutants());
    assert!(mutants.len() > 600, "{}", mutants.len());
    for (name, fields) in mutants {
        let field = |key: &str| {
            let start = format!("{key} = \"");
            let text = fields.lines().find_map(|line| line.strip_prefix(&start));
            text.unwrap_or_else(|| panic!("{name} does not say `{key}`"))
        };
        assert!(!field("what").starts_with('"'), "{name}");
        let check = field("caught-by").split([' ', '"']).next().unwrap();
        assert!(["sim", "test"].contains(&check), "{name}");
        assert!(
            page.contains(&format!("`{name}`")),
            "no page in {EVIDENCE} names {name}"
        );
    }
}

#[test]
fn a_name_that_does_not_exist_is_found() {
    assert!(missing("crates/leasehold/src/testing/history.rs#no_such_function").is_some());
    assert!(missing("crates/leasehold/src/testing/history.rs#check").is_none());
    assert!(missing("valid_until").is_none());
}
