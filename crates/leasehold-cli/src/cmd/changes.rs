//! What has changed between two looks at a name.

use std::collections::BTreeSet;

use leasehold::inspect::{Found, NameInfo, Wants};
use serde_json::Value;

use super::show::kind_in_words;
use crate::output::Shown;

/// What can change, without the time that is left.
pub(super) struct Seen {
    kind: Option<String>,
    holders: BTreeSet<String>,
    waiters: BTreeSet<String>,
    listening: Option<u64>,
    /// Free permits, or what is left to count down.
    count: Option<i64>,
}

/// One change.
pub(super) enum Change {
    Kind(String),
    Held(String),
    Released(String),
    Waits(String),
    WaitsNoMore(String),
    Listening(u64),
    Count(i64),
}

impl Seen {
    pub(super) fn of(info: &NameInfo) -> Self {
        let (mut holders, mut count) = (BTreeSet::new(), None);
        match &info.found {
            Found::Lock(hold) => holders.extend([hold.id.clone()]),
            Found::ReadWrite { writer, readers } => {
                let all = writer.iter().chain(readers);
                holders.extend(all.map(|hold| hold.id.clone()));
            }
            Found::Group(values) => {
                let all = values.iter();
                holders.extend(all.map(|value| format!("{} of {}", value.field, value.hold.id)));
            }
            Found::Leases { free, permits, .. } => {
                holders.extend(permits.iter().map(|permit| permit.id.clone()));
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
            format!("{}{wants}", waiter.id)
        });
        Self {
            kind: match &info.found {
                // A hold says more, and a lock that is free has no kind.
                Found::Lock(_) => None,
                found => Some(kind_in_words(found)),
            },
            holders,
            waiters: waiters.collect(),
            listening: info.listening,
            count,
        }
    }

    /// The changes since an earlier look; all there is without one.
    pub(super) fn since(self, before: Option<&Self>) -> Vec<Change> {
        let none = Self {
            kind: None,
            holders: BTreeSet::new(),
            waiters: BTreeSet::new(),
            listening: Some(0),
            count: None,
        };
        let before = before.unwrap_or(&none);
        let mut changes = Vec::new();
        let gone = before.holders.difference(&self.holders);
        changes.extend(gone.cloned().map(Change::Released));
        let left = before.waiters.difference(&self.waiters);
        changes.extend(left.cloned().map(Change::WaitsNoMore));
        let new = self.holders.difference(&before.holders);
        changes.extend(new.cloned().map(Change::Held));
        let came = self.waiters.difference(&before.waiters);
        changes.extend(came.cloned().map(Change::Waits));
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

impl Change {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Kind(_) => "kind",
            Self::Held(_) => "held",
            Self::Released(_) => "released",
            Self::Waits(_) => "waits",
            Self::WaitsNoMore(_) => "waits-no-more",
            Self::Listening(_) => "listening",
            Self::Count(_) => "count",
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Kind(kind) => format!("is {}", Shown(kind)),
            Self::Held(id) => format!("held by {}", Shown(id)),
            Self::Released(id) => format!("no longer held by {}", Shown(id)),
            Self::Waits(id) => format!("waited for by {}", Shown(id)),
            Self::WaitsNoMore(id) => format!("no longer waited for by {}", Shown(id)),
            Self::Listening(0) => "nobody listens for a release".to_owned(),
            Self::Listening(1) => "1 connection listens for a release".to_owned(),
            Self::Listening(count) => format!("{count} connections listen for a release"),
            Self::Count(count) => format!("the count is {count}"),
        }
    }

    /// What a program is told, and under which key.
    pub(super) fn value(&self) -> Option<(&'static str, Value)> {
        Some(match self {
            Self::Kind(kind) => ("kind", kind.as_str().into()),
            Self::Held(id) | Self::Released(id) | Self::Waits(id) | Self::WaitsNoMore(id) => {
                ("id", id.as_str().into())
            }
            Self::Listening(count) => ("listening", (*count).into()),
            Self::Count(count) => ("count", (*count).into()),
        })
    }
}
