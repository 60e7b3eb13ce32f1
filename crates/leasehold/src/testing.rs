//! What tests of code that locks need beside an [`Embedded`](crate::Embedded)
//! keyspace on a paused clock: faults on demand. The
//! [history checker](crate::history) judges what came of them.

pub use crate::backend::memory::Checkpoint;
pub use crate::backend::network::{Fate, Network, Request};
