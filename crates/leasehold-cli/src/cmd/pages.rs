//! `leasehold man` and the topics of `leasehold help`: pages generated from the command line's
//! definitions.

use std::io::{self, Write as _};
use std::path::Path;

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::cli::{self, RUN_USAGE};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output;

/// The environment variables of the connection.
const OF_CONNECTION: &[(&str, &str)] = &[
    ("LEASEHOLD_URL", "server to use if --redis is not given"),
    (
        "REDIS_URL",
        "server to use if neither --redis nor LEASEHOLD_URL is given",
    ),
    (
        "LEASEHOLD_PASSWORD_FILE",
        "file with the password, if --password-file is not given",
    ),
    (
        "LEASEHOLD_MAP",
        "addresses to use in place of announced ones, if --map is not given: HOST:PORT=HOST:PORT,...",
    ),
    (
        "LEASEHOLD_PREFIX",
        "prefix of all names, if --prefix is not given",
    ),
    (
        "LEASEHOLD_LABEL",
        "label that operators see for this command, if --label is not given",
    ),
];

/// The environment variables that each command reads.
const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "RUST_LOG",
        "what to log, if neither --verbose nor --quiet is given",
    ),
    ("NO_COLOR", "turns colours off, if it is not empty"),
];

/// The environment variables that `leasehold run` sets for its command.
const FOR_COMMANDS: &[(&str, &str)] = &[
    (
        "LEASEHOLD_NAME",
        "name of the lock; leasehold run sets it for its command",
    ),
    (
        "LEASEHOLD_TOKEN",
        "fencing token; leasehold run --fenced sets it for its command",
    ),
];

/// For each sub-command, the related sub-commands that its page names.
const BESIDE: &[(&str, &[&str])] = &[
    ("run", &["hold", "set-limit", "show"]),
    ("hold", &["run"]),
    ("show", &["ls", "release", "watch"]),
    ("ls", &["show", "top"]),
    ("watch", &["show", "top"]),
    ("top", &["ls", "show"]),
    ("release", &["show"]),
    ("set-limit", &["run"]),
];

/// The exit codes of all sub-commands.
const EXIT_CODES: &str = "\
Exit codes:
  0      done
  1      any other failure; show --exit-code: the name is free; leader: there is no leader; doctor: there are warnings
  2      wrong usage; doctor: locks are unsafe on this server
  65     the name is in use as something else
  66     no client holds the name, or there is no such latch or limit
  69     no server answered, or the server could not grant a lock
  70     the lock was lost, or could not be renewed
  75     the lock was not free in time, or was held by another client
  77     the server refused the credentials, or your user lacks a permission
  78     the name has another --limit or --slot, or a local file can't be read
  124    the command ran longer than --max-run
  126    the command can't be executed
  127    the command was not found
  128+n  signal n ended the command or leasehold

`run` exits with the command's own code. The sub-commands' --help says which codes they use.";

/// Returns the text of `leasehold help TOPIC`, if it is not about a sub-command.
pub(crate) fn topic(name: &str) -> Option<String> {
    match name {
        "env" => {
            let row = |(name, text): &(&str, &str)| format!("  {name:<24} {text}");
            let rows = OF_CONNECTION.iter().chain(ENVIRONMENT);
            let rows: Vec<_> = rows.chain(FOR_COMMANDS).map(row).collect();
            Some(format!("Environment:\n{}", rows.join("\n")))
        }
        "exit-codes" => Some(EXIT_CODES.to_owned()),
        _ => None,
    }
}

/// Copies the command line without the hidden parts, because generators show hidden parts too. Each
/// sub-command gets the global options that it does not hide.
pub(super) fn visible(command: &Command) -> Command {
    visible_below(command, &[])
}

fn visible_below(command: &Command, globals: &[&Arg]) -> Command {
    // The string is never freed: a command's name must be `'static`, and the program ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    let own: Vec<_> = command.get_arguments().collect();
    let is_new = |global: &&&Arg| own.iter().all(|one| one.get_id() != global.get_id());
    let all = own.iter().chain(globals.iter().filter(is_new)).copied();
    let all: Vec<_> = all.collect();
    let globals = all.iter().filter(|one| one.is_global_set()).copied();
    let globals: Vec<_> = globals.collect();
    let below = command.get_subcommands().filter(|one| !one.is_hide_set());
    let arguments = all.iter().filter(|one| !one.is_hide_set());
    // A page has only one form, so nothing is hidden in it.
    let arguments = arguments.map(|one| (*one).clone().hide_short_help(false).global(false));
    let mut copy = Command::new(name)
        .args(arguments)
        .subcommands(below.map(|below| visible_below(below, &globals)));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(help) = command.get_after_long_help() {
        copy = copy.after_long_help(help.clone());
    }
    if command.get_version().is_some() {
        copy = copy.version(env!("CARGO_PKG_VERSION"));
    }
    copy
}

/// Writes a page for leasehold and for each sub-command, or prints the page of leasehold.
pub(crate) async fn man(folder: Option<&Path>) -> Result<Exit, Failure> {
    // Build from the top, so that each sub-command gets its full name.
    let command = visible(&cli::command()).disable_help_subcommand(true);
    let mut command = command.mut_subcommands(|below| below.disable_help_subcommand(true));
    command.build();
    let Some(folder) = folder else {
        let page = page(None, &command);
        let page = page.map_err(|error| Failure::io("can't make the page", error))?;
        output::result(String::from_utf8_lossy(&page).trim_end()).await?;
        return Ok(Exit::Success);
    };
    write_pages(folder, None, &command)?;
    Ok(Exit::Success)
}

/// Writes the page of a command, and the pages of its sub-commands. `above` is the page of the
/// parent.
fn write_pages(folder: &Path, above: Option<&str>, command: &Command) -> Result<(), Failure> {
    let file = folder.join(format!("{}.1", name_of(command)));
    let written = page(above, command).and_then(|page| std::fs::write(&file, page));
    written.map_err(|error| Failure::io(format!("can't write {}", file.display()), error))?;
    for below in command.get_subcommands() {
        write_pages(folder, Some(name_of(command)), below)?;
    }
    Ok(())
}

/// Returns the name of a command's page, like `leasehold-run`.
fn name_of(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

fn page(above: Option<&str>, command: &Command) -> io::Result<Vec<u8>> {
    let help = command.get_after_long_help().map(ToString::to_string);
    let parts = Parts::of(help.as_deref().unwrap_or_default());
    let about = command.get_about().map(ToString::to_string);
    let man = Man::new(command.clone())
        // An empty date would not be written, and the next field would take its place.
        .date(" ")
        .source(concat!("leasehold ", env!("CARGO_PKG_VERSION")))
        .manual("Leasehold");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    match command.get_name() {
        // The generated synopsis lacks the `--`.
        "run" => section(&mut page, "SYNOPSIS", RUN_USAGE.lines())?,
        _ => man.render_synopsis_section(&mut page)?,
    }
    let description = parts.description.iter().map(String::as_str);
    section(
        &mut page,
        "DESCRIPTION",
        about.as_deref().into_iter().chain(description),
    )?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let exit_status = match parts.exit_status.as_str() {
        "" => "0 when it is done, 2 for wrong usage.",
        codes => codes,
    };
    section(&mut page, "EXIT STATUS", [exit_status])?;
    environment(&mut page, command)?;
    section(
        &mut page,
        "EXAMPLES",
        parts.examples.iter().map(String::as_str),
    )?;
    let below = command
        .get_subcommands()
        .map(|below| name_of(below).to_owned());
    let beside = BESIDE
        .iter()
        .filter(|(name, _)| *name == command.get_name());
    let beside =
        beside.flat_map(|(_, others)| others.iter().map(|name| format!("leasehold-{name}")));
    let others = above
        .map(str::to_owned)
        .into_iter()
        .chain(below)
        .chain(beside);
    see_also(&mut page, others)?;
    Ok(page)
}

/// The text after the options in a command's help, as sections of a page.
#[derive(Default)]
struct Parts {
    description: Vec<String>,
    exit_status: String,
    examples: Vec<String>,
}

impl Parts {
    fn of(help: &str) -> Self {
        let mut parts = Self::default();
        for paragraph in help.split("\n\n") {
            let (head, rest) = paragraph.split_once(':').unwrap_or(("", paragraph));
            let rest = rest.trim_start_matches([' ', '\n']);
            match head.trim() {
                "Exit codes" => parts.exit_status = rest.to_owned(),
                "Example" | "Examples" => parts.examples.push(rest.to_owned()),
                _ => parts.description.push(paragraph.to_owned()),
            }
        }
        parts
    }
}

fn section<'a>(
    page: &mut Vec<u8>,
    name: &str,
    paragraphs: impl IntoIterator<Item = &'a str>,
) -> io::Result<()> {
    let paragraphs = paragraphs.into_iter();
    let mut paragraphs = paragraphs.filter(|text| !text.trim().is_empty()).peekable();
    if paragraphs.peek().is_none() {
        return Ok(());
    }
    match name.contains(' ') {
        true => writeln!(page, ".SH \"{name}\"")?,
        false => writeln!(page, ".SH {name}")?,
    }
    for (number, paragraph) in paragraphs.enumerate() {
        if number > 0 {
            writeln!(page, ".PP")?;
        }
        // Tables and commands keep their line breaks.
        let as_it_is = paragraph.contains("\n  ") || name == "EXAMPLES";
        let lines = paragraph.lines().map(|line| roff(line.trim_start()));
        let lines: Vec<_> = lines.collect();
        let text = lines.join("\n");
        match as_it_is {
            true => writeln!(page, ".nf\n{text}\n.fi")?,
            false => writeln!(page, "{text}")?,
        }
    }
    Ok(())
}

fn environment(page: &mut Vec<u8>, command: &Command) -> io::Result<()> {
    let connects = command.get_arguments().any(|one| one.get_id() == "redis");
    let connection = if connects { OF_CONNECTION } else { &[] };
    let more = match command.get_name() {
        "run" => FOR_COMMANDS,
        _ => &[],
    };
    writeln!(page, ".SH ENVIRONMENT")?;
    for (name, text) in connection.iter().chain(ENVIRONMENT).chain(more) {
        writeln!(page, ".TP\n\\fB{name}\\fR\n{}", roff(text))?;
    }
    Ok(())
}

fn see_also(page: &mut Vec<u8>, others: impl Iterator<Item = String>) -> io::Result<()> {
    let others: Vec<_> = others
        .map(|other| format!("\\fB{}\\fR(1)", roff(&other)))
        .collect();
    writeln!(page, ".SH \"SEE ALSO\"\n{}", others.join(",\n"))
}

/// Escapes a line of text for roff.
fn roff(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}
