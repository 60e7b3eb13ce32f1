//! The flags of the sub-commands that look at names or release them.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{MORE, MOST_PERMITS};
use crate::duration;

const SHOW_HELP: &str = "\
show recognises locks of every kind, groups, semaphores and latches, including those of Redisson. \
Some kinds look alike, because they have the same keys: a plain, a fenced and a spin lock; a \
semaphore of which no permit with a lease is in use, and a latch that Leasehold has not set, \
opened or deleted within the last hour. Clients of leasehold report who they are, since when they \
hold a lock, and what they wait for. These reports are up to 20s late; the end of a wait is \
reported within seconds. Clients of Redisson report nothing. But show also counts the connections \
that listen for a release, and these include Redisson's.

With --json, show prints one object:
  name            the name
  kind            a kind of `leasehold ls --kind`, or none or unknown
  held            whether the name is held
  mode            read or write, if the name is a read-write lock
  ttl_ms          time until the name is free, unless it is renewed
  holders         list of holds, each with id, count, ttl_ms, client,
                  held_for_ms, kept (true if the hold is not renewed and lasts
                  until its TTL ends) and guards (how many guards of its
                  process share the hold)
  more            how many holders or values are not shown
  waiting         list of waiters, each with id, wants, client, waited_for_ms
  more_waiting    how many waiters are not shown
  more_clients    true if there are over 200 clients, so that more may wait
  listening       how many connections listen for a release
  last_token      the last fencing token
  clients_denied  true if your user is not allowed to see who the clients are
  slot            the slot of the name, in a cluster
  node            the server of the name, in a cluster or behind sentinels
  values, permits, count    for groups, semaphores and latches

A value that is not known is null, but waiting is always a list.

With --blocked-by, show also prints what the holders wait for: the client that holds a name may be \
waiting for another name, and the client that holds that name for a third one. Each name is \
printed once. Circles, in which clients wait for each other, are printed at the end, the shortest \
first. A client that waits for several names is never part of a circle. In a circle, the task that \
holds one name and the task that waits for the next name may still be unrelated. show does not \
follow a hold that is kept (a ticket, --min-hold or keep_for). It looks at up to 100 names, with \
10 holders each.

With --blocked-by and --json, show prints one object:
  name     the name
  circle   whether any clients wait for each other
  circles  list of circles, each a list of names
  chain    list of holds, each with name, depth (0 for the name itself), holder
           (id, kept and client) and see_above (true if the holders of this name
           are earlier in the list; holder is null in this case)
  cut      true if show has not followed all holders

Exit codes: 0 for success; 1 (only with --exit-code) when no client holds the name, no permit with \
a lease is in use, the latch is open, or the key is a number above 0 \
(the free permits of a semaphore, or the count of a latch that Leasehold has not set, opened or \
deleted within the last hour); 65 when show does not know the kind of the key; 69 when no server \
answered; 77 when the server refused; 78 when a local file can't be read.

Examples:
  leasehold show nightly
  leasehold show --exit-code nightly || echo 'it is free'
  leasehold show --blocked-by nightly";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = SHOW_HELP)]
pub(crate) struct Show {
    /// Name to look at
    pub(crate) name: OsString,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Exit with 1 if the name is free
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Show what the holders wait for
    ///
    /// If a holder waits for another name, show also prints the holders of that name, and so on.
    #[arg(long, conflicts_with = "exit_code")]
    pub(crate) blocked_by: bool,
}

const LS_HELP: &str = "\
ls walks over all keys of the server, a page at a time, and prints the names as it finds them. It \
leaves out the keys of other programs, except for numbers: a counter of another program looks like \
the permits of a semaphore. A free lock has no key, so it is not listed.

In a pattern, * matches any text, ? any byte, [a-c] one of these bytes, and \\ makes the next \
character literal. Quote the pattern, or the shell expands it.

With --json, each line is an object as in `leasehold show --json`, with at most 10 holders.

ls leaves out names that your user is not allowed to look at, names longer than 1000 bytes, and \
names that are not UTF-8. A line on stderr says how many it leaves out. For the first name that is \
not UTF-8, another line shows how to read it with redis-cli.

Exit codes: 0, even if no name is found; 69 when no server answered; 77 when the server refused, \
or nothing is listed because your user is not allowed to look at the keys; 78 when a local file \
can't be read.

Examples:
  leasehold ls
  leasehold ls 'orders:*'
  leasehold ls --kind rw --json
  leasehold ls --older-than 5m";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = LS_HELP)]
pub(crate) struct Ls {
    /// Show only names that match this pattern
    #[arg(default_value = "*")]
    pub(crate) pattern: String,

    /// Show only names of this kind
    ///
    /// lock: plain, fair, fenced and spin locks; rw: read-write locks; group: groups of locks;
    /// permits: semaphores with leases, while permits are in use; latch: latches that Leasehold
    /// set, opened or deleted within the last hour; count: all other semaphores and latches, and
    /// numbers that other programs store.
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub(crate) kind: Option<KindOfName>,

    /// Show only names held for longer than this
    ///
    /// Names whose holders do not report when they acquired them are left out.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) older_than: Option<Duration>,

    /// Print JSON, one line for each name
    #[arg(long)]
    pub(crate) json: bool,
}

/// The kind of a name, as a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindOfName {
    /// Plain, fair, fenced and spin locks
    Lock,
    /// Read-write locks
    Rw,
    /// Groups of locks
    Group,
    /// Semaphores with leases, while permits are in use
    Permits,
    /// All other semaphores and latches, and numbers that other programs store
    Count,
    /// Latches that Leasehold set, opened or deleted within the last hour
    Latch,
}

const TOP_HELP: &str = "\
Arrows or j and k select a name. Enter shows details of the name. r takes the name from its first \
holder, after asking you. s sorts by the next column, / filters, p pauses, q quits. CHG/S is the \
number of new holders that top has seen per second. It is too low for locks that are held for less \
than the time of --every. top looks at up to 1000 names; the first line says whether there may be \
more, and what top leaves out. A narrow terminal shows fewer columns. NO_COLOR is respected.

Exit codes: 0 for success; 2 without a terminal; 69 when no server answered the first query; 77 \
when the server refused; 78 when a local file can't be read.";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = TOP_HELP)]
pub(crate) struct Top {
    /// Show only names that match this pattern
    #[arg(default_value = "*")]
    pub(crate) pattern: String,

    /// Show only names of this kind
    ///
    /// lock: plain, fair, fenced and spin locks; rw: read-write locks; group: groups of locks;
    /// permits: semaphores with leases, while permits are in use; latch: latches that Leasehold
    /// set, opened or deleted within the last hour; count: all other semaphores and latches, and
    /// numbers that other programs store.
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub(crate) kind: Option<KindOfName>,

    /// Query the server this often
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s", allow_hyphen_values = true)]
    pub(crate) every: Duration,
}

const RELEASE_HELP: &str = "\
release takes a lock from its holder. It prints who the holder is, and for how long the holder may \
continue as if it still had the lock. A Leasehold holder learns of the loss at its next renewal, \
within a third of its lease. A Redisson holder never learns of the loss. Stop the holder's work \
first: after the release, no lock protects this work.

release ends only one hold, and only if the server still has the hold under the printed id. If the \
lock changes hands before the release, release does not end the new hold. In the first second \
after its grant, a hold may pass to the next waiter of the same process, under the same id. \
Readers of one process may share a hold (`leasehold show` prints how many do). Then all of them \
lose it. If there are several holds, --holder chooses one, and --force ends all. At a terminal, \
release asks you first. Without a terminal, it needs --yes.

--holder takes a hold's id, as `leasehold show` prints it; for a semaphore with leases, a permit's \
id.

Exit codes:
  0    released
  1    the answer to the question was no
  2    wrong usage, --yes is missing, or several holds need --holder or --force
  65   the kind has no holders: a latch, a semaphore without leases
  66   no client holds the name, or the hold of the --ticket has ended
  69   no server answered
  75   the name is not held by --holder, or it changed hands before the release; or another process
       has resumed the --ticket
  77   the server refused
  78   a local file (--password-file, --cacert) can't be read

Example:
  leasehold release --yes nightly || test $? = 66    # it was free already";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = RELEASE_HELP)]
pub(crate) struct Release {
    /// Name to release
    #[arg(required_unless_present = "ticket")]
    pub(crate) name: Option<OsString>,

    /// End the hold of this ticket, instead of NAME
    ///
    /// `leasehold hold --ticket` prints a ticket. With -, the ticket is the first line of standard
    /// input. No confirmation is needed.
    #[arg(long, value_name = "TICKET", conflicts_with_all = ["name", "holder", "force"])]
    pub(crate) ticket: Option<String>,

    /// End this hold only
    #[arg(long, value_name = "ID")]
    pub(crate) holder: Option<String>,

    /// End all holds of the name
    #[arg(long, conflicts_with = "holder")]
    pub(crate) force: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Print the released holds as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const WATCH_HELP: &str = "\
watch prints a line for each change: who holds the name, who waits in its queue, how many \
connections listen, the count of a latch or a semaphore, and who a client is, once the client \
reports it. watch queries the server at intervals (--every), when a message reports a release, and \
when a lease ends. So it misses holds and waits that begin and end between two queries. watch ends \
when it gets a signal, or after the time of --for.

--exec runs CMD with /bin/sh for each line, after the line is printed. CMD has these variables:
  LEASEHOLD_NAME         the name
  LEASEHOLD_CHANGE       kind, held, released, waits, waits-no-more, client,
                         count or listening
  LEASEHOLD_ID           the holder or the waiter
  LEASEHOLD_KIND, LEASEHOLD_COUNT, LEASEHOLD_LISTENING
                         the new value
  LEASEHOLD_CHANGE_JSON  the line of --json

watch runs one CMD at a time, and waits until it ends. Then watch continues with the changes from \
the last printed state to the present state. If CMD fails, watch prints a message on stderr and \
continues. A signal that ends watch is passed on to CMD, and watch waits until CMD has ended. \
Another signal kills CMD.

Exit codes: 0 after --for; 128+n when signal n ended it; 69 when no server answered the first \
query; 77 when the server refused; 78 when a local file can't be read.

Examples:
  leasehold watch --for 1s nightly
  leasehold watch --for 1s --json nightly
  leasehold watch --for 1s --exec 'logger \"$LEASEHOLD_CHANGE_JSON\"' nightly";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = WATCH_HELP)]
pub(crate) struct Watch {
    /// Name to watch
    pub(crate) name: OsString,

    /// Query the server at least this often
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s", allow_hyphen_values = true)]
    pub(crate) every: Duration,

    /// Stop this long after the first query
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) limit: Option<Duration>,

    /// Run this shell command for each change
    #[arg(long, value_name = "CMD", allow_hyphen_values = true)]
    pub(crate) exec: Option<OsString>,

    /// Print JSON, one line for each change
    #[arg(long)]
    pub(crate) json: bool,
}

const SET_LIMIT_HELP: &str = "\
Running commands continue. If you lower the number, no new command starts until enough running \
commands have ended. Without set-limit, the first `leasehold run --limit N NAME` sets the number.

A limit stays until you remove it with --remove. At a terminal, --remove asks you first. Without a \
terminal, it needs --yes. A command that starts at the moment of the removal loses its permit.

A number that another program has stored looks like a limit, unless it expires.

Exit codes: 0 for success; 1 when the answer to the question was no; 2 for wrong usage, or when \
--yes is missing; 65 when the name is in use as something else; 66 when there is no limit to \
remove; 69 when no server answered; 75 when commands still run under the limit to remove; 77 when \
the server refused; 78 when a local file can't be read.

Examples:
  leasehold set-limit thumbnails 8
  leasehold set-limit --remove --yes thumbnails || test $? = 66    # it had none";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = SET_LIMIT_HELP)]
pub(crate) struct SetLimit {
    /// Name that `run --limit` uses
    pub(crate) name: OsString,

    /// Number of commands that may run at a time
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_PERMITS), required_unless_present = "remove")]
    pub(crate) limit: Option<u32>,

    /// Remove the limit
    #[arg(long, conflicts_with = "limit")]
    pub(crate) remove: bool,

    /// Do not ask for confirmation
    #[arg(short, long, requires = "remove")]
    pub(crate) yes: bool,
}
