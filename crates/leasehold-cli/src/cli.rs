//! The command line: every flag, with its help.

mod demo;
mod doctor;
mod elect;
mod fence;
mod latch;
mod look;
mod progress;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::mapping::{self, Mapping};

pub(crate) use demo::{Demo, DemoWorker};
pub(crate) use doctor::Doctor;
pub(crate) use elect::{Elect, Leader};
pub(crate) use fence::{Fence, FenceAction};
pub(crate) use latch::{Latch, LatchAction};
pub(crate) use look::{KindOfName, Ls, Release, SetLimit, Show, Top, Watch};
pub(crate) use progress::Progress;
pub(crate) use run::{Hold, OnLoss, RUN_USAGE, Run, RunDeadman, RunLaunch, Turns, Wanted};

/// The highest number of permits of a limit.
const MOST_PERMITS: i64 = 1_000_000;

/// The last line of the short help.
const MORE: &str = "--help has the rest: connections, exit codes, examples.";

/// Distributed locks on Redis and Valkey, shared with Java's Redisson
// No `Debug`: the URL may contain a password.
#[derive(Parser)]
#[command(
    name = "leasehold",
    version,
    max_term_width = 100,
    after_help = "More help: leasehold help run, leasehold help env, leasehold help exit-codes"
)]
pub(crate) struct Cli {
    /// Log waits, grants and releases
    ///
    /// Without this option, leasehold logs warnings, or what $RUST_LOG selects.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 101)]
    pub(crate) verbose: u8,

    /// Print errors only
    ///
    /// leasehold prints no warnings, and no messages about waits or busy locks.
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        display_order = 102
    )]
    pub(crate) quiet: bool,

    // This field must be the last one with options: its heading would also apply to options after
    // it.
    #[command(flatten)]
    pub(crate) connection: Connection,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The options of the connection to the server, and the label by which operators see the client.
// No `Debug`: the URL may contain a password.
#[derive(Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Server to use [default: $LEASEHOLD_URL, else $REDIS_URL, else redis://127.0.0.1:6379]
    ///
    /// redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for TLS, redis+unix:///PATH for a socket,
    /// redis-cluster://HOST:PORT,HOST:PORT for a cluster (rediss-cluster:// for TLS),
    /// redis-sentinel://HOST:PORT,HOST:PORT/MASTER for a master that sentinels watch
    /// (rediss-sentinel:// for TLS; ?sentinel_user=U&sentinel_pass=P to log in to the sentinels),
    /// memory:// for a server inside this process, which no other process sees (for `demo`). Put a
    /// URL with a password into the environment: every user of the machine can read a command line.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) redis: Option<OsString>,

    /// Read the password from this file [default: $LEASEHOLD_PASSWORD_FILE]
    ///
    /// The file is read again for each connection and every 10s, so that the password can change.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) password_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) tls: Tls,

    /// If a server announces the first address, connect to the second one (NAT; repeatable)
    /// [default: $LEASEHOLD_MAP, separated by commas]
    ///
    /// This applies to the nodes of a cluster, and to the master that sentinels announce. Addresses
    /// in the URL are used unchanged.
    #[arg(long, global = true, value_name = "HOST:PORT=HOST:PORT", value_parser = mapping::parse, display_order = 100, hide_short_help = true)]
    pub(crate) map: Vec<Mapping>,

    /// Put this prefix before all names, like Redisson's NameMapper [default: $LEASEHOLD_PREFIX]
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_PREFIX",
        hide_env = true,
        value_name = "TEXT",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) prefix: Option<String>,

    /// Show this label to operators, instead of $LEASEHOLD_LABEL or the program's name
    #[arg(
        long,
        global = true,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) label: Option<String>,
}

impl Cli {
    /// Returns the label that operators see, if the command line determines it. For `run` and
    /// `elect`, the default is the name of the program that they start, unless `$LEASEHOLD_LABEL`
    /// is set.
    pub(crate) fn label(&self) -> Option<String> {
        let is_set = std::env::var_os("LEASEHOLD_LABEL").is_some_and(|label| !label.is_empty());
        match &self.command {
            Command::Run(run) if !is_set => self.connection.label.clone().or_else(|| run.program()),
            Command::Elect(elect) if !is_set => {
                self.connection.label.clone().or_else(|| elect.program())
            }
            _ => self.connection.label.clone(),
        }
    }
}

/// Returns the definition of the command line.
pub(crate) fn command() -> clap::Command {
    let connection = Connection::augment_args(clap::Command::new("connection"));
    let hidden = connection.get_arguments().cloned();
    let hidden: Vec<_> = hidden.map(|option| option.hide(true)).collect();
    // These commands need no server, so their help does not list the options of the connection.
    ["completions", "man"]
        .into_iter()
        .fold(Cli::command(), |command, name| {
            command.mut_subcommand(name, |below| below.args(hidden.clone()))
        })
}

/// The certificates for rediss://.
#[derive(Args, Clone)]
pub(crate) struct Tls {
    /// Also trust the certificate authorities (CAs) in this file (rediss://)
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) cacert: Option<PathBuf>,

    /// Present this client certificate to the server (rediss://)
    ///
    /// This file and the file given with --key are read again for each connection.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "key",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of --cert
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        requires = "cert",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) key: Option<PathBuf>,

    /// Expect this name in the server's certificate, instead of the host in the URL
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        display_order = 100,
        hide_short_help = true
    )]
    pub(crate) sni: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock, and exit with the command's code
    Run(Box<Run>),
    /// Run a command only while this process leads an election
    Elect(Elect),
    /// Show the leader of an election
    Leader(Leader),
    /// Hold a lock until standard input ends or a signal arrives
    Hold(Hold),
    /// Show what a name is, who holds it, and for how long
    Show(Show),
    /// List the names on the server that are held or in use
    Ls(Ls),
    /// Print a line whenever the state of a name changes
    Watch(Watch),
    /// Show held locks, live
    Top(Top),
    /// Take a lock or a permit from its holder
    Release(Release),
    /// Report what endangers locks on this server
    Doctor(Doctor),
    /// Change how many commands `run --limit` runs at a time
    SetLimit(SetLimit),
    /// Set a latch, count it down, or wait until it opens
    Latch(Latch),
    /// Print SQL that makes a database refuse writes from late holders
    Fence(Fence),
    /// Run a demonstration: workers update shared state under one lock
    Demo(Demo),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page, or write all pages into a folder
    Man(Man),
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Print names for the completions of a shell
    #[command(hide = true)]
    Names(Names),
    /// Kill a command when leasehold can't; stdin says which command, and when
    #[command(hide = true)]
    RunDeadman(RunDeadman),
    #[command(hide = true)]
    RunLaunch(RunLaunch),
}

#[derive(Args)]
#[command(after_long_help = "Example:\n  leasehold completions bash >leasehold.bash")]
pub(crate) struct Completions {
    /// Shell that the completions are for
    pub(crate) shell: Shell,
}

#[derive(Args)]
pub(crate) struct Names {
    /// Beginning of the names to print
    #[arg(last = true)]
    pub(crate) begun: String,
}

#[derive(Args)]
#[command(after_long_help = "Example:\n  leasehold man --out .")]
pub(crate) struct Man {
    /// Write all pages into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_line_is_consistent() {
        super::command().debug_assert();
    }
}
