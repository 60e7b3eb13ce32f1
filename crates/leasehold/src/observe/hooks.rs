//! The hooks of a client: functions of the user that the client calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ObservedKind;
use super::user::Panics;
use crate::key::Key;
use crate::loss::LossReason;

/// An acquire that succeeded: the argument of [`on_acquired`](crate::ClientBuilder::on_acquired).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquired<'a> {
    /// The name that was acquired.
    pub name: &'a str,
    /// The kind: `lock` (plain or fenced), `fair`, `read`, `write`, `group`, `permit` or
    /// `semaphore`.
    pub kind: &'static str,
    /// The time that the acquire took.
    pub waited: Duration,
}

/// A hold that was lost: the argument of [`on_lost`](crate::ClientBuilder::on_lost).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lost<'a> {
    /// The name that was held.
    pub name: &'a str,
    /// The kind, as in [`Acquired::kind`].
    pub kind: &'static str,
    /// The reason for the loss.
    pub reason: &'a LossReason,
}

/// An acquire that has waited for a long time: the argument of
/// [`on_waiting_longer_than`](crate::ClientBuilder::on_waiting_longer_than).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting<'a> {
    /// The name for which the acquire waits.
    pub name: &'a str,
    /// The kind, as in [`Acquired::kind`].
    pub kind: &'static str,
    /// The time since the acquire began.
    pub waited: Duration,
}

/// A hold whose work has made no progress for half of its time limit: the argument of
/// [`on_stalling`](crate::ClientBuilder::on_stalling).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stalling<'a> {
    /// The name that is held.
    pub name: &'a str,
    /// The kind, as in [`Acquired::kind`].
    pub kind: &'static str,
    /// The time since the last report of progress.
    pub since: Duration,
    /// The [time in which progress must be reported](crate::Lock::progress_within).
    pub within: Duration,
}

/// A hold whose maximum hold time is almost over: the argument of
/// [`max_hold_warning`](crate::ClientBuilder::max_hold_warning).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ending<'a> {
    /// The name that is held.
    pub name: &'a str,
    /// The kind, as in [`Acquired::kind`].
    pub kind: &'static str,
    /// The time that is left.
    pub left: Duration,
    /// The [maximum hold time](crate::Lock::max_hold).
    pub limit: Duration,
}

type OnAcquired = dyn Fn(&Acquired<'_>) + Send + Sync;
type OnEnding = dyn Fn(&Ending<'_>) + Send + Sync;
type OnLost = dyn Fn(&Lost<'_>) + Send + Sync;
type OnStalling = dyn Fn(&Stalling<'_>) + Send + Sync;
type OnWaiting = dyn Fn(&Waiting<'_>) + Send + Sync;

/// The hooks of a client. Most clients have none.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Option<Arc<HookSet>>);

#[derive(Clone, Default)]
struct HookSet {
    acquired: Option<Hook<OnAcquired>>,
    ending: Option<(Duration, Hook<OnEnding>)>,
    lost: Option<Hook<OnLost>>,
    stalling: Option<Hook<OnStalling>>,
    waiting: Option<(Duration, Hook<OnWaiting>)>,
}

/// A function of the user, and the number of its panics.
struct Hook<F: ?Sized>(Arc<(Panics, Box<F>)>);

impl<F: ?Sized> Hook<F> {
    fn new(name: &'static str, function: Box<F>) -> Self {
        Self(Arc::new((Panics::of(name), function)))
    }

    fn call(&self, call: impl FnOnce(&F)) {
        let (panics, function) = &*self.0;
        panics.catch(|| call(function));
    }
}

impl<F: ?Sized> Clone for Hook<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Hooks {
    pub(crate) fn on_acquired(&mut self, hook: Box<OnAcquired>) {
        self.set().acquired = Some(Hook::new("on_acquired", hook));
    }

    pub(crate) fn on_lost(&mut self, hook: Box<OnLost>) {
        self.set().lost = Some(Hook::new("on_lost", hook));
    }

    pub(crate) fn on_stalling(&mut self, hook: Box<OnStalling>) {
        self.set().stalling = Some(Hook::new("on_stalling", hook));
    }

    pub(crate) fn max_hold_ending(&mut self, before: Duration, hook: Box<OnEnding>) {
        self.set().ending = Some((before, Hook::new("max_hold_warning", hook)));
    }

    pub(crate) fn on_waiting(&mut self, longest: Duration, hook: Box<OnWaiting>) {
        self.set().waiting = Some((longest, Hook::new("on_waiting_longer_than", hook)));
    }

    fn set(&mut self) -> &mut HookSet {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    /// Returns the duration after which a wait is reported.
    pub(super) fn longest_wait(&self) -> Option<Duration> {
        let (longest, _) = self.0.as_ref()?.waiting.as_ref()?;
        Some(*longest)
    }

    pub(super) fn acquired(&self, kind: ObservedKind, key: &Key, waited: Duration) {
        if let Some(hook) = self.0.as_ref().and_then(|set| set.acquired.as_ref()) {
            let event = Acquired {
                name: key.given(),
                kind: kind.label(),
                waited,
            };
            hook.call(|hook| hook(&event));
        }
    }

    pub(super) fn lost(&self, kind: ObservedKind, key: &Key, reason: &LossReason) {
        if let Some(hook) = self.0.as_ref().and_then(|set| set.lost.as_ref()) {
            let event = Lost {
                name: key.given(),
                kind: kind.label(),
                reason,
            };
            hook.call(|hook| hook(&event));
        }
    }

    pub(super) fn stalling(
        &self,
        kind: ObservedKind,
        key: &Key,
        since: Duration,
        within: Duration,
    ) {
        if let Some(hook) = self.0.as_ref().and_then(|set| set.stalling.as_ref()) {
            let event = Stalling {
                name: key.given(),
                kind: kind.label(),
                since,
                within,
            };
            hook.call(|hook| hook(&event));
        }
    }

    pub(super) fn max_hold_warning(&self) -> Option<Duration> {
        let (before, _) = self.0.as_ref()?.ending.as_ref()?;
        Some(*before)
    }

    pub(super) fn ending(&self, kind: ObservedKind, key: &Key, left: Duration, limit: Duration) {
        if let Some((_, hook)) = self.0.as_ref().and_then(|set| set.ending.as_ref()) {
            let event = Ending {
                name: key.given(),
                kind: kind.label(),
                left,
                limit,
            };
            hook.call(|hook| hook(&event));
        }
    }

    pub(super) fn report_long_wait(&self, kind: ObservedKind, key: &Key, waited: Duration) {
        if let Some((_, hook)) = self.0.as_ref().and_then(|set| set.waiting.as_ref()) {
            let event = Waiting {
                name: key.given(),
                kind: kind.label(),
                waited,
            };
            hook.call(|hook| hook(&event));
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}
