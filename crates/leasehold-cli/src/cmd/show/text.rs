//! What stands under a name, for people.

use std::fmt::Write as _;

use leasehold::inspect::{Found, HoldInfo, NameInfo, PermitInfo, Ttl, ValueInfo};

use crate::duration;
use crate::output::Shown;

pub(super) fn of(name: &str, seen: &NameInfo) -> String {
    let mut text = format!("`{}` is ", Shown(name));
    // Writing to a string can't fail.
    let _ = match &seen.found {
        Found::Nothing => write!(text, "free"),
        Found::Lock(hold) => write!(text, "held{}", of_hold(hold)),
        Found::ReadWrite { writer, readers } => {
            let mode = match writer {
                Some(_) => "held to write",
                None if readers.is_empty() => "a read-write lock that is free",
                None => "held to read",
            };
            let holds = writer.iter().chain(readers).map(of_hold);
            write!(text, "{mode}{}", holds.collect::<String>())
        }
        Found::Group(values) => {
            let shown = values.iter().map(of_value);
            let number = values.len();
            write!(
                text,
                "a group; held are {number} values{}",
                shown.collect::<String>()
            )
        }
        Found::Leases {
            free,
            held,
            permits,
        } => write!(text, "{}", of_permits(*free, *held, permits)),
        Found::Count(count) => write!(
            text,
            "a semaphore with {count} free permits, or a latch with {count} to count down: \
             their keys are alike"
        ),
        Found::Latch { left: 0 } => write!(text, "a latch that is open"),
        Found::Latch { left } => write!(text, "a latch with {left} to count down"),
        other => write!(text, "{}", super::kind_in_words(other)),
    };
    let _ = write!(text, "{}", of_line(seen));
    if let Some(token) = seen.last_token {
        let _ = write!(text, "\n  token   {token} was the last one");
    }
    text
}

fn of_hold(hold: &HoldInfo) -> String {
    format!(
        "\n  holder  {}\n  count   {}\n  TTL     {}",
        Shown(&hold.id),
        hold.count,
        of_ttl(hold.ttl)
    )
}

fn of_value(value: &ValueInfo) -> String {
    format!(
        "\n  value   {} (a hash of it){}",
        Shown(&value.field),
        of_hold(&value.hold)
    )
}

fn of_permits(free: Option<i64>, held: u64, permits: &[PermitInfo]) -> String {
    let mut text = match free {
        Some(free) => {
            let total = i128::from(free) + i128::from(held);
            format!("a semaphore with leases; in use are {held} of {total} permits")
        }
        None => format!(
            "a semaphore with leases whose key was removed while {held} permits are in use; \
             they end by themselves"
        ),
    };
    for permit in permits {
        let left = of_ttl(permit.ttl);
        let _ = write!(text, "\n  permit  {}\n  TTL     {left}", Shown(&permit.id));
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

/// Those who stand in line, the first one first.
fn of_line(seen: &NameInfo) -> String {
    let Some(waiting) = &seen.waiting else {
        return match seen.found {
            // Somebody may wait for it to be made, or for nothing any more.
            Found::Nothing | Found::Latch { left: 0 } => String::new(),
            _ => "\n  waits   not known: only a fair lock has a line".to_owned(),
        };
    };
    waiting.iter().fold(String::new(), |mut text, id| {
        let _ = write!(text, "\n  waits   {}", Shown(id));
        text
    })
}
