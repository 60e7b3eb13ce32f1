//! Where text leaves the program: results to stdout, the story to stderr.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::failure::Failure;

/// Writes a result to stdout, with a line end.
pub(crate) fn result(text: impl fmt::Display) -> Result<(), Failure> {
    match line(text) {
        // Whoever reads has seen enough: `leasehold show x | head -1`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::io("can't write to stdout", error)),
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
    let _ = writeln!(io::stderr().lock(), "leasehold: {text}");
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

/// Whether somebody sits at a terminal who wants to know how it goes.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal() && !QUIET.load(Ordering::Relaxed)
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
