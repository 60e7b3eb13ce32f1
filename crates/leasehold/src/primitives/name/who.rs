//! Who has a name and who waits for it, as far as the clients say so themselves.

use super::{Found, HoldInfo, NameInfo, PermitInfo, WaiterInfo, Wants};
use crate::context::Context;
use crate::primitives::presence::Book;

/// Of so many holders and permits it is told who they are.
const MOST_TOLD: usize = 100;

/// Adds what the clients say.
pub(super) async fn tell(context: &Context, book: &Book, name: &str, seen: &mut NameInfo) {
    match &mut seen.found {
        Found::Lock(hold) => of_hold(context, book, hold).await,
        Found::ReadWrite { writer, readers } => {
            for hold in writer.iter_mut().chain(readers).take(MOST_TOLD) {
                of_hold(context, book, hold).await;
            }
        }
        Found::Group(values) => {
            for value in values.iter_mut().take(MOST_TOLD) {
                of_hold(context, book, &mut value.hold).await;
            }
        }
        Found::Leases { permits, .. } => {
            for permit in permits.iter_mut().take(MOST_TOLD) {
                of_permit(context, book, permit).await;
            }
        }
        _ => {}
    }
    for waiter in seen.waiting.iter_mut().take(MOST_TOLD) {
        if let Some(known) = book.client_of(context, &waiter.id).await {
            waiter.waited_for = known.has_waited(name);
            waiter.client = Some(known.info.clone());
        }
    }
    others_who_wait(context, book, name, seen).await;
    seen.clients_denied = book.is_denied();
}

async fn of_hold(context: &Context, book: &Book, hold: &mut HoldInfo) {
    if let Some(known) = book.client_of(context, &hold.id).await {
        hold.held_for = known.has_held(&hold.id);
        hold.client = Some(known.info.clone());
    }
}

async fn of_permit(context: &Context, book: &Book, permit: &mut PermitInfo) {
    if let Some(known) = book.client_of_permit(context, &permit.id).await {
        permit.held_for = known.has_held(&permit.id);
        permit.client = Some(known.info.clone());
    }
}

/// Those for whom no key beside the name says that they wait.
async fn others_who_wait(context: &Context, book: &Book, name: &str, seen: &mut NameInfo) {
    for known in book.all(context).await {
        let id = &known.info.id;
        let is_told = seen.waiting.iter().any(|one| one.id.starts_with(id));
        if let Some(waited_for) = known.has_waited(name).filter(|_| !is_told) {
            seen.waiting.push(WaiterInfo {
                id: id.clone(),
                wants: Wants::Any,
                client: Some(known.info.clone()),
                waited_for: Some(waited_for),
            });
        }
    }
}
