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

/// The longest label of a client. The server keeps it for as long as the client lives.
const LONGEST_LABEL: usize = 200;

/// Replaces control characters, which would reach other users' terminals, and cuts the label.
pub(crate) fn clean_label(label: &str) -> String {
    let mut clean = String::new();
    for letter in label.trim().chars() {
        let letter = if letter.is_control() { ' ' } else { letter };
        if clean.len() + letter.len_utf8() > LONGEST_LABEL {
            break;
        }
        clean.push(letter);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_has_no_control_characters_and_an_end() {
        assert_eq!(clean_label(" batch\u{1b}[2J\n1 "), "batch [2J 1");
        assert!(clean_label(&"ä".repeat(500)).len() <= LONGEST_LABEL);
    }
}
