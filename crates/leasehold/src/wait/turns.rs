//! The local queue: per name one waiter of this process asks the server, the
//! others stand in line behind it. A hundred tasks that want one name cost the
//! server what one does. Readers stand in it together: once one of them got in, the
//! others ask at the same time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::key::Key;

/// The lines of a client, one per name. `T` is what whoever has the turn knows of the
/// name; it goes on to the next with the turn, and is gone with the line.
#[derive(Default)]
pub(crate) struct Turns<T> {
    lines: std::sync::Mutex<HashMap<Key, Standing<T>>>,
}

#[derive(Default)]
struct Standing<T> {
    head: Arc<Head<T>>,
    places: usize,
    /// How many of them keep readers behind them.
    exclusive: usize,
}

/// What the places of a line wait for. First come, first served, and a waiter that is
/// dropped leaves its place: both are properties of tokio's locks.
#[derive(Default)]
struct Head<T> {
    /// Readers have it together.
    turn: RwLock<()>,
    asker: Mutex<T>,
    /// Of the readers that have the turn, the one who waits for the server.
    scout: Mutex<T>,
    /// Told when a reader got in.
    opened: Notify,
    /// The server has answered somebody in this line.
    answered: AtomicBool,
}

/// How those of one process stand in line who want one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// One asks, the others stand behind it.
    OneAsks,
    /// The same, and those who enter together stand behind it, too.
    Exclusive,
    /// All ask at once; when that was in vain one of them waits, and its grant lets the
    /// others ask again.
    Together,
    /// It has to wait for none of them.
    Alone,
    /// Nobody has to wait for another: all ask, and share the answer.
    AllAsk,
    /// The line is on the server: each has a place there, which it keeps by asking this
    /// often.
    OnServer { ask_every: Duration },
}

impl<T: Default> Turns<T> {
    pub(crate) fn line_up(self: &Arc<Self>, key: &Key, line: Line) -> Place<T> {
        let mut lines = self.lines();
        let standing = lines.entry(key.clone()).or_default();
        standing.places += 1;
        standing.exclusive += usize::from(line == Line::Exclusive);
        Place {
            head: Arc::clone(&standing.head),
            own: Mutex::default(),
            turns: Arc::clone(self),
            key: key.clone(),
            line,
        }
    }
}

impl<T> Turns<T> {
    fn lines(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Standing<T>>> {
        // No code that can panic runs under this lock.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody waits whom one of this line doesn't overtake.
    pub(crate) fn anyone_waits(&self, key: &Key, line: Line) -> bool {
        let lines = self.lines();
        lines.get(key).is_some_and(|standing| match line {
            Line::OneAsks | Line::Exclusive => true,
            Line::Together => standing.exclusive > 0,
            Line::Alone | Line::AllAsk | Line::OnServer { .. } => false,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.lines().len()
    }
}

/// A place in a line; left when dropped.
pub(crate) struct Place<T> {
    turns: Arc<Turns<T>>,
    key: Key,
    head: Arc<Head<T>>,
    /// What one who stands behind nobody knows.
    own: Mutex<T>,
    line: Line,
}

/// Has its use in being there: it keeps others where they are in the line.
#[expect(dead_code, reason = "held, not looked at")]
pub(crate) enum Turn<'a> {
    Nobodys,
    Exclusive(RwLockWriteGuard<'a, ()>),
    Together(RwLockReadGuard<'a, ()>),
}

impl<T> Place<T> {
    /// Resolves when it is this waiter's turn, or that of readers together. The turn
    /// passes on when it is dropped, and a wake-up with it: whoever gets the turn asks
    /// first.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        match self.line {
            Line::OneAsks | Line::Alone | Line::AllAsk | Line::OnServer { .. } => Turn::Nobodys,
            Line::Exclusive => Turn::Exclusive(self.head.turn.write().await),
            Line::Together => Turn::Together(self.head.turn.read().await),
        }
    }

    /// Resolves when this waiter is the one who asks.
    pub(crate) async fn asker(&self) -> MutexGuard<'_, T> {
        match self.line {
            Line::OneAsks | Line::Exclusive => self.head.asker.lock().await,
            Line::Together => self.head.scout.lock().await,
            Line::Alone | Line::AllAsk | Line::OnServer { .. } => self.own.lock().await,
        }
    }

    /// The server has answered. Those who stand behind need not find it out.
    pub(crate) fn note_answer(&self) {
        self.head.answered.store(true, Ordering::Relaxed);
    }

    /// Whether it has answered anybody of this line.
    pub(crate) fn was_answered(&self) -> bool {
        self.head.answered.load(Ordering::Relaxed)
    }

    /// Told when one of those who enter together got in.
    pub(crate) fn opened(&self) -> &Notify {
        &self.head.opened
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        let mut lines = self.turns.lines();
        if let Some(standing) = lines.get_mut(&self.key) {
            standing.places -= 1;
            standing.exclusive -= usize::from(self.line == Line::Exclusive);
            if standing.places == 0 {
                lines.remove(&self.key);
            }
        }
    }
}
