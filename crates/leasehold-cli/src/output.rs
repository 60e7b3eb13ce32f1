//! The program's output: results on stdout, messages on stderr.
//!
//! A reader may stop reading: a paused pager, a log collector that hangs, a terminal after Ctrl-S.
//! The code that renews a lock, ends a command or handles signals must not block on such a reader.
//! So a separate thread writes the messages, and a result is a future that a signal can end.

mod lines;

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::FileType;
use serde_json::json;
use tokio::task::spawn_blocking;

use self::lines::Lines;
use crate::failure::Failure;
use crate::signals;

/// The messages that have yet to be written to stderr.
static STORY: Lines = Lines::new();
/// Whether the thread that writes the messages was started successfully.
static WRITER: OnceLock<bool> = OnceLock::new();

/// The longest wait at the program's end for a reader of stderr that makes no progress.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);
/// The longest time that a reader of stderr may delay a result. On a terminal, a result should
/// appear after the messages that were written before it.
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes a result to stdout, with a line end.
pub(crate) async fn result(text: impl fmt::Display) -> Result<(), Failure> {
    // The reader may have seen enough: `leasehold show x | head -1`.
    more(text).await.map(drop)
}

/// Writes one result of many, with a line end. Returns whether the reader still reads.
pub(crate) async fn more(text: impl fmt::Display) -> Result<bool, Failure> {
    let text = text.to_string();
    let written = spawn_blocking(move || {
        STORY.settle(PATIENCE);
        line(text)
    });
    let written = written
        .await
        .unwrap_or_else(|gone| Err(io::Error::other(gone)));
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written
            .map(|()| true)
            .map_err(|error| Failure::io("can't write to stdout", error)),
    }
}

/// Returns whether nothing reads what this process writes to stdout. If stdout is closed at the
/// start, the Rust runtime opens the null device in its place.
pub(crate) fn is_discarded() -> bool {
    let device = |file: rustix::io::Result<rustix::fs::Stat>| {
        file.ok()
            .filter(|file| FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice)
            .map(|file| file.st_rdev)
    };
    let null = device(rustix::fs::stat("/dev/null"));
    null.is_some() && device(rustix::fs::fstat(io::stdout())) == null
}

/// Writes a line to stdout for a program, and waits until that program can take it.
pub(crate) fn line(text: impl fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// Writes a message to stderr.
pub(crate) fn tell(text: impl fmt::Display) {
    write(told(&text.to_string()));
}

/// Formats a message as a line, in JSON after [`tell_json`].
fn told(text: &str) -> String {
    match JSON.load(Ordering::Relaxed) {
        false => format!("leasehold: {text}\n"),
        true => {
            let told = json!({ "event": "message", "name": NAME.get(), "message": text });
            format!("{told}\n")
        }
    }
}

/// Writes a line of a log.
pub(crate) fn log(line: &str) {
    match JSON.load(Ordering::Relaxed) {
        false => write(line.to_owned()),
        true => tell(line.trim_ascii()),
    }
}

/// Writes text to stderr as it is.
pub(crate) fn write(text: String) {
    WRITER.get_or_init(|| {
        let written = signals::on_thread("stderr", || {
            STORY.write_to(&mut io::stderr(), |dropped| {
                let lines = match dropped {
                    1 => "1 line was".to_owned(),
                    more => format!("{more} lines were"),
                };
                told(&format!(
                    "{lines} left out here, because nothing read stderr"
                ))
            });
        });
        written.is_ok()
    });
    STORY.push(text);
}

/// Waits until all messages are written, as long as the reader makes progress.
pub(crate) fn flush() {
    if WRITER.get() == Some(&true) {
        STORY.flush(PATIENCE_AT_END);
    }
}

/// Whether messages and events are written as JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// The name of the lock in each JSON message.
static NAME: OnceLock<String> = OnceLock::new();

/// Switches messages and events to JSON, for a program that reads them. `name` is the lock's name,
/// if there is one.
pub(crate) fn tell_json(name: Option<&str>) {
    if let Some(name) = name {
        // This function is called only once, so the name is not set yet.
        let _ = NAME.set(name.to_owned());
    }
    JSON.store(true, Ordering::Relaxed);
}

/// Returns whether messages are written as JSON.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// An event that is reported to a program that reads stderr.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Waiting,
    Busy,
    Held,
    Started,
    Stalled,
    Progressing,
    Losing,
    Lost,
    Kept,
    Released,
    DoneAlready,
    RunningElsewhere,
}

/// Writes an event if the output is JSON. Returns whether it is.
pub(crate) fn event(
    event: Event,
    name: &str,
    more: impl FnOnce() -> Vec<(&'static str, serde_json::Value)>,
) -> bool {
    if !JSON.load(Ordering::Relaxed) {
        return false;
    }
    let event = match event {
        Event::Waiting => "waiting",
        Event::Busy => "busy",
        Event::Held => "held",
        Event::Started => "started",
        Event::Stalled => "stalled",
        Event::Progressing => "progressing",
        Event::Losing => "losing",
        Event::Lost => "lost",
        Event::Kept => "kept",
        Event::Released => "released",
        Event::DoneAlready => "done_already",
        Event::RunningElsewhere => "running_elsewhere",
    };
    let mut told = json!({ "event": event, "name": name });
    for (key, value) in more() {
        told[key] = value;
    }
    write(format!("{told}\n"));
    true
}

/// Whether only failures are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Length of a wait before a user at a terminal learns what the command waits for.
pub(crate) const SILENT_FOR: Duration = Duration::from_secs(2);

/// Suppresses all messages except failures.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether each step is printed.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Switches on a message for each step.
pub(crate) fn be_verbose() {
    VERBOSE.store(true, Ordering::Relaxed);
}

/// Returns whether each step is printed.
pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// Writes a message about a step, with `--verbose` only.
pub(crate) fn detail(text: impl fmt::Display) {
    if is_verbose() {
        tell(text);
    }
}

/// Returns how long a wait lasts before it is reported.
pub(crate) fn silent_for() -> Duration {
    match VERBOSE.load(Ordering::Relaxed) {
        // This is longer than it takes to acquire a free lock.
        true => Duration::from_millis(200),
        false => SILENT_FOR,
    }
}

/// Writes a message that is not essential. `--quiet` suppresses it.
pub(crate) fn note(text: impl fmt::Display) {
    if !QUIET.load(Ordering::Relaxed) {
        tell(text);
    }
}

/// Returns whether waits and hints are reported: at a terminal, with `--verbose`, or as JSON, but
/// not with `--quiet`.
pub(crate) fn is_watched() -> bool {
    let asked = JSON.load(Ordering::Relaxed) || VERBOSE.load(Ordering::Relaxed);
    let reads = asked || io::stderr().is_terminal();
    reads && !QUIET.load(Ordering::Relaxed)
}

/// Text from outside, made safe for a terminal: control characters are escaped, and long text is
/// cut.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The longest text of our own is a rule for ACL SETUSER.
        const LIMIT: usize = 2000;
        for (index, letter) in self.0.chars().enumerate() {
            if index == LIMIT {
                return f.write_str("…");
            }
            if letter.is_control() {
                write!(f, "{}", letter.escape_debug())?;
            } else {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}
