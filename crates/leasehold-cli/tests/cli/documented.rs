//! The commands that the documents show: commands of `leasehold` work, and commands of cargo name
//! existing packages, examples and tests.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{BINARY, done, leasehold, leasehold_at, server};

/// A command, and the document that shows it.
struct Shown {
    document: PathBuf,
    command: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).expect("it can be read")
}

fn files(folder: &str, kind: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join(folder)).expect("it is there");
    let files = files.map(|file| file.expect("it can be read").path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == kind))
        .collect()
}

/// Returns the documents, and the headers of examples as documents.
fn documents() -> Vec<(PathBuf, String)> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("it can be read");
        (path, text)
    };
    let folders = [
        "",
        "docs",
        "docs/evidence",
        "examples/with-java",
        "crates/leasehold",
        "crates/leasehold-cli",
    ];
    let pages = folders.iter().flat_map(|folder| files(folder, "md"));
    let mut documents: Vec<_> = pages.map(read).collect();
    for (path, text) in files("crates/leasehold/examples", "rs")
        .into_iter()
        .map(read)
    {
        let header: Vec<_> = text
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        documents.push((path, header.join("\n")));
    }
    documents
}

/// Returns the commands after a `$` in blocks, with their continuation lines, and the commands of
/// cargo in the text.
fn commands(text: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let (mut in_block, mut is_open) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            (in_block, is_open) = (!in_block && line.ends_with("console"), false);
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| in_block) {
            commands.push(command.to_owned());
            is_open = true;
        } else if let Some(last) = commands.last_mut().filter(|_| in_block && is_open) {
            *last += &format!("\n{line}");
        }
    }
    // A command in the text may continue on the next line.
    let joined = text.replace('\n', " ");
    let in_text = joined.split('`').skip(1).step_by(2);
    commands.extend(in_text.filter_map(|code| {
        let words = code.split_whitespace().collect::<Vec<_>>().join(" ");
        without_variables(&words)
            .starts_with("cargo ")
            .then_some(words)
    }));
    commands
}

/// Returns the command without leading `NAME=value` words.
fn without_variables(command: &str) -> &str {
    match command.split_once(' ') {
        Some((word, rest)) if word.contains('=') => without_variables(rest),
        _ => command,
    }
}

fn shown() -> Vec<Shown> {
    let mut shown = Vec::new();
    for (document, text) in documents() {
        shown.extend(commands(&text).into_iter().map(|command| Shown {
            document: document.clone(),
            command,
        }));
    }
    shown
}

/// Returns the examples in the help of each sub-command.
fn shown_in_help() -> Vec<Shown> {
    let mut shown = Vec::new();
    for words in [
        &["run"][..],
        &["hold"],
        &["show"],
        &["ls"],
        &["watch"],
        &["release"],
        &["latch"],
        &["set-limit"],
        &["completions"],
        &["man"],
    ] {
        let help = done(leasehold().args(words).arg("--help")).expect_code(0);
        let examples = help
            .stdout
            .split("Example")
            .nth(1)
            .expect("it has examples");
        let lines = examples.lines().filter_map(|line| line.strip_prefix("  "));
        shown.extend(lines.map(|line| Shown {
            document: words.join(" ").into(),
            command: line.to_owned(),
        }));
    }
    shown
}

/// Creates a folder with all files that the commands name.
fn workshop() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    symlink(BINARY, folder.path().join("leasehold")).expect("a link");
    for name in [
        "backup.sh",
        "make.sh",
        "job.sh",
        "report.sh",
        "transfer.sh",
        "part.sh",
        "psql",
        "sleep",
    ] {
        let file = folder.path().join(name);
        fs::write(&file, "#!/bin/sh\n").expect("it can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it can be run");
    }
    folder
}

#[test]
fn shown_commands_of_leasehold_run() {
    let (server, folder) = (server(), workshop());
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let all = shown().into_iter().chain(shown_in_help());
    let ours: Vec<_> = all
        .filter(|one| one.command.contains("leasehold "))
        .collect();
    let ours = ours.iter().filter(|one| !one.command.contains("cargo "));
    let mut run = 0;
    for Shown { document, command } in ours {
        // Each command starts with an empty server, without the leftovers of the previous one.
        server.command(&["FLUSHALL"]).expect("the server runs");
        let is_majority = command.contains("--redlock");
        // The servers of a majority do not exist. `--no-wait` finds this out at once.
        let line = match is_majority {
            true => command.replace(" run ", " run --no-wait "),
            false => command.clone(),
        };
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &line])
            .env("LEASEHOLD_URL", server.url())
            .env("PATH", &path)
            .current_dir(folder.path());
        let done = done(&mut shell);
        let wanted: &[i32] = match command {
            _ if is_majority => &[69],
            // The server is empty, and its settings are for tests.
            _ if command.starts_with("leasehold release") => &[0, 66],
            _ if command.starts_with("leasehold doctor") => &[0, 1, 2],
            _ if command.contains("| grep") => &[0, 1],
            _ => &[0],
        };
        assert!(
            wanted.contains(&done.code()),
            "{}: {line}: {done}",
            document.display()
        );
        run += 1;
    }
    assert!(run >= 45, "{run} were found");
}

/// Returns the words of a sub-command with flags that the text of a page names, such as `leasehold
/// run --fair NAME` or `run --fair NAME`.
fn named(code: &str) -> Option<Vec<&str>> {
    let ours = code.split(" -- ").next().unwrap_or_default();
    let words: Vec<_> = ours.split_whitespace().collect();
    let words = words.strip_prefix(&["leasehold"]).unwrap_or(&words);
    let commands = [
        "run", "hold", "show", "ls", "release", "watch", "top", "doctor", "latch",
    ];
    let is_named = commands.contains(words.first()?) && words.iter().any(|word| is_flag(word));
    is_named.then(|| words.to_vec())
}

fn is_flag(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1
}

/// Checks commands with placeholders in the text of the pages.
#[test]
fn commands_named_in_the_text_have_these_flags() {
    let mut helps = HashMap::new();
    let mut found = 0;
    for (page, text) in documents() {
        let text = text.replace('\n', " ");
        for words in text.split('`').filter_map(named) {
            // `latch wait` has flags of its own.
            let depth = if words[0] == "latch" { 2 } else { 1 };
            let command = words[..depth].join(" ");
            let help = helps.entry(command).or_insert_with(|| {
                let help = done(leasehold().args(&words[..depth]).arg("--help"));
                help.expect_code(0).stdout
            });
            for flag in words.iter().filter(|word| is_flag(word)) {
                let flag = flag.trim_end_matches([',', '…']);
                let is_there = help.split([' ', ',', '\n']).any(|word| word.trim() == flag);
                assert!(is_there, "{}: {words:?}: {help}", page.display());
            }
            found += 1;
        }
    }
    assert!(found >= 40, "{found} were found");
}

/// The metadata of the workspace from cargo.
struct Workspace(Value);

impl Workspace {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--no-deps",
                "--offline",
                "--format-version",
                "1",
            ])
            .current_dir(root())
            .output()
            .expect("cargo is there");
        Self(serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    fn package(&self, name: &str) -> Option<&Value> {
        let packages = self.0["packages"].as_array().expect("a list");
        packages.iter().find(|package| package["name"] == name)
    }

    /// Returns whether cargo would find the target in this package, or in the default package
    /// without a name.
    fn has(&self, package: Option<&str>, kind: &str, name: Option<&str>) -> bool {
        // This is the workspace's default member.
        let package = self.package(package.unwrap_or("leasehold-cli"));
        let targets = package.and_then(|package| package["targets"].as_array());
        targets.is_some_and(|targets| {
            targets.iter().any(|target| {
                let kinds = target["kind"].as_array().expect("a list");
                kinds.iter().any(|one| one == kind)
                    && name.is_none_or(|name| target["name"] == name)
            })
        })
    }

    /// Returns the mistake in a command of cargo, if there is one.
    fn fault_of(&self, command: &str) -> Option<String> {
        let words = without_variables(command);
        let words = words.split(" -- ").next().unwrap_or_default();
        let words = words.split(" #").next().unwrap_or_default();
        let words: Vec<_> = words.split_whitespace().collect();
        let value = |flag: &str| {
            let at = words.iter().position(|word| *word == flag)?;
            words.get(at + 1).copied()
        };
        let package = value("-p");
        if let Some(package) = package
            && self.package(package).is_none()
        {
            return Some(format!("there is no package `{package}`"));
        }
        for (flag, kind) in [
            ("--example", "example"),
            ("--bin", "bin"),
            ("--test", "test"),
        ] {
            let name = value(flag);
            if name.is_some() && !self.has(package, kind, name) {
                return Some(format!("{flag} is not in the package"));
            }
        }
        match words[..] {
            ["cargo", "run", ..] => {
                let named = value("--example").or_else(|| value("--bin"));
                let found = named.is_some() || self.has(package, "bin", None);
                (!found).then(|| "there is no program to run".to_owned())
            }
            ["cargo", "install", "--path", path]
            | ["cargo", "install", "--locked", "--path", path] => {
                let manifest = root().join(path).join("Cargo.toml");
                (!manifest.exists()).then(|| "there is no such package".to_owned())
            }
            ["cargo", "add" | "install", name] | ["cargo", "add", name, "--features", _] => {
                // Tokio is in the registry, not in this workspace.
                let known = name == "tokio" || self.package(name).is_some();
                (!known).then(|| "there is no such package".to_owned())
            }
            ["cargo", "build" | "test" | "doc" | "new", ..] => None,
            // This tool is from the registry.
            ["cargo", "install", "mdbook", ..] | ["cargo", "install", "--locked", "cargo-deb"] => {
                None
            }
            _ => Some("this test does not know such a command".to_owned()),
        }
    }
}

#[test]
fn shown_commands_of_cargo_name_what_is_there() {
    let workspace = Workspace::read();
    let mut found = 0;
    for Shown { document, command } in shown() {
        if without_variables(&command).starts_with("cargo ") {
            let fault = workspace.fault_of(&command);
            assert_eq!(fault, None, "{}: {command}", document.display());
            found += 1;
        }
    }
    assert!(found >= 35, "{found} were found");
    for wrong in [
        "cargo run --example fenced_writes",
        "cargo run -p leasehold --example fenced_write",
        "cargo run -p leasehold",
        "cargo test -p leasehold --test everything",
        "cargo test -p leasehold-nothing",
        "cargo install --path crates/nothing",
        "cargo shave yaks",
    ] {
        assert!(workspace.fault_of(wrong).is_some(), "{wrong}");
    }
}

#[test]
fn every_documented_command_has_a_known_program() {
    for Shown { document, command } in shown() {
        let words = without_variables(&command);
        let program = words.split_whitespace().next().unwrap_or_default();
        let known = match program.strip_prefix("./") {
            Some(script) => {
                let folder = document.parent().expect("a folder");
                [folder, &root()]
                    .iter()
                    .any(|folder| folder.join(script).is_file())
            }
            None => matches!(program, "cargo" | "coproc" | "leasehold"),
        };
        assert!(known, "{}: {command}", document.display());
    }
}

#[test]
fn shown_demo_runs() {
    let demos = shown().into_iter().filter_map(|one| {
        let command = one.command.strip_prefix("cargo run -- ")?.to_owned();
        Some(command)
    });
    let mut found = 0;
    for arguments in demos {
        let arguments = arguments.split('#').next().unwrap_or_default();
        done(leasehold().args(arguments.split_whitespace())).expect_code(0);
        found += 1;
    }
    assert!(found > 0, "the README shows one");
}

#[test]
fn command_of_the_systemd_unit_runs() {
    let unit = root().join("ops/systemd/leasehold-nightly.service");
    let unit = fs::read_to_string(unit).expect("it can be read");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/leasehold "));
    let mut words: Vec<_> = line.expect("a command").split_whitespace().collect();
    *words.last_mut().expect("the job") = "true";
    let server = server();
    let run = done(leasehold_at(&server).args(&words)).expect_code(0);
    assert!(
        run.stderr.contains("--min-hold keeps it for another "),
        "{run}"
    );
    done(leasehold_at(&server).args(&words)).expect_code(75);
}

#[test]
fn the_reference_has_every_exit_code_and_variable() {
    let page = read("docs/reference.md");
    let mut found = 0;
    for topic in ["exit-codes", "env"] {
        let help = done(leasehold().args(["help", topic])).expect_code(0);
        let rows = help
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("  "));
        for (name, meaning) in rows.filter_map(|row| row.split_once("  ")) {
            let row = format!("| `{name}` | {} |", meaning.trim());
            assert!(page.contains(&row), "{row}");
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}

/// Adds the keys of all objects in a value.
fn add_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                // The keys of these objects are not fields.
                let is_open = ["commands", "refused"].contains(&&key[..]);
                keys.insert(key.clone());
                if !is_open {
                    add_keys(value, keys);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_keys(value, keys)),
        _ => {}
    }
}

#[test]
fn the_reference_has_every_field_of_the_json() {
    let page = read("docs/reference.md");
    let server = server();
    let inner = format!(
        "{BINARY} show --json nightly; {BINARY} ls --json; {BINARY} show --blocked-by --json nightly; \
         {BINARY} watch --json --for 1ms nightly; {BINARY} doctor --json; \
         {BINARY} run -n --json nightly -- true; true"
    );
    let words = [
        "run",
        "--json",
        "--min-hold",
        "1s",
        "nightly",
        "--",
        "sh",
        "-c",
        &inner,
    ];
    let run = leasehold_at(&server)
        .args(words)
        .env("LEASEHOLD_URL", server.url())
        .output()
        .expect("it runs");
    let mut keys = BTreeSet::new();
    for text in [run.stdout, run.stderr] {
        for line in String::from_utf8(text).expect("text").lines() {
            add_keys(&serde_json::from_str(line).expect(line), &mut keys);
        }
    }
    assert!(keys.len() > 40, "{keys:?}");
    let missing: Vec<_> = keys
        .iter()
        .filter(|key| !page.contains(&format!("`{key}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_rule_of_the_security_page_is_enough() {
    let page = read("docs/security.md");
    let rule = page
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"))
        .expect("a rule");
    let server = server();
    let words: Vec<_> = rule.split_whitespace().collect();
    server.command(&words).expect("the server takes the rule");
    let url = server
        .url()
        .replace("redis://", "redis://billing:PASSWORD@");
    let run = |words: &[&str]| done(leasehold().args(["--redis", &url]).args(words));
    for kind in ["--fair", "--write", "--read", "--fenced", "--limit=2"] {
        let name = format!("billing:{kind}");
        run(&["run", kind, &name, "--", "true"]).expect_code(0);
    }
    run(&["run", "--also", "billing:b", "billing:a", "--", "true"]).expect_code(0);
    run(&["latch", "set", "billing:latch", "1"]).expect_code(0);
    run(&["show", "billing:latch"]).expect_code(0);
    run(&["ls"]).expect_code(0);
    run(&["run", "orders", "--", "true"]).expect_code(77);
    let doctor = run(&["doctor", "--json", "--name", "billing:check"]);
    for about in ["acl", "channels", "writes"] {
        assert!(
            !doctor.stdout.contains(&format!("\"about\":\"{about}\"")),
            "{doctor}"
        );
    }
}
