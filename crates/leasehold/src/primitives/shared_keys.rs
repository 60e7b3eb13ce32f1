//! A warning for a program that uses both `x` and `{x}`, because the two names share auxiliary
//! keys. The names of those keys are Redisson's, and this library can't change them.

use super::semaphore::steps;
use crate::backend::failure::Cause;
use crate::backend::step::Value;
use crate::context::Context;
use crate::context::shared_keys::SharedKeysAction;
use crate::key::Key;
use crate::observe::log;

/// Warns if the client uses both `x` and `{x}`. Every acquire and every wait calls this. When a
/// client first uses a name in braces, this also asks the server whether the other name exists.
pub(super) fn check(context: &Context, key: &Key) {
    match context.shared_keys.used(key) {
        None => {}
        Some(SharedKeysAction::Warn(other)) => warn(context.backend.address(), key, &other),
        Some(SharedKeysAction::Check(other)) => {
            // The other name may be a key of any kind. This step reports whether it exists.
            let reply = context.backend.submit(steps::available(&other));
            let (key, address) = (key.clone(), context.backend.address().to_owned());
            // Do this in the background: an acquire must not wait for the sake of a warning.
            context.cleanup.spawn(async move {
                let exists = match reply.await {
                    Ok(Value::List(items)) => matches!(items[..], [_, Value::Int(1)]),
                    Ok(_) => false,
                    // A key of another type also means that the name is in use. Any other failure
                    // tells nothing about the key.
                    Err(failure) => matches!(failure.cause, Cause::WrongKind(_)),
                };
                if exists {
                    warn(&address, &key, &other);
                }
            });
        }
    }
}

fn warn(address: &str, key: &Key, other: &Key) {
    log(|| {
        tracing::warn!(
            %key, %other, address,
            "these two names share their additional keys, as in Redisson: permits of one name may \
             return to the other, and waiters of one name block waiters of the other; rename one \
             of the two"
        )
    });
}
