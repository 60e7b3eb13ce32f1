//! The library's log, on stderr.

use std::io::{self, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::cli::Cli;
use crate::output::{self, tell};

/// Starts the log. By default, it prints warnings, in the form of the program's messages. With
/// `-v`, it prints everything, and with `--quiet` nothing. Without either flag, `RUST_LOG` replaces
/// the default.
pub(crate) fn start(cli: &Cli) {
    if cli.quiet {
        return;
    }
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    // The filter decides what is logged, so the subscriber has no maximum level of its own.
    let log = fmt().with_max_level(LevelFilter::TRACE);
    // This fails only if a log has been started before, and this log is the first.
    let _ = match cli.verbose {
        0 if directives.is_empty() => log
            .with_target(false)
            .without_time()
            .with_writer(|| Told)
            .finish()
            // Leave out the library's warning at half of --progress-within: cron mails each line,
            // and the command may still make progress in time. If it does not, leasehold reports
            // that itself.
            .with(
                of_leasehold(LevelFilter::WARN)
                    .with_target("leasehold::progress", LevelFilter::OFF),
            )
            .try_init(),
        verbose => {
            let filter = match verbose {
                0 => filter(&directives),
                // Repeating the flag does not log more.
                _ => of_leasehold(LevelFilter::TRACE),
            };
            log.with_writer(|| Plain).finish().with(filter).try_init()
        }
    };
}

fn of_leasehold(level: LevelFilter) -> Targets {
    Targets::new().with_target("leasehold", level)
}

/// Parses `TARGET=LEVEL` directives, separated by commas. A target without a level logs everything,
/// and a level without a target is for all other targets. Wrong directives are ignored.
fn filter(directives: &str) -> Targets {
    // An empty directive would be parsed as `error` for all targets.
    let directives = directives.split(',').map(str::trim);
    let parsed = directives
        .filter(|directive| !directive.is_empty())
        .filter_map(|directive| directive.parse::<Targets>().ok());
    parsed.fold(Targets::new(), |mut all, directive| {
        if let Some(level) = directive.default_level() {
            all = all.with_default(level);
        }
        all.extend(directive);
        all
    })
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

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::filter;

    #[test]
    fn directives_set_levels_of_targets() {
        let level = |directives, target| {
            let filter = filter(directives);
            let levels = [
                LevelFilter::TRACE,
                LevelFilter::DEBUG,
                LevelFilter::INFO,
                LevelFilter::WARN,
                LevelFilter::ERROR,
            ];
            let enabled = levels.into_iter().find(|level| {
                let level = level.into_level().expect("not OFF");
                filter.would_enable(target, &level)
            });
            enabled.unwrap_or(LevelFilter::OFF)
        };
        for (directives, leasehold, other) in [
            ("debug", LevelFilter::DEBUG, LevelFilter::DEBUG),
            ("leasehold=debug", LevelFilter::DEBUG, LevelFilter::OFF),
            ("leasehold", LevelFilter::TRACE, LevelFilter::OFF),
            ("warn, leasehold=info", LevelFilter::INFO, LevelFilter::WARN),
            ("leasehold=info,WARN", LevelFilter::INFO, LevelFilter::WARN),
            ("leasehold=off,error", LevelFilter::OFF, LevelFilter::ERROR),
            (
                "leasehold=loud,error",
                LevelFilter::ERROR,
                LevelFilter::ERROR,
            ),
            ("leasehold=info,,", LevelFilter::INFO, LevelFilter::OFF),
            ("a=b=c", LevelFilter::OFF, LevelFilter::OFF),
        ] {
            assert_eq!(level(directives, "leasehold"), leasehold, "{directives}");
            assert_eq!(level(directives, "other"), other, "{directives}");
        }
        let below = level("leasehold=info,leasehold::wait=trace", "leasehold::wait");
        assert_eq!(below, LevelFilter::TRACE);
    }
}
