//! The facts about a name, as text.

use std::fmt::Write as _;
use std::time::Duration;

use leasehold::inspect::{
    ClientInfo, Found, HoldInfo, NameInfo, PermitInfo, Ttl, ValueInfo, Wants,
};

use crate::duration;
use crate::output::Shown;

pub(in crate::cmd) fn of(name: &str, seen: &NameInfo) -> String {
    let mut text = format!("`{}` is ", Shown(name));
    let denied = seen.clients_denied;
    // Writing to a string can't fail.
    let _ = match &seen.found {
        Found::Nothing => write!(text, "free"),
        Found::Lock(hold) => write!(text, "held{}", of_hold(hold, denied)),
        Found::ReadWrite { writer, readers } => {
            let mode = match writer {
                Some(_) => "held to write",
                None if readers.is_empty() => "a read-write lock that is free",
                None => "held to read",
            };
            let holds = writer.iter().chain(readers);
            let holds: String = holds.map(|hold| of_hold(hold, denied)).collect();
            write!(text, "{mode}{holds}")
        }
        Found::Group(values) => {
            let shown = values.iter().map(|value| of_value(value, denied));
            let number = match values.len() {
                1 => "1 value".to_owned(),
                values => format!("{values} values"),
            };
            let shown = shown.collect::<String>();
            write!(text, "a group lock: {number} held{shown}")
        }
        Found::Leases {
            free,
            held,
            permits,
        } => write!(text, "{}", of_permits(*free, *held, permits)),
        Found::Count(count) => write!(
            text,
            "a semaphore with {count} free permits, or a latch with a remaining count of {count}: \
             their keys look the same"
        ),
        Found::Latch { left: 0 } => write!(text, "a latch that is open"),
        Found::Latch { left } => write!(text, "a latch with a remaining count of {left}"),
        other => write!(text, "{}", super::kind_in_words(other)),
    };
    if seen.more > 0 {
        let _ = write!(text, "\n  more    {} are not shown", seen.more);
    }
    let _ = write!(text, "{}", of_line(seen));
    if denied {
        let _ = write!(
            text,
            "\n  who     not known: the server denies `leasehold:client*`"
        );
    }
    if let Some(token) = seen.last_token {
        let _ = write!(text, "\n  token   {token} was the last one");
    }
    if let Some(node) = &seen.node {
        let address = node.address.as_deref().unwrap_or("no node");
        let _ = match node.slot {
            Some(slot) => write!(text, "\n  node    {address} has the name's slot, {slot}"),
            None => write!(text, "\n  node    {address} is the master"),
        };
    }
    text
}

fn of_hold(hold: &HoldInfo, denied: bool) -> String {
    let client = match hold.kept {
        // The client has usually ended, so no client is shown.
        true => format!(
            "\n  kept    until the TTL ends, and not renewed (a ticket, --min-hold or keep_for){}",
            of_client(hold.client.as_ref())
        ),
        false => of_holder(&hold.id, hold.client.as_ref(), denied),
    };
    format!(
        "\n  holder  {}{}{}{}\n  count   {}\n  TTL     {}",
        Shown(&hold.id),
        client,
        of_time("held", hold.held_for),
        of_guards(hold.guards),
        hold.count,
        of_ttl(hold.ttl)
    )
}

/// Returns a line about a holder's client. If the client has not announced itself, the line says
/// which kind of client it may be.
fn of_holder(id: &str, client: Option<&ClientInfo>, denied: bool) -> String {
    // In Leasehold and in Redisson, an id consists of a UUID and a number.
    let is_client = id.find(':') == Some(36);
    if client.is_none() && is_client && !denied {
        return "\n  client  unknown (a Redisson client, or one that has not announced itself yet)"
            .to_owned();
    }
    of_client(client)
}

/// Returns a line about a client, if it has announced itself.
fn of_client(client: Option<&ClientInfo>) -> String {
    let Some(client) = client else {
        return String::new();
    };
    let mut text = format!("\n  client  {}", who(client));
    if !client.address.is_empty() {
        // Writing to a string can't fail.
        let _ = write!(text, ", from {}", Shown(&client.address));
    }
    text
}

/// Returns a few words that identify a client.
pub(in crate::cmd) fn who(client: &ClientInfo) -> String {
    format!(
        "{} on {}, process {}",
        Shown(&client.label),
        Shown(&client.host),
        Shown(&client.pid)
    )
}

fn of_time(what: &str, span: Option<Duration>) -> String {
    let span = span.map(|span| Duration::from_secs(span.as_secs()));
    span.map_or_else(String::new, |span| {
        format!("\n  {what:<6}  for at least {}", duration::shown(span))
    })
}

fn of_guards(guards: Option<u32>) -> String {
    match guards {
        Some(guards @ 2..) => format!("\n  shared  by {guards} guards of its process"),
        _ => String::new(),
    }
}

fn of_value(value: &ValueInfo, denied: bool) -> String {
    format!(
        "\n  value   {} (a hash of the value){}",
        Shown(&value.field),
        of_hold(&value.hold, denied)
    )
}

fn of_permits(free: Option<i64>, held: u64, permits: &[PermitInfo]) -> String {
    let mut text = match free {
        Some(free) => {
            let total = i128::from(free) + i128::from(held);
            format!("a semaphore with leases: {held} of {total} permits in use")
        }
        None => format!(
            "a semaphore with leases whose key was removed while {held} permits are in use; \
             they end by themselves"
        ),
    };
    for permit in permits {
        let left = of_ttl(permit.ttl);
        let (client, since) = (
            of_client(permit.client.as_ref()),
            of_time("held", permit.held_for),
        );
        let id = Shown(&permit.id);
        let _ = write!(text, "\n  permit  {id}{client}{since}\n  TTL     {left}");
    }
    text
}

fn of_ttl(ttl: Ttl) -> String {
    match ttl {
        Ttl::Left(left) => duration::shown(left),
        Ttl::NoExpiry => "none: it does not end by itself".to_owned(),
        _ => "over".to_owned(),
    }
}

/// Formats a TTL in a few characters.
pub(in crate::cmd) fn short_ttl(ttl: Ttl) -> String {
    match ttl {
        Ttl::Left(left) if left.as_secs() < 10 => format!("{:.1}s", left.as_secs_f64()),
        Ttl::Left(left) if left.as_secs() < 600 => format!("{}s", left.as_secs()),
        Ttl::Left(left) if left.as_secs() < 36_000 => format!("{}m", left.as_secs() / 60),
        Ttl::Left(left) => format!("{}h", left.as_secs() / 3600),
        Ttl::NoExpiry => "none".to_owned(),
        _ => "-".to_owned(),
    }
}

/// Returns lines about the waiters, in the order of the queue.
fn of_line(seen: &NameInfo) -> String {
    let mut text = String::new();
    for waiter in &seen.waiting {
        let wants = match waiter.wants {
            Wants::ToRead => " to read",
            Wants::ToWrite => " to write",
            _ => "",
        };
        let (client, since) = (
            of_holder(&waiter.id, waiter.client.as_ref(), seen.clients_denied),
            of_time("waited", waiter.waited_for),
        );
        // Writing to a string can't fail.
        let _ = write!(
            text,
            "\n  waits   {}{wants}{client}{since}",
            Shown(&waiter.id)
        );
    }
    if seen.more_waiting > 0 {
        let _ = write!(text, "\n  waits   {} more", seen.more_waiting);
    }
    if seen.more_clients {
        let _ = write!(
            text,
            "\n  waits   perhaps more: only 200 of the clients were looked at"
        );
    }
    let _ = match (&seen.found, seen.listening) {
        // A client may listen until this name exists, or may no longer have a reason to listen. So
        // the number of listeners is shown only if it is known and above 0.
        (Found::Nothing | Found::Latch { left: 0 } | Found::Unknown { .. }, None | Some(0)) => {
            Ok(())
        }
        (_, None) => write!(text, "\n  waiting not known: the server does not say"),
        (_, Some(0)) if seen.waiting.is_empty() => write!(text, "\n  waiting none"),
        (_, Some(0)) => Ok(()),
        (_, Some(1)) => write!(text, "\n  waiting 1 process is subscribed"),
        (_, Some(count)) => write!(text, "\n  waiting {count} processes are subscribed"),
    };
    text
}
