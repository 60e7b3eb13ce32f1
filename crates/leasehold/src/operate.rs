//! The operator's side: the names on a server with their holders and waiters, the clients, and the
//! end of a hold by force.

pub(crate) mod holds;
pub(crate) mod name;
pub(crate) mod presence;

use crate::backend::step::Step;
use crate::primitives;

/// Returns all steps from which the call's script is assembled: the steps of the primitives, and
/// the steps of this folder.
pub(crate) fn steps() -> Vec<&'static Step> {
    let primitives = primitives::steps();
    [&primitives[..], &name::steps::ALL, &presence::steps::ALL].concat()
}
