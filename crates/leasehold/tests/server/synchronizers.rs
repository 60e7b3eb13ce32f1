//! Semaphores and latches when things go wrong: requests and messages that are lost, late
//! or doubled, servers that are out of memory, processes that are killed.

mod absence;
mod denied;
mod faults;
mod namesakes;
mod servers;
mod soak;
mod together;
mod waiters;
