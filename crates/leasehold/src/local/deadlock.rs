//! Deadlock detection. It finds owners of this process that would wait for each other forever. The
//! owner that begins to wait last gets an error.
//!
//! An owner does one thing at a time, like a thread: while it waits, it releases nothing. In the
//! graph, edges lead from an owner that waits without a limit to each owner whose hold excludes it.
//! Each new wait searches for a circle that it closes, so every circle is found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::LocalRecords;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::owner::Owner;
use crate::shrink::ShrinkIfIdle;
use crate::sync::Mutex;

/// The waits without a limit.
#[derive(Default)]
pub(super) struct WaitGraph(Mutex<WaitGraphState>);

#[derive(Default)]
struct WaitGraphState {
    next: u64,
    /// The waits of each owner, by the owner's number. Several acquires of one owner may wait, in
    /// concurrent branches.
    by_owner: HashMap<u64, Vec<Edge>>,
}

/// An owner that waits for a name.
#[derive(Clone)]
struct Edge {
    /// A later wait has a higher number.
    number: u64,
    key: Key,
    owner: Owner,
}

/// The entry of a wait in the graph. Dropping it ends the wait.
pub(crate) struct OwnerWait {
    locals: Arc<LocalRecords>,
    edge: Edge,
}

impl LocalRecords {
    /// Notes that the owner begins to wait for a name without a time limit. Returns an error if
    /// this wait closes a circle, in which all owners would wait forever.
    pub(crate) fn begin_unlimited_wait(
        self: &Arc<Self>,
        key: &Key,
        owner: &Owner,
    ) -> Result<OwnerWait, Error> {
        let wait = OwnerWait {
            locals: Arc::clone(self),
            edge: self.wait_graph.add(key, owner),
        };
        // The graph is not locked during the search, because the path may be long. Waits on the
        // path can end before the search does, so a circle counts only if all of it exists at one
        // time.
        while let Some(circle) = self.circle(&wait.edge) {
            if self.circle_exists(&circle) {
                let others = circle[1..].iter().map(|edge| &edge.key);
                return Err(deadlock_error(key, others));
            }
        }
        Ok(wait)
    }

    /// Returns the waits on a path from `first` to a name that the owner of `first` holds. Follows
    /// only waits that began earlier, because the last wait of a circle finds all others.
    fn circle(&self, first: &Edge) -> Option<Vec<Edge>> {
        let mut seen = HashSet::new();
        // Each edge has the index of the edge before it. The search does not recurse: a long chain
        // of owners would overflow the stack.
        let mut reached = vec![(first.clone(), 0)];
        let mut index = 0;
        while let Some((edge, _)) = reached.get(index).cloned() {
            for holder in self.holders_excluding(&edge.key, &edge.owner) {
                if holder == first.owner.number() {
                    return Some(path_to(&reached, index));
                }
                if seen.insert(holder) {
                    let waits = self.wait_graph.earlier_waits(first.number, holder);
                    reached.extend(waits.into_iter().map(|next| (next, index)));
                }
            }
            index += 1;
        }
        None
    }

    /// Returns whether these waits exist now, and each is for a name that the owner of the next
    /// wait holds.
    fn circle_exists(&self, circle: &[Edge]) -> bool {
        // No wait ends while the graph is locked.
        let table = self.wait_graph.0.lock();
        let next = circle.iter().cycle().skip(1);
        circle.iter().zip(next).all(|(edge, next)| {
            let holders = self.holders_excluding(&edge.key, &edge.owner);
            table.has(edge) && holders.contains(&next.owner.number())
        })
    }

    /// Returns the owners that hold this name until they release it, and that exclude the waiter.
    fn holders_excluding(&self, key: &Key, waiter: &Owner) -> Vec<u64> {
        let record = self.table.lock().records.get(key).cloned();
        let holders = record.map(|record| record.owners.lasting());
        let holders = holders.into_iter().flatten();
        // The waiter's own hold excludes the waiter only if one of the two is not re-entrant.
        // Otherwise the waiter enters its hold again, or reads inside its write hold. An owner that
        // reads and wants to write is refused before it waits.
        let others = holders.filter(|holder| holder.excludes(waiter));
        others.map(|holder| holder.number()).collect()
    }
}

/// Returns the waits from the first one to the one at this index.
fn path_to(reached: &[(Edge, usize)], mut index: usize) -> Vec<Edge> {
    let mut path = Vec::new();
    while let Some((edge, before)) = reached.get(index) {
        path.push(edge.clone());
        if index == 0 {
            break;
        }
        index = *before;
    }
    path.reverse();
    path
}

impl WaitGraph {
    fn add(&self, key: &Key, owner: &Owner) -> Edge {
        let mut table = self.0.lock();
        let edge = Edge {
            number: table.next,
            key: key.clone(),
            owner: owner.clone(),
        };
        table.next += 1;
        let waits = table.by_owner.entry(owner.number()).or_default();
        waits.push(edge.clone());
        edge
    }

    /// Returns the waits of this owner that began before the wait with this number.
    fn earlier_waits(&self, number: u64, owner: u64) -> Vec<Edge> {
        let table = self.0.lock();
        let waits = table.by_owner.get(&owner).into_iter().flatten();
        waits.filter(|edge| edge.number < number).cloned().collect()
    }
}

impl WaitGraphState {
    fn has(&self, edge: &Edge) -> bool {
        let waits = self.by_owner.get(&edge.owner.number());
        waits.is_some_and(|waits| waits.iter().any(|one| one.number == edge.number))
    }
}

impl Drop for OwnerWait {
    fn drop(&mut self) {
        let (owner, number) = (self.edge.owner.number(), self.edge.number);
        let mut table = self.locals.wait_graph.0.lock();
        let Some(waits) = table.by_owner.get_mut(&owner) else {
            return;
        };
        waits.retain(|edge| edge.number != number);
        if waits.is_empty() {
            table.by_owner.remove(&owner);
            table.by_owner.shrink_if_idle();
        }
    }
}

/// Returns the error for a deadlock. `circle` has the names that the other owners wait for, in
/// order.
fn deadlock_error<'a>(key: &Key, circle: impl ExactSizeIterator<Item = &'a Key>) -> Error {
    if circle.len() == 0 {
        return waits_for_itself(key);
    }
    let mut message = format!("waiting for `{key}` would never end: it is held by an owner");
    for (n, next) in circle.enumerate() {
        let by = if n == 0 { "" } else { " held by one" };
        message += &format!("{by} that waits for `{next}`,");
    }
    message += " which this owner holds; acquire them in the same order everywhere, or wait with a \
                limit";
    Error::new(ErrorKind::Deadlock, message).with_key(key)
}

/// Returns the error for an owner that waits for a hold of its own, which it can't enter again.
pub(crate) fn waits_for_itself(key: &Key) -> Error {
    let message = format!(
        "waiting for `{key}` would never end: this owner holds it, and can't enter it again because \
         of `non_reentrant`; release it first, or wait with a limit"
    );
    Error::new(ErrorKind::Deadlock, message).with_key(key)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;
    use crate::Client;

    /// The length of the chain. A recursion of this depth would overflow the stack of the test's
    /// thread.
    const OWNERS: usize = 10_000;
    const STACK: usize = 512 << 10;

    async fn chain_becomes_a_circle() {
        let client = Client::embedded();
        let owners: Vec<_> = (0..OWNERS).map(|_| Owner::new()).collect();
        let name = |number: usize| (number % OWNERS).to_string();
        let mut held = Vec::new();
        for (number, owner) in owners.iter().enumerate() {
            let lock = client.lock(name(number)).owned_by(owner);
            held.push(lock.acquire().await.expect("it is free"));
        }
        let mut waits = JoinSet::new();
        for (number, owner) in owners.iter().enumerate().take(OWNERS - 1) {
            let lock = client.lock(name(number + 1)).owned_by(owner);
            let lock = lock.poll_interval(Duration::from_secs(3600));
            waits.spawn(async move { lock.acquire().await });
        }
        while client.activity().lines < OWNERS - 1 {
            tokio::task::yield_now().await;
        }
        let last = client.lock(name(OWNERS)).owned_by(&owners[OWNERS - 1]);
        // The clock does not advance while any task can run.
        let last = timeout(Duration::from_secs(1), last.acquire()).await;
        let error = last.expect("at once").expect_err("it would wait for ever");
        assert_eq!(error.kind(), ErrorKind::Deadlock);
        // The message names each owner in between once.
        assert_eq!(error.to_string().matches("held by").count(), OWNERS - 1);
        waits.shutdown().await;
    }

    #[test]
    fn circle_of_many_owners_is_found_on_a_small_stack() {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let test = move || runtime.block_on(chain_becomes_a_circle());
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(test);
        thread
            .expect("a thread")
            .join()
            .expect("the circle is found");
    }
}
