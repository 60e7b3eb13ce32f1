//! Where text leaves the program: results to stdout, the story to stderr.

use std::fmt;
use std::io::{self, Write as _};

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
