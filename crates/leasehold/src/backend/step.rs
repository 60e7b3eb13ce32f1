//! A step: one atomic change, with three faces that stand together. The Lua
//! function, the keys and arguments it is sent with, and its twin on the embedded
//! keyspace. The steps themselves stand with their primitives.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::memory::Keyspace;
use crate::error::{Error, ErrorKind};
use crate::key::{Key, Shown};

/// One atomic change.
#[derive(Debug)]
pub(crate) struct Step {
    /// Unique; what the call's script finds it by.
    pub(crate) name: &'static str,
    /// The file: a header and one `local function`.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) lua: &'static str,
    /// How many of the function's parameters are keys; they come first.
    pub(crate) keys: usize,
    /// How many follow them.
    pub(crate) args: usize,
    /// Whether it gives the caller something: a grant, or more time. Such a step is
    /// not run when its call reaches the server too late (a renewal that comes after
    /// a later one would shorten it), and is taken out of the queue when nobody
    /// waits for it any more.
    pub(crate) grants: bool,
    /// The same change on the embedded keyspace.
    pub(crate) twin: fn(&mut Keyspace, &[Vec<u8>]) -> Result<Value, Refusal>,
}

impl Step {
    /// What it works on, in words: the first part of its name.
    fn kind(&self) -> &'static str {
        match self.name.split('.').next() {
            Some("lock") => "a plain lock",
            Some("fenced") => "a fenced lock",
            Some("fair") => "a fair lock",
            Some("rw") => "a read-write lock",
            Some("group") => "a group of locks",
            Some("semaphore") => "a semaphore",
            Some("expirable") => "a semaphore with leases",
            Some("latch") => "a latch",
            _ => "what was expected",
        }
    }
}

/// A step with its keys and arguments, as they go over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) step: &'static Step,
    pub(crate) parts: Vec<Vec<u8>>,
}

impl Operation {
    pub(crate) fn new(step: &'static Step, parts: Vec<Vec<u8>>) -> Self {
        debug_assert_eq!(parts.len(), step.keys + step.args, "{}", step.name);
        Self { step, parts }
    }
}

/// A step's reply. An error text is not one of them: it is a [`Failure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
}

/// An error that the step itself replied: it ran and changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

impl Refusal {
    pub(crate) fn wrong_type() -> Self {
        Self("WRONGTYPE Operation against a key holding the wrong kind of value".into())
    }
}

/// Why an operation has no reply, told apart by whether it ran.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) cause: Cause,
    /// The server it was meant for, without credentials.
    pub(crate) address: Arc<str>,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Whether a failed operation changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    DidNotRun,
    MayHaveRun,
}

/// What stood in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Nobody answered: not reachable, cut, too slow. May heal.
    NoAnswer(String),
    /// An error reply that goes by itself: loading, busy, out of memory. May heal.
    NotNow(String),
    /// A server that was started a moment ago has no vote yet. That ends at a known time, and is
    /// no outage.
    NoVoteYet(String),
    /// The call reached the server after its deadline and granted nothing.
    Late,
    /// A permission or a password. Does not heal by itself.
    Denied(String),
    /// The key holds something else. Does not heal by itself.
    WrongKind(String),
    /// There is nothing, and the caller wants it to be there. Does not heal by itself.
    Missing,
    /// The server can't run the scripts. Does not heal by itself.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    TooOld { found: String, needed: String },
    /// The client's runtime has ended, and with it the task that would have carried it. Does
    /// not heal.
    RuntimeEnded,
    /// Anything else the server says.
    Other(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(what)
            | Self::NotNow(what)
            | Self::NoVoteYet(what)
            | Self::Denied(what)
            | Self::WrongKind(what)
            | Self::Other(what) => f.write_str(what),
            Self::Late => f.write_str("the request came too late"),
            Self::Missing => f.write_str("there is no semaphore"),
            Self::RuntimeEnded => f.write_str("the client's runtime has ended"),
            Self::TooOld { found, needed } => {
                write!(
                    f,
                    "its version is {found}, and {needed} is the oldest that works"
                )
            }
        }
    }
}

impl Failure {
    pub(crate) fn new(outcome: Outcome, cause: Cause, address: impl Into<Arc<str>>) -> Self {
        Self {
            outcome,
            cause,
            address: address.into(),
            source: None,
        }
    }

    /// Nobody answered.
    pub(crate) fn no_answer(
        outcome: Outcome,
        what: impl Into<String>,
        address: impl Into<Arc<str>>,
    ) -> Self {
        Self::new(outcome, Cause::NoAnswer(what.into()), address)
    }

    pub(crate) fn runtime_ended(outcome: Outcome, address: impl Into<Arc<str>>) -> Self {
        Self::new(outcome, Cause::RuntimeEnded, address)
    }

    /// Whether it is worth asking again.
    pub(crate) fn may_heal(&self) -> bool {
        matches!(
            self.cause,
            Cause::NoAnswer(_) | Cause::NotNow(_) | Cause::NoVoteYet(_) | Cause::Late
        )
    }

    /// Whether a waiter counts the time until it heals as an outage.
    pub(crate) fn is_outage(&self) -> bool {
        !matches!(self.cause, Cause::NoVoteYet(_))
    }

    /// Whether it stays for as long as the key is as it is.
    pub(crate) fn is_about_the_key(&self) -> bool {
        matches!(self.cause, Cause::WrongKind(_))
    }

    /// Sorts an error reply of the server by its code. The texts differ between
    /// servers and versions, the codes don't.
    pub(crate) fn from_reply(text: &str, address: &Arc<str>) -> Self {
        let text = without_place(text.trim_end());
        let code = text.split([' ', ':']).next().unwrap_or("");
        let said = Shown(text).to_string();
        let cause = match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "READONLY"
            | "NOREPLICAS" | "MISCONF" | "OOM" => Cause::NotNow(said),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Cause::Denied(said),
            "WRONGTYPE" | "WRONGKIND" => Cause::WrongKind(said),
            // Inside a script a missing permission comes as a plain error: since 7.2 with
            // the first text, before with the second.
            _ if text.contains("ACL failure in script")
                || text.contains("The user executing the script can't") =>
            {
                Cause::Denied(said)
            }
            _ if text.contains("max number of clients") => Cause::NotNow(said),
            _ => Cause::Other(said),
        };
        Self::new(Outcome::DidNotRun, cause, Arc::clone(address))
    }

    /// What stands there is named already; here what was expected.
    pub(crate) fn of(mut self, step: &Step) -> Self {
        if let Cause::WrongKind(said) = &mut self.cause {
            said.push_str(", not ");
            said.push_str(step.kind());
        }
        self
    }

    /// The error of an operation on `key` that is undone when its outcome is not known.
    pub(crate) fn into_error(self, key: &Key) -> Error {
        self.into_error_with(
            key,
            "what it left is undone in the background or ends with its lease",
        )
    }

    /// The error of a question: it has changed nothing, whether it ran or not.
    pub(crate) fn into_error_of_question(mut self, key: &Key) -> Error {
        self.outcome = Outcome::DidNotRun;
        self.into_error(key)
    }

    /// The error of a change that stands if it was made.
    pub(crate) fn into_error_of_change(mut self, key: &Key) -> Error {
        // An earlier request may have made it, whatever the server said to the last one.
        if self.outcome == Outcome::MayHaveRun
            && let Cause::NotNow(said)
            | Cause::Denied(said)
            | Cause::WrongKind(said)
            | Cause::Other(said) = self.cause
        {
            self.cause = Cause::NoAnswer(format!("the last it said is: {said}"));
        }
        self.into_error_with(
            key,
            "nothing undoes it: look at the key before you ask again",
        )
    }

    /// The error of giving back what goes on being given back.
    pub(crate) fn into_error_of_return(self, key: &Key) -> Error {
        if self.is_about_the_key() || self.cause == Cause::RuntimeEnded {
            return self.into_error(key);
        }
        let kind = match (&self.cause, self.outcome) {
            (Cause::Denied(_), _) => ErrorKind::Denied,
            (Cause::TooOld { .. } | Cause::Other(_), _) => ErrorKind::Unsupported,
            (_, Outcome::DidNotRun) => ErrorKind::Unavailable,
            (_, Outcome::MayHaveRun) => ErrorKind::OutcomeUnknown,
        };
        let (at, cause) = (&self.address, &self.cause);
        let message = format!(
            "no server has said that `{key}` was given back at {at}: {cause}; it is sent again in the background while the client's runtime goes on, and counts once"
        );
        self.error(kind, message).with_key(key)
    }

    pub(crate) fn into_error_with(self, key: &Key, if_it_ran: &str) -> Error {
        let brief = format!("`{key}` at {}: {}", self.address, self.cause);
        self.explain(&format!(" for `{key}`"), if_it_ran)
            .with_key(key)
            .with_brief(brief)
    }

    /// The error of connecting, which is about no name.
    #[cfg(feature = "redis")]
    pub(crate) fn into_connect_error(self) -> Error {
        self.explain("", "nothing was changed")
    }

    fn explain(self, subject: &str, if_it_ran: &str) -> Error {
        let at = &self.address;
        let (kind, message) = match (&self.cause, self.outcome) {
            (Cause::NoAnswer(what), Outcome::DidNotRun) => (
                ErrorKind::Unavailable,
                format!(
                    "no server answered at {at}{subject}: {what}; nothing was changed: check the address and that the server runs"
                ),
            ),
            (Cause::NoAnswer(what) | Cause::NoVoteYet(what), Outcome::MayHaveRun) => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "no answer from {at}{subject}: {what}; the request may have run: {if_it_ran}"
                ),
            ),
            (Cause::NotNow(said), _) => (
                ErrorKind::Unavailable,
                format!(
                    "the server at {at} can't answer now{subject}: {said}; try again when it has recovered"
                ),
            ),
            (Cause::NoVoteYet(said), Outcome::DidNotRun) => (
                ErrorKind::Unavailable,
                format!("{at} have no vote yet{subject}: {said}; a wait goes on until they have"),
            ),
            (Cause::Late, _) => (
                ErrorKind::Unavailable,
                format!(
                    "the request{subject} reached {at} too late and was not granted; check the delay to the server and its clock"
                ),
            ),
            (Cause::Denied(said), _) => (
                ErrorKind::Denied,
                format!(
                    "the server at {at} refuses access{subject}: {said}; check user, password and the permissions for the key and its commands"
                ),
            ),
            (Cause::WrongKind(said), _) => (
                ErrorKind::WrongKind,
                format!(
                    "the key at {at}{subject} holds something else: {said}; nothing was changed: use another name; `leasehold show NAME` says what the key is"
                ),
            ),
            (Cause::Missing, _) => (
                ErrorKind::NotFound,
                format!(
                    "there is no semaphore at {at}{subject}: nobody has made it, or it has ended; make it with try_set_permits, or wait for it without must_exist"
                ),
            ),
            (Cause::TooOld { found, needed }, _) => (
                ErrorKind::Unsupported,
                format!(
                    "the server at {at} is too old{subject}: its version is {found}, and {needed} is the oldest that works; upgrade it or use another one"
                ),
            ),
            (Cause::RuntimeEnded, Outcome::DidNotRun) => (
                ErrorKind::Misuse,
                format!(
                    "the client's runtime has ended, so nothing was sent to {at}{subject}: what the client still holds ends with its lease; make a new client in a runtime that goes on"
                ),
            ),
            (Cause::RuntimeEnded, Outcome::MayHaveRun) => (
                ErrorKind::OutcomeUnknown,
                format!(
                    "the client's runtime ended before {at} answered{subject}; the request may have run, and nothing undoes it: what it took ends with its lease, and what has no lease stays; make a new client in a runtime that goes on"
                ),
            ),
            (Cause::Other(said), _) => (
                ErrorKind::Unsupported,
                format!(
                    "the server at {at} failed{subject}: {said}; check its version and settings"
                ),
            ),
        };
        self.error(kind, message)
    }

    fn error(&self, kind: ErrorKind, message: String) -> Error {
        let error = Error::new(kind, message);
        match &self.source {
            Some(source) => error.with_source(SharedSource(Arc::clone(source))),
            None => error,
        }
    }
}

/// An error without the place in the script that servers before 7 put before its code, as
/// in `@user_script: 34: -OOM command not allowed`. One that ended the whole script has the
/// place twice, behind a text of its own.
fn without_place(text: &str) -> &str {
    let mut rest = match text.strip_prefix("ERR Error running script (call to ") {
        Some(rest) => rest.split_once("): ").map_or(text, |(_, error)| error),
        None => text,
    };
    while let Some(behind) = rest.strip_prefix("@user_script:")
        && let Some((line, error)) = behind.split_once(':')
        && line.trim().parse::<u32>().is_ok()
    {
        rest = error.trim_start();
    }
    rest.strip_prefix('-').unwrap_or(rest)
}

/// One cause below the failures of all operations of a call.
#[derive(Debug)]
struct SharedSource(Arc<dyn StdError + Send + Sync>);

impl fmt::Display for SharedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for SharedSource {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(text: &str) -> Cause {
        Failure::from_reply(text, &Arc::from("redis://h")).cause
    }

    /// What each server says when the same command fails inside a script: Redis 6.2, Redis
    /// 7.0, Valkey 8 (and Redis 7.2).
    #[test]
    fn errors_inside_scripts_are_sorted_alike_whatever_the_server() {
        for said in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots",
        ] {
            let expected = Cause::NotNow(said.to_owned());
            assert_eq!(cause(said), expected, "Redis 7 and Valkey");
            let before = format!("@user_script: 34: -{said}\r\n");
            assert_eq!(cause(&before), expected, "Redis 6.2");
            let whole = format!(
                "ERR Error running script (call to f_131b5f2ed4a6e4f431cc21897ae043d687859f08): \
                 @user_script:1: @user_script: 1: -{said}"
            );
            assert_eq!(cause(&whole), expected, "a whole script on Redis 6.2");
        }
        let down =
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
        assert_eq!(cause(down), Cause::NotNow(down.to_owned()));
        let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
        assert_eq!(cause(wrong), Cause::WrongKind(wrong.to_owned()));
    }

    #[test]
    fn missing_permissions_inside_scripts_are_denied_whatever_the_server() {
        let old = [
            "The user executing the script can't run this command or subcommand",
            "The user executing the script can't access at least one of the keys mentioned in the command arguments",
            "The user executing the script can't publish to the channel mentioned in the command",
        ];
        let new = [
            "ERR ACL failure in script: User app has no permissions to run the 'incr' command",
            "ERR ACL failure in script: No permissions to access a key",
            "ERR ACL failure in script: No permissions to access a channel",
        ];
        let before_7 = old.map(|said| format!("@user_script: 3: {said}"));
        let in_7 = old.map(|said| format!("ERR {said}"));
        let since_7_2 = new.map(str::to_owned);
        for said in before_7.iter().chain(&in_7).chain(&since_7_2) {
            assert!(matches!(cause(said), Cause::Denied(_)), "{said}");
        }
    }

    #[test]
    fn a_text_that_only_looks_like_a_place_stays() {
        for said in [
            "@user_script: here: -OOM",
            "@user_script:",
            "ERR Error running script (call to f_1",
            "ERR no such thing as @user_script: 1: -OOM",
        ] {
            assert_eq!(cause(said), Cause::Other(said.to_owned()));
        }
    }

    #[test]
    fn each_error_of_a_failure_has_the_cause_below_it() {
        let key = Key::parse("x").expect("a name");
        let no_answer = Failure {
            source: Some(Arc::new(fmt::Error)),
            ..Failure::no_answer(Outcome::MayHaveRun, "cut", "memory://")
        };
        for error in [
            no_answer.clone().into_error(&key),
            no_answer.clone().into_error_of_question(&key),
            no_answer.clone().into_error_of_change(&key),
            no_answer.into_error_of_return(&key),
        ] {
            assert!(error.source().is_some(), "{error}");
        }
    }
}
