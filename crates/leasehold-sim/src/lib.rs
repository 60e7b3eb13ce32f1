//! Simulated histories: several clients of one embedded keyspace, each with its own network, on a
//! paused clock, under faults that a seed chooses. Every history is checked for violations of the
//! promise: holds of one name do not overlap, and nothing is left behind. The same seed gives the
//! same history, except for the order in which Tokio wakes the receivers of one channel: Tokio
//! chooses that order itself, at random.

pub mod faults;
pub mod judge;
pub mod play;
pub mod scenario;
pub mod shrink;
mod stage;
pub mod subject;
pub mod synchronizers;
mod unpolled;
mod worker;

pub use play::{Played, play, play_again};
pub use scenario::Scenario;
pub use subject::Subject;
pub use synchronizers::Synchronizer;
