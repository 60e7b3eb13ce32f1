//! The flags of what looks at names, and frees them.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::MOST_PERMITS;
use crate::duration;

const SHOW_HELP: &str = "\
It recognises locks of every kind, groups, semaphores and latches, those of Redisson's among them.
Some have the same keys: a plain, a fenced and a spin lock; a semaphore that nobody uses and a
latch that Redisson has set. Clients of leasehold say who they are, since when they hold a lock, and
what they wait for, up to 20s late; that a wait has ended they say within some seconds. Those of
Redisson say nothing. Of all it is known how many connections
listen for a release.

With --json: name; kind (none, lock, read_write_lock, group, semaphore_with_leases,
semaphore_or_latch, latch, unknown); held; holders, each with id, count, ttl_ms, client,
held_for_ms and guards (how many of its process share the hold); ttl_ms; mode; more (how many are not shown); waiting, each with id, wants, client and waited_for_ms; more_waiting;
more_clients (whether others than the first 200 clients may wait, too); listening; last_token; clients_denied; and as far as the kind has them values, permits and count. What
is not known is null.

With --blocked-by it follows the holders: a client waits for another name, whose holder may wait in
turn. Each name is told once. Circles follow, the shortest one first; only clients that wait for a
single name count for them, and also their tasks may have nothing to do with each other. At most 100
names are looked at, with 10 holders each. With --json: name; circle; circles, each a list of names;
chain, each with name, depth, holder (id and client; null with see_above) and see_above; and cut, which
is true when there is more.

Exit codes: 0; with --exit-code 1 when nobody holds it, or no permit is in use, or the latch is open;
65 when the key is none that it knows; 69 when no server answered; 77 when the server refused; 78 when
a local file can't be read.

Examples:
  leasehold show nightly
  leasehold show --exit-code nightly || echo 'it is free'
  leasehold show --blocked-by nightly";

#[derive(Args)]
#[command(after_help = SHOW_HELP)]
pub(crate) struct Show {
    /// Name to look at
    pub(crate) name: OsString,

    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Exits with 1 when it is free
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Tells what its holders wait for themselves, and who has that
    #[arg(long, conflicts_with = "exit_code")]
    pub(crate) blocked_by: bool,
}

const LS_HELP: &str = "\
It walks over all keys of the server, a page at a time, and tells the names as it finds them. Other
people's keys are left out, but for numbers: nothing tells a counter from the permits of a semaphore.
A lock that is free has no key, and is not told.

In a pattern * is any text, ? any byte, [a-c] one of some, and \\ takes the meaning from what
follows. Quote it, or the shell reads it.

With --json an object for each line, as `leasehold show --json` has it, with at most ten holders.

Names that this user may not look at, that are longer than 1000 bytes, or that are not UTF-8 are left
out; a line on stderr says how many, and how redis-cli looks at one that is not UTF-8.

Exit codes: 0, also when there is none; 69 when no server answered; 77 when the server refused, or
nothing is listed because this user may not look at the keys; 78 when a local file can't be read.

Examples:
  leasehold ls
  leasehold ls 'orders:*'
  leasehold ls --kind rw --json
  leasehold ls --older-than 5m";

#[derive(Args)]
#[command(after_help = LS_HELP)]
pub(crate) struct Ls {
    /// Pattern that the names fit
    #[arg(default_value = "*")]
    pub(crate) pattern: String,

    /// Names of this kind only
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<KindOfName>,

    /// Names that somebody has held for longer than this, as far as its client says so
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) older_than: Option<Duration>,

    /// Prints JSON, a line for each name
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a name can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindOfName {
    /// Plain, fair, fenced and spin locks
    Lock,
    /// Read-write locks
    Rw,
    /// Groups of locks
    Group,
    /// Semaphores with leases, of which permits are in use
    Permits,
    /// Semaphores without leases, latches of Redisson, and other people's numbers
    Count,
    /// Latches
    Latch,
}

const TOP_HELP: &str = "\
Arrows or j and k select a name; enter shows all that is known of it, r takes it from its first holder
(it asks), s sorts by another column, / filters, p pauses, q ends. CHG/S is how often a second the
holder was another one at a look, so it is too low for locks that are held more briefly than --every. At
most 1000 names are looked at; the first line says when there may be more, and what was left out. A
narrow terminal shows fewer columns. NO_COLOR is respected.

Exit codes: 0; 2 without a terminal; 69 when no server answered at first; 77 when the server refused;
78 when a local file can't be read.";

#[derive(Args)]
#[command(after_help = TOP_HELP)]
pub(crate) struct Top {
    /// Pattern that the names fit
    #[arg(default_value = "*")]
    pub(crate) pattern: String,

    /// Names of this kind only
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) kind: Option<KindOfName>,

    /// Looks this often
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s", allow_hyphen_values = true)]
    pub(crate) every: Duration,
}

const RELEASE_HELP: &str = "\
It takes a lock from its holder. It says who that is, and until when the holder may still believe in
the lock: a holder of this library until its next renewal, a third of its lease. A holder of
Redisson is not told at all. First end what the holder does, or nothing protects it any more.

One hold is ended, and only if the server still has it under the id that was told. No other hold is
touched, also if the lock changes hands meanwhile. Two things to know of an id: for the first second
after its grant a hold may pass to the next waiter of the same process under its id; and readers of one
process may share one, and lose it together (`leasehold show` says how many). --holder says which,
where there are several; --force takes all of them. On a terminal it asks first. Elsewhere it needs
--yes.

A holder is a hold's id, as `leasehold show` tells it; of a semaphore with leases, a permit's.

Exit codes:
  0    released
  1    the answer to the question was no
  2    wrong usage, --yes is missing, or several hold it and neither --holder nor --force says which
  65   the name is of another kind, which nobody holds: a latch, a semaphore without leases
  66   nobody holds it
  69   no server answered
  75   somebody else than --holder holds it, or it changed hands meanwhile
  77   the server refused
  78   a local file (--password-file, --cacert, --cert, --key) can't be read

Example:
  leasehold release --yes nightly || test $? = 66    # it was free already";

#[derive(Args)]
#[command(after_help = RELEASE_HELP)]
pub(crate) struct Release {
    /// Name to free
    pub(crate) name: OsString,

    /// Ends this hold, and no other
    #[arg(long, value_name = "ID")]
    pub(crate) holder: Option<String>,

    /// Ends all holds of the name
    #[arg(long, conflicts_with = "holder")]
    pub(crate) force: bool,

    /// Does not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Prints what was released as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const WATCH_HELP: &str = "\
A line for each change: who holds it, who waits in line, how many listen, what is left to count, and who
a client is, once it has said so. What
happens between two looks (--every) is not seen. It ends with a signal, or --for.

Exit codes: 0 after --for; 128+n when signal n ended it; 69 when no server answered at first; 77 when
the server refused; 78 when a local file can't be read.

Examples:
  leasehold watch --for 1s nightly
  leasehold watch --for 1s --json nightly";

#[derive(Args)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct Watch {
    /// Name to watch
    pub(crate) name: OsString,

    /// Looks this often
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "500ms", allow_hyphen_values = true)]
    pub(crate) every: Duration,

    /// Ends after this long
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) limit: Option<Duration>,

    /// Prints JSON, a line for each change
    #[arg(long)]
    pub(crate) json: bool,
}

const SET_LIMIT_HELP: &str = "\
Commands that run go on; with a lower number nobody starts before enough of them have ended. Without
this, the first `leasehold run --limit N NAME` sets the number.

Exit codes: 0; 1 when the name is something else; 69 when no server answered; 77 when the server
refused; 78 when a local file can't be read.

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
