//! The library's log, on stderr.

use std::io;

use tracing_subscriber::EnvFilter;

/// Starts the log: as `RUST_LOG` says, else nothing, and more with each `-v`. What
/// a user has to know, the program tells in its own words.
pub(crate) fn start(verbose: u8) {
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if verbose == 0 && !directives.is_empty() => {
            EnvFilter::builder().parse_lossy(directives)
        }
        _ => EnvFilter::new(match verbose {
            0 => "off",
            1 => "leasehold=warn",
            2 => "leasehold=debug",
            _ => "leasehold=trace",
        }),
    };
    // Fails only where a log has been started before, and this is the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .try_init();
}
