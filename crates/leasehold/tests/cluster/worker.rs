//! A task that uses every primitive, and prints a line about each use. `account.rs` reads these
//! lines and checks the uses.

#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::testing::history::monotonic_ns;
use leasehold::{Client, Error, Guard, LockGuard, MultiLock, Result};
use tokio::time::Instant;

/// A lease long enough that no hold ends even if a client gets no processor time for a while.
pub(crate) const LEASE: Duration = Duration::from_secs(20);
pub(crate) const PERMITS: u32 = 2;
/// The shortest time for which a lock is held.
const INSIDE: Duration = Duration::from_millis(1);
/// The time within which every call ends, under any fault of the cluster.
const LONGEST: Duration = Duration::from_secs(90);

/// The job that a task does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Lock,
    Fenced,
    Fair,
    Group,
    Write,
    Read,
    Several,
    Permit,
    LeasedPermit,
    Latch,
}

pub(crate) const JOBS: [Job; 10] = [
    Job::Lock,
    Job::Fenced,
    Job::Fair,
    Job::Group,
    Job::Write,
    Job::Read,
    Job::Several,
    Job::Permit,
    Job::LeasedPermit,
    Job::Latch,
];

/// The prefix of names that are all in one slot.
pub(crate) const TAG: &str = "{crew}:";
/// A name in the slot of [`TAG`].
const TAGGED: &str = "crew";
/// The prefixes of names without a tag, so that each name is in a slot of its own.
pub(crate) const PLACES: [&str; 3] = ["one ", "two ", "three "];

/// The receiver of the lines, which writes them at once.
pub(crate) type Say = Arc<dyn Fn(String) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) client: Client,
    pub(crate) say: Say,
    /// The source of numbers that differ for each use, among all workers with the same listener.
    pub(crate) numbers: Arc<AtomicU64>,
}

/// Makes the semaphores of a place.
pub(crate) async fn make_semaphores(client: &Client, place: &str) -> Result<()> {
    let semaphore = client.semaphore(format!("{place}permits"));
    semaphore.try_set_permits(PERMITS).await?;
    let leased = client.expirable_semaphore(format!("{place}leased"));
    leased.try_set_permits(PERMITS).await?;
    Ok(())
}

impl Worker {
    /// Does the job once, with names that begin with `place`, and prints the result.
    pub(crate) async fn run(&self, job: Job, place: &str) {
        let done = tokio::time::timeout(LONGEST, Box::pin(self.try_to(job, place))).await;
        match done {
            Ok(Ok(())) => (self.say)(format!("done {job:?}")),
            Ok(Err(error)) => self.failed(job, place, &error),
            Err(_) => (self.say)(format!("hangs {job:?} {place}")),
        }
    }

    /// Takes locks that are held and renewed until [`give_back`](Self::give_back).
    pub(crate) async fn keep(&self, place: &str, count: usize) -> Vec<LockGuard> {
        let mut kept = Vec::new();
        for n in 0..count {
            let name = format!("{place}kept by {} {n}", self.client.id());
            kept.push(self.client.lock(&name).acquire().await.unwrap());
        }
        kept
    }

    /// Releases the locks. For each lock that was lost in between, prints the reason.
    pub(crate) async fn give_back(&self, kept: Vec<LockGuard>) {
        for guard in kept {
            if let Err(error) = guard.release().await {
                (self.say)(format!("lost {error}"));
            }
        }
    }

    fn failed(&self, job: Job, place: &str, error: &Error) {
        let kind = error.kind();
        (self.say)(format!("error {kind:?} {job:?} {place}: {error}"));
    }

    async fn try_to(&self, job: Job, place: &str) -> Result<()> {
        let client = &self.client;
        let name = |of: &str| format!("{place}{of}");
        match job {
            Job::Lock => {
                let lock = client.lock(name("lock"));
                self.hold(&["lock"], place, "alone", lock.acquire()).await
            }
            Job::Fenced => {
                let lock = client.fenced_lock(name("fenced"));
                self.hold(&["fenced"], place, "alone", lock.acquire()).await
            }
            Job::Fair => {
                let lock = client.fair_lock(name("fair"));
                self.hold(&["fair"], place, "alone", lock.acquire()).await
            }
            Job::Group => {
                let lock = client.group_lock(name("group"), ["a", "b"]);
                self.hold(&["group"], place, "alone", lock.acquire()).await
            }
            Job::Write => {
                let lock = client.rw_lock(name("rw"));
                Box::pin(self.hold(&["rw"], place, "alone", lock.write())).await
            }
            Job::Read => {
                let lock = client.rw_lock(name("rw"));
                Box::pin(self.hold(&["rw"], place, "shared", lock.read())).await
            }
            Job::Several => {
                // The members are in two slots, unless the place has a tag.
                let members = ["lock", "other"].map(|of| client.lock(name(of)));
                let lock = MultiLock::new(members)?;
                self.hold(&["lock", "other"], place, "alone", lock.acquire())
                    .await
            }
            Job::Permit => {
                // There is one more task than permits, so one task has to wait on any machine.
                let takes = (1..=PERMITS + 1).map(|nth| self.take_permit(place, INSIDE * nth));
                join_all(takes).await.into_iter().collect()
            }
            Job::LeasedPermit => {
                let leased = client.expirable_semaphore(name("leased"));
                self.hold(&["leased"], place, "permit", leased.acquire())
                    .await
            }
            Job::Latch => {
                // This latch gets a name without braces. The name inside a tag's braces is in the
                // slot of the tag.
                let latch = match place {
                    TAG => client.count_down_latch(TAGGED),
                    _ => client.count_down_latch(name("latch")),
                };
                latch.try_set_count(1).await?;
                latch.count_down().await?;
                // The worker that resets the latch also counts it down.
                latch.wait().await
            }
        }
    }

    async fn take_permit(&self, place: &str, inside: Duration) -> Result<()> {
        let asked = monotonic_ns();
        let semaphore = self.client.semaphore(format!("{place}permits"));
        let permit = semaphore.acquire().await?;
        let number = self.enter(&["permits"], place, "permit", asked, u64::MAX);
        tokio::time::sleep(inside).await;
        self.leave(number, monotonic_ns());
        self.told(number, permit.release().await)
    }

    /// Holds a lock for a while, or until it is lost.
    pub(crate) async fn hold_on(&self, place: &str, span: Duration) {
        let lock = self.client.lock(format!("{place}long"));
        let held = self.hold_for(span, &["long"], place, "alone", lock.acquire());
        match tokio::time::timeout(LONGEST, held).await {
            Ok(Ok(())) => (self.say)("done long".into()),
            Ok(Err(error)) => self.failed(Job::Lock, place, &error),
            Err(_) => (self.say)(format!("hangs long {place}")),
        }
    }

    async fn hold<G: Guard>(
        &self,
        names: &[&str],
        place: &str,
        how: &str,
        acquire: impl Future<Output = Result<G>>,
    ) -> Result<()> {
        self.hold_for(INSIDE, names, place, how, acquire).await
    }

    async fn hold_for<G: Guard>(
        &self,
        inside: Duration,
        names: &[&str],
        place: &str,
        how: &str,
        acquire: impl Future<Output = Result<G>>,
    ) -> Result<()> {
        let asked = monotonic_ns();
        let refused = |_: &Error| (self.say)(format!("refused {place}"));
        let guard = acquire.await.inspect_err(refused)?;
        let number = self.enter(names, place, how, asked, deadline_ns(&guard));
        let _ = tokio::time::timeout(inside, guard.lost()).await;
        self.leave(number, monotonic_ns().min(deadline_ns(&guard)));
        self.told(number, guard.release().await)
    }

    fn enter(&self, names: &[&str], place: &str, how: &str, asked: u64, until: u64) -> u64 {
        let from = monotonic_ns();
        let number = self.numbers.fetch_add(1, Ordering::SeqCst);
        let place = place.replace(' ', "_");
        for name in names {
            (self.say)(format!(
                "in {number} {place}{name} {how} {asked} {from} {until}"
            ));
        }
        number
    }

    fn leave(&self, number: u64, until: u64) {
        (self.say)(format!("out {number} {until}"));
    }

    /// Accepts a release that reports a loss, which is not a failure of the call.
    fn told(&self, number: u64, released: Result<()>) -> Result<()> {
        match released {
            Err(error) if error.kind() == leasehold::ErrorKind::Lost => {
                (self.say)(format!("told {number}"));
                Ok(())
            }
            released => released,
        }
    }
}

/// Returns the holder's deadline on the clock that all processes share. The deadline may have
/// passed.
pub(crate) fn deadline_ns(guard: &impl Guard) -> u64 {
    // The order matters: if the process is stopped between the two readings, the result is too
    // early, never too late.
    let (now_ns, now) = (monotonic_ns(), Instant::now());
    let valid_until = guard.valid_until();
    let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap();
    now_ns + ns(valid_until.saturating_duration_since(now))
        - ns(now.saturating_duration_since(valid_until))
}
