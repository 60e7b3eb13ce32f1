//! The changes of a name, as text and as JSON.

use leasehold::inspect::{Found, Wants};
use leasehold::watch::{Change, Party};
use serde_json::{Value, json};

use super::show::{self, kind_in_words};
use crate::output::Shown;

/// A change that `watch` prints, with the words for it.
pub(super) struct Told {
    /// The value of `change` in JSON.
    pub(super) word: &'static str,
    pub(super) text: String,
    /// The other keys and values in JSON.
    pub(super) values: Vec<(&'static str, Value)>,
}

impl Told {
    /// Returns the words for a change; `None` for changes that are not printed as a line.
    pub(super) fn of(change: &Change) -> Option<Self> {
        let told = match change {
            Change::Held(party) => of_party("held", "held by", party),
            Change::Released(party) => of_party("released", "no longer held by", party),
            Change::Waits(party) => of_party("waits", "waited for by", party),
            Change::WaitsNoMore(party) => {
                of_party("waits-no-more", "no longer waited for by", party)
            }
            Change::Announced(party) => announced(party),
            Change::Freed => of_kind(&Found::Nothing),
            Change::Kind(found) => of_kind(found),
            Change::Counted(count) => Self {
                word: "count",
                text: format!("the count is {count}"),
                values: vec![("count", (*count).into())],
            },
            Change::Listening(count) => Self {
                word: "listening",
                text: match count {
                    0 => "no connection listens for a release".to_owned(),
                    1 => "1 connection listens for a release".to_owned(),
                    count => format!("{count} connections listen for a release"),
                },
                values: vec![("listening", (*count).into())],
            },
            _ => return None,
        };
        Some(told)
    }

    /// Returns the change as a line of JSON.
    pub(super) fn json(&self, at: &str, name: &str) -> String {
        let mut told = json!({ "at": at, "name": name, "change": self.word });
        for (key, value) in &self.values {
            told[*key] = value.clone();
        }
        told.to_string()
    }
}

/// Returns the id of a holder or a waiter, with the value that it holds or the side of the lock
/// that it waits for.
fn id_of(party: &Party) -> String {
    let id = &party.id;
    match (&party.value, party.wants) {
        (Some(value), _) => format!("{value} of {id}"),
        (None, Some(Wants::ToRead)) => format!("{id} to read"),
        (None, Some(Wants::ToWrite)) => format!("{id} to write"),
        _ => id.clone(),
    }
}

fn values_of(party: &Party) -> Vec<(&'static str, Value)> {
    let client = party.client.as_ref().map(show::json::of_client);
    vec![("id", id_of(party).into()), ("client", client.into())]
}

fn of_party(word: &'static str, says: &str, party: &Party) -> Told {
    let id = id_of(party);
    let who = match &party.client {
        Some(client) => format!("{} ({})", Shown(&id), show::text::who(client)),
        None => Shown(&id).to_string(),
    };
    Told {
        word,
        text: format!("{says} {who}"),
        values: values_of(party),
    }
}

fn announced(party: &Party) -> Told {
    let id = id_of(party);
    let client = party.client.as_ref().map(show::text::who);
    Told {
        word: "client",
        text: format!("{} is {}", Shown(&id), client.unwrap_or_default()),
        values: values_of(party),
    }
}

fn of_kind(found: &Found) -> Told {
    let kind = kind_in_words(found);
    Told {
        word: "kind",
        text: format!("is {}", Shown(&kind)),
        values: vec![("kind", kind.into())],
    }
}
