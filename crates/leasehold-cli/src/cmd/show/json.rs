//! The facts of a name, as JSON for scripts.

use std::time::Duration;

use leasehold::inspect::{
    ClientInfo, Found, HoldInfo, NameInfo, PermitInfo, Ttl, ValueInfo, WaiterInfo, Wants,
};
use leasehold::slot::TurnInfo;
use serde_json::{Value, json};

use crate::cmd::acquire::turn_as_json;

pub(in crate::cmd) fn of(name: &str, seen: &NameInfo, turn: Option<&TurnInfo>) -> String {
    let mut shown = json!({
        "name": name,
        "kind": kind(&seen.found),
        // For a count this is unknown, and for a latch it has no meaning.
        "held": null,
        "holders": null,
        "mode": null,
        "ttl_ms": of_ttl(seen.ttl),
        "more": seen.more,
        "waiting": seen.waiting.iter().map(of_waiter).collect::<Vec<_>>(),
        "more_waiting": seen.more_waiting,
        "more_clients": seen.more_clients,
        "listening": seen.listening,
        "last_token": seen.last_token,
        "clients_denied": seen.clients_denied,
    });
    for (key, value) in of_kind(&seen.found) {
        shown[key] = value;
    }
    if let Some(node) = &seen.node {
        shown["slot"] = node.slot.into();
        shown["node"] = node.address.clone().into();
    }
    if let Some(turn) = turn {
        let turn = turn_as_json(turn).into_iter();
        let turn = turn.map(|(key, value)| (key.to_owned(), value));
        shown["turn"] = Value::Object(turn.collect());
    }
    shown.to_string()
}

fn kind(found: &Found) -> &'static str {
    match found {
        Found::Nothing => "none",
        Found::Lock(_) => "lock",
        Found::ReadWrite { .. } => "rw",
        Found::Group(_) => "group",
        Found::Leases { .. } => "permits",
        Found::Count(_) => "count",
        Found::Latch { .. } => "latch",
        _ => "unknown",
    }
}

/// Returns the keys that this kind has.
fn of_kind(found: &Found) -> Vec<(&'static str, Value)> {
    let held_by = |holders: Vec<Value>| {
        vec![
            ("held", (!holders.is_empty()).into()),
            ("holders", holders.into()),
        ]
    };
    match found {
        Found::Nothing => held_by(Vec::new()),
        Found::Lock(hold) => held_by(vec![of_hold(hold)]),
        Found::ReadWrite { writer, readers } => {
            let holders: Vec<_> = writer.iter().chain(readers).map(of_hold).collect();
            let mode = match writer {
                Some(_) => Some("write"),
                None => (!holders.is_empty()).then_some("read"),
            };
            [held_by(holders), vec![("mode", mode.into())]].concat()
        }
        Found::Group(values) => {
            let shown: Vec<_> = values.iter().map(of_value).collect();
            vec![
                ("held", (!values.is_empty()).into()),
                ("values", shown.into()),
            ]
        }
        Found::Leases {
            free,
            held,
            permits,
        } => {
            let leases: Vec<_> = permits.iter().map(of_permit).collect();
            let permits = json!({ "free": free, "held": held, "leases": leases });
            vec![("held", (*held > 0).into()), ("permits", permits)]
        }
        Found::Count(count) => vec![("count", (*count).into())],
        Found::Latch { left } => vec![("count", (*left).into())],
        _ => Vec::new(),
    }
}

fn of_hold(hold: &HoldInfo) -> Value {
    json!({
        "id": hold.id,
        "count": hold.count,
        "ttl_ms": of_ttl(hold.ttl),
        "kept": hold.kept,
        "client": hold.client.as_ref().map(of_client),
        "held_for_ms": hold.held_for.and_then(ms),
        "guards": hold.guards,
    })
}

fn of_waiter(waiter: &WaiterInfo) -> Value {
    let wants = match waiter.wants {
        Wants::ToRead => "to read",
        Wants::ToWrite => "to write",
        Wants::Lock => "lock",
        _ => "any",
    };
    json!({
        "id": waiter.id,
        "wants": wants,
        "client": waiter.client.as_ref().map(of_client),
        "waited_for_ms": waiter.waited_for.and_then(ms),
    })
}

pub(in crate::cmd) fn of_client(client: &ClientInfo) -> Value {
    json!({
        "label": client.label,
        "host": client.host,
        "pid": client.pid,
        "version": client.version,
        "address": client.address,
        "age_ms": ms(client.age),
        "waits_for": client.waits_for,
    })
}

fn of_value(value: &ValueInfo) -> Value {
    let mut shown = of_hold(&value.hold);
    shown["value"] = value.field.as_str().into();
    shown
}

fn of_permit(permit: &PermitInfo) -> Value {
    json!({
        "id": permit.id,
        "ttl_ms": of_ttl(permit.ttl),
        "client": permit.client.as_ref().map(of_client),
        "held_for_ms": permit.held_for.and_then(ms),
    })
}

pub(in crate::cmd) fn of_ttl(ttl: Ttl) -> Option<u64> {
    match ttl {
        Ttl::Left(left) => ms(left),
        _ => None,
    }
}

fn ms(span: Duration) -> Option<u64> {
    u64::try_from(span.as_millis()).ok()
}
