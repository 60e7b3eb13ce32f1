//! Tools for tests of locking code, besides an [`Embedded`](crate::Embedded) keyspace on a paused
//! clock: faults on demand. The [history checker](crate::testing::history) judges the outcome.

pub mod history;

pub use crate::backend::memory::{Checkpoint, Machine};
pub use crate::backend::network::{Fate, Network, Request, Step};
