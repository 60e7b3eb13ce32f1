//! The real binary, as a user or a script starts it.

mod demo;
mod run;
mod run_loss;
mod show;
mod support;
mod terminal;
mod usage;
