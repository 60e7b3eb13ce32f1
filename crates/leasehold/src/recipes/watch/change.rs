//! The changes of a name between two states.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Error;
use crate::operate::name::{Found, HoldInfo, NameInfo, PermitInfo, ValueInfo, WaiterInfo, Wants};
use crate::operate::presence::ClientInfo;

/// A change of a watched name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// This holder now has the name: a lock, a side of a read-write lock, a value of a group, or a
    /// permit with a lease.
    Held(Party),
    /// This holder no longer has the name. The hold was released, its lease has ended, or an
    /// operator has ended it.
    Released(Party),
    /// This waiter waits for the name. Only some waiters are known: see
    /// [`NameInfo::waiting`](crate::inspect::NameInfo::waiting).
    Waits(Party),
    /// This waiter no longer waits.
    WaitsNoMore(Party),
    /// The client of this holder or waiter has announced itself. Only a watch
    /// [`with_clients`](crate::watch::Watch::with_clients) reports this.
    Announced(Party),
    /// The name has no holder and no key.
    Freed,
    /// The name is now of this kind. A plain, fair or fenced lock is reported only as
    /// [`Held`](Self::Held).
    Kind(Found),
    /// The number of free permits of a semaphore, or the remaining count of a latch.
    Counted(i64),
    /// The number of connections that subscribe to the releases of the name, not counting the
    /// connection of this client.
    Listening(u64),
    /// The server does not answer. This is reported once for each outage. Until
    /// [`Back`](Self::Back), the state of the name is unknown.
    Away(Error),
    /// The server answers again. If the state has changed during the outage, the changes follow.
    Back,
}

/// A holder of a name, or a waiter for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Party {
    /// The id of the hold, the permit or the waiter: see
    /// [`HoldInfo::id`](crate::inspect::HoldInfo::id).
    pub id: String,
    /// The value of a group that is held, in the form of
    /// [`ValueInfo::field`](crate::inspect::ValueInfo::field).
    pub value: Option<String>,
    /// The side of a lock for which a waiter waits; `None` for a holder.
    pub wants: Option<Wants>,
    /// The client, if it is known. Only a watch
    /// [`with_clients`](crate::watch::Watch::with_clients) knows clients.
    pub client: Option<ClientInfo>,
}

/// The key by which a party is found again in a later state.
type PartyKey = (String, Option<String>, Option<&'static str>);

/// The parties of one state.
type Parties = BTreeMap<PartyKey, Party>;

impl Party {
    fn of_hold(hold: &HoldInfo) -> Self {
        Self {
            id: hold.id.clone(),
            value: None,
            wants: None,
            client: hold.client.clone(),
        }
    }

    fn of_value(value: &ValueInfo) -> Self {
        Self {
            value: Some(value.field.clone()),
            ..Self::of_hold(&value.hold)
        }
    }

    fn of_permit(permit: &PermitInfo) -> Self {
        Self {
            id: permit.id.clone(),
            value: None,
            wants: None,
            client: permit.client.clone(),
        }
    }

    fn of_waiter(waiter: &WaiterInfo) -> Self {
        Self {
            id: waiter.id.clone(),
            value: None,
            wants: Some(waiter.wants),
            client: waiter.client.clone(),
        }
    }

    fn key(&self) -> PartyKey {
        let side = self.wants.map(|wants| match wants {
            Wants::ToRead => "read",
            Wants::ToWrite => "write",
            Wants::Lock | Wants::Any => "",
        });
        (self.id.clone(), self.value.clone(), side)
    }
}

/// The facts of a name that can change, except the remaining TTLs.
#[derive(Default)]
struct Facts {
    /// The kind of the name. `None` for a lock, because its holders already show the kind.
    kind: Option<Found>,
    holders: Parties,
    waiters: Parties,
    listening: Option<u64>,
    count: Option<i64>,
}

impl Facts {
    fn of(info: &NameInfo) -> Self {
        let (mut holders, mut count) = (Vec::new(), None);
        match &info.found {
            Found::Lock(hold) => holders.push(Party::of_hold(hold)),
            Found::ReadWrite { writer, readers } => {
                holders.extend(writer.iter().chain(readers).map(Party::of_hold));
            }
            Found::Group(values) => holders.extend(values.iter().map(Party::of_value)),
            Found::Leases { free, permits, .. } => {
                holders.extend(permits.iter().map(Party::of_permit));
                count = *free;
            }
            Found::Count(free) => count = Some(*free),
            Found::Latch { left } => count = i64::try_from(*left).ok(),
            Found::Nothing | Found::Unknown { .. } => {}
        }
        Self {
            kind: match &info.found {
                Found::Lock(_) => None,
                found => Some(found.clone()),
            },
            holders: by_key(holders),
            waiters: by_key(info.waiting.iter().map(Party::of_waiter)),
            listening: info.listening,
            count,
        }
    }

    fn is_of_kind(&self, kind: &Found) -> bool {
        match (&self.kind, kind) {
            (Some(Found::Unknown { what }), Found::Unknown { what: other }) => what == other,
            (Some(own), other) => std::mem::discriminant(own) == std::mem::discriminant(other),
            (None, _) => false,
        }
    }
}

/// Returns the changes from `before` to `now`. Without an earlier state, returns all facts as
/// changes. Holders and waiters that have left are returned before new ones.
pub(super) fn changes(before: Option<&NameInfo>, now: &NameInfo) -> Vec<Change> {
    let before = before.map(Facts::of).unwrap_or_default();
    let now = Facts::of(now);
    let mut changes = Vec::new();
    changes.extend(beside(&before.holders, &now.holders).map(Change::Released));
    changes.extend(beside(&before.waiters, &now.waiters).map(Change::WaitsNoMore));
    changes.extend(beside(&now.holders, &before.holders).map(Change::Held));
    changes.extend(beside(&now.waiters, &before.waiters).map(Change::Waits));
    changes.extend(announced(&before, &now).map(Change::Announced));
    if let Some(kind) = now.kind.filter(|kind| !before.is_of_kind(kind)) {
        changes.push(match kind {
            Found::Nothing => Change::Freed,
            kind => Change::Kind(kind),
        });
    }
    if let Some(count) = now.count.filter(|count| before.count != Some(*count)) {
        changes.push(Change::Counted(count));
    }
    // Start from zero connections, so that a name without listeners is not reported.
    let listened = before.listening.unwrap_or(0);
    changes.extend(
        now.listening
            .filter(|now| *now != listened)
            .map(Change::Listening),
    );
    changes
}

/// Returns whether two states have the same holders and waiters.
pub(super) fn same_parties(one: &NameInfo, other: &NameInfo) -> bool {
    let (one, other) = (Facts::of(one), Facts::of(other));
    one.holders.keys().eq(other.holders.keys()) && one.waiters.keys().eq(other.waiters.keys())
}

fn by_key(parties: impl IntoIterator<Item = Party>) -> Parties {
    let parties = parties.into_iter().map(|party| (party.key(), party));
    parties.collect()
}

/// Returns the parties that are in `in_one` but not in `other`.
fn beside<'a>(in_one: &'a Parties, other: &'a Parties) -> impl Iterator<Item = Party> + 'a {
    let alone = in_one.iter().filter(|(key, _)| !other.contains_key(*key));
    alone.map(|(_, party)| party.clone())
}

/// Returns the parties that were there before, and whose clients have now announced themselves. A
/// client that holds and waits is returned once.
fn announced<'a>(before: &'a Facts, now: &'a Facts) -> impl Iterator<Item = Party> + 'a {
    let both = [
        (&before.holders, &now.holders),
        (&before.waiters, &now.waiters),
    ];
    let mut seen = BTreeSet::new();
    both.into_iter()
        .flat_map(|(before, now)| newly_known(before, now))
        .filter(move |party| seen.insert(party.client.as_ref().map(|client| client.id.clone())))
}

fn newly_known<'a>(before: &'a Parties, now: &'a Parties) -> impl Iterator<Item = Party> + 'a {
    let was_unknown = |key| before.get(key).is_some_and(|party| party.client.is_none());
    let known = now
        .iter()
        .filter(move |(key, party)| party.client.is_some() && was_unknown(*key));
    known.map(|(_, party)| party.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::primitives::lock::Ttl;

    fn state(found: Found, listening: Option<u64>) -> NameInfo {
        NameInfo {
            found,
            ttl: Ttl::Free,
            more: 0,
            waiting: Vec::new(),
            more_waiting: 0,
            listening,
            last_token: None,
            more_clients: false,
            clients_denied: false,
            node: None,
        }
    }

    fn words(before: Option<&NameInfo>, now: &NameInfo) -> Vec<String> {
        let changes = changes(before, now);
        changes.iter().map(|one| format!("{one:?}")).collect()
    }

    #[test]
    fn first_state_is_reported_as_changes() {
        let free = state(Found::Nothing, Some(0));
        assert_eq!(words(None, &free), ["Freed"]);
        let open = state(Found::Latch { left: 0 }, Some(2));
        let all = ["Kind(Latch { left: 0 })", "Counted(0)", "Listening(2)"];
        assert_eq!(words(None, &open), all);
    }

    #[test]
    fn only_differences_are_reported() {
        let (three, two) = (Found::Count(3), Found::Count(2));
        let (three, two) = (state(three, Some(1)), state(two, None));
        assert_eq!(words(Some(&three), &two), ["Counted(2)"]);
        assert!(words(Some(&two), &two).is_empty());
        let what = |what: &str| Found::Unknown { what: what.into() };
        let (list, set) = (state(what("a list"), None), state(what("a set"), None));
        assert!(words(Some(&list), &list).is_empty());
        assert_eq!(words(Some(&list), &set).len(), 1);
    }
}
