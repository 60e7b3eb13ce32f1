//! `leasehold completions` and `leasehold man`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use leasehold_testkit::RedisServer;

use crate::support::{BINARY, done, leasehold, leasehold_at, server, start};

#[test]
fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let made = done(leasehold().args(["completions", shell])).expect_code(0);
        assert!(made.stdout.contains("min-hold"), "{shell}: {made}");
        for hidden in [
            "demo-worker",
            "run-deadman",
            "run-launch",
            "poll-interval",
            "(names)",
        ] {
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
    // Continuation lines of a description begin further right.
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
        // If the command connects, its page has the options of the connection. The section on the
        // environment names some of them, too.
        let connects = !["completions", "man"].contains(&name);
        let option = "\\fB\\-\\-password\\-file\\fR";
        assert_eq!(page.contains(option), connects, "{name}: {page}");
        assert_eq!(page.contains("LEASEHOLD_URL"), connects, "{name}: {page}");
        assert!(!page.contains(".SH EXTRA"), "{name}: {page}");
        found += 1;
    }
    assert!(found >= 12, "{found}: {help}");
    assert!(pages["leasehold-run"].contains("LEASEHOLD_TOKEN"));
    let usage = "leasehold run [OPTIONS] NAME \\-\\- CMD...";
    assert!(
        pages["leasehold-run"].contains(usage),
        "{}",
        pages["leasehold-run"]
    );
    let version = concat!("\"leasehold ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(pages["leasehold-latch-wait"].contains(version));
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

#[test]
fn help_of_pages_is_without_a_connection() {
    for command in ["completions", "man"] {
        let help = done(leasehold().args([command, "--help"])).expect_code(0);
        assert!(!help.stdout.contains("--password-file"), "{help}");
        assert!(!help.stdout.contains("Connection"), "{help}");
    }
    // A wrapper may add such options to each command line.
    done(leasehold().args(["completions", "bash", "--redis", "redis://h"])).expect_code(0);
    done(leasehold().args(["--prefix", "app:", "man"])).expect_code(0);
}

/// Returns the folders of programs, including the binary's folder.
fn path() -> String {
    let folder = Path::new(BINARY).parent().expect("a folder").display();
    format!("{folder}:{}", std::env::var("PATH").unwrap_or_default())
}

/// Returns bash's completions for the end of this line.
fn completed(server: &RedisServer, line: &str) -> Vec<String> {
    const AT_THE_END: &str = r#"
        eval "$(leasehold completions bash)"
        COMP_LINE=$1 COMP_POINT=${#1}
        # As bash cuts a line: each colon and equals sign is a word.
        read -ra COMP_WORDS <<<"$(sed 's/[:=]/ & /g' <<<"$1")"
        case $1 in *[:=\ ]) COMP_WORDS+=("") ;; esac
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        complete -p leasehold | grep -q -- '-F _leasehold_words' || exit 1
        _leasehold_words leasehold "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["-c", AT_THE_END, "bash", line]);
    bash.env("LEASEHOLD_URL", server.url()).env("PATH", path());
    let words = done(&mut bash).expect_code(0).stdout;
    let mut words: Vec<_> = words.lines().map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn bash_completes_names_commands_and_values() {
    let server = server();
    let mut holders: Vec<_> = ["orders:1", "orders:2", "it's [a] name"]
        .map(|name| start(leasehold_at(&server).args(["hold", name])))
        .into();
    holders.iter_mut().for_each(|holder| holder.until("held"));
    let at = |line: &str| completed(&server, line);
    // Bash replaces only the text after the last colon.
    for line in ["show", "watch --every 1s", "release -y", "run -nw 5s"] {
        assert_eq!(
            at(&format!("leasehold {line} orders:")),
            ["1", "2"],
            "{line}"
        );
    }
    assert_eq!(at("leasehold show it"), [r"it\'s\ \[a\]\ name"]);
    let elsewhere = format!("leasehold --redis {} -q show ord", server.url());
    assert_eq!(at(&elsewhere), ["orders:1", "orders:2"]);
    assert_eq!(at("leasehold --prefix ord show er"), ["ers:1", "ers:2"]);
    assert_eq!(at("leasehold show --js"), ["--json"]);
    assert_eq!(at("leasehold run --on-loss "), ["kill", "term", "warn"]);
    assert!(at("leasehold run orders -- slee").contains(&"sleep".to_owned()));
}

#[test]
fn completing_names_ends_without_a_server() {
    let mut complete = leasehold();
    complete.args(["--redis", "redis://127.0.0.1:1", "names", "--", "x"]);
    done(&mut complete).expect_code(69);
    let line = ["complete", "--", "ls", "x"];
    let nothing = done(leasehold().args(line)).expect_code(0);
    assert_eq!(nothing.stdout, "");
}

/// Returns what a shell prints that some machines lack.
fn printed_by(shell: &str, server: &RedisServer, script: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(shell);
    command
        .args(["-c", script])
        .current_dir(folder.path())
        .env("HOME", folder.path())
        .env("PATH", path())
        .env("LEASEHOLD_URL", server.url());
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(String::from_utf8(output.stdout).expect("UTF-8"))
        }
        Err(error) => {
            eprintln!("skipped: {shell}: {error}");
            None
        }
    }
}

#[test]
fn fish_and_zsh_complete_names_and_commands() {
    let server = server();
    let mut holder = start(leasehold_at(&server).args(["hold", "orders:1"]));
    holder.until("held");
    let script = format!(
        "leasehold completions fish | source
        complete -C 'leasehold --redis {} show or'
        complete -C 'leasehold run x -- slee'",
        server.url()
    );
    if let Some(text) = printed_by("fish", &server, &script) {
        assert!(
            text.contains("orders:1") && text.contains("sleep"),
            "{text}"
        );
    }
    // zsh completes only at a terminal, so this only checks that it can parse the script.
    let script = "leasehold completions zsh >_leasehold && zsh -n _leasehold && cat _leasehold";
    if let Some(text) = printed_by("zsh", &server, script) {
        assert!(text.contains("Name to look at:_leasehold_names'"), "{text}");
        assert!(text.contains("\n_leasehold_options() {\n"), "{text}");
    }
}
