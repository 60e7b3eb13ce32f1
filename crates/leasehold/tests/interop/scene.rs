//! Everybody who uses one lock: clients of each Redisson that takes part, and ours. A
//! check that is written for them holds for every primitive and every cast.

use std::time::Duration;

use leasehold_testkit::{RedisServer, RedissonVersion};

use crate::sides::{SOON, Side, Waiting};
use crate::support::eventually;
use crate::topology;
use crate::what::What;

/// The lease of both sides' renewed holds, unless a test sets another.
const WATCHDOG: Duration = Duration::from_secs(30);

/// A server and everybody at it: Redisson in these versions, then ours.
pub(crate) struct Scene {
    pub(crate) what: What,
    pub(crate) server: RedisServer,
    pub(crate) sides: Vec<Side>,
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
        let server = topology::start();
        let mut sides: Vec<_> = cast
            .iter()
            .map(|version| Side::java(*version, what, &server.url(), watchdog))
            .collect();
        sides.push(Side::rust(what, &server.url(), watchdog).await);
        Self {
            what,
            server,
            sides,
        }
    }

    /// Makes a side wait; returns when it does: it has asked in vain, and a message wakes it.
    pub(crate) async fn waits(&mut self, side: usize, limit: Option<Duration>) -> Waiting {
        let (before, queued) = (self.server.scripts(), self.queue().await);
        let waiting = self.sides[side].start_lock(limit);
        let in_line = async || self.what != What::Fair || self.queue().await > queued;
        let asked = || self.server.scripts().saturating_sub(before);
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
        let length = self.server.command(&["LLEN", key]).unwrap();
        usize::try_from(length.as_int().unwrap()).unwrap()
    }

    /// Lets all who wait in, one after the other; says in which order they came.
    pub(crate) async fn serve(&mut self, mut waiting: Vec<(usize, Waiting)>) -> Vec<usize> {
        let mut order = Vec::new();
        let mut limit = SOON;
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
            limit = if may_be_missed { SOON + WATCHDOG } else { SOON };
            order.push(side);
        }
        order
    }

    /// No hold is left.
    pub(crate) async fn is_free(&self) {
        let is_free = async || {
            let keys = self.server.keys();
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
