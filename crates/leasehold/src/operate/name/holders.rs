//! The clients that hold a name or wait for it, as announced by the clients themselves.

use std::collections::{HashMap, HashSet};

use super::{Found, HoldInfo, NameInfo, PermitInfo, WaiterInfo, Wants};
use crate::context::Context;
use crate::operate::presence::{ClientCache, ClientInfo};

/// Number of holders and permits whose clients are looked up.
const MOST_LOOKED_UP: usize = 100;

/// Adds the announcements of the clients to `seen`.
pub(super) async fn add_clients(
    context: &Context,
    cache: &ClientCache,
    name: &str,
    seen: &mut NameInfo,
) {
    match &mut seen.found {
        Found::Lock(hold) => add_to_hold(context, cache, hold).await,
        Found::ReadWrite { writer, readers } => {
            for hold in writer.iter_mut().chain(readers).take(MOST_LOOKED_UP) {
                add_to_hold(context, cache, hold).await;
            }
        }
        Found::Group(values) => {
            for value in values.iter_mut().take(MOST_LOOKED_UP) {
                add_to_hold(context, cache, &mut value.hold).await;
            }
        }
        Found::Leases { permits, .. } => {
            for permit in permits.iter_mut().take(MOST_LOOKED_UP) {
                add_to_permit(context, cache, permit).await;
            }
        }
        _ => {}
    }
    add_to_waiters(context, cache, name, &mut seen.waiting).await;
    add_other_waiters(context, cache, name, seen).await;
    seen.more_clients = cache.has_more(context).await;
    seen.clients_denied = cache.is_denied();
}

async fn add_to_hold(context: &Context, cache: &ClientCache, hold: &mut HoldInfo) {
    if let Some(known) = cache.client_of(context, &hold.id).await {
        hold.held_for = known.has_held(&hold.id);
        hold.guards = known.guards_of(&hold.id);
        hold.client = Some(known.info.clone());
    }
}

async fn add_to_permit(context: &Context, cache: &ClientCache, permit: &mut PermitInfo) {
    if let Some(known) = cache.client_of_permit(context, &permit.id).await {
        permit.held_for = known.has_held(&permit.id);
        permit.client = Some(known.info.clone());
    }
}

/// Adds the clients of waiters. A client announces only its oldest wait for a name. In the queue of
/// a fair lock, that is the wait of the client's first waiter in the queue. Elsewhere, the duration
/// of a wait is known only if the client has one waiter.
async fn add_to_waiters(
    context: &Context,
    cache: &ClientCache,
    name: &str,
    waiting: &mut [WaiterInfo],
) {
    let mut waiters: HashMap<String, usize> = HashMap::new();
    for waiter in waiting.iter() {
        *waiters.entry(client_of(&waiter.id).to_owned()).or_default() += 1;
    }
    let mut seen = HashSet::new();
    for waiter in waiting.iter_mut().take(MOST_LOOKED_UP) {
        let Some(known) = cache.client_of(context, &waiter.id).await else {
            continue;
        };
        let client = client_of(&waiter.id);
        let is_first = seen.insert(client.to_owned()) && waiter.wants == Wants::Lock;
        if is_first || waiters.get(client) == Some(&1) {
            waiter.waited_for = known.has_waited(name);
        }
        waiter.client = Some(known.info.clone());
    }
}

/// Returns the client in the id of a hold or waiter.
fn client_of(id: &str) -> &str {
    id.split(':').next().unwrap_or(id)
}

/// Adds clients that announce a wait that no key of the name shows.
async fn add_other_waiters(
    context: &Context,
    cache: &ClientCache,
    name: &str,
    seen: &mut NameInfo,
) {
    for known in cache.all(context).await {
        let id = &known.info.id;
        let is_known =
            seen.waiting.iter().any(|one| client_of(&one.id) == id) || may_hold_it(id, &seen.found);
        if let Some(waited_for) = known.has_waited(name).filter(|_| !is_known) {
            seen.waiting.push(WaiterInfo {
                id: id.clone(),
                wants: Wants::Any,
                client: Some(known.info.clone()),
                waited_for: Some(waited_for),
            });
        }
    }
}

/// Returns whether an announced wait may have ended with a hold: the client holds the name, but has
/// not announced that hold yet. A client that announced both at the same time holds the name in one
/// task and waits for it in another.
fn may_hold_it(client: &str, found: &Found) -> bool {
    let own = |info: &Option<ClientInfo>| info.as_ref().is_some_and(|info| info.id == client);
    let of_hold = |hold: &HoldInfo| own(&hold.client).then_some(hold.held_for.is_some());
    let of_permit = |permit: &PermitInfo| own(&permit.client).then_some(permit.held_for.is_some());
    let is_known: Vec<bool> = match found {
        Found::Lock(hold) => of_hold(hold).into_iter().collect(),
        Found::ReadWrite { writer, readers } => {
            writer.iter().chain(readers).filter_map(of_hold).collect()
        }
        Found::Group(values) => values.iter().filter_map(|one| of_hold(&one.hold)).collect(),
        Found::Leases { permits, .. } => permits.iter().filter_map(of_permit).collect(),
        _ => Vec::new(),
    };
    !is_known.is_empty() && !is_known.contains(&true)
}
