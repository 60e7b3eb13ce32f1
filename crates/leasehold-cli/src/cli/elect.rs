//! The flags of `leasehold elect` and `leasehold leader`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::{MORE, Progress};
use crate::duration;

const ELECT_HELP: &str = "\
leasehold waits until this process leads, and then runs the command. When the command ends, \
leasehold gives up the lead, waits for the time of --restart-delay, and tries again. The delay \
doubles each time the command ends within 10s, up to 60s. If the lead is lost, the command gets \
TERM and KILL as with `leasehold run`, and leasehold tries again. When leasehold gets INT, TERM, \
HUP or QUIT, it passes the signal on to the command, and exits after the command. If the command \
survives a HUP for 10s, or until the lead is lost, leasehold continues.

The command finds the fencing token of its term in $LEASEHOLD_TOKEN. The token is a number that \
rises from term to term. Pass it with each write, so that the resource can refuse writes of a \
former leader. The command also finds the name in $LEASEHOLD_NAME.

With --progress-within, a leader whose command makes no progress loses the lead, as with \
`leasehold run`, and another candidate leads.

Exit codes:
  1    any other failure
  2    wrong usage
  65   the name is in use as something else
  77   the server refused the credentials, or your user lacks a permission
  78   a local file can't be read
  126  the command can't be executed; 127: it was not found; these end leasehold
  128+n  signal n ended leasehold

Example:
  leasehold elect scheduler --payload http://10.0.0.7:8080 -- ./scheduler";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = ELECT_HELP)]
pub(crate) struct Elect {
    /// Name of the election
    pub(crate) name: OsString,

    /// Publish this text while this process leads
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) payload: String,

    /// Pause this long after CMD has ended
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s", allow_hyphen_values = true)]
    pub(crate) restart_delay: Duration,

    /// Free the lead TIME after a crash
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
    pub(crate) lease: Duration,

    /// Wait this long from TERM to KILL
    ///
    /// The default is a third of the lease, at most 10s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    #[command(flatten)]
    pub(crate) progress: Progress,

    /// Print JSON events on stderr
    #[arg(long)]
    pub(crate) json: bool,

    /// Command to run, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Elect {
    /// Returns the name of the command's program.
    pub(crate) fn program(&self) -> Option<String> {
        let program = Path::new(self.command.first()?);
        Some(program.file_name()?.to_string_lossy().into_owned())
    }
}

const LEADER_HELP: &str = "\
Without --json, leader prints the payload of the leader, or the leader's id if there is no payload. \
With --watch, it prints a line for the present leader and then for each change, until a signal \
arrives. A line with `-` or null means that there is no leader. A line of JSON has id, label, \
host, payload, token and since. The leader may have changed before you read the answer.

Exit codes: 0 if there is a leader; 1 if there is none; 65 when the name is in use as something \
else; 69 when no server answered; 77 when the server refused; 78 when a local file can't be read; \
128+n when signal n ended --watch.

Examples:
  curl \"$(leasehold leader scheduler)\"
  leasehold leader --watch --json scheduler";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = LEADER_HELP)]
pub(crate) struct Leader {
    /// Election to show
    pub(crate) name: OsString,

    /// Print a line for each change
    #[arg(long)]
    pub(crate) watch: bool,

    /// Print JSON, one line for each leader
    #[arg(long)]
    pub(crate) json: bool,
}
