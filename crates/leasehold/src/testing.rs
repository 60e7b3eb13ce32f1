//! Tools for tests of code that uses locks. An [`Embedded`](crate::Embedded) keyspace on a paused
//! clock replaces the server, [`Network`] and [`Machine`] cause faults on demand, and the [history
//! checker](crate::testing::history) finds out whether two holds overlapped.

pub mod history;

pub use crate::backend::memory::{Checkpoint, Machine};
pub use crate::backend::network::{Fate, Network, Request, Step};
