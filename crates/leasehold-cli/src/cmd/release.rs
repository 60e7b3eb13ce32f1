//! `leasehold release`: takes a lock or a permit from its holder.

use std::io::{self, IsTerminal as _};

use leasehold::inspect::{ClientInfo, Found, HoldInfo, NameInfo, PermitInfo, Ttl};
use leasehold::ticket::Ticket;
use leasehold::{Client, LossReason};
use serde_json::json;

use super::acquire::{KEPT, invalid_ticket, ticket_of};
use super::show::{json, kind_in_words, text};
use super::{name_to_look_at, until_signal};
use crate::cli::Release;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::input;
use crate::output::{self, Shown, tell};
use crate::server::Server;
use crate::usage::command_line;

pub(crate) async fn release(args: Release, server: Server) -> Result<Exit, Failure> {
    until_signal(free(args, server)).await
}

/// A hold, and how long its holder may continue to act as the holder after the hold was ended.
struct Hold {
    id: String,
    ttl: Ttl,
    /// The holder, if its client has announced itself.
    who: Option<String>,
    /// Number of the client's guards that share the hold, if the client reports it.
    guards: Option<u32>,
    /// Whether the server keeps the hold for a time (`keep_for`), and no client renews it.
    kept: bool,
}

impl Hold {
    fn new(id: &str, ttl: Ttl, client: Option<&ClientInfo>) -> Self {
        Self {
            id: id.to_owned(),
            ttl,
            who: client.map(text::who),
            guards: None,
            kept: false,
        }
    }

    fn of_lock(hold: &HoldInfo) -> Self {
        Self {
            guards: hold.guards,
            kept: hold.kept,
            ..Self::new(&hold.id, hold.ttl, hold.client.as_ref())
        }
    }

    /// Describes, in words for a sentence, a hold that the server keeps for a time.
    fn kept(&self) -> String {
        let left = match self.ttl {
            Ttl::Left(left) => format!(" for another {}", duration::shown(left)),
            _ => String::new(),
        };
        format!("{KEPT}{left}; it was held by {}", self.holder())
    }

    /// Describes the holder, in words for a sentence.
    fn holder(&self) -> String {
        let holder = match &self.who {
            Some(who) => format!("{} ({who})", Shown(&self.id)),
            None => Shown(&self.id).to_string(),
        };
        match self.guards {
            Some(guards @ 2..) => format!("{holder} (shared by {guards} guards)"),
            _ => holder,
        }
    }
}

async fn free(args: Release, server: Server) -> Result<Exit, Failure> {
    let client = server.connect(None).await?;
    if let Some(ticket) = &args.ticket {
        return end_ticket(&args, &client, &ticket_of(ticket).await?).await;
    }
    let name = name_to_look_at(args.name.clone().unwrap_or_default())?;
    let seen = client.inspect(&name).await?;
    let holds = holds_of(&name, &seen)?;
    let holds = chosen(&args, &name, &seen, holds)?;
    if !args.yes && !is_wanted(&name, &holds).await? {
        tell(format_args!("`{}` was not released", Shown(&name)));
        return Ok(Exit::Failed);
    }
    let mut ended = Vec::new();
    for hold in holds {
        if client.force_release(&name, &hold.id).await? {
            ended.push(hold);
        }
    }
    if ended.is_empty() {
        return changed_hands(&client, &name).await;
    }
    tell_ended(&args, &name, &ended).await?;
    Ok(Exit::Success)
}

/// Ends the hold of a ticket.
async fn end_ticket(args: &Release, client: &Client, ticket: &Ticket) -> Result<Exit, Failure> {
    let name = Shown(ticket.name());
    if let Err(error) = client.release_ticket(ticket).await {
        let exit = match error.loss() {
            Some(LossReason::Taken { .. }) => Exit::Busy(Exit::DEFAULT_BUSY),
            Some(_) => Exit::Missing,
            None => return Err(error.into()),
        };
        return Err(invalid_ticket(ticket, &error, "nothing was released").with_exit(exit));
    }
    if args.json {
        let released = json!([{ "id": ticket.holder_id() }]);
        output::result(json!({ "name": ticket.name(), "released": released })).await?;
    } else {
        output::result(format!("released `{name}`, which was held by a ticket")).await?;
    }
    Ok(Exit::Success)
}

/// Returns all holds of the name.
fn holds_of(name: &str, seen: &NameInfo) -> Result<Vec<Hold>, Failure> {
    let of = Hold::of_lock;
    let mut holds: Vec<_> = match &seen.found {
        Found::Nothing => Vec::new(),
        Found::Lock(hold) => vec![of(hold)],
        Found::ReadWrite { writer, readers } => writer.iter().chain(readers).map(of).collect(),
        Found::Group(values) => values.iter().map(|value| of(&value.hold)).collect(),
        Found::Leases { permits, .. } => {
            let of = |one: &PermitInfo| Hold::new(&one.id, one.ttl, one.client.as_ref());
            permits.iter().map(of).collect()
        }
        other => {
            return Err(Failure::new(
                Exit::OtherKind,
                format!(
                    "`{}` is {}, which has no holder: nothing to release; `leasehold show {}` says more",
                    Shown(name),
                    kind_in_words(other),
                    command_line(&[name.into()])
                ),
            ));
        }
    };
    // One hold may have several values of a group.
    holds.sort_by(|one, other| one.id.cmp(&other.id));
    holds.dedup_by(|one, other| one.id == other.id);
    Ok(holds)
}

/// Returns the holds to end.
fn chosen(
    args: &Release,
    name: &str,
    seen: &NameInfo,
    holds: Vec<Hold>,
) -> Result<Vec<Hold>, Failure> {
    let shown = Shown(name);
    if holds.is_empty() {
        return Err(Failure::new(
            Exit::Missing,
            format!("no client holds `{shown}`; there is nothing to release"),
        ));
    }
    let all = holds.len() as u64 + seen.more;
    let ids: Vec<_> = holds
        .iter()
        .take(3)
        .map(|hold| Shown(&hold.id).to_string())
        .collect();
    let (ids, more) = (ids.join(", "), if all > 3 { " and others" } else { "" });
    if let Some(wanted) = &args.holder {
        let mut own = holds.into_iter().filter(|hold| hold.id == *wanted);
        return match own.next() {
            Some(hold) => Ok(vec![hold]),
            // The hold may be one that the server's reply has left out.
            None if seen.more > 0 => Ok(vec![Hold::new(wanted, seen.ttl, None)]),
            None => Err(Failure::new(
                Exit::Busy(Exit::DEFAULT_BUSY),
                format!(
                    "`{}` does not hold `{shown}`, which is held by {ids}{more}; nothing was released",
                    Shown(wanted)
                ),
            )),
        };
    }
    if all > 1 && !args.force {
        let command = command_line(&[name.into()]);
        return Err(Failure::usage(format!(
            "`{shown}` has {all} holds: {ids}{more}; end one with leasehold release {command} --holder ID, \
             or all with --force"
        )));
    }
    Ok(holds)
}

/// Asks at the terminal, and returns whether the answer is yes.
async fn is_wanted(name: &str, holds: &[Hold]) -> Result<bool, Failure> {
    let taken = format!("`{}` is taken from its holder", Shown(name));
    let told = holds.iter().map(|hold| match hold.kept {
        true => format!("`{}` is {}", Shown(name), hold.kept()),
        false => format!(
            "`{}` is held by {}, which may still act as the holder {}",
            Shown(name),
            hold.holder(),
            goes_on(hold.ttl)
        ),
    });
    is_confirmed(&taken, told, "take it away").await
}

/// Shows these facts at the terminal, asks the question, and returns whether the answer is yes.
/// Fails without a terminal: the error says that `what` needs `--yes`.
pub(super) async fn is_confirmed(
    what: &str,
    facts: impl IntoIterator<Item = String>,
    question: &str,
) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "{what} only with --yes, or if you confirm it at a terminal"
        )));
    }
    facts.into_iter().for_each(tell);
    output::write(format!("leasehold: {question}? [y/N] "));
    let answer = input::line().await;
    let answer = answer.map_err(|error| Failure::io("can't read the answer", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn goes_on(ttl: Ttl) -> String {
    match ttl {
        Ttl::Left(left) => format!(
            "for up to {}, or longer if it renews",
            duration::shown(left)
        ),
        _ => "without a limit".to_owned(),
    }
}

async fn changed_hands(client: &Client, name: &str) -> Result<Exit, Failure> {
    let now = client.peek(name).await?;
    let is_free = matches!(now.found, Found::Nothing);
    let (exit, what) = match is_free {
        true => (Exit::Missing, "it is free now"),
        false => (
            Exit::Busy(Exit::DEFAULT_BUSY),
            "another client holds it now",
        ),
    };
    Err(Failure::new(
        exit,
        format!(
            "`{}` changed hands before the release, and {what}; nothing was released",
            Shown(name)
        ),
    ))
}

async fn tell_ended(args: &Release, name: &str, ended: &[Hold]) -> Result<(), Failure> {
    if args.json {
        let released = ended
            .iter()
            .map(|hold| json!({ "id": hold.id, "client": hold.who, "guards": hold.guards, "kept": hold.kept, "believed_ms": json::of_ttl(hold.ttl) }));
        let released: Vec<_> = released.collect();
        return output::result(json!({ "name": name, "released": released })).await;
    }
    for hold in ended {
        let until = match hold.ttl {
            Ttl::Left(left) => format!("for up to {}", duration::shown(left)),
            _ => "without a limit, because it has no lease".to_owned(),
        };
        output::result(match hold.kept {
            true => format!("released `{}`, which was {}", Shown(name), hold.kept()),
            false => format!(
                "took `{}` from {}, which may still act as the holder {until}",
                Shown(name),
                hold.holder()
            ),
        })
        .await?;
    }
    Ok(())
}
