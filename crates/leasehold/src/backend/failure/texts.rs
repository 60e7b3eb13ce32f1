//! The messages of failures. Each says where the operation failed, why, and what to do next.

use super::{Cause, Failure, Outcome};

/// Returns the message of a failure about `subject`. `if_it_ran` says what happens to the effect of
/// a request that may have run.
pub(super) fn explained(failure: &Failure, subject: &str, if_it_ran: &str) -> String {
    let at = &failure.address;
    match (&failure.cause, failure.outcome) {
        (Cause::NoAnswer(what), Outcome::DidNotRun) => format!(
            "no server answered at {at}{subject}: {what}; nothing was changed: check the address and whether the server is running"
        ),
        (Cause::NoAnswer(what) | Cause::NoVoteYet(what), Outcome::MayHaveRun) => {
            format!("no answer from {at}{subject}: {what}; the request may have run: {if_it_ran}")
        }
        (Cause::NoCredentials(why), _) => format!(
            "the client can't log in at {at}{subject}: {why}; nothing was sent, and the next attempt asks for credentials and certificate again"
        ),
        (Cause::NotNow(said), _) => format!(
            "the server at {at} can't answer now{subject}: {said}; try again when it has recovered"
        ),
        (Cause::NoVoteYet(said), Outcome::DidNotRun) => {
            format!("{at} can't vote yet{subject}: {said}; a wait continues until they can")
        }
        (Cause::Guarded { .. }, _) => format!(
            "nothing is granted at {at}{subject}: {}; try again after that, or wait",
            failure.cause
        ),
        (Cause::Late, _) => format!(
            "the request{subject} reached {at} too late and was not granted; check the delay to the server and its clock"
        ),
        (Cause::Denied(said), _) => format!(
            "the server at {at} refuses access{subject}: {said}; check user, password and the permissions for the key and its commands"
        ),
        (Cause::WrongKind(said), _) => {
            let name = subject.strip_prefix(" for ").unwrap_or("the key");
            let show = name.trim_matches('`');
            format!(
                "{name} at {at} is {said}; nothing was changed: use another name; `leasehold show {show}` says more"
            )
        }
        (Cause::Missing, _) => format!(
            "there is no semaphore at {at}{subject}: it was never created, or it no longer exists; create it with try_set_permits, or wait for it without must_exist"
        ),
        (Cause::TooOld { found, needed }, _) => format!(
            "the server at {at} is too old{subject}: its version is {found}, and {needed} is the oldest that works; upgrade it or use another one"
        ),
        (Cause::RuntimeEnded, Outcome::DidNotRun) => format!(
            "the client's runtime has ended, so nothing was sent to {at}{subject}: every hold of the client ends with its lease; make a new client in a runtime that keeps running"
        ),
        (Cause::RuntimeEnded, Outcome::MayHaveRun) => format!(
            "the client's runtime ended before {at} answered{subject}; the request may have run, and nothing undoes it: a hold ends with its lease, and any other change stays; make a new client in a runtime that keeps running"
        ),
        (Cause::Forked, _) => format!(
            "the client of {at} belongs to the process from which this one was forked, so nothing was sent{subject}; connect after the fork"
        ),
        (Cause::Unconfirmed(what), _) => format!(
            "accepted at {at}{subject}, but {}; {if_it_ran}: check the replicas or ask for fewer",
            what.why
        ),
        (Cause::Other(said), _) => {
            format!("the server at {at} failed{subject}: {said}; check its version and settings")
        }
    }
}
