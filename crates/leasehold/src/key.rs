//! Names: what may be one, and the keys and channels derived from it.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// A checked name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(Arc<str>);

impl Key {
    /// The longest name, in bytes. One longer would stall the server for
    /// everybody while it is read.
    pub(crate) const MAX_BYTES: usize = 64 * 1024;

    pub(crate) fn parse(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::new(
                ErrorKind::Misuse,
                "a lock's name is empty; give it a name that says what it protects",
            ));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::new(
                ErrorKind::Misuse,
                format!(
                    "the name `{}` is {} bytes long, the limit is {}; hash the long part",
                    Shown(name),
                    name.len(),
                    Self::MAX_BYTES
                ),
            ));
        }
        Ok(Self(name.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Where a release of the plain lock is published (Redisson's channel).
    pub(crate) fn lock_channel(&self) -> String {
        self.with_prefix("redisson_lock__channel")
    }

    /// A key of our own: who broke the lock by force. Redisson never looks at it.
    pub(crate) fn forced_marker(&self) -> String {
        format!("{}:forced", self.with_prefix("leasehold"))
    }

    /// Redisson's `prefixName`: the name becomes the hash tag unless it has a
    /// brace of its own.
    fn with_prefix(&self, prefix: &str) -> String {
        if self.0.contains('{') {
            format!("{prefix}:{}", self.0)
        } else {
            format!("{prefix}:{{{}}}", self.0)
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Text from outside, made safe for a terminal and a log line: control
/// characters escaped, long text cut.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 120;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_takes_the_name_as_hash_tag_unless_it_has_a_brace() {
        let channel = |name| Key::parse(name).unwrap().lock_channel();
        assert_eq!(channel("plain"), "redisson_lock__channel:{plain}");
        assert_eq!(channel("a{b}c"), "redisson_lock__channel:a{b}c");
        assert_eq!(channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(channel("{"), "redisson_lock__channel:{");
    }

    #[test]
    fn empty_and_huge_names_are_refused_and_the_error_stays_short() {
        assert_eq!(Key::parse("").unwrap_err().kind(), ErrorKind::Misuse);
        let error = Key::parse(&"x".repeat(Key::MAX_BYTES + 1)).unwrap_err();
        assert!(error.to_string().len() < 400, "{error}");
        assert!(Key::parse(&"x".repeat(Key::MAX_BYTES)).is_ok());
    }

    #[test]
    fn control_characters_are_escaped_where_a_name_is_shown() {
        let key = Key::parse("a\r\nb\u{1b}[2J\0").unwrap();
        assert_eq!(key.to_string(), "a\\r\\nb\\u{1b}[2J\\0");
    }
}
