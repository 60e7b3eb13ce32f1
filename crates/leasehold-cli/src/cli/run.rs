//! The flags of `leasehold run` and `leasehold hold`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{MORE, MOST_PERMITS, Progress};
use crate::duration;
use crate::exit_code::Exit;

const RUN_HELP: &str = "\
Exit codes:
  N    the command's own code; 128+n when signal n ended the command or the wait
  1    any other failure, such as a --metrics-file that can't be written
  2    wrong usage
  65   the name is in use as something else
  69   no server answered
  70   the lock was lost or could not be renewed, so the command was ended
  75   the lock was not free in time (--conflict-exit-code sets another number)
  77   the server refused the credentials, or your user lacks a permission
  78   the name has another --limit or --slot, or a local file can't be read
  124  the command ran longer than --max-run, so it was ended
  126  the command can't be executed; 127: it was not found

With --limit, the server stores permits under the lock's name, so no other kind of lock can use \
that name. The first run sets the number of permits for all clients, and says so. A run with \
another number exits with 78. `leasehold set-limit NAME N` changes the number for all clients.

The command finds the lock's name in $LEASEHOLD_NAME. With --slot, it finds the time of the slot \
in $LEASEHOLD_SLOT, as 2026-11-27T03:00:00Z, and the number of missed slots in $LEASEHOLD_MISSED; \
with --once, the ID in $LEASEHOLD_ONCE. With --fenced, it also finds the hold's \
fencing token in $LEASEHOLD_TOKEN. This number rises from hold to hold, so that a resource can \
refuse a request with an older token. With --also and --redlock, one token covers all locks. \
--fenced works with exclusive locks only, not with --read or --limit. leasehold passes INT, TERM, \
HUP, QUIT, USR1 and USR2 on to the command and its process group.

--slot 5m runs the command once every five minutes, on the machine that is first. All machines may \
start the same line by cron, if their clocks differ by at most half a slot. Where the command does \
not run, leasehold says nothing and exits with 0, or with the number of --conflict-exit-code; with \
-v, it says why. Without --wait, leasehold does not wait for a command that runs elsewhere. With \
--wait, leasehold waits, and runs the command if the other machine dies. All runs of a name must \
use the same slots; a run with other slots exits with 78. `leasehold show NAME` shows the last \
run, and --again repeats it or changes the slots. A run reports on stderr how many slots were \
missed before it. --once ID does the same with an ID in place of a slot, for schedulers that know \
the time of the run.

--resume TICKET continues a hold that `leasehold hold --ticket` has acquired, on this machine or \
another one. The lock is not free in between, and only one command gets the ticket. With a ticket \
that is no longer valid, leasehold exits with 70 and does not run the command.

--min-hold TIME keeps the lock for at least TIME after it was acquired, whenever and however the \
command ends. With --no-wait, cron can start the same line on many machines: the first one runs \
the command, and the others find the lock held if their clocks differ by less than --min-hold. \
leasehold exits when the command ends, and the server frees the lock when the time has passed. No \
process needs to run until then, and the lock is kept even if leasehold is killed. `leasehold \
release` frees the lock earlier. --min-hold works with locks that are a single key: plain, \
--fenced, --fair and --write.

--progress-within TIME renews the lock only while the command makes progress. With --progress-file \
FILE, each change of the file's modification time is progress. With --progress-output, anything \
that the command writes is progress, even if it is not a full line. The command then writes to \
pipes, and a program that sees no terminal may buffer its output: start it with `stdbuf -oL`, or \
use --progress-file. When the command ends, leasehold copies the rest of its output, and processes \
that the command has left running can no longer write. If the command makes no progress for TIME, \
leasehold says so, and stops renewing the lock. Before the lease ends, it ends the command, or \
does what --on-loss says, and exits with 70. If the command makes progress before leasehold starts \
to end it, the renewals start again.

With --json, leasehold reports on stderr in JSON, one object per line. Each object has `event` and \
`name`. These are the events and their other fields:

  waiting   holder (id, kept, label, host and pid)
  busy      holder (id, kept, label, host and pid)
  held      id, token, waited_ms; with --slot or --once also slot_ms, missed, died
  started   pid
  stalled   no_progress_ms, last_progress_ms (since 1970 in UTC)
  progressing  (after stalled)
  losing    reason
  lost      held_ms, reason
  released  held_ms
  kept      held_ms, kept_for_ms
  done_already, running_elsewhere  by, slot_ms, id, exit_code (CMD does not run)
  message   message (text for people)

leasehold never waits for the reader of stderr. It drops lines that don't fit into its buffer, and \
reports how many.

The command does not outlive the lock. If the lock can't be renewed, the command gets TERM while \
there is still time to clean up (--grace), and KILL before the lease ends. If another client takes \
the lock away, the command gets TERM at the next renewal, and KILL after the grace time.

--on-loss selects another action:
  kill        the command gets KILL, without TERM
  'exec CMD'  the shell runs CMD, and no TERM is sent; KILL still follows
  warn        leasehold reports the loss, and the command continues

CMD finds $LEASEHOLD_NAME, $LEASEHOLD_PID and $LEASEHOLD_REASON in its environment.

If leasehold itself is killed with KILL, the command is killed at once. If leasehold is stopped \
(STOP), it can't renew the lock. The command then gets TERM a quarter of the grace time later than \
otherwise, and KILL before the lease ends. The command gets only KILL with --on-loss kill or exec, \
and after Ctrl-Z at a terminal, because Ctrl-Z also stops the command. A helper process, \
`leasehold run-deadman`, sends these signals.

All these signals reach the command's process group, including the processes that it starts in the \
background. They do not reach processes that have left the group (daemons, setsid, jobs of an \
interactive shell) or that run as another user (sudo). If both leasehold processes are killed at \
once, the command dies on Linux, but the processes that it has started do not. Processes that the \
command has left running continue after the lock is released.

Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run --no-wait nightly -- ./backup.sh     # exits with 75 if busy
  leasehold run --wait 5s migrate -- psql -f up.sql
  leasehold run -n --min-hold 50s sweep -- ./job.sh  # by cron, on all machines
  leasehold run --slot 5m sweep -- ./job.sh          # by cron, on all machines
  leasehold run --max-run 1h import -c './part.sh && ./report.sh'
  leasehold run --progress-within 10m --progress-output import -- ./job.sh
  leasehold run --limit 4 thumbnails -- ./make.sh    # four at a time
  leasehold hold --ticket export | leasehold run --resume - export -- ./job.sh
  leasehold run --also bob ann -- ./transfer.sh      # both locks, or none
  leasehold run --read prices -- ./report.sh         # alongside other readers";

pub(crate) const RUN_USAGE: &str = "\
leasehold run [OPTIONS] NAME -- CMD...
       leasehold run [OPTIONS] NAME -c LINE";

const RUN_EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./backup.sh             # waits for the lock
  leasehold run --no-wait nightly -- ./backup.sh   # exits with 75 if busy
  leasehold run --limit 4 thumbs -- ./make.sh      # four at a time

--help has the rest: connections, exit codes, more examples.";

#[derive(Args)]
#[command(
    override_usage = RUN_USAGE,
    after_help = RUN_EXAMPLES, after_long_help = RUN_HELP
)]
pub(crate) struct Run {
    /// Lock to hold while the command runs
    pub(crate) name: Option<OsString>,

    /// Words of a command that was written without `--`. An error message then shows the command
    /// line with `--`.
    #[arg(hide = true)]
    pub(crate) misplaced: Vec<OsString>,

    /// Command to run, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    /// Run this line in the shell, instead of CMD
    #[arg(
        short = 'c',
        long = "command",
        value_name = "LINE",
        conflicts_with = "command"
    )]
    pub(crate) line: Option<OsString>,

    #[command(flatten)]
    pub(crate) wanted: Wanted,

    /// Wait this long from TERM to KILL
    ///
    /// This is the command's time to clean up when the lock is about to be lost: at most half of
    /// the lease. The default is a third of the lease, at most 10s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// Hold the lock at least this long
    ///
    /// The lock is kept even if the command ends sooner.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) turns: Turns,

    /// Continue the hold of this ticket
    ///
    /// `leasehold hold --ticket` prints a ticket. With -, the ticket is the first line of standard
    /// input.
    #[arg(long, value_name = "TICKET",
        conflicts_with_all = ["limit", "read", "write", "fair", "also", "redlock", "min_hold", "slot",
            "once", "no_wait", "wait"])]
    pub(crate) resume: Option<String>,

    /// End the command after this long
    ///
    /// The command gets TERM, and KILL after the time of --grace.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_run: Option<Duration>,

    #[command(flatten)]
    pub(crate) progress: Progress,

    /// Do this when the lock is lost
    ///
    /// Write term, kill, warn or 'exec CMD'.
    #[arg(long, value_name = "ACTION", value_parser = on_loss, default_value = "term")]
    pub(crate) on_loss: OnLoss,

    /// Write metrics for Prometheus to this file
    ///
    /// leasehold writes them every 10s and at the end. In the textfile folder of node_exporter, the
    /// name must end in .prom.
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,

    /// Report in JSON on stderr, one line per event
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options to run a command once per slot, or once per id.
#[derive(Args, Clone)]
#[group(id = "turn_settings", multiple = true)]
pub(crate) struct Turns {
    /// Run once per slot of TIME, across all machines
    ///
    /// Slots are counted from 1970 in UTC, by the server's clock. A run takes the nearest slot.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true,
        group = "turn",
        conflicts_with_all = ["once", "limit", "read", "write", "fair", "also", "redlock", "min_hold"])]
    pub(crate) slot: Option<Duration>,

    /// Begin the slots this much later
    #[arg(long, value_name = "TIME", value_parser = duration::parse_or_zero,
        allow_hyphen_values = true, requires = "slot", conflicts_with = "once")]
    pub(crate) offset: Option<Duration>,

    /// Run once for this ID, across all machines
    #[arg(long, value_name = "ID", group = "turn",
        conflicts_with_all = ["limit", "read", "write", "fair", "also", "redlock", "min_hold"])]
    pub(crate) once: Option<String>,

    /// Remember the ID this long [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true,
        requires = "once", conflicts_with = "slot")]
    pub(crate) keep: Option<Duration>,

    /// Let a slot or an ID run again if CMD failed
    #[arg(long, requires = "turn")]
    pub(crate) retry_failed: bool,

    /// Run a slot or an ID again, or change the slots
    #[arg(long, requires = "turn", hide_short_help = true)]
    pub(crate) again: bool,

    /// Do not run a slot or an ID again after a crash
    #[arg(long, requires = "turn")]
    pub(crate) at_most_once: bool,
}

impl Run {
    /// Returns the name of the program that this run starts, without its folder. For a shell line,
    /// this is the first word that sets no variable.
    pub(crate) fn program(&self) -> Option<String> {
        let word = match &self.line {
            // `NAME=value` words may come before the program.
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
hold prints `held` on stdout when it has the lock, or the fencing token with --fenced. It keeps \
the lock until standard input ends or hold gets INT, TERM, HUP, QUIT, USR1 or USR2. Give it an \
input that stays open: with /dev/null, or as a background job of a terminal, it releases the lock \
immediately. If the lock is lost, hold exits, but nothing stops the work of your script: check \
hold's exit code, or use `leasehold run`.

With --ticket, hold prints a ticket and exits, and the lock stays locked for the time of --lease. \
Within that time, `leasehold run --resume TICKET` continues the hold, or `leasehold release \
--ticket TICKET` ends it. A ticket is one line without special characters. Anyone who has the \
ticket can use the hold.

Exit codes:
  0    standard input has ended, and the lock was released; or the ticket was printed
  1    any other failure, such as a terminal that this process may not read from
  2    wrong usage
  65   the name is in use as something else
  69   no server answered
  70   the lock was lost
  75   the lock was not free in time (--conflict-exit-code sets another number)
  77   the server refused the credentials, or your user lacks a permission
  78   --limit differs from the limit that is set, or a local file can't be read
  128+n  signal n ended hold, and the lock was released

Example:
  sleep 60 | leasehold hold nightly    # holds the lock for a minute
  ticket=$(leasehold hold --ticket --lease 5m export)";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = HOLD_HELP)]
pub(crate) struct Hold {
    /// Lock to hold
    pub(crate) name: OsString,

    #[command(flatten)]
    pub(crate) wanted: Wanted,

    /// Print a ticket and exit, but keep the lock
    #[arg(long, conflicts_with_all = ["also", "redlock"])]
    pub(crate) ticket: bool,

    /// Print JSON
    #[arg(long, hide_short_help = true)]
    pub(crate) json: bool,
}

/// The lock or permit to hold, and how to wait for it.
#[derive(Args)]
pub(crate) struct Wanted {
    #[command(flatten)]
    pub(crate) kind: KindOfLock,

    /// Take a fencing token with the lock
    ///
    /// `run` gives it to the command in $LEASEHOLD_TOKEN, and `hold` prints it.
    // Several readers hold a lock at the same time, and so do several holders of a limit. No token
    // could order them.
    #[arg(long, conflicts_with_all = ["read", "limit"])]
    pub(crate) fenced: bool,

    /// Also hold this lock (repeatable)
    ///
    /// leasehold acquires all of these locks, or none.
    #[arg(long, value_name = "NAME", conflicts_with = "limit")]
    pub(crate) also: Vec<String>,

    /// Wait until N replicas confirm the lock
    ///
    /// A grant or a renewal counts only when this number of replicas has confirmed it.
    // Only locks have this setting.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "N",
        default_value_t = 0,
        conflicts_with = "limit"
    )]
    pub(crate) replicas: u8,

    /// Wait until the lock is written to disk
    ///
    /// The server must have the lock on its disk, and so must as many replicas as --replicas says.
    /// All of them need Redis 7.2 or later, or Valkey, with appendonly yes.
    #[arg(hide_short_help = true, long, conflicts_with = "limit")]
    pub(crate) on_disk: bool,

    /// Hold the lock on most of these servers
    ///
    /// Repeat this option for each server, instead of --redis. The lock counts as held when more
    /// than half of them have it.
    #[arg(long, value_name = "URL", conflicts_with_all = ["limit", "also"])]
    pub(crate) redlock: Vec<OsString>,

    /// Exit at once if the lock is not free
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this long [default: no limit]
    #[arg(short = 'w', long, value_name = "TIME", value_parser = wait, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Tolerate outages for at most this long
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) outage_timeout: Duration,

    /// Free the lock TIME after a crash
    ///
    /// TIME is the lease. leasehold renews the lock whenever a third of the lease has passed.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) lease: Duration,

    /// Keep the lock blocked for TIME after a failover
    ///
    /// No client gets the lock in this time. A restart of the server counts as a failover, too.
    /// TIME must be at least the longest lease, and the same in every client that uses the name.
    /// This option can't be used with a cluster or with Redisson.
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) failover_guard: Option<Duration>,

    /// Promise that no Redisson client uses the lock
    ///
    /// Then the counter of fencing tokens expires a day after its last use. Without this option it
    /// stays on the server, because Redisson would start again at 1. You can mix commands with and
    /// without this option.
    #[arg(hide_short_help = true, long)]
    pub(crate) rust_only: bool,

    /// Exit code if the lock is not free [default: 75]
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Ask the server this often while no notification arrives.
    #[arg(long, hide = true, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) poll_interval: Option<Duration>,
}

impl Wanted {
    /// Returns the exit code if the lock is not free.
    pub(crate) fn busy_exit_code(&self) -> u8 {
        self.conflict_exit_code.unwrap_or(Exit::DEFAULT_BUSY)
    }
}

/// The kind of lock; plain by default.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct KindOfLock {
    /// Serve waiters in order of arrival
    #[arg(long)]
    pub(crate) fair: bool,

    /// Take the read side of a read-write lock
    ///
    /// Commands that hold the read side can run at the same time.
    #[arg(short = 's', long)]
    pub(crate) read: bool,

    /// Take the write side of a read-write lock
    ///
    /// While the command runs, no other command can hold either side.
    #[arg(short = 'x', long)]
    pub(crate) write: bool,

    /// Run up to N at a time, across all machines
    ///
    /// The first run sets N for all clients.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS))]
    pub(crate) limit: Option<u32>,
}

/// The action on the command when the lock is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// Send TERM, and send KILL after the grace time.
    Term,
    /// Send KILL at once.
    Kill,
    /// Let the command continue.
    Warn,
    /// Run this shell line instead of sending TERM.
    Exec(String),
}

fn on_loss(text: &str) -> Result<OnLoss, String> {
    match text.split_once(' ') {
        Some(("exec", line)) if !line.trim().is_empty() => Ok(OnLoss::Exec(line.to_owned())),
        _ => match text.trim() {
            "term" => Ok(OnLoss::Term),
            "kill" => Ok(OnLoss::Kill),
            "warn" => Ok(OnLoss::Warn),
            "exec" => Err("the command after exec is missing; write 'exec CMD' in quotes".into()),
            _ => Err("write term, kill, warn or 'exec CMD'".into()),
        },
    }
}

fn wait(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| match error.as_str() {
        duration::ZERO => "if you don't want to wait, write --no-wait (-n)".into(),
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

/// Turns this process into the command, which dies with leasehold.
#[derive(Args)]
pub(crate) struct RunLaunch {
    /// Write messages as JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Process id of the leasehold that started this process.
    #[arg(long)]
    pub(crate) parent: i32,

    /// Do not start the command from this time on, in milliseconds since the machine was started.
    #[arg(long)]
    pub(crate) before: Option<u64>,

    #[arg(last = true)]
    pub(crate) command: Vec<OsString>,
}
