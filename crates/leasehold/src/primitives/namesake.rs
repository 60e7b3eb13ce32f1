//! Warns a program that uses both `x` and `{x}`, because the two names share the keys beside them.
//! Redisson names those keys, and nothing here can change it.

use super::semaphore::steps;
use crate::backend::failure::Cause;
use crate::backend::step::Value;
use crate::context::Context;
use crate::context::namesakes::Reason;
use crate::key::Key;
use crate::observe::log;

/// `key` is about to be acquired or waited for. When a name in braces is used for the first time,
/// the server is also asked whether the other name exists.
pub(super) fn look(context: &Context, key: &Key) {
    match context.namesakes.used(key) {
        None => {}
        Some(Reason::Tell(other)) => tell(context.backend.address(), key, &other),
        Some(Reason::Look(other)) => {
            // Any step would do that says whether a key exists, whatever its kind.
            let reply = context.backend.submit(steps::available(&other));
            let (key, address) = (key.clone(), context.backend.address().to_owned());
            // In the background: no acquire waits for the sake of a warning.
            context.cleanup.spawn(async move {
                let is_there = match reply.await {
                    Ok(Value::List(items)) => matches!(items[..], [_, Value::Int(1)]),
                    Ok(_) => false,
                    // A key of another type is a name in use as well. Any other failure tells
                    // nothing.
                    Err(failure) => matches!(failure.cause, Cause::WrongKind(_)),
                };
                if is_there {
                    tell(&address, &key, &other);
                }
            });
        }
    }
}

fn tell(address: &str, key: &Key, other: &Key) {
    log(|| {
        tracing::warn!(
            %key, %other, address,
            "these two names share the keys beside them, as Redisson makes them: permits of one \
             come back to the other, and a waiter of one stands in the way of the other's; use \
             only one of them, and rename the other"
        )
    });
}
