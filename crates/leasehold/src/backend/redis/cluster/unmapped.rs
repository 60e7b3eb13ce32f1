//! The time before any node has sent the cluster's map: the wait for the map, and the reasons why
//! there is none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Cluster;
use crate::backend::failure::{Cause, Failure, Outcome};
use crate::clock::Moment;

/// The delay between two checks for the map.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// A query for the map that no connected node answered with the map.
pub(super) struct RefusedMapQuery {
    pub(super) asked_at: Moment,
    /// The failure of the node that answered last.
    pub(super) failure: Failure,
}

impl Cluster {
    pub(super) fn has_map(&self) -> bool {
        // Relaxed is enough, because a check that reads an old value is repeated.
        self.has_map.load(Ordering::Relaxed)
    }

    /// Returns why there has never been a map; `None` while a node may still send it. A query from
    /// before `since` is ignored, because an operator may have granted the user a permission since
    /// then.
    pub(super) fn why_no_map(&self, since: Moment) -> Option<Failure> {
        if self.has_map() {
            return None;
        }
        let mut failures = Vec::new();
        let servers = self.nodes.lock().all();
        for (_, server) in servers {
            failures.push(match server.lane.connection() {
                Some(_) => self.refused_since(since.max(server.node.connected_at()?))?,
                None => server.lane.why_down()?,
            });
        }
        pick_failure(failures)
    }

    /// Returns the failure of the last failed query, if the query began at `since` or later.
    fn refused_since(&self, since: Moment) -> Option<Failure> {
        let refused = self.refused_map.lock();
        let refused = refused.as_ref()?;
        (refused.asked_at >= since).then(|| refused.failure.clone())
    }

    /// Returns the failure of an operation while no node has sent the map or refused to send it.
    pub(super) fn no_node_answered(&self) -> Failure {
        let what = "none of the nodes has said yet which of them has its slot";
        Failure::no_answer(Outcome::DidNotRun, what, Arc::clone(&self.shown))
    }

    /// Waits for the first map, up to the reply timeout.
    pub(super) async fn wait_for_map(&self) -> Result<(), Failure> {
        let Some(this) = self.this.upgrade().filter(|this| !this.has_map()) else {
            return Ok(());
        };
        // The wait runs in a task of the client's runtime, because the caller's runtime may have no
        // timers.
        let waits = self.shared.runtime.spawn(async move {
            let began = this.common.clock.now();
            let until = began + this.common.reply_timeout;
            while !this.has_map() {
                if let Some(failure) = this.why_no_map(began) {
                    return Err(failure);
                }
                if this.common.clock.now() >= until {
                    return Err(this.no_node_answered());
                }
                this.common.request_map_refresh();
                tokio::time::sleep(CHECK_EVERY).await;
            }
            Ok(())
        });
        let ended = || Failure::runtime_ended(Outcome::DidNotRun, Arc::clone(&self.shown));
        waits.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// Picks one failure to represent the failures of all nodes. It prefers one after which a retry may
/// succeed, and adds the refusals of the other nodes to it. Otherwise it picks the first failure.
fn pick_failure(mut failures: Vec<Failure>) -> Option<Failure> {
    if failures.is_empty() {
        return None;
    }
    let heals = failures.iter().position(Failure::may_heal);
    let mut chosen = failures.swap_remove(heals.unwrap_or(0));
    if let Cause::NoAnswer(what) | Cause::NotNow(what) = &mut chosen.cause {
        for other in failures.iter().filter(|other| !other.may_heal()) {
            what.push_str(&format!("; {} says: {}", other.address, other.cause));
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(address: &str, cause: Cause) -> Failure {
        Failure::new(Outcome::DidNotRun, cause, address)
    }

    #[test]
    fn failure_that_heals_stands_for_all_and_names_the_refusals() {
        let denied = || failure("redis://a:1", Cause::Denied("WRONGPASS".into()));
        let closed = || failure("redis://b:1", Cause::NoAnswer("refused".into()));
        let both = pick_failure(vec![denied(), closed()]).expect("one");
        assert!(both.may_heal());
        assert_eq!(
            both.cause.to_string(),
            "refused; redis://a:1 says: WRONGPASS"
        );
        let alone = pick_failure(vec![denied(), denied()]).expect("one");
        assert_eq!(alone.cause, denied().cause);
        assert!(pick_failure(Vec::new()).is_none());
    }
}
