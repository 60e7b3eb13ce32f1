//! The command line: every flag, with its help.

mod demo;
mod doctor;
mod latch;
mod look;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::mapping::{self, Mapping};

pub(crate) use demo::{Demo, DemoWorker};
pub(crate) use doctor::Doctor;
pub(crate) use latch::{Latch, LatchAction};
pub(crate) use look::{KindOfName, Ls, Release, SetLimit, Show, Top, Watch};
pub(crate) use run::{Hold, OnLoss, Run, RunDeadman, RunLaunch, Wanted};

/// The most permits of a limit.
const MOST_PERMITS: i64 = 1_000_000;

/// Distributed locks on Redis and Valkey, shared with Java's Redisson
// No `Debug`: the URL may hold a password.
#[derive(Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Server to use [default: $LEASEHOLD_URL, else $REDIS_URL, else redis://127.0.0.1:6379]
    ///
    /// redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for TLS, redis+unix:///PATH for a socket,
    /// redis-cluster://HOST:PORT,HOST:PORT for a cluster (rediss-cluster:// for TLS),
    /// redis-sentinel://HOST:PORT,HOST:PORT/MASTER for a master that sentinels watch over
    /// (rediss-sentinel:// for TLS; ?sentinel_user=U&sentinel_pass=P to log in at them),
    /// memory:// for a keyspace in this process (`demo` alone: nobody else sees it). Without it, the URL comes from $LEASEHOLD_URL,
    /// else from $REDIS_URL, else it is redis://127.0.0.1:6379. Put a URL with a password in the
    /// environment: every user of the machine can read a command line.
    #[arg(long, global = true, value_name = "URL", display_order = 100)]
    pub(crate) redis: Option<OsString>,

    /// File with the password, read again for each connection and while it lives, so that it can
    /// change [default: $LEASEHOLD_PASSWORD_FILE]
    #[arg(long, global = true, value_name = "FILE", display_order = 100)]
    pub(crate) password_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tls: Tls,

    /// Where to reach a server that others announce at an unreachable address (NAT), may be repeated
    /// [default: $LEASEHOLD_MAP, with commas between several]
    ///
    /// A node of a cluster, or the master behind sentinels, that is announced at the first HOST:PORT is
    /// connected to at the second one. Addresses in the URL are used as they are.
    #[arg(long, global = true, value_name = "HOST:PORT=HOST:PORT", value_parser = mapping::parse, display_order = 100)]
    pub(crate) map: Vec<Mapping>,

    /// Prefix of all names, as a NameMapper of Redisson puts one in front [default: $LEASEHOLD_PREFIX]
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_PREFIX",
        hide_env = true,
        value_name = "TEXT",
        display_order = 100
    )]
    pub(crate) prefix: Option<String>,

    /// What operators see of this command, instead of $LEASEHOLD_LABEL or the program's name
    #[arg(long, global = true, value_name = "TEXT", display_order = 100)]
    pub(crate) label: Option<String>,

    /// Log more: each wait, grant and release, and everything with -vv; or as $RUST_LOG says
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 101)]
    pub(crate) verbose: u8,

    /// Print errors only: no warnings, nothing about waits, and not that a lock is not free
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        display_order = 102
    )]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What operators see of this command, where it is not the program's name: of a run the name of
    /// its command.
    pub(crate) fn label(&self) -> Option<String> {
        let is_set = std::env::var_os("LEASEHOLD_LABEL").is_some_and(|label| !label.is_empty());
        match &self.command {
            Command::Run(run) if !is_set => self.label.clone().or_else(|| run.program()),
            _ => self.label.clone(),
        }
    }
}

/// Certificates for rediss://.
#[derive(Args, Clone)]
pub(crate) struct Tls {
    /// Certificates of your own authorities, beside those of the system (rediss://)
    #[arg(long, global = true, value_name = "FILE", display_order = 100)]
    pub(crate) cacert: Option<PathBuf>,

    /// Certificate to show to the server; with its key, read again for each connection
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "key",
        display_order = 100
    )]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "cert",
        display_order = 100
    )]
    pub(crate) key: Option<PathBuf>,

    /// Name that the server's certificate is for, if not the host of the URL
    #[arg(long, global = true, value_name = "NAME", display_order = 100)]
    pub(crate) sni: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Wait for a lock, run a command under it, and return its exit code
    Run(Run),
    /// Hold a lock without a command, until the input ends or a signal comes
    Hold(Hold),
    /// Shows what stands under a name: who holds it, and for how long
    Show(Show),
    /// Lists the names on the server that are held or in use
    Ls(Ls),
    /// Tells each change of a name as a line
    Watch(Watch),
    /// Draws what is held, and keeps the picture up to date
    Top(Top),
    /// Takes a lock or a permit from its holder
    Release(Release),
    /// Tells what endangers locks on this server, and what to do about it
    Doctor(Doctor),
    /// Change for everybody how many commands `run --limit` runs at a time
    SetLimit(SetLimit),
    /// Wait for a latch, count it down, or set it: a start that several wait for
    Latch(Latch),
    /// Demonstrate: workers update shared state under one lock
    Demo(Demo),
    /// Prints completions for a shell
    Completions(Completions),
    /// Writes the manual pages into a folder, or prints that of leasehold
    Man(Man),
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Kills a command when leasehold can't; it hears which and when on stdin.
    #[command(hide = true)]
    RunDeadman(RunDeadman),
    #[command(hide = true)]
    RunLaunch(RunLaunch),
}

#[derive(Args)]
#[command(after_help = "Example:\n  leasehold completions bash >leasehold.bash")]
pub(crate) struct Completions {
    /// Shell to complete for
    pub(crate) shell: Shell,
}

#[derive(Args)]
#[command(after_help = "Example:\n  leasehold man --out .")]
pub(crate) struct Man {
    /// Folder for a page of each sub-command
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
