//! The command line: every flag, with its help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::duration;
use crate::exit_code::Exit;

/// Distributed locks on Redis and Valkey, shared with Java's Redisson
// No `Debug`: the URL may hold a password.
#[derive(Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Server to use [default: $LEASEHOLD_URL, else $REDIS_URL, else redis://127.0.0.1:6379]
    ///
    /// redis://USER:PASSWORD@HOST:PORT/DB, rediss:// for TLS, redis+unix:///PATH for a socket,
    /// memory:// for a keyspace in this process (`demo` alone: nobody else sees it). Without it, the URL comes from $LEASEHOLD_URL,
    /// else from $REDIS_URL, else it is redis://127.0.0.1:6379. Put a URL with a password in the
    /// environment: every user of the machine can read a command line. Where
    /// $LEASEHOLD_PASSWORD_FILE names a file, the password is read from there each time that a
    /// connection is opened, so that it can change while a command runs.
    #[arg(long, global = true, value_name = "URL", display_order = 100)]
    pub(crate) redis: Option<OsString>,

    /// Logs more than warnings to stderr, and all with -vv; or as $RUST_LOG says
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 101)]
    pub(crate) verbose: u8,

    /// Tells failures only: no warnings, and not what is waited for
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

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Waits for a lock, runs a command under it, and gives back its exit code
    Run(Run),
    /// Shows what stands under a name: who holds it, and for how long
    Show(Show),
    /// Changes for all how many commands `run --limit` lets run at a time
    SetLimit(SetLimit),
    /// Waits for a latch, counts it down, or sets it: a start that several wait for
    Latch(Latch),
    /// Lets workers sell a stock under one lock, and shows that none got in another's way
    Demo(Demo),
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Kills a command when leasehold can't; it hears which and when on stdin.
    #[command(hide = true)]
    RunDeadman,
    #[command(hide = true)]
    RunLaunch(RunLaunch),
}

const RUN_HELP: &str = "\
Exit codes:
  the command's own; 128+n when signal n ended it, or ended the wait for the lock
  2    wrong usage
  69   no server answered
  70   the lock was lost or could not be renewed while the command ran, which has been ended
  75   the lock was not free in time (--conflict-exit-code sets another number)
  77   the server refused the credentials or lacks a permission
  78   --limit says another number than the one that is set
  126  the command can't be executed; 127: it was not found

--limit keeps its permits under the lock's name, which is then no lock for the other kinds. The
first one sets the number for all, and says so. Whoever asks for another number is refused with 78;
`leasehold set-limit NAME N` changes it for all.

The command finds the lock's name in $LEASEHOLD_NAME, and with --fenced the hold's fencing token in
$LEASEHOLD_TOKEN: a number that rises from hold to hold, for a resource that checks it, one for all
locks with --also and --redlock. It goes with every kind of lock that one holds at a time: not with
--read and --limit. INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to it and its process group.

The command does not outlive the lock. If the lock can't be renewed, the command gets TERM while
there is still time to clean up (--grace), and KILL before the lease is over. If somebody takes the
lock away, it gets TERM at the next renewal, and KILL after the grace time. If leasehold itself is
killed with KILL, the command is killed at once; if it stands still (STOP, Ctrl-Z), before the lease
is over. A second process, `leasehold run-deadman`, sees to that.

All of that reaches the command's process group: what it starts, in the background as well. It does
not reach what has left the group (daemons, setsid, jobs of an interactive shell) or runs as another
user (sudo). If both leasehold processes are killed at once, the command dies, on Linux, but not
what it has started. What a command leaves running when it ends by itself goes on without the lock.

Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run --no-wait nightly -- ./backup.sh     # exits with 75 if it runs already
  leasehold run --wait 5s migrate -- psql -f up.sql
  leasehold run --limit 4 thumbnails -- ./make.sh    # four at a time over all machines
  leasehold run --also bob ann -- ./transfer.sh      # both locks, or none
  leasehold run --redlock redis://a --redlock redis://b --redlock redis://c nightly -- ./job.sh
  leasehold run --read prices -- ./report.sh         # many read, one writes (--write)";

#[derive(Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] NAME -- CMD...",
    after_help = RUN_HELP
)]
pub(crate) struct Run {
    /// Lock to hold while the command runs
    pub(crate) name: Option<OsString>,

    /// Takes what was written without `--`, so that the message can show the right command.
    #[arg(hide = true)]
    pub(crate) misplaced: Vec<OsString>,

    /// Command to run, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) kind: KindOfLock,

    /// Takes a fencing token with the lock; the command finds it in $LEASEHOLD_TOKEN
    // What several hold at a time has no number that says who came last.
    #[arg(long, conflicts_with_all = ["read", "limit"])]
    pub(crate) fenced: bool,

    /// Holds this lock as well; all of them, or none (can be repeated)
    #[arg(long, value_name = "NAME", conflicts_with = "limit")]
    pub(crate) also: Vec<String>,

    /// Server of a majority: the lock is held while more than half of those named say so
    /// (repeat it for each; instead of --redis)
    #[arg(long, value_name = "URL", conflicts_with_all = ["limit", "also"])]
    pub(crate) redlock: Vec<OsString>,

    /// Does not wait: the lock is free now, or the command is not run
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Waits this long at most [default: without a limit]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Waits this long for a server that does not answer any more
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) outage_timeout: Duration,

    /// How long the lock outlives a killed leasehold; it is renewed every third of it
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) lease: Duration,

    /// Time between TERM and KILL when the lock is about to be lost; half of the lease at most
    /// [default: a third of the lease, 10s at most]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// Exit code when the lock was not free in time
    #[arg(long, value_name = "N", default_value_t = Exit::DEFAULT_BUSY)]
    pub(crate) conflict_exit_code: u8,

    /// How often a waiter asks although nothing woke it.
    #[arg(long, hide = true, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) poll_interval: Option<Duration>,
}

/// Which kind of lock; a plain one by default.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct KindOfLock {
    /// Serves those who wait in the order in which they came
    #[arg(long)]
    pub(crate) fair: bool,

    /// Takes the read side of a read-write lock: commands that read run side by side
    #[arg(long)]
    pub(crate) read: bool,

    /// Takes the write side of a read-write lock: the command runs alone
    #[arg(long)]
    pub(crate) write: bool,

    /// Lets up to N commands run at a time, over all machines; the first one sets N for all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS))]
    pub(crate) limit: Option<u32>,
}

/// Becomes the command, as a process that dies with leasehold.
#[derive(Args)]
pub(crate) struct RunLaunch {
    /// The leasehold that has started this.
    #[arg(long)]
    pub(crate) parent: i32,

    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}

const SHOW_HELP: &str = "\
It recognises locks of every kind, groups, semaphores and latches, those of Redisson's among them.
Some have the same keys: a plain, a fenced and a spin lock; a semaphore that nobody uses and a
latch that Redisson has set. Who waits is known of a fair lock alone.

With --json: name; kind (none, lock, read_write_lock, group, semaphore_with_leases,
semaphore_or_latch, latch, unknown); held; holders, each with id, count and ttl_ms; ttl_ms; mode;
waiting; last_token; and as far as the kind has them values, permits and count. What is not known
is null.

Exit codes: 0; 1 when the key is none that it knows; 69 when no server answered; 77 when the server
refused.";

#[derive(Args)]
#[command(after_help = SHOW_HELP)]
pub(crate) struct Show {
    /// Name to look at
    pub(crate) name: OsString,

    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const SET_LIMIT_HELP: &str = "\
Commands that run go on; with a lower number nobody starts before enough of them have ended. Without
this, the first `leasehold run --limit N NAME` sets the number.

Exit codes: 0; 1 when the name is something else; 69 when no server answered; 77 when the server
refused.

Example:
  leasehold set-limit thumbnails 8";

#[derive(Args)]
#[command(after_help = SET_LIMIT_HELP)]
pub(crate) struct SetLimit {
    /// Name that `run --limit` is given
    pub(crate) name: OsString,

    /// How many may run at a time
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS))]
    pub(crate) limit: u32,
}

const MOST_PERMITS: i64 = 1_000_000;

const LATCH_HELP: &str = "\
A latch that has not been set, or has been counted down to zero, is open. It opens for everybody
who waits, on all machines, also if it is set anew at once. `wait` and `down` warn if nobody has set
the latch, or it was opened over an hour ago: the name may be wrong.

Exit codes: 0; 66 with --must-exist when nobody has set the latch; 69 when no server answered; 75
when the latch was not open in time, or is set already; 77 when the server refused.

Examples:
  leasehold latch set import-done 3                 # three parts are to be done
  ./part.sh && leasehold latch down import-done     # by each of them, prints what is left
  leasehold latch wait import-done && ./report.sh   # when all are done";

#[derive(Args)]
#[command(after_help = LATCH_HELP)]
pub(crate) struct Latch {
    #[command(subcommand)]
    pub(crate) action: LatchAction,
}

#[derive(Subcommand)]
pub(crate) enum LatchAction {
    /// Waits until the latch is open
    Wait {
        /// Latch to wait for
        name: OsString,

        /// Waits this long at most [default: without a limit]
        #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
        wait: Option<Duration>,

        /// Waits this long for a server that does not answer any more
        #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
        outage_timeout: Duration,

        /// Fails if nobody has set the latch, or it was opened over an hour ago
        #[arg(long)]
        must_exist: bool,
    },
    /// Counts the latch down, and prints what is left
    Down {
        /// Latch to count down
        name: OsString,

        /// By how much at once
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        by: u64,

        /// Fails if nobody has set the latch, or it was opened over an hour ago
        #[arg(long)]
        must_exist: bool,
    },
    /// Sets what is to be counted down, if the latch is open
    Set {
        /// Latch to set
        name: OsString,

        /// How often it has to be counted down
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
}

const DEMO_HELP: &str = "\
The stock is a file outside the lock: a worker reads it, works for --pause, and writes it back. With
the lock every item is sold once. Without it (--no-lock) sales get lost and items are sold twice.

Without --redis the workers are tasks of this process and need no server (the environment is not
looked at). With --redis they are processes, whose ids are printed: kill one.

Exit codes: 0 when it went as announced; 1 when an item was sold twice or two workers held the lock
at once; 69 when no server answered.";

#[derive(Args)]
#[command(after_help = DEMO_HELP)]
pub(crate) struct Demo {
    /// How many workers there are, 2 to 64 [default: 5, with --redis 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) workers: Option<u8>,

    /// How many items they sell, 2 to 10000
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    pub(crate) stock: u64,

    /// How long a sale takes, at most 10s [default: 5ms, with --redis 25ms]
    #[arg(long, value_name = "DURATION", value_parser = pause, allow_hyphen_values = true)]
    pub(crate) pause: Option<Duration>,

    /// Kills the worker that holds the lock when half of the stock is sold
    #[arg(long)]
    pub(crate) kill: bool,

    /// Sells without the lock, to see what happens
    #[arg(long, conflicts_with = "kill")]
    pub(crate) no_lock: bool,

    /// Draws with plain ASCII, as when the locale is not UTF-8
    #[arg(long)]
    pub(crate) ascii: bool,
}

/// One worker of the demo, as a process. Its parent reads what it prints.
#[derive(Args)]
pub(crate) struct DemoWorker {
    /// Folder of the stock.
    #[arg(long)]
    pub(crate) stock: PathBuf,

    /// Its number, from 1.
    #[arg(long)]
    pub(crate) number: usize,

    /// Lock to sell under; none with --no-lock.
    #[arg(long)]
    pub(crate) lock: Option<String>,

    /// How long a sale takes.
    #[arg(long, value_parser = duration::parse)]
    pub(crate) pause: Duration,

    /// How much is left when a worker waits to be killed.
    #[arg(long)]
    pub(crate) victim_at: Option<u64>,

    /// How much a worker without a lock sells at most.
    #[arg(long)]
    pub(crate) limit: u64,
}

fn pause(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        pause if pause > Duration::from_secs(10) => Err("a sale takes at most 10s".into()),
        pause => Ok(pause),
    }
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
