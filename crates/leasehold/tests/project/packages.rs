//! The contents of the published packages, and the links of their pages.

use std::process::Command;

use super::root;

const PACKAGES: [&str; 3] = ["leasehold-macros", "leasehold", "leasehold-cli"];

/// Returns the files of the package, without its sources.
fn contents(package: &str) -> Vec<String> {
    let list = [
        "package",
        "--list",
        "--allow-dirty",
        "--offline",
        "-p",
        package,
    ];
    let output = Command::new(env!("CARGO"))
        .args(list)
        .current_dir(root())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{package}: {errors}");
    let files = String::from_utf8(output.stdout).unwrap();
    let files = files.lines().filter(|file| !file.starts_with("src/"));
    files.map(str::to_owned).collect()
}

#[test]
fn packages_have_their_licences_and_no_tests() {
    for package in PACKAGES {
        let files = contents(package);
        for wanted in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.toml"] {
            assert!(
                files.iter().any(|file| file == wanted),
                "{package}: {wanted}"
            );
        }
        // The tests need the testkit, which is not published.
        let others = files.iter().filter(|file| !file.starts_with("examples/"));
        let others: Vec<_> = others.filter(|file| file.contains('/')).collect();
        assert!(others.is_empty(), "{package}: {others:?}");
    }
}

#[test]
fn pages_of_packages_link_to_nothing_in_the_repository() {
    for package in PACKAGES {
        let page = root().join("crates").join(package).join("README.md");
        let page = std::fs::read_to_string(page).unwrap();
        let links = page.split("](").skip(1);
        let inside = links.filter(|link| !link.starts_with("https://") && !link.starts_with('#'));
        assert_eq!(inside.collect::<Vec<_>>(), [""; 0], "{package}");
    }
}
