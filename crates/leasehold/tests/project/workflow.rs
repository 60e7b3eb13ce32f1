//! The files that the public repository's workflow, the Dockerfile and the Debian package name do
//! exist. No other test runs these three.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::root;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn workflow() -> String {
    read(".github/workflows/ci.yml")
}

/// Returns the words that follow this word.
fn words_after<'a>(text: &'a str, word: &str) -> BTreeSet<&'a str> {
    let words: Vec<_> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == word);
    pairs.map(|pair| pair[1]).collect()
}

/// Returns the scripts of the repository that a text names.
fn scripts(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| letter.is_whitespace() || "()`'\"".contains(letter));
    let words = words.map(|word| word.trim_start_matches("./"));
    words.filter(|word| word.starts_with("scripts/")).collect()
}

#[test]
fn scripts_of_the_workflow_and_of_the_image_are_there() {
    let (workflow, image) = (workflow(), read("Dockerfile"));
    let named: BTreeSet<_> = scripts(&workflow)
        .union(&scripts(&image))
        .copied()
        .collect();
    assert!(named.contains("scripts/test") && named.contains("scripts/package"));
    for script in named {
        let found = fs::metadata(root().join(script));
        let found = found.unwrap_or_else(|error| panic!("{script}: {error}"));
        assert!(found.permissions().mode() & 0o100 != 0, "{script}");
    }
}

#[test]
fn tests_and_packages_of_the_workflow_are_there() {
    let workflow = workflow();
    let tests = words_after(&workflow, "--test");
    assert!(tests.contains("network"), "{tests:?}");
    for test in tests {
        read(&format!("crates/leasehold/tests/{test}.rs"));
    }
    let packages = words_after(&workflow, "-p");
    assert!(packages.contains("leasehold"), "{packages:?}");
    for package in packages {
        read(&format!("crates/{package}/Cargo.toml"));
    }
}

#[test]
fn actions_of_the_workflow_are_pinned_and_may_only_read() {
    let workflow = workflow();
    let used = workflow
        .lines()
        .filter_map(|line| line.split_once("uses: "));
    let mut count = 0;
    for (_, action) in used {
        let (_, pin) = action.split_once('@').unwrap();
        let (commit, version) = pin.split_once(" # v").unwrap();
        let is_hash = commit.len() == 40 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
        assert!(is_hash && !version.is_empty(), "{action}");
        count += 1;
    }
    assert!(count > 0);
    assert!(workflow.contains("\npermissions:\n  contents: read\n"));
    // Only the job that makes the release may write.
    assert_eq!(workflow.matches(": write").count(), 1);
}

#[test]
fn workflow_installs_the_targets_that_are_checked() {
    let checked = read("scripts/platforms");
    let (_, list) = checked.split_once("\ntargets=(").unwrap();
    let (list, _) = list.split_once(')').unwrap();
    let workflow = workflow();
    for target in list.split_whitespace() {
        assert!(workflow.contains(target), "{target}");
    }
}

#[test]
fn files_of_the_debian_package_are_there() {
    let manifest = read("crates/leasehold-cli/Cargo.toml");
    let (_, deb) = manifest.split_once("[package.metadata.deb]").unwrap();
    let (_, assets) = deb.split_once("assets = [").unwrap();
    let sources = assets.lines().filter_map(|line| line.split('"').nth(1));
    let mut count = 0;
    // `scripts/deb` makes the files in `target`.
    for source in sources.filter(|source| !source.contains("target/")) {
        let path = format!("crates/leasehold-cli/{}", source.trim_end_matches("/*"));
        assert!(root().join(&path).exists(), "{source}");
        count += 1;
    }
    assert!(count >= 3, "{assets}");
}
