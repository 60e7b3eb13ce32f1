//! The ceilings of `CONTRIBUTING.md` for the number of crates that a build takes, and panics that
//! unwind in every profile.

use std::collections::BTreeSet;
use std::process::Command;

use super::root;

/// The rows of the page, and the arguments of `cargo tree` that list the crates.
const ROWS: [(&str, &[&str]); 6] = [
    ("the command", &["-p", "leasehold-cli"]),
    (
        "the command with TLS only",
        &[
            "-p",
            "leasehold-cli",
            "--no-default-features",
            "--features=tls",
        ],
    ),
    (
        "the command, no default features",
        &["-p", "leasehold-cli", "--no-default-features"],
    ),
    ("the library", &["-p", "leasehold"]),
    (
        "the library, no default features",
        &["-p", "leasehold", "--no-default-features"],
    ),
    (
        "the library with macros",
        &["-p", "leasehold", "--features", "macros"],
    ),
];

/// Counts the crates that are compiled into the package, with the package itself.
fn crates(arguments: &[&str]) -> usize {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "-e", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    let list = String::from_utf8(output.stdout).unwrap();
    let names = list.lines().map(|line| line.trim_end_matches(" (*)"));
    names.collect::<BTreeSet<_>>().len()
}

/// Returns the ceiling in this row of the page.
fn ceiling(page: &str, row: &str) -> usize {
    let start = format!("| crates of {row} | ");
    let line = page.lines().find_map(|line| line.strip_prefix(&start));
    let number = line.unwrap_or_else(|| panic!("no row `{row}`"));
    number.trim_end_matches(" |").parse().unwrap()
}

#[test]
fn builds_take_no_more_crates_than_the_page_allows() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    for (row, arguments) in ROWS {
        let (now, most) = (crates(arguments), ceiling(&page, row));
        println!("{row}: {now} of {most}");
        assert!(
            now <= most,
            "{row} takes {now} crates, and CONTRIBUTING.md allows {most}"
        );
    }
}

#[test]
fn panics_unwind_in_each_profile() {
    // A panic of a user's callback is caught. With `panic = "abort"`, it would end the process.
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("[profile.dist]"));
    let set = manifest.lines().find(|line| line.starts_with("panic"));
    assert_eq!(set, None);
}
