//! What the bench program and the loads have in common, and the bench program itself.

mod args;
mod delays;
mod figure;
mod floors;
pub mod heap;
mod machine;
mod page;
mod plots;
mod results;
mod run;
mod scenario;
pub mod server;
mod system;
mod table;
mod task;
pub mod usage;

use std::process::ExitCode;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// People read the failures of a measurement; no program tells them apart.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs the program as its arguments say.
#[must_use]
pub fn main() -> ExitCode {
    match args::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("the bench could not be run: {error}");
            ExitCode::FAILURE
        }
    }
}
