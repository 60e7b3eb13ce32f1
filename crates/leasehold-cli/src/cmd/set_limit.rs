//! `leasehold set-limit`: changes how many commands `run --limit` runs at a time, or removes the
//! limit.

use leasehold::Client;
use leasehold::inspect::{Found, NameInfo, Ttl};

use super::release::is_confirmed;
use super::show::kind_in_words;
use super::{name_of_lock, until_signal};
use crate::cli::SetLimit;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown, tell};
use crate::server::Server;
use crate::usage::command_line;

pub(crate) async fn set_limit(args: SetLimit, server: &Server) -> Result<Exit, Failure> {
    until_signal(set(args, server)).await
}

async fn set(args: SetLimit, server: &Server) -> Result<Exit, Failure> {
    let name = name_of_lock(args.name)?;
    let client = server.connect(None).await?;
    let seen = client.peek(&name).await?;
    is_not_foreign(&name, &seen, "limit")?;
    let before = match &seen.found {
        Found::Leases { free: None, .. } => None,
        found => limit_of(&name, found)?,
    };
    let Some(limit) = args.limit else {
        return remove(args.yes, &name, &client, &seen.found, before).await;
    };
    client.expirable_semaphore(&name).set_permits(limit).await?;
    let before = before.map_or_else(String::new, |before| format!("; it was {before}"));
    output::note(format_args!(
        "the limit of `{}` is {} from now on{before}",
        Shown(&name),
        limit
    ));
    Ok(Exit::Success)
}

/// Removes a limit under which no command runs.
async fn remove(
    yes: bool,
    name: &str,
    client: &Client,
    found: &Found,
    before: Option<i64>,
) -> Result<Exit, Failure> {
    let shown = Shown(name);
    if let Found::Leases {
        held: held @ 1.., ..
    } = found
    {
        return Err(Failure::new(
            Exit::Busy(Exit::DEFAULT_BUSY),
            format!(
                "commands running under the limit of `{shown}`: {held}; wait until they have ended, \
                 or take their permits away: leasehold release {} --force",
                command_line(&[name.into()])
            ),
        ));
    }
    let missing = || {
        let what = format!("`{shown}` has no limit; there is nothing to remove");
        Err(Failure::new(Exit::Missing, what))
    };
    let Some(before) = before else {
        return missing();
    };
    let facts = [format!(
        "the limit of `{shown}` is {before}, and no command runs under it"
    )];
    let what = format!("the limit of `{shown}` is removed");
    if !yes && !is_confirmed(&what, facts, "remove the limit").await? {
        tell(format_args!("the limit of `{shown}` was not removed"));
        return Ok(Exit::Failed);
    }
    if !client.expirable_semaphore(name).delete().await? {
        return missing();
    }
    output::note(format_args!(
        "`{shown}` has no limit from now on; it was {before}"
    ));
    Ok(Exit::Success)
}

/// Refuses a number that can't be the count of a latch or a limit, because it expires or is
/// negative. Any other number may be such a count, because Redisson also stores a plain number.
pub(super) fn is_not_foreign(name: &str, seen: &NameInfo, what: &str) -> Result<(), Failure> {
    let Found::Count(count) = seen.found else {
        return Ok(());
    };
    let why = match seen.ttl {
        Ttl::Left(_) => "expires",
        _ if count < 0 && what == "latch" => "is below zero",
        _ => return Ok(()),
    };
    Err(Failure::new(
        Exit::OtherKind,
        format!(
            "the number under `{}` {why}, so it is not a {what}: another program stored it; choose \
             another name",
            Shown(name)
        ),
    ))
}

/// Returns how many commands may run at a time, or `None` if no limit is set. A name that is
/// something else is an error.
pub(crate) fn limit_of(name: &str, found: &Found) -> Result<Option<i64>, Failure> {
    match found {
        Found::Nothing => Ok(None),
        // A new limit would not count the commands that already run.
        Found::Leases {
            free: None, held, ..
        } => Err(Failure::new(
            Exit::Disagrees,
            format!(
                "the limit of `{}` was removed while commands ran under it (still running: {held}); \
                 set it again: leasehold set-limit {} N",
                Shown(name),
                command_line(&[name.into()])
            ),
        )),
        Found::Count(count) => Ok(Some(*count)),
        Found::Leases {
            free: Some(free),
            held,
            ..
        } => Ok(Some(free.saturating_add_unsigned(*held))),
        other => Err(Failure::new(
            Exit::OtherKind,
            format!(
                "`{}` is in use as {}, so it can't have a limit; choose another name",
                Shown(name),
                kind_in_words(other)
            ),
        )),
    }
}
