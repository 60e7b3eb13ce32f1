//! The changes of a name between two queries.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::inspect::{ClientInfo, Found, HoldInfo, NameInfo, Wants};
use serde_json::Value;

use super::show::{json, kind_in_words, text};
use crate::output::Shown;

/// Ids, each with its client if that is known.
type Known = BTreeMap<String, Option<ClientInfo>>;

/// The facts of a name that can change, except the remaining TTL.
pub(super) struct Seen {
    kind: Option<String>,
    holders: Known,
    waiters: Known,
    listening: Option<u64>,
    /// Number of free permits, or the rest of a latch's count.
    count: Option<i64>,
}

/// A holder or a waiter.
pub(super) struct Who {
    id: String,
    client: Option<ClientInfo>,
}

/// A change of a name.
pub(super) enum Change {
    Kind(String),
    Held(Who),
    Released(Who),
    Waits(Who),
    WaitsNoMore(Who),
    /// A client has announced itself.
    Known(Who),
    Listening(u64),
    Count(i64),
}

impl Seen {
    pub(super) fn of(info: &NameInfo) -> Self {
        let (mut holders, mut count) = (BTreeMap::new(), None);
        let of_hold = |hold: &HoldInfo| (hold.id.clone(), hold.client.clone());
        match &info.found {
            Found::Lock(hold) => holders.extend([of_hold(hold)]),
            Found::ReadWrite { writer, readers } => {
                holders.extend(writer.iter().chain(readers).map(of_hold));
            }
            Found::Group(values) => {
                let all = values.iter().map(|value| {
                    let (id, client) = of_hold(&value.hold);
                    (format!("{} of {id}", value.field), client)
                });
                holders.extend(all);
            }
            Found::Leases { free, permits, .. } => {
                let all = permits.iter();
                holders.extend(all.map(|permit| (permit.id.clone(), permit.client.clone())));
                count = *free;
            }
            Found::Count(free) => count = Some(*free),
            Found::Latch { left } => count = i64::try_from(*left).ok(),
            _ => {}
        }
        let waiters = info.waiting.iter().map(|waiter| {
            let wants = match waiter.wants {
                Wants::ToRead => " to read",
                Wants::ToWrite => " to write",
                _ => "",
            };
            (format!("{}{wants}", waiter.id), waiter.client.clone())
        });
        Self {
            kind: match &info.found {
                // The holder says more than the kind, and a free lock has no kind.
                Found::Lock(_) => None,
                found => Some(kind_in_words(found)),
            },
            holders,
            waiters: waiters.collect(),
            listening: info.listening,
            count,
        }
    }

    /// Returns the changes since an earlier query. Without an earlier query, returns all facts as
    /// changes.
    pub(super) fn since(self, before: Option<&Self>) -> Vec<Change> {
        let none = Self {
            kind: None,
            holders: BTreeMap::new(),
            waiters: BTreeMap::new(),
            listening: Some(0),
            count: None,
        };
        let before = before.unwrap_or(&none);
        let mut changes = Vec::new();
        changes.extend(beside(&before.holders, &self.holders).map(Change::Released));
        changes.extend(beside(&before.waiters, &self.waiters).map(Change::WaitsNoMore));
        changes.extend(beside(&self.holders, &before.holders).map(Change::Held));
        changes.extend(beside(&self.waiters, &before.waiters).map(Change::Waits));
        let known = newly_known(&before.holders, &self.holders)
            .chain(newly_known(&before.waiters, &self.waiters));
        // A client that holds and waits is reported once.
        let mut told = BTreeSet::new();
        let known = known.filter(|who| told.insert(who.client.as_ref().map(|one| one.id.clone())));
        changes.extend(known.map(Change::Known));
        if let Some(kind) = self.kind.filter(|kind| before.kind.as_ref() != Some(kind)) {
            changes.push(Change::Kind(kind));
        }
        if let Some(count) = self.count.filter(|count| before.count != Some(*count)) {
            changes.push(Change::Count(count));
        }
        if let Some(listening) = self.listening.filter(|now| before.listening != Some(*now)) {
            changes.push(Change::Listening(listening));
        }
        changes
    }
}

/// Returns the ids that are in `in_one` but not in `other`.
fn beside<'a>(in_one: &'a Known, other: &'a Known) -> impl Iterator<Item = Who> + 'a {
    let alone = in_one.iter().filter(|(id, _)| !other.contains_key(*id));
    alone.map(|(id, client)| Who {
        id: id.clone(),
        client: client.clone(),
    })
}

/// Returns the ids that were there before, and whose clients have now announced themselves.
fn newly_known<'a>(before: &'a Known, now: &'a Known) -> impl Iterator<Item = Who> + 'a {
    let known = now
        .iter()
        .filter(|(id, client)| client.is_some() && before.get(*id).is_some_and(Option::is_none));
    known.map(|(id, client)| Who {
        id: id.clone(),
        client: client.clone(),
    })
}

impl Who {
    fn in_words(&self) -> String {
        match &self.client {
            Some(client) => format!("{} ({})", Shown(&self.id), text::who(client)),
            None => Shown(&self.id).to_string(),
        }
    }
}

impl Change {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Kind(_) => "kind",
            Self::Held(_) => "held",
            Self::Released(_) => "released",
            Self::Waits(_) => "waits",
            Self::WaitsNoMore(_) => "waits-no-more",
            Self::Known(_) => "client",
            Self::Listening(_) => "listening",
            Self::Count(_) => "count",
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Kind(kind) => format!("is {}", Shown(kind)),
            Self::Held(who) => format!("held by {}", who.in_words()),
            Self::Released(who) => format!("no longer held by {}", who.in_words()),
            Self::Waits(who) => format!("waited for by {}", who.in_words()),
            Self::WaitsNoMore(who) => format!("no longer waited for by {}", who.in_words()),
            Self::Known(who) => match &who.client {
                Some(client) => format!("{} is {}", Shown(&who.id), text::who(client)),
                None => who.in_words(),
            },
            Self::Listening(0) => "no connection listens for a release".to_owned(),
            Self::Listening(1) => "1 connection listens for a release".to_owned(),
            Self::Listening(count) => format!("{count} connections listen for a release"),
            Self::Count(count) => format!("the count is {count}"),
        }
    }

    /// Returns the keys and values of the change, for JSON.
    pub(super) fn values(&self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Kind(kind) => vec![("kind", kind.as_str().into())],
            Self::Held(who)
            | Self::Released(who)
            | Self::Waits(who)
            | Self::WaitsNoMore(who)
            | Self::Known(who) => vec![
                ("id", who.id.as_str().into()),
                ("client", who.client.as_ref().map(json::of_client).into()),
            ],
            Self::Listening(count) => vec![("listening", (*count).into())],
            Self::Count(count) => vec![("count", (*count).into())],
        }
    }
}
