//! The real binary, as a user or a script starts it.

mod demo;
mod documented;
mod latch;
mod limit;
mod run;
mod run_killed;
mod run_loss;
mod run_outage;
mod run_several;
mod run_streams;
mod show;
mod support;
mod terminal;
mod usage;
mod warnings;
