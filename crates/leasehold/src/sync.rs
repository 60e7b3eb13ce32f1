//! A mutex that can still be locked after a panic.
//!
//! No code that can panic runs under the locks of this library. So a panic can't leave the
//! protected state half-changed.

use std::sync::{PoisonError, TryLockError};

pub(crate) use std::sync::MutexGuard;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value without locking: the caller has exclusive access.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex; `None` while another thread has it locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            // A poisoned mutex must not look locked: the caller of `try_lock` would conclude that
            // another thread is about to send a call. After one panic, no waiter would ever send
            // its own call again.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
