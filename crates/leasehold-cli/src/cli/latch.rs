//! The flags of `leasehold latch`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::MORE;
use crate::duration;

const LATCH_HELP: &str = "\
A latch is open until it is set, and opens again when it is counted down to zero. When it opens, \
all waiters on all machines continue, even if it is set again at once. `wait` and `down` warn if \
the latch was never set, or was opened over an hour ago: the name may be wrong. A number that \
another program has stored looks like a latch, unless it expires or is below zero.

Exit codes: 0 for success; 65 when the name is in use as something else; 66 (only with \
--must-exist) when the latch is not known; 69 when no server answered; 75 when the latch did not \
open in time, or is set already; 77 when the server refused; 78 when a local file can't be read.

Examples:
  leasehold latch set import-done 3                # there are three parts
  ./part.sh && leasehold latch down import-done    # each part runs this
  leasehold latch wait import-done && ./report.sh  # after all parts";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = LATCH_HELP)]
pub(crate) struct Latch {
    #[command(subcommand)]
    pub(crate) action: LatchAction,
}

#[derive(Subcommand)]
pub(crate) enum LatchAction {
    /// Wait until the latch is open
    Wait {
        /// Latch to wait for
        name: OsString,

        /// Wait at most this long [default: no limit]
        #[arg(short = 'w', long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
        wait: Option<Duration>,

        /// Tolerate outages for at most this long
        #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s", allow_hyphen_values = true)]
        outage_timeout: Duration,

        /// Fail if the latch is not known
        ///
        /// A latch is not known if it was never set, or was opened over an hour ago.
        #[arg(long)]
        must_exist: bool,
    },
    /// Count the latch down, and print the remaining count
    Down {
        /// Latch to count down
        name: OsString,

        /// Count down by this number
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        by: u64,

        /// Fail if the latch is not known
        ///
        /// A latch is not known if it was never set, or was opened over an hour ago.
        #[arg(long)]
        must_exist: bool,
    },
    /// Set the count of an open latch
    Set {
        /// Latch to set
        name: OsString,

        /// Number of times to count down until the latch opens
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
}
