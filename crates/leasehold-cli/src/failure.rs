//! The failure of a sub-command.

use std::error::Error as StdError;
use std::fmt::{self, Write as _};

use crate::exit_code::Exit;
use crate::output::Shown;

/// A message for people and an exit code for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Creates the failure of an option, URL or sub-command that needs a feature which this build
    /// lacks.
    #[cfg(not(all(feature = "metrics", feature = "tls", feature = "top")))]
    pub(crate) fn not_built(what: &str, feature: &str) -> Self {
        Self::usage(format!(
            "this leasehold was built without {what}; build leasehold-cli with --features {feature}"
        ))
    }

    /// Creates a failure from the attempted action and the system's error.
    pub(crate) fn io(what: impl Into<String>, error: std::io::Error) -> Self {
        Self {
            source: Some(Box::new(error)),
            ..Self::new(Exit::Failed, what)
        }
    }

    pub(crate) fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
}

impl From<leasehold::Error> for Failure {
    fn from(error: leasehold::Error) -> Self {
        Self {
            exit: error.kind().into(),
            message: error.to_string(),
            source: match error.source() {
                // Keep the whole error, because its sources may explain more than its message.
                Some(_) => Some(Box::new(error)),
                None => None,
            },
        }
    }
}

impl fmt::Display for Failure {
    /// Writes the message, then each cause that the text does not contain yet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.message.clone();
        let mut cause = self.source.as_deref().map(|source| source as &dyn StdError);
        while let Some(error) = cause {
            let said = Shown(&error.to_string()).to_string();
            if !text.contains(&said) {
                write!(text, ": {said}")?;
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_escaped() {
        let failure = Failure::io("can't read it", std::io::Error::other("bad\u{1b}[2J"));
        assert_eq!(failure.to_string(), "can't read it: bad\\u{1b}[2J");
        let failure = Failure::io("no file: gone", std::io::Error::other("gone"));
        assert_eq!(failure.to_string(), "no file: gone");
    }
}
