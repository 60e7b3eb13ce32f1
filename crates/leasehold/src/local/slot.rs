//! A slot in which a waiter is given what it waits for, such as a hold. The slot is empty until
//! then, and is closed when the waiter does not want anything more.

use crate::sync::Mutex;

/// The slot of one waiter. Any task that has something for the waiter may fill the slot.
pub(crate) struct WaiterSlot<T>(Mutex<SlotState<T>>);

#[derive(Default)]
enum SlotState<T> {
    #[default]
    Empty,
    Full(T),
    /// The waiter has what it asked for, or has given up.
    Closed,
}

impl<T> WaiterSlot<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(SlotState::Empty))
    }

    /// Returns whether the waiter still waits and has not been given anything yet.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Empty)
    }

    /// Returns whether the waiter was given something that it has not claimed yet.
    pub(crate) fn is_full(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Full(_))
    }

    /// Returns whether nothing can be given to the waiter any more.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Closed)
    }

    /// Gives `gift` to the waiter. Returns `gift` if the waiter has left, or was given something
    /// before.
    pub(crate) fn give(&self, gift: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if !matches!(*state, SlotState::Empty) {
            return Err(gift);
        }
        *state = SlotState::Full(gift);
        Ok(())
    }

    /// Takes what the waiter was given. From then on nothing more is given to this waiter.
    pub(crate) fn claim(&self) -> Option<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, SlotState::Closed) {
            SlotState::Full(gift) => Some(gift),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Reopens the slot, because what the waiter claimed is of no use, and the waiter continues to
    /// wait.
    pub(crate) fn reopen(&self) {
        *self.0.lock() = SlotState::Empty;
    }

    /// Takes back what the waiter was given and has not claimed. The waiter continues to wait,
    /// unless `closes` returns `true` for what is taken back.
    pub(crate) fn take_back(&self, closes: impl FnOnce(&T) -> bool) -> Option<T> {
        let mut state = self.0.lock();
        match std::mem::take(&mut *state) {
            SlotState::Full(gift) => {
                if closes(&gift) {
                    *state = SlotState::Closed;
                }
                Some(gift)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Closes the slot if it is empty. Returns `false`, and changes nothing, if something was given
    /// before, or the slot was closed.
    pub(crate) fn close_empty(&self) -> bool {
        let mut state = self.0.lock();
        let is_empty = matches!(*state, SlotState::Empty);
        if is_empty {
            *state = SlotState::Closed;
        }
        is_empty
    }

    /// Closes the slot, because the waiter does not want anything more. Returns what the waiter was
    /// given and has not claimed.
    pub(crate) fn close(&self) -> Option<T> {
        // The slot is emptied and closed under one lock. So what another thread gives at the same
        // time is returned either here or by `give`, whose caller then gives it back to the server.
        match std::mem::replace(&mut *self.0.lock(), SlotState::Closed) {
            SlotState::Full(gift) => Some(gift),
            SlotState::Empty | SlotState::Closed => None,
        }
    }
}
