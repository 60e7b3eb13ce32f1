//! `leasehold set-limit`: changes how many commands `run --limit` runs at a time.

use leasehold::inspect::Found;

use super::show::kind_in_words;
use super::{name_of_lock, until_signal};
use crate::cli::SetLimit;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::server::Server;
use crate::usage::command_line;

pub(crate) async fn set_limit(args: SetLimit, server: &Server) -> Result<Exit, Failure> {
    until_signal(set(args, server)).await
}

async fn set(args: SetLimit, server: &Server) -> Result<Exit, Failure> {
    let name = name_of_lock(args.name)?;
    let client = server.connect(None).await?;
    let before = match client.peek(&name).await?.found {
        Found::Leases { free: None, .. } => None,
        found => limit_of(&name, &found)?,
    };
    client
        .expirable_semaphore(&name)
        .set_permits(args.limit)
        .await?;
    let before = before.map_or_else(String::new, |before| format!(", {before} before"));
    output::note(format_args!(
        "`{}` lets {} run at a time from now on{before}",
        Shown(&name),
        args.limit
    ));
    Ok(Exit::Success)
}

/// Returns how many commands may run at a time, or `None` if no limit is set. A name that is
/// something else is an error.
pub(crate) fn limit_of(name: &str, found: &Found) -> Result<Option<i64>, Failure> {
    match found {
        Found::Nothing => Ok(None),
        // A new limit would not count the commands that run already.
        Found::Leases {
            free: None, held, ..
        } => Err(Failure::new(
            Exit::Disagrees,
            format!(
                "the key of `{}` was removed while {held} of its commands run; set the limit \
                 again: leasehold set-limit {} N",
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
