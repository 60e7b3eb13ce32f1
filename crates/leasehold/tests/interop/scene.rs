//! All clients of one lock: clients of each Redisson that takes part, and of this library. A check
//! that is written for a scene applies to every primitive and every cast.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::RedissonVersion;

use crate::between::{Between, POLL};
use crate::sides::{SOON, Side, Waiting};
use crate::support::eventually;
use crate::topology::Site;
use crate::what::What;

/// The lease of both sides' renewed holds, unless a test sets another.
const WATCHDOG: Duration = Duration::from_secs(30);

/// A server or a cluster, and all its clients: Redisson in these versions, and then this library.
pub(crate) struct Scene {
    pub(crate) what: What,
    pub(crate) site: Site,
    pub(crate) sides: Vec<Side>,
    /// Another client of this library, if Redisson's versions need it to hear each other.
    between: Option<Client>,
}

impl Scene {
    pub(crate) async fn new(cast: &[RedissonVersion], what: What) -> Self {
        Self::with_watchdog(cast, what, None).await
    }

    pub(crate) async fn with_watchdog(
        cast: &[RedissonVersion],
        what: What,
        watchdog: Option<Duration>,
    ) -> Self {
        let scene = Self::at(Site::start_whole(), cast, what, watchdog).await;
        scene.fails_over().await;
        scene
    }

    /// Connects all clients to this site, before its failover.
    pub(crate) async fn at(
        site: Site,
        cast: &[RedissonVersion],
        what: What,
        watchdog: Option<Duration>,
    ) -> Self {
        let mut sides: Vec<_> = cast
            .iter()
            .map(|version| Side::java(*version, what, &site.url(), watchdog))
            .collect();
        sides.push(Side::rust(what, &site.url(), watchdog).await);
        let between = Between::client(&site, cast).await;
        Self {
            what,
            site,
            sides,
            between,
        }
    }

    /// Replaces the master, if that was chosen, and waits until all clients call the new master.
    pub(crate) async fn fails_over(&self) {
        let javas: Vec<_> = self.sides.iter().filter_map(Side::free_thread).collect();
        let ours = self.sides.last().and_then(Side::client);
        self.site
            .fails_over(ours.expect("ours is the last"), &javas)
            .await;
    }

    /// Makes a side wait. Returns after it has asked without result and when a message can wake it.
    pub(crate) async fn waits(&mut self, side: usize, limit: Option<Duration>) -> Waiting {
        let (before, queued) = (self.site.scripts(), self.queue().await);
        let waiting = self.sides[side].start_lock(limit);
        let in_line = async || self.what != What::Fair || self.queue().await > queued;
        let asked = || self.site.scripts().saturating_sub(before);
        eventually(&format!("{} waits", self.sides[side].who), async || {
            asked() >= self.sides[side].asks() && self.sides[side].sleeps() && in_line().await
        })
        .await;
        assert!(!waiting.is_done(), "{} got it", self.sides[side].who);
        waiting
    }

    /// Returns the number of waiters in the queue of the fair lock.
    pub(crate) async fn queue(&self) -> usize {
        let key = "redisson_lock_queue:{x}";
        let length = self.site.server_of("x").command(&["LLEN", key]).unwrap();
        usize::try_from(length.as_int().unwrap()).unwrap()
    }

    /// Lets all waiters in, one after the other. Returns their order.
    pub(crate) async fn serve(&mut self, waiting: Vec<(usize, Waiting)>) -> Vec<usize> {
        self.serve_within(SOON, waiting).await
    }

    /// Like [`serve`](Self::serve), for the case that no waiter has heard the first release.
    pub(crate) async fn serve_in_the_end(&mut self, waiting: Vec<(usize, Waiting)>) -> Vec<usize> {
        self.serve_within(SOON + WATCHDOG, waiting).await
    }

    async fn serve_within(
        &mut self,
        mut limit: Duration,
        mut waiting: Vec<(usize, Waiting)>,
    ) -> Vec<usize> {
        let (between, patience) = (self.passes_on(), limit);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let next = async || waiting.iter().any(|(_, waiting)| waiting.is_done());
            let woken = tokio::time::timeout(limit, eventually("one is served", next)).await;
            let who = |list: &[(usize, Waiting)]| -> Vec<_> {
                list.iter()
                    .map(|(side, _)| self.sides[*side].who.clone())
                    .collect()
            };
            assert!(
                woken.is_ok(),
                "after {order:?} nobody of {:?}",
                who(&waiting)
            );
            let at = waiting.iter().position(|(_, waiting)| waiting.is_done());
            let (side, done) = waiting.remove(at.unwrap());
            self.sides[side].got(done).await;
            let both = waiting.iter().find(|(_, waiting)| waiting.is_done());
            assert!(both.is_none(), "two hold it at once");
            assert!(self.sides[side].unlock().await);
            // Redisson's unlock of a write lock wakes its threads that sleep. A thread that does
            // not sleep yet asks again at the end of the lease that its refusal reported.
            let may_be_missed = self.what == What::Write && self.sides[side].is_java();
            limit = match may_be_missed {
                true => SOON + WATCHDOG,
                false => patience,
            };
            order.push(side);
        }
        leaves(between).await;
        order
    }

    /// Lets in a side that waits, while no other side waits.
    pub(crate) async fn got(&mut self, side: usize, waiting: Waiting) {
        let between = self.passes_on();
        self.sides[side].got(waiting).await;
        leaves(between).await;
    }

    /// Starts another waiter of this library, which notifies the waiters that did not hear a
    /// release.
    fn passes_on(&self) -> Option<Between> {
        let what = self.what;
        Some(Between::start(
            self.between.as_ref()?,
            move |client| async move {
                let lock = what.ours(&client).poll_interval(POLL);
                lock.acquire().await.unwrap().release().await.unwrap();
            },
        ))
    }

    /// Waits until no hold remains.
    pub(crate) async fn is_free(&self) {
        let is_free = async || {
            let keys = self.site.keys();
            !keys
                .iter()
                .any(|key| self.what.keys().contains(&key.as_str()))
        };
        eventually("it is free", is_free).await;
    }

    pub(crate) async fn all_but_ours_wait(&mut self) -> Vec<(usize, Waiting)> {
        let mut waiting = Vec::new();
        for side in 0..self.sides.len() - 1 {
            waiting.push((side, self.waits(side, None).await));
        }
        waiting
    }

    /// Adds another waiter of this library at the end of the line. A head of Redisson's in a fair
    /// queue may sleep for ever (3.16.8) if no client notifies it, and no client does so just
    /// because a lease has ended. Waiters of this library do.
    pub(crate) async fn ours_behind(&mut self) -> Option<Waiting> {
        match self.what {
            What::Fair => {
                let ours = self.sides.len() - 1;
                Some(self.waits(ours, None).await)
            }
            _ => None,
        }
    }

    /// Returns all sides but this one.
    pub(crate) fn others(&self, side: usize) -> Vec<usize> {
        (0..self.sides.len())
            .filter(|other| *other != side)
            .collect()
    }
}

async fn leaves(between: Option<Between>) {
    if let Some(between) = between {
        between.leaves().await;
    }
}
