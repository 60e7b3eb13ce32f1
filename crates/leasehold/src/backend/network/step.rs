//! The names of the steps, for tests that choose requests by their step.

use std::fmt;

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)+) => {
        /// A step: one atomic change or query that a client sends to the server.
        ///
        /// Each kind of lock has its own steps, and uses the plain lock's step for everything else.
        /// A fair lock, for example, is renewed by [`LockRenew`](Self::LockRenew).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Step {
            $($(#[$doc])* $step,)+
        }

        impl Step {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$step),+];

            /// Returns the step's name in the script and in errors, for example `lock.acquire`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$step => $name,)+
                }
            }

            pub(super) fn of(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$step),)+
                    _ => None,
                }
            }
        }
    };
}

steps! {
    /// A waiter requests a lock.
    LockAcquire = "lock.acquire",
    /// A waiter requests a lock, and asks to be notified of its release.
    LockAcquireAndEnlist = "lock.acquire_and_enlist",
    /// A client no longer waits for the lock, so a release need not notify it.
    LockDelist = "lock.delist",
    /// A holder releases a lock.
    LockRelease = "lock.release",
    /// A holder releases a lock, and notifies a client that waits for it.
    LockReleaseAndNotify = "lock.release_and_notify",
    /// The watchdog renews a hold, or a guard extends it.
    LockRenew = "lock.renew",
    /// A holder ends its guard and keeps the lock locked for a fixed time.
    LockKeepFor = "lock.keep_for",
    /// The watchdog renews many holds with the same lease at once. A hold that this step leaves
    /// out, for example because its key has no expiry, is then renewed by
    /// [`LockRenew`](Self::LockRenew).
    LockRenewMany = "lock.renew_many",
    /// A client asks for a turn of a lock: once per slot, or once per id.
    SlotBegin = "slot.begin",
    /// A holder ends its turn, and releases the lock.
    SlotFinish = "slot.finish",
    /// A holder notes the end of its turn, and waits for replicas to confirm the note.
    SlotMark = "slot.mark",
    /// A client asks what is known about a turn.
    SlotLook = "slot.look",
    /// A candidate asks to lead.
    ElectionLead = "election.lead",
    /// A leader ends its term.
    ElectionResign = "election.resign",
    /// The watchdog renews a term.
    ElectionRenew = "election.renew",
    /// A client asks who leads.
    ElectionLook = "election.look",
    /// A client takes over the hold of a ticket.
    TicketTake = "ticket.take",
    /// A reader takes over the read hold of a ticket.
    TicketTakeRead = "ticket.take_read",
    /// A client takes over the permits of a ticket.
    TicketTakePermits = "ticket.take_permits",
    /// A client asks what became of a ticket's hold.
    TicketLook = "ticket.look",
    /// A holder that lost its hold asks which holder the lock has now.
    LockWhyLost = "lock.why_lost",
    /// A client ends the current hold by force.
    LockForceUnlock = "lock.force_unlock",
    /// A client asks which holder the lock has.
    LockInspect = "lock.inspect",
    /// A `RedLock` notes its longest lease on a server.
    LockNoteLongest = "lock.note_longest",
    /// A waiter requests values of a group.
    GroupAcquire = "group.acquire",
    /// A holder releases values of a group.
    GroupRelease = "group.release",
    /// The watchdog renews a hold of values of a group.
    GroupRenew = "group.renew",
    /// A holder that lost its hold asks which holders the values have now.
    GroupWhyLost = "group.why_lost",
    /// A client ends the current holds of values by force.
    GroupForceUnlock = "group.force_unlock",
    /// A client asks which holders the values have.
    GroupInspect = "group.inspect",
    /// A waiter requests a lock with a fencing token.
    FencedAcquire = "fenced.acquire",
    /// A holder draws a fencing token.
    FencedDraw = "fenced.draw",
    /// A holder raises the counter to its token.
    FencedRaise = "fenced.raise",
    /// A client asks for the last fencing token.
    FencedLastToken = "fenced.last_token",
    /// A waiter requests a fair lock, or keeps its place in the queue.
    FairAcquire = "fair.acquire",
    /// A client keeps the places of several of its waiters in the queue.
    FairKeepPlaces = "fair.keep_places",
    /// A holder releases the fair lock, or a waiter gives up its place.
    FairRelease = "fair.release",
    /// A holder of a fair lock ends its guard and keeps the lock locked for a fixed time.
    FairKeepFor = "fair.keep_for",
    /// A client ends the current hold of a fair lock by force.
    FairForceUnlock = "fair.force_unlock",
    /// A client asks which waiters are in the queue.
    FairListWaiters = "fair.list_waiters",
    /// A reader requests the lock.
    RwAcquireRead = "rw.acquire_read",
    /// A writer requests the lock.
    RwAcquireWrite = "rw.acquire_write",
    /// A reader releases the lock.
    RwReleaseRead = "rw.release_read",
    /// A writer releases the lock.
    RwReleaseWrite = "rw.release_write",
    /// The watchdog renews a read hold.
    RwRenewRead = "rw.renew_read",
    /// The watchdog renews a write hold.
    RwRenewWrite = "rw.renew_write",
    /// A writer ends its guard and keeps the lock locked for a fixed time.
    RwKeepWrite = "rw.keep_write",
    /// A waiter that has given up withdraws its reservation.
    RwWithdraw = "rw.withdraw",
    /// A writer becomes a reader.
    RwDowngrade = "rw.downgrade",
    /// A reader becomes a writer.
    RwUpgrade = "rw.upgrade",
    /// A holder that lost its hold asks which holder the lock has now.
    RwWhyLost = "rw.why_lost",
    /// A client ends the holds of one side by force.
    RwForceUnlock = "rw.force_unlock",
    /// A client asks which holders one side has.
    RwInspect = "rw.inspect",
    /// A waiter requests permits.
    SemaphoreAcquire = "semaphore.acquire",
    /// A client no longer waits for permits, so a release need not notify it.
    SemaphoreDelist = "semaphore.delist",
    /// A client undoes an acquire whose reply may never arrive.
    SemaphoreUndo = "semaphore.undo",
    /// A client returns permits, or changes their number.
    SemaphoreAdd = "semaphore.add",
    /// A client takes all free permits.
    SemaphoreDrain = "semaphore.drain",
    /// A client creates the semaphore.
    SemaphoreSet = "semaphore.set",
    /// A client asks how many permits are free.
    SemaphoreAvailable = "semaphore.available",
    /// A client removes the semaphore.
    SemaphoreDelete = "semaphore.delete",
    /// A waiter requests permits with leases.
    ExpirableAcquire = "expirable.acquire",
    /// A holder swaps its permits for the permits of the next waiter of its process.
    ExpirableExchange = "expirable.exchange",
    /// The watchdog renews permits.
    ExpirableRenew = "expirable.renew",
    /// A holder asks why it has lost its permits.
    ExpirableWhyLost = "expirable.why_lost",
    /// A holder returns permits.
    ExpirableRelease = "expirable.release",
    /// A client sets the lease of a permit.
    ExpirableUpdate = "expirable.update",
    /// A client asks for the remaining lease of a permit.
    ExpirableRemaining = "expirable.remaining",
    /// A client asks how many permits there are.
    ExpirableCounts = "expirable.counts",
    /// A client sets how many permits there are.
    ExpirableSet = "expirable.set",
    /// A client removes the semaphore.
    ExpirableDelete = "expirable.delete",
    /// A client sets a latch.
    LatchSet = "latch.set",
    /// A client counts a latch down.
    LatchCountDown = "latch.count_down",
    /// A waiter or another client asks for the count.
    LatchCount = "latch.count",
    /// A client removes the latch.
    LatchDelete = "latch.delete",
    /// A waiter publishes once more that the latch is open.
    LatchRepublish = "latch.republish",
    /// A client asks what a name holds.
    NameInspect = "name.inspect",
    /// A client asks which names there are.
    NameList = "name.list",
    /// A client that is about to end a hold by force writes a note for the holder.
    NameNoteForced = "name.note_forced",
    /// A client announces its identity.
    PresenceAnnounce = "presence.announce",
    /// A client enters itself in the register of present clients.
    PresenceEnrol = "presence.enrol",
    /// A client asks for the announcement of another client.
    PresenceRead = "presence.read",
    /// A client asks which clients are present.
    PresenceClients = "presence.clients",
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_name() {
        // `submit` of the network expects every step here: a missing step would panic in a user's
        // test.
        let mut sent: Vec<_> = crate::recipes::steps()
            .iter()
            .map(|step| step.name)
            .collect();
        let mut named: Vec<_> = Step::ALL.iter().map(|step| step.name()).collect();
        sent.sort_unstable();
        named.sort_unstable();
        assert_eq!(sent, named);
        assert!(
            Step::ALL
                .iter()
                .all(|step| Step::of(step.name()) == Some(*step))
        );
    }
}
