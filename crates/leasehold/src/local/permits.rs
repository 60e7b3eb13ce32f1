//! The waiters for the permits of one name. The first waiter asks the server on behalf of all, so
//! one request serves as many waiters as there are free permits. During this process's slice
//! (`slice.rs`), returned permits are given to the waiters without a request.

use std::sync::Arc;

use tokio::sync::Notify;

use super::Record;
use super::slot::WaiterSlot;
use crate::clock::Moment;

/// A waiter for permits, and whether they were granted to it.
pub(crate) struct PermitWaiter {
    pub(crate) permits: u32,
    /// The grant. It is given by the request of the first waiter in line, or by a holder that
    /// returns permits.
    slot: WaiterSlot<()>,
    granted: Notify,
}

impl Record {
    /// Returns whether any waiter of this process wants permits.
    pub(crate) fn has_permit_waiters(&self) -> bool {
        let line = self.line.line();
        line.is_some_and(|line| !line.state.lock().permit_waiters.is_empty())
    }

    /// Gives returned permits to the waiters in line, in order and as long as the permits last, if
    /// this process's slice continues. Returns how many permits must be sent to the server. An
    /// embedded client does not pass permits on, because its requests cost nothing.
    pub(crate) fn pass_on(&self, permits: u32, now: Moment) -> u32 {
        let mut remaining = permits;
        // Waiters are served one at a time, because they must be woken while the line is not
        // locked: the wake-up locks the line.
        while remaining > 0
            && let Some(waiter) = self.next_served(remaining, now)
        {
            waiter.granted.notify_one();
            remaining -= waiter.permits;
        }
        remaining
    }

    fn next_served(&self, permits: u32, now: Moment) -> Option<Arc<PermitWaiter>> {
        // Ask the slice even if there is no waiter: permits that are given back to the server may
        // end the slice.
        if !self.slice.lock().permits_stay_local(permits, now) {
            return None;
        }
        let line = self.line.line()?;
        let mut state = line.state.lock();
        while let Some(first) = state.permit_waiters.first_entry() {
            // A waiter that asks for many permits is not overtaken by waiters that ask for fewer:
            // they could keep it waiting forever.
            if first.get().is_waiting() && first.get().permits > permits {
                return None;
            }
            // Remove the waiter from the line even if it has left, or was already granted its
            // permits. Otherwise a release of many permits would check each such waiter again for
            // every waiter that it serves.
            let waiter = first.remove();
            if waiter.slot.give(()).is_ok() {
                return Some(waiter);
            }
        }
        None
    }
}

impl PermitWaiter {
    pub(super) fn new(permits: u32) -> Self {
        Self {
            permits,
            slot: WaiterSlot::new(),
            granted: Notify::new(),
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.slot.is_empty()
    }

    /// Grants this waiter its permits. Returns `false` if the waiter has left, or was already
    /// granted its permits.
    pub(crate) fn grant(&self) -> bool {
        let granted = self.slot.give(()).is_ok();
        if granted {
            self.granted.notify_one();
        }
        granted
    }

    /// Ends the wait: the waiter has its permits, or has given up, and is not granted permits any
    /// more. Returns `true` if it was granted permits that it has not claimed.
    pub(crate) fn close(&self) -> bool {
        self.slot.close().is_some()
    }

    /// Takes the permits that were granted to this waiter, or passed on to it. Returns `false` if
    /// there are none.
    pub(crate) fn claim(&self) -> bool {
        self.slot.claim().is_some()
    }

    /// Waits until there are permits to claim, and claims them.
    pub(crate) async fn granted(&self) {
        // `notify_one` is stored for the next wait, so a grant between `claim` and the wait is not
        // missed.
        while !self.claim() {
            self.granted.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::Clock;
    use crate::key::Key;
    use crate::local::line::Place;
    use crate::local::slice::SliceReport;
    use crate::local::{LocalRecords, RecordRef};

    fn now() -> Moment {
        Moment::from_millis(1000)
    }

    /// Creates a line of waiters that ask for these numbers of permits, during their process's
    /// slice.
    fn line(sizes: &[u32]) -> (RecordRef, Vec<Place>) {
        let locals = LocalRecords::new(Clock::runtime(), Handle::current());
        let local = locals.of(&Key::parse("x").expect("a name"));
        let places = sizes
            .iter()
            .map(|permits| local.clone().line_up_for_permits(*permits));
        let places = places.collect();
        local.slice.lock().answered(&SliceReport {
            given_back: None,
            free: 1,
            none_left: true,
            granted: true,
            now: now(),
        });
        (local, places)
    }

    fn waiter(place: &Place) -> &PermitWaiter {
        place.permit_waiter().expect("it wants permits")
    }

    /// Leaves the line as a waiter's task does.
    fn leave(place: Place) -> bool {
        let unclaimed = waiter(&place).close();
        drop(place);
        unclaimed
    }

    fn served(places: &[Place]) -> Vec<bool> {
        places.iter().map(|place| waiter(place).claim()).collect()
    }

    #[tokio::test]
    async fn returned_permits_serve_waiters_in_order() {
        let (local, places) = line(&[1, 2, 1]);
        assert_eq!(local.pass_on(3, now()), 0);
        assert_eq!(served(&places), [true, true, false]);
        assert_eq!(local.pass_on(3, now()), 2, "one is enough");
        assert_eq!(served(&places), [false, false, true]);
    }

    #[tokio::test]
    async fn who_asks_for_many_is_not_overtaken() {
        let (local, places) = line(&[1, 3, 1]);
        assert_eq!(local.pass_on(3, now()), 2);
        assert_eq!(served(&places), [true, false, false]);
    }

    #[tokio::test]
    async fn nothing_passes_on_to_who_has_gone() {
        let (local, mut places) = line(&[1, 1]);
        assert!(!leave(places.remove(0)));
        assert_eq!(local.pass_on(1, now()), 0);
        assert!(leave(places.remove(0)), "it goes back");
        assert_eq!(local.pass_on(1, now()), 1);
    }

    #[tokio::test]
    async fn briefly_empty_line_keeps_its_turn() {
        let (local, mut places) = line(&[1]);
        assert!(!leave(places.remove(0)));
        assert!(!local.has_permit_waiters());
        let (locals, key) = (Arc::clone(&local.locals), local.key().clone());
        drop(local);
        let local = locals.of(&key);
        let _place = local.clone().line_up_for_permits(1);
        assert_eq!(local.pass_on(1, now()), 0);
    }

    /// Returns the elapsed time, because safe code can't read the CPU time of a thread here.
    #[cfg(not(unix))]
    fn worked() -> Duration {
        crate::clock::Clock::Boot
            .now()
            .saturating_sub(crate::clock::Moment::from_millis(0))
    }

    /// Returns the CPU time of this thread.
    #[cfg(unix)]
    fn worked() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Duration::from_nanos(nanos.try_into().expect("no more than a life"))
    }

    /// Returns how long `work` computes for a line of `waiters`: the shortest time of several
    /// tries.
    fn work_of(waiters: usize, work: impl Fn(&RecordRef, Vec<Place>)) -> Duration {
        let once = |_| {
            let (local, places) = line(&vec![1; waiters]);
            let before = worked();
            work(&local, places);
            worked().saturating_sub(before)
        };
        (0..5).map(once).min().expect("some tries")
    }

    /// Asserts that four times as many waiters cause four times the work, or a little more.
    /// Quadratic work would grow sixteen times.
    fn assert_grows_with_the_line(work: impl Fn(&RecordRef, Vec<Place>)) {
        let (few, many) = (work_of(2000, &work), work_of(8000, &work));
        assert!(many < few * 9, "{few:?} for 2000, {many:?} for 8000");
    }

    #[tokio::test]
    async fn leaving_a_long_line_takes_constant_time() {
        assert_grows_with_the_line(|_, places| {
            places.into_iter().for_each(|one| assert!(!leave(one)));
        });
        assert_grows_with_the_line(|_, places| {
            places
                .into_iter()
                .rev()
                .for_each(|one| assert!(!leave(one)));
        });
    }

    #[tokio::test]
    async fn passing_on_permits_takes_linear_time() {
        assert_grows_with_the_line(|local, places| {
            let permits = u32::try_from(places.len()).expect("so many");
            assert_eq!(local.pass_on(permits, now()), 0);
            assert!(served(&places).iter().all(|served| *served));
        });
    }
}
