//! Where text leaves the program: results to stdout, the story to stderr.
//!
//! A reader may stand still: a paused pager, a log collector that hangs, a terminal after Ctrl-S.
//! What renews a lock, ends a command or handles signals must not stand still with it. So the story
//! is written by a thread of its own, and a result is a future that a signal can end.

mod lines;

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::spawn_blocking;

use self::lines::Lines;
use crate::failure::Failure;
use crate::signals;

/// What waits to be written to stderr.
static STORY: Lines = Lines::new();
/// Whether the thread that writes it was started.
static WRITER: OnceLock<bool> = OnceLock::new();

/// How long a reader of stderr may stand still before the program ends without it.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);
/// How long it may hold up a result, which is to follow the story on a terminal.
const PATIENCE: Duration = Duration::from_millis(100);

/// Writes a result to stdout, with a line end.
pub(crate) async fn result(text: impl fmt::Display) -> Result<(), Failure> {
    // The reader may have seen enough: `leasehold show x | head -1`.
    more(text).await.map(drop)
}

/// Writes one result of many, with a line end. Says whether anybody reads on.
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

/// Writes a line to stdout for a program that reads it, and waits for its reader.
pub(crate) fn line(text: impl fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// Writes one line of the story to stderr.
pub(crate) fn tell(text: impl fmt::Display) {
    write(told(&text.to_string()));
}

/// The line that tells this.
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

/// Waits until the story is written, as long as its reader reads.
pub(crate) fn flush() {
    if WRITER.get() == Some(&true) {
        STORY.flush(PATIENCE_AT_END);
    }
}

/// Whether the story is told as JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// The lock that the story is about.
static NAME: OnceLock<String> = OnceLock::new();

/// From now on the story is JSON, for a program that reads it, about this lock if it has a name.
pub(crate) fn tell_json(name: Option<&str>) {
    if let Some(name) = name {
        // Set before by nobody.
        let _ = NAME.set(name.to_owned());
    }
    JSON.store(true, Ordering::Relaxed);
}

/// Returns whether messages are written as JSON.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// What a program that reads the story is told of.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Waiting,
    Busy,
    Held,
    Started,
    Losing,
    Lost,
    Kept,
    Released,
}

/// Tells an event, where the story is JSON. Says whether it is.
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
        Event::Losing => "losing",
        Event::Lost => "lost",
        Event::Kept => "kept",
        Event::Released => "released",
    };
    let mut told = json!({ "event": event, "name": name });
    for (key, value) in more() {
        told[key] = value;
    }
    write(format!("{told}\n"));
    true
}

/// Whether only failures are told.
static QUIET: AtomicBool = AtomicBool::new(false);

/// How long somebody at a terminal waits before they are told what for.
pub(crate) const SILENT_FOR: Duration = Duration::from_secs(2);

/// From now on only failures are told.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether the story has each step.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// From now on the story has each step.
pub(crate) fn be_verbose() {
    VERBOSE.store(true, Ordering::Relaxed);
}

/// Writes one line to stderr about a step, with `--verbose`.
pub(crate) fn detail(text: impl fmt::Display) {
    if VERBOSE.load(Ordering::Relaxed) {
        tell(text);
    }
}

/// How long a wait lasts before the story has it.
pub(crate) fn silent_for() -> Duration {
    match VERBOSE.load(Ordering::Relaxed) {
        // Longer than a free lock takes.
        true => Duration::from_millis(200),
        false => SILENT_FOR,
    }
}

/// Writes one line to stderr that nobody has to know: not with `--quiet`.
pub(crate) fn note(text: impl fmt::Display) {
    if !QUIET.load(Ordering::Relaxed) {
        tell(text);
    }
}

/// Whether the story has waits and hints: at a terminal, with `--verbose`, or for a program.
pub(crate) fn is_watched() -> bool {
    let asked = JSON.load(Ordering::Relaxed) || VERBOSE.load(Ordering::Relaxed);
    let reads = asked || io::stderr().is_terminal();
    reads && !QUIET.load(Ordering::Relaxed)
}

/// Text from outside, made safe for a terminal: control characters escaped, long
/// text cut.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 500;
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
