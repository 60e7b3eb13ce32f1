//! Where text leaves the program: results to stdout, the story to stderr.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::failure::Failure;

/// Writes a result to stdout, with a line end.
pub(crate) fn result(text: impl fmt::Display) -> Result<(), Failure> {
    // The reader may have seen enough: `leasehold show x | head -1`.
    more(text).map(drop)
}

/// Writes one result of many, with a line end. Says whether anybody reads on.
pub(crate) fn more(text: impl fmt::Display) -> Result<bool, Failure> {
    match line(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written
            .map(|()| true)
            .map_err(|error| Failure::io("can't write to stdout", error)),
    }
}

/// Writes a line to stdout for a program that reads it.
pub(crate) fn line(text: impl fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// Writes one line of the story to stderr.
pub(crate) fn tell(text: impl fmt::Display) {
    // A closed stderr must not end a run that holds a lock, which a panicking
    // `eprintln!` would.
    let _ = match JSON.load(Ordering::Relaxed) {
        false => writeln!(io::stderr().lock(), "leasehold: {text}"),
        true => {
            let said = json!({ "event": "message", "message": text.to_string() });
            writeln!(io::stderr().lock(), "{said}")
        }
    };
}

/// Whether the story is told as JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// From now on the story is JSON, for a program that reads it.
pub(crate) fn tell_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// What a program that reads the story is told of.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    Waiting,
    Held,
    Started,
    Losing,
    Released,
}

/// Tells an event, where the story is JSON.
pub(crate) fn event(
    event: Event,
    name: &str,
    more: impl FnOnce() -> Vec<(&'static str, serde_json::Value)>,
) {
    if !JSON.load(Ordering::Relaxed) {
        return;
    }
    let event = match event {
        Event::Waiting => "waiting",
        Event::Held => "held",
        Event::Started => "started",
        Event::Losing => "losing",
        Event::Released => "released",
    };
    let mut told = json!({ "event": event, "name": name });
    for (key, value) in more() {
        told[key] = value;
    }
    // As in `tell`.
    let _ = writeln!(io::stderr().lock(), "{told}");
}

/// Whether only failures are told.
static QUIET: AtomicBool = AtomicBool::new(false);

/// How long somebody at a terminal waits before they are told what for.
pub(crate) const SILENT_FOR: Duration = Duration::from_secs(2);

/// From now on only failures are told.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Writes one line to stderr that nobody has to know: not with `--quiet`.
pub(crate) fn note(text: impl fmt::Display) {
    if !QUIET.load(Ordering::Relaxed) {
        tell(text);
    }
}

/// Whether somebody sits at a terminal who wants to know how it goes, or a program reads it.
pub(crate) fn is_watched() -> bool {
    let reads = io::stderr().is_terminal() || JSON.load(Ordering::Relaxed);
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
