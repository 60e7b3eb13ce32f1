//! The exit codes.

use std::process::ExitCode;

use leasehold::ErrorKind;

/// The outcome of a run of `leasehold`. The numbers are those in `sysexits.h`, or those that a
/// shell uses for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success,
    /// A failure that has no exit code of its own.
    Failed,
    /// Wrong usage.
    Usage,
    /// The name is of a kind that does not support this action.
    OtherKind,
    /// The latch was never set, or no client holds the lock.
    Missing,
    /// No server answered.
    Unavailable,
    /// The lock was lost while the command ran.
    Lost,
    /// The lock was not free in time. The user can choose the number.
    Busy(u8),
    /// The server refused the request or the login.
    Denied,
    /// Another client has set a different limit.
    Disagrees,
    /// A local file that an option names can't be read.
    Unreadable,
    /// The command ran longer than `--max-run`.
    TooLong,
    /// The command exists but can't be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
    /// The command's own exit code.
    Command(u8),
    /// This signal ended the program or its command.
    Signal(i32),
}

impl Exit {
    pub(crate) const DEFAULT_BUSY: u8 = 75;

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::OtherKind => 65,
            Self::Missing => 66,
            Self::Unavailable => 69,
            Self::Lost => 70,
            Self::Denied => 77,
            Self::Disagrees | Self::Unreadable => 78,
            Self::TooLong => 124,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Busy(code) | Self::Command(code) => code,
            Self::Signal(number) => u8::try_from(number.saturating_add(128)).unwrap_or(u8::MAX),
        }
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => Self::Unavailable,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::Denied => Self::Denied,
            ErrorKind::WrongKind => Self::OtherKind,
            // The caller made a mistake, so another try would fail too.
            ErrorKind::Misuse | ErrorKind::Deadlock => Self::Usage,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_documented_number() {
        let numbers = [
            (Exit::Success, 0),
            (Exit::Failed, 1),
            (Exit::Usage, 2),
            (Exit::OtherKind, 65),
            (Exit::Missing, 66),
            (Exit::Unavailable, 69),
            (Exit::Lost, 70),
            (Exit::Busy(Exit::DEFAULT_BUSY), 75),
            (Exit::Busy(3), 3),
            (Exit::Denied, 77),
            (Exit::Disagrees, 78),
            (Exit::Unreadable, 78),
            (Exit::TooLong, 124),
            (Exit::NotExecutable, 126),
            (Exit::NotFound, 127),
            (Exit::Command(42), 42),
            (Exit::Signal(15), 143),
            // The last real-time signal, and a number that is not a signal.
            (Exit::Signal(64), 192),
            (Exit::Signal(i32::MAX), 255),
        ];
        for (exit, number) in numbers {
            assert_eq!(exit.code(), number, "{exit:?}");
        }
    }

    #[test]
    fn library_error_kinds_map_to_exit_codes() {
        let ends = [
            (ErrorKind::Unavailable, Exit::Unavailable),
            (ErrorKind::OutcomeUnknown, Exit::Unavailable),
            (ErrorKind::Lost, Exit::Lost),
            (ErrorKind::Denied, Exit::Denied),
            (ErrorKind::Misuse, Exit::Usage),
            (ErrorKind::Deadlock, Exit::Usage),
            (ErrorKind::WrongKind, Exit::OtherKind),
            (ErrorKind::Unsupported, Exit::Failed),
        ];
        for (kind, exit) in ends {
            assert_eq!(Exit::from(kind), exit, "{kind:?}");
        }
    }
}
