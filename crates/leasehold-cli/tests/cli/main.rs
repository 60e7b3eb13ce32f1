//! The real binary, as a user or a script starts it.

mod access;
mod demo;
mod doctor;
mod documented;
mod hold;
mod java;
mod latch;
mod limit;
mod ls;
mod metrics;
mod pages;
mod release;
mod run;
mod run_events;
mod run_killed;
mod run_loss;
mod run_outage;
mod run_several;
mod run_streams;
mod show;
mod support;
mod terminal;
mod top;
mod usage;
mod warnings;
mod watch;
