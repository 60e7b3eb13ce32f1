//! The flags of `leasehold run` and `leasehold hold`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::MOST_PERMITS;
use crate::duration;
use crate::exit_code::Exit;

const RUN_HELP: &str = "\
Exit codes:
  the command's own; 128+n when signal n ended it, or ended the wait for the lock
  2    wrong usage
  65   the name is in use as something else
  69   no server answered
  70   the lock was lost or could not be renewed while the command ran, which has been ended
  75   the lock was not free in time (--conflict-exit-code sets another number)
  77   the server refused the credentials or lacks a permission
  78   --limit says another number than the one that is set, or a local file can't be read
  124  the command ran for longer than --max-run, and has been ended
  126  the command can't be executed; 127: it was not found

--limit keeps its permits under the lock's name, which is then no lock for the other kinds. The
first one sets the number for all, and says so. A command with another number is refused with 78;
`leasehold set-limit NAME N` changes it for all.

The command finds the lock's name in $LEASEHOLD_NAME, and with --fenced the hold's fencing token in
$LEASEHOLD_TOKEN: a number that rises from hold to hold, for a resource that checks it, one for all
locks with --also and --redlock. It works with exclusive locks only, not with --read or --limit.
INT, TERM, HUP, QUIT, USR1 and USR2 are passed on to the command and its process group.

--min-hold keeps the lock for that long after it was acquired, however quick the command is and
however it ends. With --no-wait, cron can start the same line on many machines: the first one runs it,
and for the others, whose clocks differ by less, the lock is not free. leasehold ends with the command
and leaves the rest of the time to the server, as the expiry of the lock: nothing has to live until
then, and `leasehold release` frees the lock before. If leasehold is killed while the command runs, the
lock is free after --lease. It works with plain, --fenced, --fair and --write locks, which are one key.

With --json all that leasehold itself has to say is JSON on stderr, an object for each line, with
`event` and `name`: waiting and busy (with the `holder`), held (`id`, `token`, `waited_ms`), started
(`pid`), losing (`reason`), then lost, released or kept (`held_ms`, `kept_for_ms`), and message.

Nothing waits for whoever reads stderr. Lines that find no room are left out and counted.

The command does not outlive the lock. If the lock can't be renewed, the command gets TERM while
there is still time to clean up (--grace), and KILL before the lease is over. If somebody takes the
lock away, it gets TERM at the next renewal, and KILL after the grace time. --on-loss chooses another
way: kill (no TERM), `exec CMD` (this command of the shell instead of TERM, with $LEASEHOLD_NAME,
$LEASEHOLD_PID and $LEASEHOLD_REASON; KILL follows all the same), or warn: the loss is told, and the
command goes on without the lock. If leasehold itself is
killed with KILL, the command is killed at once; if it stands still (STOP, Ctrl-Z), before the lease
is over. A second process, `leasehold run-deadman`, sees to that.

All of that reaches the command's process group: what it starts, in the background as well. It does
not reach what has left the group (daemons, setsid, jobs of an interactive shell) or runs as another
user (sudo). If both leasehold processes are killed at once, the command dies, on Linux, but not
what it has started. Processes that the command leaves behind keep running after the lock is released.

Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run --no-wait nightly -- ./backup.sh     # exits with 75 if it runs already
  leasehold run --wait 5s migrate -- psql -f up.sql
  leasehold run -n --min-hold 50s sweep -- ./job.sh  # once, though cron starts it everywhere
  leasehold run --max-run 1h import -c './part.sh && ./report.sh'
  leasehold run --limit 4 thumbnails -- ./make.sh    # four at a time over all machines
  leasehold run --also bob ann -- ./transfer.sh      # both locks, or none
  leasehold run --redlock redis://a --redlock redis://b --redlock redis://c nightly -- ./job.sh
  leasehold run --read prices -- ./report.sh         # many read, one writes (--write)";

#[derive(Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] NAME -- CMD...\n       leasehold run [OPTIONS] NAME -c LINE",
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

    /// Line for the shell to run, instead of CMD
    #[arg(
        short = 'c',
        long = "command",
        value_name = "LINE",
        conflicts_with = "command"
    )]
    pub(crate) line: Option<OsString>,

    #[command(flatten)]
    pub(crate) wanted: Wanted,

    /// Time between TERM and KILL when the lock is about to be lost; half of the lease at most
    /// [default: a third of the lease, 10s at most]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// Keep the lock for this long, even if the command ends sooner; the server keeps it for the rest
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,

    /// End the command after this long, with TERM and --grace later KILL
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_run: Option<Duration>,

    /// What to do with the command when the lock is lost: term, kill, warn or `exec CMD`
    #[arg(long, value_name = "ACTION", value_parser = on_loss, default_value = "term")]
    pub(crate) on_loss: OnLoss,

    /// Write metrics to this file as text for Prometheus, every 10s and at the end (for the textfile
    /// folder of node_exporter, where its name has to end in .prom)
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,

    /// Report what leasehold itself does as JSON, a line for each event
    #[arg(long)]
    pub(crate) json: bool,
}

impl Run {
    /// The name of the program that it runs: without its folder, and of a line for the shell the
    /// first word.
    pub(crate) fn program(&self) -> Option<String> {
        let word = match &self.line {
            // Variables may be set before it.
            Some(line) => {
                let line = line.to_string_lossy();
                let mut words = line.split_whitespace();
                words.find(|word| !word.contains('='))?.to_owned()
            }
            None => self.command.first()?.to_string_lossy().into_owned(),
        };
        Some(Path::new(&word).file_name()?.to_string_lossy().into_owned())
    }
}

const HOLD_HELP: &str = "\
It says `held` on stdout when it has the lock, or the fencing token with --fenced, and keeps it until
its input ends or INT, TERM, HUP, QUIT, USR1 or USR2 comes. So give it an input that lasts: with
/dev/null it gives the lock back at once, and so it does in the background of a terminal. Nothing ends the work of a script whose lock is lost: look
at the exit code, or use `leasehold run`.

Exit codes:
  0    the input has ended, and the lock was given back
  2    wrong usage
  65   the name is in use as something else
  69   no server answered
  70   the lock was lost
  75   the lock was not free in time (--conflict-exit-code sets another number)
  77   the server refused the credentials or lacks a permission
  78   --limit says another number than the one that is set, or a local file can't be read
  128+n  signal n ended it, and the lock was given back

Example:
  echo 'while it is read' | leasehold hold nightly";

#[derive(Args)]
#[command(after_help = HOLD_HELP)]
pub(crate) struct Hold {
    /// Lock to hold
    pub(crate) name: OsString,

    #[command(flatten)]
    pub(crate) wanted: Wanted,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is to be held, and how it is waited for.
#[derive(Args)]
pub(crate) struct Wanted {
    #[command(flatten)]
    pub(crate) kind: KindOfLock,

    /// Take a fencing token with the lock; a command finds it in $LEASEHOLD_TOKEN
    // Readers and holders of a limit hold at the same time, so no number says who came last.
    #[arg(long, conflicts_with_all = ["read", "limit"])]
    pub(crate) fenced: bool,

    /// Hold this lock as well; all of them, or none (can be repeated)
    #[arg(long, value_name = "NAME", conflicts_with = "limit")]
    pub(crate) also: Vec<String>,

    /// Count the lock as held only when this many replicas have confirmed it, each renewal as well
    // Only locks have this setting.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "limit")]
    pub(crate) replicas: u8,

    /// Count it only when the server, and the --replicas, have it on their disks (Redis 7.2 with
    /// appendonly yes)
    #[arg(long, conflicts_with = "limit")]
    pub(crate) on_disk: bool,

    /// Server of a majority: the lock is held while more than half of those named say so
    /// (repeat it for each; instead of --redis)
    #[arg(long, value_name = "URL", conflicts_with_all = ["limit", "also"])]
    pub(crate) redlock: Vec<OsString>,

    /// Do not wait: if the lock is not free now, do nothing
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait this long at most [default: without a limit]
    #[arg(short = 'w', long, value_name = "DURATION", value_parser = wait, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Give up after the server has been unreachable for this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) outage_timeout: Duration,

    /// Lease time: if leasehold dies, the lock is free after this long. Renewed every third of it
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) lease: Duration,

    /// After a failover or restart, take no lock for this long. At least the longest lease; the same
    /// for every user of the name; not with Redisson or clusters
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) failover_guard: Option<Duration>,

    /// Exit code when the lock was not free in time
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::DEFAULT_BUSY)]
    pub(crate) conflict_exit_code: u8,

    /// How often a waiter asks although nothing woke it.
    #[arg(long, hide = true, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) poll_interval: Option<Duration>,
}

/// Which kind of lock; a plain one by default.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct KindOfLock {
    /// Serve waiters in the order of their arrival
    #[arg(long)]
    pub(crate) fair: bool,

    /// Take the read side of a read-write lock: commands that read run side by side
    #[arg(short = 's', long)]
    pub(crate) read: bool,

    /// Take the write side of a read-write lock: the command runs alone
    #[arg(short = 'x', long)]
    pub(crate) write: bool,

    /// Run up to N commands at a time, over all machines; the first one sets N for all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS))]
    pub(crate) limit: Option<u32>,
}

/// What becomes of the command when the lock is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// TERM, and KILL when the grace time is over.
    Term,
    /// KILL at once.
    Kill,
    /// It goes on.
    Warn,
    /// This line of the shell instead of TERM.
    Exec(String),
}

fn on_loss(text: &str) -> Result<OnLoss, String> {
    match text.split_once(' ') {
        Some(("exec", line)) if !line.trim().is_empty() => Ok(OnLoss::Exec(line.to_owned())),
        _ => match text.trim() {
            "term" => Ok(OnLoss::Term),
            "kill" => Ok(OnLoss::Kill),
            "warn" => Ok(OnLoss::Warn),
            "exec" => Err("there is no command behind exec; write 'exec CMD' in quotes".into()),
            _ => Err("it is none of term, kill, warn and 'exec CMD'".into()),
        },
    }
}

fn wait(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| match error.as_str() {
        duration::ZERO => "to wait for nothing, write --no-wait (-n)".into(),
        _ => error,
    })
}

/// Kills the command when leasehold can't.
#[derive(Args)]
pub(crate) struct RunDeadman {
    /// Write messages as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Becomes the command, as a process that dies with leasehold.
#[derive(Args)]
pub(crate) struct RunLaunch {
    /// Write messages as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// The leasehold that has started this.
    #[arg(long)]
    pub(crate) parent: i32,

    /// Run no command from this time on, in milliseconds since the machine was started.
    #[arg(long)]
    pub(crate) before: Option<u64>,

    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}
