//! Makes text from outside safe for errors and logs.

use std::fmt;

/// Text from outside, made safe for a terminal and a log line: control characters are escaped, and
/// long text is cut.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 120;
        // Cut by characters, not bytes: a cut inside a character would panic.
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
