//! The `MultiLock` in a history: some of three locks of different kinds, in any order.

use leasehold::inspect::LockInfo;
use leasehold::{AnyLock, Client, MultiLock, Result};

use super::{Wanted, Wish};
use crate::scenario::Turn;

/// The names of the members: the first is a plain or a fenced lock, which exclude each other; the
/// second is a fair lock; the third is a read-write lock.
pub(super) const NAMES: [&str; 3] = ["x", "y", "z"];

/// The members that a turn's number chooses.
struct Choice {
    /// The names in the order in which the call has them. The flag says whether the turn locks the
    /// name as a reader.
    names: Vec<(&'static str, bool)>,
    fenced: bool,
}

impl Choice {
    fn of(turn: &Turn) -> Self {
        let (subset, rest) = (turn.way % 7 + 1, turn.way / 7);
        let reads = rest & 2 != 0;
        let names = NAMES.into_iter().enumerate();
        let mut names: Vec<_> = names
            .filter(|(number, _)| subset >> number & 1 == 1)
            .map(|(_, name)| (name, reads && name == "z"))
            .collect();
        if rest & 1 != 0 {
            names.reverse();
        }
        Self {
            names,
            fenced: rest & 4 != 0,
        }
    }
}

/// Returns each name, and whether other holders can share the hold of that name.
pub(super) fn names(turn: &Turn) -> Vec<(&'static str, bool)> {
    Choice::of(turn).names
}

pub(super) fn lock(client: &Client, wish: &Wish<'_>) -> Wanted {
    let choice = Choice::of(wish.turn);
    let members = choice.names.iter().map(|(name, reads)| -> AnyLock {
        match *name {
            "x" if choice.fenced => client.fenced_lock(name).into(),
            "x" => client.lock(name).into(),
            "y" => client.fair_lock(name).into(),
            _ if *reads => client.rw_lock(name).read_lock().into(),
            _ => client.rw_lock(name).write_lock().into(),
        }
    });
    wish.of(MultiLock::new(members).expect("a member at least, each as one kind"))
}

/// Returns the state of a member on the server.
pub(super) async fn inspect(operator: &Client, name: &str, holder_id: &str) -> Result<LockInfo> {
    match name {
        "z" => super::rw::inspect(operator, holder_id, name).await,
        _ => operator.lock(name).inspect().await,
    }
}

pub(super) async fn force_unlock(operator: &Client) {
    let [x, y, z] = NAMES;
    let _ = operator.lock(x).force_unlock().await;
    let _ = operator.fair_lock(y).force_unlock().await;
    super::rw::force_unlock(operator, z).await;
}
