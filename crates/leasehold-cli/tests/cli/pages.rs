//! `leasehold completions` and `leasehold man`.

use crate::support::{done, leasehold};

#[test]
fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let made = done(leasehold().args(["completions", shell])).expect_code(0);
        assert!(made.stdout.contains("min-hold"), "{shell}: {made}");
    }
    done(leasehold().args(["completions", "csh"])).expect_code(2);
}

#[test]
fn each_sub_command_has_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    done(leasehold().args(["man", "--out"]).arg(folder.path())).expect_code(0);
    let help = done(leasehold().arg("--help")).expect_code(0);
    let commands = help.stdout.split("Commands:").nth(1).expect("commands");
    let commands = commands.split("Options:").next().expect("options");
    let names = commands
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let mut found = 0;
    for name in names.filter(|name| *name != "help") {
        let file = folder.path().join(format!("leasehold-{name}.1"));
        if let Ok(page) = std::fs::read_to_string(&file) {
            assert!(page.contains(".SH SYNOPSIS"), "{name}");
            found += 1;
        }
    }
    assert!(found >= 10, "{found}: {help}");
    let page = done(leasehold().arg("man")).expect_code(0);
    assert!(page.stdout.contains(".TH leasehold"), "{page}");
    let nowhere = ["man", "--out", "/nowhere/at/all"];
    done(leasehold().args(nowhere))
        .expect_code(1)
        .expect_on_stderr("can't write /nowhere");
}
