//! The flags that tie the renewals of a lock to the progress of a command.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::duration;

/// The time in which a command must make progress, and what shows its progress.
#[derive(Args, Clone, Default)]
#[group(id = "progress_settings", multiple = true)]
pub(crate) struct Progress {
    /// Lose the lock after TIME without progress
    ///
    /// leasehold then stops renewing the lock. Before the lease ends, it ends the command, or does
    /// what --on-loss says. If the command makes progress before leasehold starts to end it, the
    /// renewals start again.
    #[arg(hide_short_help = true, long = "progress-within", value_name = "TIME", value_parser = duration::parse,
        allow_hyphen_values = true, requires = "progress_source")]
    pub(crate) within: Option<Duration>,

    /// Count each change of FILE's time as progress
    ///
    /// This is the file's modification time. The file need not exist yet.
    #[arg(
        hide_short_help = true,
        long = "progress-file",
        value_name = "FILE",
        group = "progress_source",
        requires = "within"
    )]
    pub(crate) file: Option<PathBuf>,

    /// Count anything the command writes as progress
    ///
    /// The command then writes to pipes, and leasehold copies its output from there.
    #[arg(
        hide_short_help = true,
        long = "progress-output",
        group = "progress_source",
        requires = "within"
    )]
    pub(crate) output: bool,
}
