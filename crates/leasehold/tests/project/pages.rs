//! The links of the pages, and the error texts on the page that explains them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::sources::files;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Returns the pages at the root, and in `docs` and its folders, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let at_the_root = fs::read_dir(root()).unwrap();
    let at_the_root = at_the_root.map(|file| file.unwrap().path());
    let at_the_root =
        at_the_root.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    at_the_root
        .chain(files(&root().join("docs"), &["md"]))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect()
}

/// Returns the anchors of a page, one for each heading.
fn anchors(page: &str) -> HashSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

/// Returns the targets of a page's links, except for links in code.
fn links(page: &str) -> Vec<&str> {
    let mut in_block = false;
    let lines = page.lines().filter(|line| {
        in_block ^= line.starts_with("```");
        !in_block
    });
    let parts = lines.flat_map(|line| line.split("](").skip(1));
    parts
        .filter_map(|part| part.split_once(')').map(|(target, _)| target))
        .collect()
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let texts: HashMap<_, _> = pages().into_iter().collect();
    let mut broken = Vec::new();
    for (path, text) in &texts {
        for link in links(text) {
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let target = target.canonicalize().unwrap_or(target);
            let has_anchor = |page: &String| anchors(page).contains(anchor);
            let leads =
                target.exists() && (anchor.is_empty() || texts.get(&target).is_none_or(has_anchor));
            if !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_in_the_navigation_and_in_the_list_of_pages() {
    let docs = root().join("docs");
    let listed = |page: &str| {
        let text = fs::read_to_string(docs.join(page)).unwrap();
        let targets = links(&text);
        let targets = targets.iter().map(|link| docs.join(link).canonicalize());
        targets.filter_map(Result::ok).collect::<HashSet<_>>()
    };
    let (navigation, list) = (listed("SUMMARY.md"), listed("README.md"));
    for (path, _) in pages() {
        let is_navigation = path.ends_with("docs/SUMMARY.md");
        assert!(is_navigation || navigation.contains(&path), "{path:?}");
        // The list of pages names a folder of `docs` by its first page.
        let is_listed = path.parent() == Some(&docs) && !path.ends_with("docs/README.md");
        assert!(
            is_navigation || !is_listed || list.contains(&path),
            "{path:?}"
        );
    }
}

/// Returns all sources of the crates as one text, with single spaces and without escaped line ends.
fn sources() -> String {
    fn read(folder: &Path, all: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, all);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                *all += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut all = String::new();
    for package in ["leasehold", "leasehold-cli"] {
        read(&root().join("crates").join(package).join("src"), &mut all);
    }
    let words: Vec<_> = all
        .split_whitespace()
        .filter(|word| *word != "\\")
        .collect();
    words.join(" ")
}

#[test]
fn explained_errors_are_what_the_code_says() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let sources = sources();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let mut checked = 0;
    for row in rows {
        let says = row.split('|').nth(1).unwrap();
        for text in says.split('`').skip(1).step_by(2) {
            for part in text
                .split('…')
                .map(|part| part.trim_matches([' ', ';', ',', ':']))
            {
                // The words in capitals are the server's own.
                if part.len() > 3 && part.chars().any(char::is_lowercase) {
                    assert!(sources.contains(part), "no error says: {part}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 20, "{checked}");
}
