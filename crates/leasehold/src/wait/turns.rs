//! The local queue: per name one waiter of this process asks the server, the
//! others stand in line behind it. A hundred tasks that want one name cost the
//! server what one does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::key::Key;

/// The lines of a client, one per name. `T` is what whoever has the turn knows of the
/// name; it goes on to the next with the turn, and is gone with the line.
#[derive(Default)]
pub(crate) struct Turns<T> {
    lines: Mutex<HashMap<Key, Line<T>>>,
}

#[derive(Default)]
struct Line<T> {
    // First come, first served, and a waiter that is dropped leaves its place:
    // both are properties of tokio's mutex.
    turn: Arc<tokio::sync::Mutex<T>>,
    places: usize,
}

impl<T: Default> Turns<T> {
    pub(crate) fn line_up(self: &Arc<Self>, key: &Key) -> Place<T> {
        let mut lines = self.lines();
        let line = lines.entry(key.clone()).or_default();
        line.places += 1;
        Place {
            turn: Arc::clone(&line.turn),
            turns: Arc::clone(self),
            key: key.clone(),
        }
    }
}

impl<T> Turns<T> {
    fn lines(&self) -> MutexGuard<'_, HashMap<Key, Line<T>>> {
        // No code that can panic runs under this lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn anyone_waits(&self, key: &Key) -> bool {
        self.lines().contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.lines().len()
    }
}

/// A place in a line; left when dropped.
pub(crate) struct Place<T> {
    turns: Arc<Turns<T>>,
    key: Key,
    turn: Arc<tokio::sync::Mutex<T>>,
}

impl<T> Place<T> {
    /// Resolves when it is this waiter's turn. The turn passes on when it is
    /// dropped, and a wake-up with it: whoever gets the turn asks first.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<T> {
        Arc::clone(&self.turn).lock_owned().await
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        let mut lines = self.turns.lines();
        if let Some(line) = lines.get_mut(&self.key) {
            line.places -= 1;
            if line.places == 0 {
                lines.remove(&self.key);
            }
        }
    }
}
