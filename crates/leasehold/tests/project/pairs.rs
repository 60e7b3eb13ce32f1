//! `docs/pairs.md` has each pair of features once, with tests that exist.

use std::collections::BTreeMap;

use super::guarantees::{missing, names, read};

const PAGE: &str = "docs/pairs.md";
/// The folder of the files that the page names, unless the page gives a path.
const TESTS: &str = "crates/leasehold/tests/";

/// Returns the two features of each row, and its text about them.
fn rows(page: &str) -> Vec<([&str; 2], &str)> {
    let (mut feature, mut rows) = ("", Vec::new());
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            feature = heading;
        }
        let row = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"));
        let Some((with, says)) = row.and_then(|row| row.split_once(" | ")) else {
            continue;
        };
        if !feature.is_empty() && with != "With" {
            rows.push(([feature, with], says));
        }
    }
    rows
}

#[test]
fn each_pair_of_features_stands_in_the_page_once() {
    let page = read(PAGE);
    // A heading begins with a capital letter, and a row does not.
    let plain = |feature: &str| feature.to_lowercase();
    let mut times = BTreeMap::<[String; 2], usize>::new();
    for (pair, _) in rows(&page) {
        let mut pair = pair.map(plain);
        pair.sort();
        *times.entry(pair).or_default() += 1;
    }
    let mut features: Vec<_> = times.keys().flatten().cloned().collect();
    features.sort();
    features.dedup();
    assert!(features.len() >= 32, "{features:#?}");
    let wrong = features.iter().enumerate().flat_map(|(number, one)| {
        let others = features[number + 1..].iter();
        others.map(|other| [one.clone(), other.clone()])
    });
    let wrong: Vec<_> = wrong.filter(|pair| times.get(pair) != Some(&1)).collect();
    assert!(wrong.is_empty(), "missing, or more than once: {wrong:#?}");
    let pairs = features.len() * (features.len() - 1) / 2;
    assert_eq!(times.len(), pairs, "a feature with itself");
    let says = format!("once, with the tests that use both: {pairs} pairs.");
    assert!(page.contains(&says), "it has to say: {says}");
}

#[test]
fn each_pair_has_a_test_that_exists_or_says_why_not() {
    let page = read(PAGE);
    let wrong = names(&page)
        .filter(|name| name.contains('#'))
        .filter_map(|name| match name.starts_with("crates/") {
            true => missing(name),
            false => missing(&format!("{TESTS}{name}")),
        });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{PAGE}: {wrong:#?}");
    for (pair, says) in rows(&page) {
        match says.split_once(": ") {
            Some(("cannot meet", why)) => assert!(!why.is_empty(), "{pair:?}"),
            _ => assert!(
                says.starts_with('`') && says.contains(".rs#"),
                "{pair:?}: {says}"
            ),
        }
    }
}
