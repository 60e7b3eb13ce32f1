//! The end of one hold by force, for every kind of lock.

use std::time::Duration;

use super::{Found, HoldInfo, MOST_SHOWN, NameInfo, query, steps};
use crate::backend::NameKind;
use crate::backend::step::{Operation, Value};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::primitives::expirable::PermitId;
use crate::primitives::expirable::steps::ExpirableNames;
use crate::primitives::group::steps as group;
use crate::primitives::lock::Ttl;
use crate::primitives::lock::steps as plain;
use crate::primitives::{fair, request, rw};

/// Ends the hold `id`, if it is a hold of `name`. Returns whether it was.
pub(crate) async fn force_release(context: &Context, name: &str, id: &str) -> Result<bool> {
    let key = context.key(name, NameKind::Other)?;
    let seen = query(context, &key, MOST_SHOWN).await?;
    let Some(ends) = end_of(&key, &seen, id)? else {
        return Ok(false);
    };
    // Submit all requests in this order, before the first answer arrives: the holder must find the
    // note when it learns of the end.
    let noted = steps::note_forced(&key, id, &context.label, ends.left);
    let noted = context.backend.submit(noted);
    let ended = context.backend.submit(ends.end);
    let notified = ends.then.map(|then| context.backend.submit(then));
    let _ = noted.await;
    let ended = ended.await;
    if let Some(notified) = notified {
        let _ = notified.await;
    }
    match ended.map_err(|failure| failure.into_error_of_change(&key))? {
        Value::Int(released) => Ok(released > 0),
        // This is the reply if the hold no longer had some values of a group. The other values were
        // released.
        Value::List(_) => Ok(true),
        _ => Err(request::malformed(context, &key)),
    }
}

/// The requests that end a hold.
struct HoldEnd {
    end: Operation,
    /// A second request, for waiters in line that would not learn of the release from the first
    /// one.
    then: Option<Operation>,
    left: Duration,
}

fn end_of(key: &Key, seen: &NameInfo, id: &str) -> Result<Option<HoldEnd>> {
    let left = |ttl: Ttl| match ttl {
        Ttl::Left(left) => left,
        // The lease does not end, or is unknown. The note is kept for this long, so that the holder
        // can read it.
        _ => Duration::from_secs(60),
    };
    let ends = |end, hold: Option<&HoldInfo>, then| {
        let left = left(hold.map_or(seen.ttl, |hold| hold.ttl));
        Some(HoldEnd { end, then, left })
    };
    Ok(match &seen.found {
        Found::Lock(hold) if hold.id == id => {
            let channel = key.lock_channel();
            // The lock may be a fair one, which looks like a plain lock while no client waits.
            ends(
                plain::release(key, id, &channel),
                Some(hold),
                Some(fair::steps::release(key, id, &channel)),
            )
        }
        Found::ReadWrite { writer, readers } => {
            let mut shown = writer.iter().chain(readers);
            let hold = shown.find(|hold| hold.id == id);
            let is_there = hold.is_some() || seen.more > 0;
            is_there
                .then(|| ends(rw::release(key, id), hold, None))
                .flatten()
        }
        Found::Group(values) => {
            let own = values.iter().filter(|value| value.hold.id == id);
            let fields: Vec<_> = own.map(|value| value.field.as_str()).collect();
            let fields = (!fields.is_empty()).then(|| fields.join(" "));
            let channel = key.lock_channel();
            fields.and_then(|fields| ends(group::release(key, id, &fields, &channel), None, None))
        }
        Found::Leases { .. } => {
            let id: PermitId = id.parse()?;
            let names = ExpirableNames {
                key: key.clone(),
                channel: key.semaphore_channel().into(),
                own_channel: None,
            };
            ends(names.release(&[id], false), None, None)
        }
        Found::Nothing | Found::Lock(_) => None,
        Found::Count(_) | Found::Latch { .. } | Found::Unknown { .. } => {
            return Err(Error::new(
                ErrorKind::WrongKind,
                format!(
                    "no client holds `{key}`: it is not a lock, and not a semaphore with leases in use"
                ),
            )
            .with_key(key));
        }
    })
}
