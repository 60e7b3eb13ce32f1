//! The reasons why an operation has no reply, and the errors that callers get for them.

mod texts;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::step::{Step, Value};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::text::Shown;

/// The reason why an operation has no reply, and whether the operation may have run.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    pub(crate) cause: Cause,
    /// The address of the server, without credentials.
    pub(crate) address: Arc<str>,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Whether a failed operation may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    DidNotRun,
    MayHaveRun,
}

/// The cause of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No answer: the server is not reachable, was cut off, or is too slow. A retry may succeed.
    NoAnswer(String),
    /// The client could not read or create its credentials or certificate. A retry may succeed,
    /// because each attempt reads them again.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    NoCredentials(String),
    /// An error reply for a state that ends by itself: loading, busy, out of memory. A retry may
    /// succeed.
    NotNow(String),
    /// A server of a `RedLock` has no vote yet, because it has just started. This ends at a known
    /// time and is not an outage.
    NoVoteYet(String),
    /// The call reached the server after its deadline and granted nothing.
    Late,
    /// The server was replaced or restarted, and a failover guard grants nothing for `remaining`.
    /// This is not an outage.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    Guarded { remaining: Duration },
    /// A permission or a password is missing. Retries alone don't help.
    Denied(String),
    /// The key holds another kind of value. Retries alone don't help.
    WrongKind(String),
    /// The key does not exist, and the caller requires it to. Retries alone don't help.
    Missing,
    /// The server can't run the scripts. Retries alone don't help.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    TooOld { found: String, needed: String },
    /// The client's runtime has ended, and with it the task that would have sent the operation.
    /// Retries never help.
    RuntimeEnded,
    /// The client belongs to the process from which this one was forked. Retries never help.
    Forked,
    /// The operation ran, but too few servers have confirmed it. A retry may succeed.
    #[cfg_attr(not(any(feature = "redis", feature = "testing")), expect(dead_code))]
    Unconfirmed(Box<Unconfirmed>),
    /// Any other error reply of the server.
    Other(String),
}

/// The server's reply, and the reason why it does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    pub(crate) reply: Value,
    pub(crate) why: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer(what)
            | Self::NoCredentials(what)
            | Self::NotNow(what)
            | Self::NoVoteYet(what)
            | Self::Denied(what)
            | Self::WrongKind(what)
            | Self::Other(what) => f.write_str(what),
            Self::Unconfirmed(what) => f.write_str(&what.why),
            Self::Late => f.write_str("the request came too late"),
            Self::Guarded { remaining } => write!(
                f,
                "the failover guard grants nothing for another {remaining:.1?}, because the server was replaced or restarted"
            ),
            Self::Missing => f.write_str("there is no semaphore"),
            Self::RuntimeEnded => f.write_str("the client's runtime has ended"),
            Self::Forked => {
                f.write_str("the client belongs to the process from which this one was forked")
            }
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

    /// Makes the failure of a request that was not answered.
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

    /// Makes the failure of a client that belongs to the process from which this one was forked.
    pub(crate) fn forked(address: impl Into<Arc<str>>) -> Self {
        Self::new(Outcome::DidNotRun, Cause::Forked, address)
    }

    /// Returns whether a retry may succeed.
    pub(crate) fn may_heal(&self) -> bool {
        matches!(
            self.cause,
            // `RuntimeEnded` is not here: no task would send a retry, and a waiter would wait until
            // its outage limit for nothing.
            Cause::NoAnswer(_)
                | Cause::NoCredentials(_)
                | Cause::NotNow(_)
                | Cause::NoVoteYet(_)
                | Cause::Guarded { .. }
                | Cause::Late
                | Cause::Unconfirmed(_)
        )
    }

    /// Returns whether a waiter treats this failure as an outage, for as long as the failure lasts.
    pub(crate) fn is_outage(&self) -> bool {
        // In these cases the servers do answer. By default the longest lease is as long as the
        // outage limit, so a wait would end just before the servers vote again.
        !matches!(self.cause, Cause::NoVoteYet(_) | Cause::Guarded { .. })
    }

    /// Returns whether the failure lasts for as long as the key holds its current content.
    pub(crate) fn is_about_the_key(&self) -> bool {
        // Other lasting causes do not count. For example, a denied release is retried, because the
        // permission may be granted again. Without the release, permits without a lease would be
        // lost.
        matches!(self.cause, Cause::WrongKind(_))
    }

    /// Classifies an error reply of the server by its code. The texts after the code differ between
    /// servers and versions, but the codes don't.
    pub(crate) fn from_reply(text: &str, address: &Arc<str>) -> Self {
        let text = without_arguments(without_location(text.trim_end()));
        let code = text.split([' ', ':']).next().unwrap_or("");
        let said = Shown(text).to_string();
        let cause = match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "READONLY"
            | "NOREPLICAS" | "MISCONF" | "OOM" => Cause::NotNow(said),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Cause::Denied(said),
            "WRONGTYPE" => Cause::WrongKind("a key of another type".into()),
            "WRONGKIND" => Cause::WrongKind(said[code.len()..].trim_start().to_owned()),
            // Inside a script, a missing permission is an error without a code of its own. From 7.2
            // on, the error contains the first of these strings, in earlier versions the second.
            _ if text.contains("ACL failure in script")
                || text.contains("The user executing the script can't") =>
            {
                Cause::Denied(said)
            }
            // The code is only `ERR`, but the state ends when another client disconnects.
            _ if text.contains("max number of clients") => Cause::NotNow(said),
            _ => Cause::Other(said),
        };
        Self::new(Outcome::DidNotRun, cause, Arc::clone(address))
    }

    /// Adds the kind that the step expects to the text of the failure, which names only the kind
    /// that the key holds.
    pub(crate) fn of(mut self, step: &Step) -> Self {
        if let Cause::WrongKind(said) = &mut self.cause {
            said.push_str(", not ");
            said.push_str(step.kind());
        }
        self
    }
}

/// Accepts an unconfirmed reply if it is a refusal, because a refused caller got nothing that could
/// be lost. `gives` returns whether a reply gives the caller something. Such a reply stays
/// unconfirmed.
pub(crate) fn accept_refusal(
    result: Result<Value, Failure>,
    gives: impl FnOnce(&Value) -> bool,
) -> Result<Value, Failure> {
    match result {
        Err(Failure {
            cause: Cause::Unconfirmed(what),
            ..
        }) if !gives(&what.reply) => Ok(what.reply),
        result => result,
    }
}

impl Failure {
    /// Makes the error of an operation on `key`. If its outcome is unknown, the operation is
    /// undone.
    pub(crate) fn into_error(self, key: &Key) -> Error {
        let if_it_ran = match &self.cause {
            Cause::Unconfirmed(_) => "it was released",
            _ => "if it did, its effect is undone in the background or ends with its lease",
        };
        self.into_error_with(key, if_it_ran)
    }

    /// Makes the error of a request to prolong a hold. Nothing is undone.
    pub(crate) fn into_error_of_renewal(self, key: &Key) -> Error {
        match &self.cause {
            Cause::Unconfirmed(_) => {
                self.into_error_with(key, "the hold is valid as long as before")
            }
            _ => self.into_error(key),
        }
    }

    /// Makes the error of a query, which changes nothing.
    pub(crate) fn into_error_of_query(mut self, key: &Key) -> Error {
        self.outcome = Outcome::DidNotRun;
        self.into_error(key)
    }

    /// Makes the error of a change that is never undone.
    pub(crate) fn into_error_of_change(mut self, key: &Key) -> Error {
        // An earlier request may have made the change, whatever the server replied to the last one.
        if self.outcome == Outcome::MayHaveRun
            && let Cause::NotNow(said)
            | Cause::Denied(said)
            | Cause::WrongKind(said)
            | Cause::Other(said) = self.cause
        {
            self.cause = Cause::NoAnswer(format!("the server's last reply is: {said}"));
        }
        self.into_error_with(key, "nothing undoes it: check the key before you try again")
    }

    /// Makes the error of a release that continues in the background.
    pub(crate) fn into_error_of_release(self, key: &Key) -> Error {
        // In these cases the release is not sent again, so the error must not promise that.
        if self.is_about_the_key() || matches!(self.cause, Cause::RuntimeEnded | Cause::Forked) {
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
            "no server has confirmed the release of `{key}` at {at}: {cause}; the release is sent again in the background while the client's runtime keeps running, and counts once"
        );
        self.error(kind, message).with_key(key)
    }

    pub(crate) fn into_error_with(self, key: &Key, if_it_ran: &str) -> Error {
        let brief = format!("`{key}` at {}: {}", self.address, self.cause);
        self.explain(&format!(" for `{key}`"), if_it_ran)
            .with_key(key)
            .with_brief(brief)
    }

    /// Makes the error of connecting, which is not about a name.
    #[cfg(feature = "redis")]
    pub(crate) fn into_connect_error(self) -> Error {
        self.explain("", "nothing was changed")
    }

    /// Makes the error of a query that is not about one name.
    pub(crate) fn into_error_of_listing(mut self) -> Error {
        self.outcome = Outcome::DidNotRun;
        self.explain("", "nothing was changed")
    }

    fn explain(self, subject: &str, if_it_ran: &str) -> Error {
        let message = texts::explained(&self, subject, if_it_ran);
        self.error(self.kind(), message)
    }

    /// Returns the kind of the error, by what the caller can do about it.
    fn kind(&self) -> ErrorKind {
        match (&self.cause, self.outcome) {
            (Cause::NoAnswer(_) | Cause::NoVoteYet(_), Outcome::DidNotRun)
            | (Cause::NoCredentials(_), _)
            | (Cause::NotNow(_) | Cause::Guarded { .. } | Cause::Late | Cause::Unconfirmed(_), _) => {
                ErrorKind::Unavailable
            }
            (
                Cause::NoAnswer(_) | Cause::NoVoteYet(_) | Cause::RuntimeEnded,
                Outcome::MayHaveRun,
            ) => ErrorKind::OutcomeUnknown,
            (Cause::Denied(_), _) => ErrorKind::Denied,
            (Cause::WrongKind(_), _) => ErrorKind::WrongKind,
            (Cause::Missing, _) => ErrorKind::NotFound,
            (Cause::TooOld { .. } | Cause::Other(_), _) => ErrorKind::Unsupported,
            (Cause::RuntimeEnded, Outcome::DidNotRun) | (Cause::Forked, _) => ErrorKind::Misuse,
        }
    }

    fn error(&self, kind: ErrorKind, message: String) -> Error {
        let error = Error::new(kind, message);
        match &self.source {
            Some(source) => error.with_source(SharedSource(Arc::clone(source))),
            None => error,
        }
    }
}

/// Removes the script location that servers before 7 put before the error code, as in
/// `@user_script: 34: -OOM command not allowed`. If the error ended the script, the location is
/// there twice, after another prefix.
fn without_location(text: &str) -> &str {
    let mut rest = match text.strip_prefix("ERR Error running script (call to ") {
        Some(rest) => rest.split_once("): ").map_or(text, |(_, error)| error),
        None => text,
    };
    while let Some(tail) = rest.strip_prefix("@user_script:")
        && let Some((line, error)) = tail.split_once(':')
        && line.trim().parse::<u32>().is_ok()
    {
        rest = error.trim_start();
    }
    rest.strip_prefix('-').unwrap_or(rest)
}

/// Removes the arguments that a server repeats when it does not know the command. One of them may
/// be a password.
pub(crate) fn without_arguments(text: &str) -> &str {
    let repeated = text.split_once(", with args beginning with");
    repeated.map_or(text, |(text, _)| text)
}

/// The source error that the failures of all operations of one call share.
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

    /// The error messages of one command that fails inside a script on Redis 6.2, Redis 7.0, and
    /// Valkey 8 (like Redis 7.2).
    #[test]
    fn script_errors_classify_alike_on_every_server() {
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
        let told = "a key of another type".to_owned();
        assert_eq!(cause(wrong), Cause::WrongKind(told));
        let told = Cause::WrongKind("a read-write lock".into());
        assert_eq!(cause("WRONGKIND a read-write lock"), told);
    }

    #[test]
    fn script_acl_errors_classify_as_denied() {
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
    fn text_resembling_a_script_location_is_kept() {
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
    fn every_failure_error_has_a_source() {
        let key = Key::parse("x").expect("a name");
        let no_answer = Failure {
            source: Some(Arc::new(fmt::Error)),
            ..Failure::no_answer(Outcome::MayHaveRun, "cut", "memory://")
        };
        for error in [
            no_answer.clone().into_error(&key),
            no_answer.clone().into_error_of_query(&key),
            no_answer.clone().into_error_of_change(&key),
            no_answer.into_error_of_release(&key),
        ] {
            assert!(error.source().is_some(), "{error}");
        }
    }
}
