//! Semaphores and latches when requests and messages are lost, late or duplicated, when servers are
//! out of memory, and when processes are killed.

mod absence;
mod denied;
mod faults;
mod namesakes;
mod servers;
mod soak;
mod together;
mod waiters;
