//! The group lock: it acquires several values under one name in one request, all of them or none.

mod fields;
pub(crate) mod steps;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::lock::kind::{Acquire, Kind, Named};
use super::lock::{Lock, LockGuard, acquire};
use crate::backend::step::Operation;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::HoldSteps;
use crate::key::Key;
use crate::observe;
use crate::wait::Deadline;
pub use fields::FieldNames;

/// A lock on several values of one group. An acquire locks all of them, or none. Redisson's
/// `getMultiLock(group, values)` is the same lock.
///
/// Two group locks of one group exclude each other if they have a value in common. An acquire locks
/// its values in one request, so two acquires can't deadlock, whatever the order of their values. A
/// group is one key on one server. To lock names on several servers, use a
/// [`MultiLock`](crate::MultiLock).
///
/// A group lock has at most 1000 values. A value that is given twice counts once. An
/// [`Owner`](crate::Owner) that holds a set of values can acquire the same set again. If the owner
/// acquires a different set that has a value in common, it waits like any other waiter.
///
/// The group stores the time at which the lease of each value ends. This library uses the server's
/// clock for it, and Redisson's clients use their own clocks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let client = leasehold::Client::embedded();
/// let transfer = client.group_lock("accounts", ["ann", "bob"]).acquire().await?;
/// let overlapping = client.group_lock("accounts", ["bob", "eve"]);
/// assert!(overlapping.try_acquire().await?.is_none());
/// assert!(client.group_lock("accounts", ["eve"]).try_acquire().await?.is_some());
/// transfer.release().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "getMultiLock")]
#[doc(alias = "RedissonFasterMultiLock")]
pub type GroupLock = Lock<Group>;

/// The kind of [`GroupLock`]: values of one group.
#[derive(Clone)]
pub struct Group {
    values: Arc<Values>,
}

/// The values, with their names in Redis.
pub(crate) struct Values {
    names: FieldNames,
    by_field: BTreeMap<String, String>,
    /// The field names in sorted order, separated by spaces.
    pub(super) fields: String,
}

impl Values {
    fn new(names: FieldNames, values: impl IntoIterator<Item = String>) -> Arc<Self> {
        // Keep each value once, in the order of the fields. The joined string is the key for the
        // line and for an owner's hold, so it must not depend on the order that the caller gave.
        let by_field: BTreeMap<_, _> = values
            .into_iter()
            .map(|value| (names.field(&value), value))
            .collect();
        let fields: Vec<_> = by_field.keys().map(String::as_str).collect();
        Arc::new(Self {
            names,
            fields: fields.join(" "),
            by_field,
        })
    }

    pub(super) fn value_of(&self, field: &[u8]) -> &str {
        let field = String::from_utf8_lossy(field);
        self.by_field.get(&*field).map_or("", String::as_str)
    }
}

/// The largest number of values. More values would block all other clients of the server for
/// milliseconds.
const MOST_VALUES: usize = 1000;

impl Lock<Group> {
    pub(crate) fn of_group<V: Into<String>>(
        context: Arc<Context>,
        group: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values = Values::new(FieldNames::Text, values.into_iter().map(Into::into));
        let count = values.by_field.len();
        let mut lock = Self::named(context, group, Group { values });
        if count == 0 || count > MOST_VALUES {
            lock.refuse(Error::new(
                ErrorKind::Misuse,
                format!(
                    "a lock of the group `{}` has {count} values; give it between 1 and {MOST_VALUES}",
                    crate::text::Shown(group)
                ),
            ));
        }
        lock
    }

    /// Sets how values are encoded before they are hashed to names on the server.
    /// [`FieldNames::Text`] by default.
    #[must_use = "the setting is only in the returned value"]
    pub fn field_names(mut self, names: FieldNames) -> Self {
        // Start from the values, not from their fields: a field is a hash, and can't be turned into
        // the hash of another encoding.
        let values = self.kind_mut().values.by_field.values().cloned();
        self.kind_mut().values = Values::new(names, values);
        self
    }
}

impl Kind for Group {
    type Guard = LockGuard;
}

impl Acquire for Group {
    async fn acquire_by(lock: &Lock<Self>, deadline: Deadline) -> Result<Option<LockGuard>> {
        acquire::acquire_by(lock, deadline).await
    }
}

impl Named for Group {
    const OBSERVED: observe::ObservedKind = observe::ObservedKind::Group;
    fn channel(&self, key: &Key) -> String {
        key.lock_channel()
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    /// Returns a key for exactly these values: a waiter for other values must not wait behind a
    /// waiter for these values.
    fn line_key(&self, key: &Key) -> Key {
        key.fields(&self.values.fields)
    }

    fn hold(lock: &Lock<Self>, key: &Key, id: String) -> Box<dyn HoldSteps> {
        let values = Arc::clone(&lock.kind().values);
        Box::new(steps::GroupHold::new(
            key.clone(),
            lock.channel(),
            values,
            id,
        ))
    }

    fn inspect(&self, key: &Key) -> Operation {
        steps::inspect(key, &self.values)
    }

    fn force_unlock(&self, key: &Key, channel: &str, by: &str) -> Operation {
        steps::force_unlock(key, channel, &self.values, by)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("names", &self.values.names)
            .field("values", &self.values.by_field.values())
            .finish()
    }
}
