//! The holder that blocks an acquire.

use leasehold::Client;
use leasehold::inspect::{Found, HoldInfo, NameInfo, Ttl};
use serde_json::{Value, json};

use crate::cmd::show::text::who;
use crate::duration;
use crate::output::Shown;

/// The words for a hold that the server keeps for a time, without renewals.
pub(in crate::cmd) const KEPT: &str = "kept without renewal (a ticket, --min-hold or keep_for)";

/// The holder that blocks an acquire.
#[derive(Default)]
pub(super) struct InTheWay {
    /// A few words for a sentence, or nothing if the lock is already free.
    pub(super) text: String,
    /// The holder, as JSON.
    pub(super) holder: Value,
}

impl InTheWay {
    /// Returns the first holder of one of these locks.
    pub(super) async fn of_any(locks: &[(Client, String)]) -> leasehold::Result<Self> {
        if let [(client, name)] = locks {
            let seen = client.inspect(name).await?;
            return Ok(holder(&seen).map(Self::of).unwrap_or_default());
        }
        for (client, name) in locks {
            // If one server does not answer, the next one is queried.
            let Ok(seen) = client.inspect(name).await else {
                continue;
            };
            if let Some(hold) = holder(&seen) {
                let Self { text, holder } = Self::of(hold);
                let text = format!("`{}` is {text}", Shown(name));
                return Ok(Self { text, holder });
            }
        }
        Ok(Self::default())
    }

    fn of(hold: &HoldInfo) -> Self {
        let left = match hold.ttl {
            Ttl::Left(left) => format!(" for another {}", duration::shown(left)),
            _ => String::new(),
        };
        let text = match (hold.kept, left.as_str()) {
            (true, left) => format!("{KEPT}{left}; it was held by {}", named(hold)),
            (false, "") => format!("held by {}", named(hold)),
            (false, left) => format!("held by {},{left} unless it is renewed", named(hold)),
        };
        let client = hold.client.as_ref();
        let holder = json!({
            "id": hold.id,
            "kept": hold.kept,
            "label": client.map(|client| &client.label),
            "host": client.map(|client| &client.host),
            "pid": client.map(|client| &client.pid),
        });
        Self { text, holder }
    }
}

/// Formats a holder: its client, if the client has announced itself, and its id.
fn named(hold: &HoldInfo) -> String {
    match &hold.client {
        Some(client) => format!("{} ({})", who(client), Shown(&hold.id)),
        None => Shown(&hold.id).to_string(),
    }
}

fn holder(seen: &NameInfo) -> Option<&HoldInfo> {
    match &seen.found {
        Found::Lock(hold) => Some(hold),
        Found::ReadWrite { writer, readers } => writer.as_ref().or(readers.first()),
        _ => None,
    }
}

/// Returns a sentence about the current holder of one of these locks, if its client has announced
/// itself.
pub(in crate::cmd) async fn next_holder(locks: &[(Client, String)]) -> Option<String> {
    for (client, name) in locks {
        if let Ok(seen) = client.inspect(name).await
            && let Some(hold) = holder(&seen).filter(|hold| hold.client.is_some())
        {
            return Some(format!("`{}` is held by {} now", Shown(name), named(hold)));
        }
    }
    None
}
