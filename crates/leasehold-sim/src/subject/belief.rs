//! The state of a hold on the servers, read without the simulated network.

use std::time::Duration;

use leasehold::inspect::{LockInfo, Ttl};
use leasehold::{Client, LockGuard, Result};

use super::{NAME, Subject, multi, rw, values};
use crate::scenario::Turn;

/// The state of a hold on the servers.
pub(crate) enum Belief {
    /// The servers keep the hold for this duration.
    Held(Duration),
    NotHeld,
    /// A server does not answer at the moment.
    Unknown,
}

impl Subject {
    pub(crate) async fn belief(
        self,
        operators: &[Client],
        turn: &Turn,
        guard: &LockGuard,
    ) -> Belief {
        let mut left = Vec::new();
        for (operator, hold) in self.holds(operators, guard) {
            let parts = match self {
                Self::Group => values(turn).map(Some).collect(),
                _ => vec![None],
            };
            for value in parts {
                match self.inspect(operator, hold, value).await {
                    Ok(info) => left.extend(left_of(&info, hold)),
                    Err(_) => return Belief::Unknown,
                }
            }
        }
        left.sort_by(|one, other| other.cmp(one));
        let last = self.parts_needed(operators.len(), turn) - 1;
        left.get(last)
            .map_or(Belief::NotHeld, |left| Belief::Held(*left))
    }

    /// Returns every pair of an operator's client and a hold in the guard, because any of the
    /// servers may have the hold. The id of a hold belongs to one client, and so to one server. The
    /// other servers do not have the hold.
    fn holds<'a>(
        self,
        operators: &'a [Client],
        guard: &'a LockGuard,
    ) -> Vec<(&'a Client, &'a LockGuard)> {
        let holds = match guard.members() {
            [] => std::slice::from_ref(guard),
            members => members,
        };
        let of_all = |hold| operators.iter().map(move |operator| (operator, hold));
        holds.iter().flat_map(of_all).collect()
    }

    async fn inspect(
        self,
        operator: &Client,
        hold: &LockGuard,
        value: Option<&str>,
    ) -> Result<LockInfo> {
        match (self, value) {
            (Self::Rw, _) => rw::inspect(operator, hold.holder_id(), NAME).await,
            (Self::Multi, _) => multi::inspect(operator, hold.name(), hold.holder_id()).await,
            (_, Some(value)) => operator.group_lock(NAME, [value]).inspect().await,
            _ => operator.lock(NAME).inspect().await,
        }
    }

    /// Returns the number of parts that a hold must have.
    fn parts_needed(self, servers: usize, turn: &Turn) -> usize {
        match self {
            Self::Red => servers / 2 + 1,
            _ => self.names(turn).len(),
        }
    }
}

fn left_of(info: &LockInfo, hold: &LockGuard) -> Option<Duration> {
    let ours = |id: &str| id == hold.holder_id();
    match info.ttl {
        Ttl::Left(left) if info.holders.iter().any(|holder| ours(&holder.id)) => Some(left),
        _ => None,
    }
}
