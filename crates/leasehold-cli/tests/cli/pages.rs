//! `leasehold completions` and `leasehold man`.

use std::collections::BTreeMap;

use crate::support::{done, leasehold};

#[test]
fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let made = done(leasehold().args(["completions", shell])).expect_code(0);
        assert!(made.stdout.contains("min-hold"), "{shell}: {made}");
        for hidden in ["demo-worker", "run-deadman", "run-launch", "poll-interval"] {
            assert!(!made.stdout.contains(hidden), "{shell} offers {hidden}");
        }
    }
    let made = done(leasehold().args(["completions", "bash"])).expect_code(0);
    assert!(made.stdout.contains("term kill warn"), "{made}");
    done(leasehold().args(["completions", "csh"])).expect_code(2);
}

/// Returns the pages by name.
fn pages() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    done(leasehold().args(["man", "--out"]).arg(folder.path())).expect_code(0);
    let files = std::fs::read_dir(folder.path()).expect("it is there");
    let page = |file: std::io::Result<std::fs::DirEntry>| {
        let file = file.expect("it can be read").path();
        let name = file
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        (name, std::fs::read_to_string(&file).expect("text"))
    };
    files.map(page).collect()
}

#[test]
fn each_sub_command_has_a_page_with_its_sections() {
    let pages = pages();
    let help = done(leasehold().arg("--help")).expect_code(0);
    let commands = help.stdout.split("Commands:").nth(1).expect("commands");
    let commands = commands.split("Options:").next().expect("options");
    // Continued lines of a description begin further right.
    let names = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let mut found = 0;
    for name in names.filter(|name| *name != "help") {
        let page = &pages[&format!("leasehold-{name}")];
        for section in [
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "\"EXIT STATUS\"",
            "ENVIRONMENT",
            "\"SEE ALSO\"",
        ] {
            assert!(
                page.contains(&format!(".SH {section}\n")),
                "{name}: {section}: {page}"
            );
        }
        // Each page has the options of the connection. The environment names some of them, too.
        let option = "\\fB\\-\\-password\\-file\\fR";
        assert!(page.contains(option), "{name}: {page}");
        assert!(!page.contains(".SH EXTRA"), "{name}: {page}");
        found += 1;
    }
    assert!(found >= 12, "{found}: {help}");
    assert!(pages["leasehold-run"].contains("LEASEHOLD_TOKEN"));
    assert!(!pages["leasehold-run"].contains("poll\\-interval"));
    let page = done(leasehold().arg("man")).expect_code(0);
    assert!(page.stdout.contains(".TH leasehold"), "{page}");
    let nowhere = ["man", "--out", "/nowhere/at/all"];
    done(leasehold().args(nowhere))
        .expect_code(1)
        .expect_on_stderr("can't write /nowhere");
}

#[test]
fn pages_name_only_pages_that_are_there() {
    let pages = pages();
    for (name, page) in &pages {
        let plain = page
            .replace("\\-", "-")
            .replace("\\fB", "")
            .replace("\\fR", "");
        let words = plain.split([' ', '\n', ',']);
        let named = words.filter_map(|word| word.strip_suffix("(1)"));
        let named: Vec<_> = named.collect();
        assert!(!named.is_empty(), "{name} names none");
        for other in named {
            assert!(pages.contains_key(other), "{name} names {other}");
        }
    }
    assert!(
        pages.contains_key("leasehold-latch-wait"),
        "{:?}",
        pages.keys()
    );
}
