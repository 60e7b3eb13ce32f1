//! The steps by name, for tests that choose among requests.

use std::fmt;

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)+) => {
        /// A step: one atomic change or question that a client sends to the server.
        ///
        /// Each kind of lock has steps of its own; a kind that has none for something uses the
        /// plain lock's. A fair lock is renewed by [`LockRenew`](Self::LockRenew), for example.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Step {
            $($(#[$doc])* $step,)+
        }

        impl Step {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$step),+];

            /// What it is called in the script and in messages, `lock.acquire` for example.
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
    /// A waiter asks for a lock.
    LockAcquire = "lock.acquire",
    /// A waiter asks for a lock, and for a call by its release.
    LockAcquireInTurn = "lock.acquire_in_turn",
    /// A client that would be called by the release of a lock waits for it no longer.
    LockLeaveTurn = "lock.leave_turn",
    /// A holder gives a lock back.
    LockRelease = "lock.release",
    /// A holder gives a lock back, and calls a client that waits for it.
    LockReleaseAndCall = "lock.release_and_call",
    /// The watchdog renews a hold, or a guard extends it.
    LockRenew = "lock.renew",
    /// A holder leaves a lock to a span.
    LockKeepFor = "lock.keep_for",
    /// The watchdog renews many holds of one lease at once. Those that this finds odd are renewed
    /// by [`LockRenew`](Self::LockRenew).
    LockRenewMany = "lock.renew_many",
    /// A holder whose hold was refused asks who has it.
    LockWhyLost = "lock.why_lost",
    /// Somebody ends whoever's hold there is.
    LockForceUnlock = "lock.force_unlock",
    /// Somebody asks who holds it.
    LockInspect = "lock.inspect",
    /// A `RedLock` notes its longest lease on a server.
    LockNoteLongest = "lock.note_longest",
    /// A waiter asks for values of a group.
    GroupAcquire = "group.acquire",
    /// A holder gives them back.
    GroupRelease = "group.release",
    /// The watchdog renews a hold of them.
    GroupRenew = "group.renew",
    /// A holder whose hold was refused asks who has them.
    GroupWhyLost = "group.why_lost",
    /// Somebody ends whoever's holds there are.
    GroupForceUnlock = "group.force_unlock",
    /// Somebody asks who holds them.
    GroupInspect = "group.inspect",
    /// A waiter asks for a lock with a token.
    FencedAcquire = "fenced.acquire",
    /// A holder draws a token.
    FencedDraw = "fenced.draw",
    /// A holder raises the counter to its token.
    FencedRaise = "fenced.raise",
    /// Somebody asks for the last token.
    FencedLastToken = "fenced.last_token",
    /// A waiter asks for a fair lock, or keeps its place in the line.
    FairAcquire = "fair.acquire",
    /// A holder gives the lock back, or a waiter its place.
    FairRelease = "fair.release",
    /// A holder leaves the lock to a span.
    FairKeepFor = "fair.keep_for",
    /// Somebody ends whoever's hold there is.
    FairForceUnlock = "fair.force_unlock",
    /// Somebody asks who waits.
    FairLine = "fair.line",
    /// A reader asks for the lock.
    RwAcquireRead = "rw.acquire_read",
    /// A writer asks for the lock.
    RwAcquireWrite = "rw.acquire_write",
    /// A reader gives it back.
    RwReleaseRead = "rw.release_read",
    /// A writer gives it back.
    RwReleaseWrite = "rw.release_write",
    /// The watchdog renews a read hold.
    RwRenewRead = "rw.renew_read",
    /// The watchdog renews a write hold.
    RwRenewWrite = "rw.renew_write",
    /// A writer leaves the lock to a span.
    RwKeepWrite = "rw.keep_write",
    /// A waiter takes back its mark.
    RwWithdraw = "rw.withdraw",
    /// A writer becomes a reader.
    RwDowngrade = "rw.downgrade",
    /// A reader becomes a writer.
    RwUpgrade = "rw.upgrade",
    /// A holder whose hold was refused asks who has it.
    RwWhyLost = "rw.why_lost",
    /// Somebody ends the holds of a side.
    RwForceUnlock = "rw.force_unlock",
    /// Somebody asks who holds a side.
    RwInspect = "rw.inspect",
    /// A waiter asks for permits.
    SemaphoreAcquire = "semaphore.acquire",
    /// A client that waited to be called for permits leaves the list.
    SemaphoreLeaveTurn = "semaphore.leave_turn",
    /// A client undoes an acquire whose answer it may never see.
    SemaphoreUndo = "semaphore.undo",
    /// A client gives permits back, or changes their number.
    SemaphoreAdd = "semaphore.add",
    /// Somebody takes all free permits.
    SemaphoreDrain = "semaphore.drain",
    /// Somebody makes the semaphore.
    SemaphoreSet = "semaphore.set",
    /// Somebody asks how many permits are free.
    SemaphoreAvailable = "semaphore.available",
    /// Somebody removes the semaphore.
    SemaphoreDelete = "semaphore.delete",
    /// A waiter asks for permits with leases.
    ExpirableAcquire = "expirable.acquire",
    /// A holder gives permits up for those of the next waiter of its process.
    ExpirableExchange = "expirable.exchange",
    /// The watchdog renews permits.
    ExpirableRenew = "expirable.renew",
    /// A holder gives permits back.
    ExpirableRelease = "expirable.release",
    /// Somebody sets the lease of a permit.
    ExpirableUpdate = "expirable.update",
    /// Somebody asks what is left of a permit's lease.
    ExpirableLeft = "expirable.left",
    /// Somebody asks how many permits there are.
    ExpirableCounts = "expirable.counts",
    /// Somebody sets how many permits there are.
    ExpirableSet = "expirable.set",
    /// Somebody removes the semaphore.
    ExpirableDelete = "expirable.delete",
    /// Somebody sets a latch.
    LatchSet = "latch.set",
    /// Somebody counts down.
    LatchCountDown = "latch.count_down",
    /// A waiter or somebody else asks for the count.
    LatchCount = "latch.count",
    /// Somebody removes the latch.
    LatchDelete = "latch.delete",
    /// A waiter publishes once more that the latch is open.
    LatchPassOn = "latch.pass_on",
    /// Somebody asks what stands under a name.
    NameLook = "name.look",
    /// Somebody asks which names there are.
    NameList = "name.list",
    /// Somebody is about to end a hold by force, and notes that for its holder.
    NameNoteForced = "name.note_forced",
    /// A client says who it is.
    PresenceAnnounce = "presence.announce",
    /// A client enters the register of those that are there.
    PresenceEnrol = "presence.enrol",
    /// Somebody asks who a client is.
    PresenceRead = "presence.read",
    /// Somebody asks which clients are there.
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
        // `submit` of the network expects each step to be among these: one that is missing would
        // panic in a user's test.
        let mut sent: Vec<_> = crate::primitives::steps()
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
