//! The events that a worker reports: lines over a pipe, or values over a channel.

use std::fmt;

use crate::exit_code::Exit;

/// An event of a worker. Times are nanoseconds on the monotonic clock, which all processes of a
/// machine share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The worker is set up and waits for the start.
    Ready,
    /// The worker requests the lock.
    Asked { at: u64 },
    /// The worker holds the lock, at least until `valid_until`.
    Acquired { at: u64, valid_until: u64 },
    /// The worker's hold was renewed.
    Renewed { valid_until: u64 },
    /// The worker has stopped in the middle of a sale, and waits to be killed.
    Lingering { at: u64 },
    /// The worker has written its sale number `serial` into the stock.
    Sold { serial: u64 },
    /// The worker found that the lock was lost, and has sold nothing.
    Lost { at: u64 },
    /// The worker is about to release the lock.
    Releasing { at: u64, valid_until: u64 },
    /// The worker can't continue.
    Failed { exit: Exit, message: String },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Asked { at } => write!(f, "asked {at}"),
            Self::Acquired { at, valid_until } => write!(f, "acquired {at} {valid_until}"),
            Self::Renewed { valid_until } => write!(f, "renewed {valid_until}"),
            Self::Lingering { at } => write!(f, "lingering {at}"),
            Self::Sold { serial } => write!(f, "sold {serial}"),
            Self::Lost { at } => write!(f, "lost {at}"),
            Self::Releasing { at, valid_until } => write!(f, "releasing {at} {valid_until}"),
            Self::Failed { exit, message } => {
                let message = message.escape_default();
                write!(f, "failed {} {message}", exit.code())
            }
        }
    }
}

impl Event {
    /// Parses a line. `None` if it is not from a worker of this version.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "failed" {
            let (code, message) = rest.split_once(' ')?;
            return Some(Self::Failed {
                exit: Exit::Command(code.parse().ok()?),
                message: message.to_owned(),
            });
        }
        let numbers: Vec<u64> = rest
            .split_whitespace()
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()?;
        Some(match (word, numbers[..].as_ref()) {
            ("ready", []) => Self::Ready,
            ("asked", &[at]) => Self::Asked { at },
            ("acquired", &[at, valid_until]) => Self::Acquired { at, valid_until },
            ("renewed", &[valid_until]) => Self::Renewed { valid_until },
            ("lingering", &[at]) => Self::Lingering { at },
            ("sold", &[serial]) => Self::Sold { serial },
            ("lost", &[at]) => Self::Lost { at },
            ("releasing", &[at, valid_until]) => Self::Releasing { at, valid_until },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_survives_a_round_trip() {
        for event in [
            Event::Ready,
            Event::Asked { at: 1 },
            Event::Acquired {
                at: 1,
                valid_until: u64::MAX,
            },
            Event::Renewed { valid_until: 2 },
            Event::Lingering { at: 3 },
            Event::Sold { serial: 4 },
            Event::Lost { at: 5 },
            Event::Releasing {
                at: 6,
                valid_until: 7,
            },
            Event::Failed {
                exit: Exit::Command(69),
                message: "no server answered".into(),
            },
        ] {
            assert_eq!(Event::parse(&event.to_string()), Some(event));
        }
    }

    #[test]
    fn other_lines_are_not_taken_for_events() {
        for line in ["", "sold", "sold x", "asked 1 2", "hello 1", "failed 69"] {
            assert_eq!(Event::parse(line), None, "`{line}`");
        }
    }

    #[test]
    fn a_message_stays_one_line() {
        let line = Event::Failed {
            exit: Exit::Unavailable,
            message: "one\ntwo".into(),
        };
        assert_eq!(line.to_string(), "failed 69 one\\ntwo");
    }
}
