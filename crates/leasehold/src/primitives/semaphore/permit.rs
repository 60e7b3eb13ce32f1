//! Permits in use, and how they are given back.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::steps;
use crate::backend::step::{Operation, Outcome, Value};
use crate::cleanup::markers::{Marked, repeatable_for};
use crate::cleanup::{Return, Undo};
use crate::clock::Moment;
use crate::context::Context;
use crate::error::Result;
use crate::key::Key;
use crate::primitives::once;

/// A semaphore's key and channel.
#[derive(Clone)]
pub(super) struct Names {
    pub(super) key: Key,
    pub(super) channel: Arc<str>,
}

/// Permits in use: what [`Semaphore::acquire`](crate::Semaphore::acquire) gives.
///
/// [`release`](Self::release) gives them back and reports what stood in the way; dropping
/// them gives them back in the background. A process that is killed takes them with it:
/// see [`Semaphore`](crate::Semaphore).
#[must_use = "the permits are given back as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct SemaphorePermit {
    context: Arc<Context>,
    names: Names,
    permits: u32,
}

impl SemaphorePermit {
    pub(super) fn new(context: &Arc<Context>, names: Names, permits: u32) -> Self {
        Self {
            context: Arc::clone(context),
            names,
            permits,
        }
    }

    /// Gives the permits back.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `OutcomeUnknown` when no server answered: it is tried again in the
    /// background, for most of a minute if a request may have run, and for ten minutes if
    /// none did. `WrongKind` when something else stands there now.
    ///
    /// # Cancel safety
    ///
    /// Once called, the permits are given back whether the future is dropped or not.
    pub async fn release(mut self) -> Result<()> {
        let Some(returned) = self.take() else {
            return Ok(());
        };
        let context = &self.context;
        // Armed: a dropped call and a lost reply end in the background.
        let mut undo = Undo::arm(&context.cleanup, Arc::new(returned));
        undo.granted();
        let returned = Arc::clone(undo.hold());
        let operation = returned.give_back();
        // Also if this is dropped meanwhile.
        returned.unsure_since(Some(context.clock.now()));
        let first = context.backend.submit(operation.clone());
        self.nudge();
        let reply = once::repeat(context, first, operation).await;
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => {
                if !failure.may_heal() {
                    undo.disarm();
                }
                if failure.outcome == Outcome::DidNotRun {
                    returned.unsure_since(None);
                }
                return Err(failure.into_error(&self.names.key));
            }
        };
        undo.disarm();
        if let Value::List(items) = reply
            && let [_, Value::Int(listeners)] = items[..]
        {
            context.companies.told(&self.names.key, listeners);
        }
        let (key, now) = (&self.names.key, context.clock.now());
        context.markers.answered(key, returned.marked.clone(), now);
        Ok(())
    }

    /// Keeps the permits from being given back: they stay in use until somebody calls
    /// [`Semaphore::release`](crate::Semaphore::release).
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Takes `permits` of these permits out, as a value of their own. `None` when there
    /// are fewer; then nothing changes.
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Self::new(&self.context, self.names.clone(), permits))
    }

    /// Adds the permits of `other` to these.
    ///
    /// # Panics
    ///
    /// When `other` is of another semaphore or client, or both together are 2^32 permits or
    /// more. Then nothing changes here, and `other` is given back.
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            self.names.key == other.names.key && Arc::ptr_eq(&self.context, &other.context),
            "permits of `{}` can't be merged with those of `{}`",
            self.names.key,
            other.names.key
        );
        let both = self.permits.checked_add(other.permits);
        self.permits = both.expect("both together are fewer than 2^32 permits");
        other.permits = 0;
    }

    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &str {
        self.names.key.as_str()
    }

    /// Lets our own waiters ask right behind the release, before its message comes, unless
    /// others wait as well: those would hardly ever be first.
    fn nudge(&self) {
        if self.context.companies.alone(&self.names.key) {
            self.context.backend.channels().wake(&self.names.channel);
        }
    }

    /// What has to be given back; from now on it is somebody else's to do.
    fn take(&mut self) -> Option<Returned> {
        let permits = std::mem::take(&mut self.permits);
        (permits > 0).then(|| Returned {
            names: self.names.clone(),
            marked: once::mark(&self.context, &self.names.key),
            permits,
            unsure_since: Mutex::default(),
        })
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        if let Some(returned) = self.take() {
            self.context.cleanup.give_back(Arc::new(returned), false);
            self.nudge();
        }
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// How long it is tried to give back to a server that can't be reached.
const PATIENCE: Duration = Duration::from_secs(600);

/// Beyond the life of a marker the same request would count twice.
fn over_at(started: Moment, unsure_since: Option<Moment>, reply_limit: Duration) -> Moment {
    unsure_since.map_or(started + PATIENCE, |since| {
        since + repeatable_for(reply_limit)
    })
}

/// Permits that are given back, under a marker of their own.
struct Returned {
    names: Names,
    marked: Marked,
    permits: u32,
    /// When a request left that may have run, before it was given to the clean-up.
    unsure_since: Mutex<Option<Moment>>,
}

impl Returned {
    fn unsure_since(&self, moment: Option<Moment>) {
        *self.unsure() = moment;
    }

    fn unsure(&self) -> MutexGuard<'_, Option<Moment>> {
        // No code that can panic runs under this lock.
        self.unsure_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Return for Returned {
    fn key(&self) -> &Key {
        &self.names.key
    }

    fn give_back(&self) -> Operation {
        let Names { key, channel } = &self.names;
        steps::add(key, &self.marked, self.permits.into(), false, channel)
    }

    fn over_at(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_limit: Duration,
    ) -> Moment {
        let before = *self.unsure();
        over_at(started, before.or(unsure_since), reply_limit)
    }
}

/// What an ask may have been granted.
pub(super) struct Asked {
    pub(super) names: Names,
    pub(super) marker: String,
}

impl Return for Asked {
    fn key(&self) -> &Key {
        &self.names.key
    }

    fn give_back(&self) -> Operation {
        steps::undo(&self.names.key, &self.marker, &self.names.channel)
    }

    fn over_at(
        &self,
        started: Moment,
        unsure_since: Option<Moment>,
        reply_limit: Duration,
    ) -> Moment {
        over_at(started, unsure_since, reply_limit)
    }
}
