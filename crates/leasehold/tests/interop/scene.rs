//! Everybody who uses one lock: clients of each Redisson that takes part, and ours. A
//! check that is written for them holds for every primitive and every cast.

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

/// A server or a cluster, and everybody at it: Redisson in these versions, then ours.
pub(crate) struct Scene {
    pub(crate) what: What,
    pub(crate) site: Site,
    pub(crate) sides: Vec<Side>,
    /// One more of ours, if Redisson's versions need it to hear each other.
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

    /// Everybody at this site, before its failover.
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

    /// Replaces the master, if that was chosen, and waits until everybody calls the new one.
    pub(crate) async fn fails_over(&self) {
        let javas: Vec<_> = self.sides.iter().filter_map(Side::free_thread).collect();
        let ours = self.sides.last().and_then(Side::client);
        self.site
            .fails_over(ours.expect("ours is the last"), &javas)
            .await;
    }

    /// Makes a side wait; returns when it does: it has asked in vain, and a message wakes it.
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

    /// How many stand before the fair lock.
    pub(crate) async fn queue(&self) -> usize {
        let key = "redisson_lock_queue:{x}";
        let length = self.site.server_of("x").command(&["LLEN", key]).unwrap();
        usize::try_from(length.as_int().unwrap()).unwrap()
    }

    /// Lets all who wait in, one after the other; says in which order they came.
    pub(crate) async fn serve(&mut self, waiting: Vec<(usize, Waiting)>) -> Vec<usize> {
        self.serve_within(SOON, waiting).await
    }

    /// The same, when nobody may have heard of the first release.
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
            // Redisson's unlock of a write lock wakes its threads that sleep. One that does not
            // sleep yet looks again when the lease that it has been told is over.
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

    /// Lets a side in that waits; nobody else does.
    pub(crate) async fn got(&mut self, side: usize, waiting: Waiting) {
        let between = self.passes_on();
        self.sides[side].got(waiting).await;
        leaves(between).await;
    }

    /// From here on one more of ours waits, too, and so calls those that did not hear a release.
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

    /// No hold is left.
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

    /// One more of ours in line, behind all others. A head of Redisson's in a fair queue that
    /// nobody calls may sleep for ever (3.16.8), and a bare end of a lease calls nobody; ours
    /// call it.
    pub(crate) async fn ours_behind(&mut self) -> Option<Waiting> {
        match self.what {
            What::Fair => {
                let ours = self.sides.len() - 1;
                Some(self.waits(ours, None).await)
            }
            _ => None,
        }
    }

    /// All but this one.
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
