//! Fences in the memory of a process.

use std::collections::HashMap;

use super::Stale;
use crate::sync::Mutex;

/// The fences of resources in the memory of this process, by name. They are lost with the process,
/// so use them only for data that is also lost with the process. For other data, store the fence
/// with the data.
///
/// # Examples
///
/// ```
/// use leasehold::fence::Fences;
///
/// let fences = Fences::new();
/// fences.change("stock:7", 2, || "10 left")?;
/// assert!(fences.change("stock:7", 1, || "late").is_err());
/// assert_eq!(fences.fence("stock:7"), Some(2));
/// # Ok::<(), leasehold::fence::Stale>(())
/// ```
#[derive(Debug, Default)]
pub struct Fences(Mutex<HashMap<String, u64>>);

impl Fences {
    /// Returns an empty set of fences.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks the token, makes it the fence of `name`, and runs `change`. Changes of all names run
    /// one after the other, so that no other change can run between a check and its change.
    /// `change` must not use these fences.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a greater token was accepted for this name before. In that case `change` does
    /// not run.
    pub fn change<T>(
        &self,
        name: impl AsRef<str>,
        token: u64,
        change: impl FnOnce() -> T,
    ) -> Result<T, Stale> {
        let name = name.as_ref();
        let mut fences = self.0.lock();
        match fences.get_mut(name) {
            Some(fence) if token < *fence => return Err(Stale::new(token).with_fence(*fence)),
            Some(fence) => *fence = token,
            None => _ = fences.insert(name.to_owned(), token),
        }
        // The mutex is still locked, so the check and the change are one step.
        Ok(change())
    }

    /// Returns the greatest token that was accepted for this name.
    #[must_use]
    pub fn fence(&self, name: impl AsRef<str>) -> Option<u64> {
        self.0.lock().get(name.as_ref()).copied()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn late_writers_change_nothing_in_ten_thousand_interleavings() {
        let (fences, written) = (Fences::new(), Mutex::new(Vec::new()));
        let last = AtomicU64::new(0);
        thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..2_500 {
                        // Some of the writers are late.
                        let drawn = last.fetch_add(1, Ordering::Relaxed);
                        let token = drawn.saturating_sub(fastrand::u64(0..8));
                        let _ = fences.change("x", token, || written.lock().push(token));
                    }
                });
            }
        });
        let written = written.lock();
        assert!(written.is_sorted(), "a late write came through");
        assert!(
            (1_000..10_000).contains(&written.len()),
            "{}",
            written.len()
        );
    }

    #[test]
    fn equal_tokens_are_accepted_and_names_are_independent() {
        let fences = Fences::new();
        let ran = RefCell::new(0);
        let change = |name, token| fences.change(name, token, || *ran.borrow_mut() += 1);
        change("x", 5).unwrap();
        change("x", 5).unwrap();
        change("y", 1).unwrap();
        assert_eq!(change("x", 4), Err(Stale::new(4).with_fence(5)));
        assert_eq!(*ran.borrow(), 3);
        assert_eq!((fences.fence("x"), fences.fence("z")), (Some(5), None));
    }
}
