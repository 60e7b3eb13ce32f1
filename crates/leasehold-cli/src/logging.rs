//! The library's log, on stderr.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::cli::Cli;
use crate::output::{self, tell};

/// Starts the log. By default it prints warnings, in the form of the program's messages. `-v` logs
/// everything, and `--quiet` nothing. Without both, `RUST_LOG` replaces the default.
pub(crate) fn start(cli: &Cli) {
    if cli.quiet {
        return;
    }
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let log = tracing_subscriber::fmt().with_writer(|| Plain);
    // Fails only if a log has been started before. This is the first.
    let _ = match cli.verbose {
        0 if directives.is_empty() => log
            .with_env_filter(EnvFilter::new("leasehold=warn"))
            .with_target(false)
            .without_time()
            .with_writer(|| Told)
            .try_init(),
        0 => log
            .with_env_filter(EnvFilter::builder().parse_lossy(directives))
            .try_init(),
        // More of them log no more.
        _ => log
            .with_env_filter(EnvFilter::new("leasehold=trace"))
            .try_init(),
    };
}

/// A writer that prints each line of the log as a message of the program.
struct Told;

impl Write for Told {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        tell(String::from_utf8_lossy(line.trim_ascii()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that prints each line of the log as it is.
struct Plain;

impl Write for Plain {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        output::log(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
