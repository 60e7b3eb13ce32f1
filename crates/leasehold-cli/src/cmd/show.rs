//! `leasehold show`: shows what a name is, who holds it, and for how long.

mod blocked;
pub(super) mod json;
pub(super) mod text;

use leasehold::inspect::Found;
use leasehold::slot::TurnInfo;
use leasehold::{Client, ErrorKind};

use super::acquire::told_turn;
use super::doctor::brief;
use super::name_to_look_at;
use crate::cli::Show;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown};
use crate::server::Server;

pub(crate) async fn show(args: &Show, server: &Server) -> Result<Exit, Failure> {
    let name = name_to_look_at(args.name.clone())?;
    let client = server.connect(None).await?;
    let seen = client.inspect(&name).await?;
    if args.blocked_by {
        let chain = blocked::chain(&client, &name, &seen).await?;
        return output::result(match args.json {
            true => blocked::json(&name, &chain),
            false => blocked::text(&name, &chain),
        })
        .await
        .map(|()| Exit::Success);
    }
    let turn = last_turn(&client, &name).await?;
    if args.json {
        output::result(json::of(&name, &seen, turn.as_ref())).await?;
    }
    if let Found::Unknown { what } = &seen.found {
        return Err(Failure::new(
            Exit::OtherKind,
            format!(
                "`{}` at {} is {what}: not a lock, semaphore or latch that this version knows; \
                 find out which program uses it before you change it",
                Shown(&name),
                client.address()
            ),
        ));
    }
    if !args.json {
        let mut text = text::of(&name, &seen);
        if let Some(turn) = &turn {
            text.push_str(&format!("\n  turn    {}", told_turn(turn)));
        }
        output::result(text).await?;
    }
    if output::is_watched()
        && let Some(warning) = brief(&client).await
    {
        output::note(warning);
    }
    Ok(match is_held(&seen.found) {
        false if args.exit_code => Exit::Failed,
        _ => Exit::Success,
    })
}

/// Returns the turn that began last under the name, if the user may read it.
async fn last_turn(client: &Client, name: &str) -> Result<Option<TurnInfo>, Failure> {
    match client.lock(name).last_turn().await {
        Ok(turn) => Ok(turn),
        // Any other kind of name has no turns.
        Err(error) if matches!(error.kind(), ErrorKind::WrongKind | ErrorKind::Denied) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a client holds the name, or would have to wait for it.
fn is_held(found: &Found) -> bool {
    match found {
        Found::Nothing | Found::Latch { left: 0 } => false,
        Found::ReadWrite { writer, readers } => writer.is_some() || !readers.is_empty(),
        Found::Group(values) => !values.is_empty(),
        Found::Leases { held, .. } => *held > 0,
        Found::Count(free) => *free <= 0,
        _ => true,
    }
}

/// Returns the kind of a name, for a sentence.
pub(crate) fn kind_in_words(found: &Found) -> String {
    match found {
        Found::Nothing => "free".to_owned(),
        Found::Lock(_) => "a lock".to_owned(),
        Found::ReadWrite { .. } => "a read-write lock".to_owned(),
        Found::Group(_) => "a group lock".to_owned(),
        Found::Leases { .. } => "a semaphore whose permits have leases".to_owned(),
        Found::Count(_) => "a semaphore or a latch".to_owned(),
        Found::Latch { .. } => "a latch".to_owned(),
        Found::Unknown { what } => what.clone(),
        _ => "something that this version does not know".to_owned(),
    }
}
