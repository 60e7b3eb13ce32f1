//! The benchmark program, and the parts that it shares with the program `load`.

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

/// The result of a measurement. Only people read the errors, so they have no kinds.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Runs the program with its command-line arguments.
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
