//! The flags of `leasehold doctor`.

use clap::Args;

use super::MORE;

const HELP: &str = "\
doctor queries each server that stores keys of locks. As a test, it acquires and releases a few \
locks whose names begin with the value of --name. It changes nothing else. Each finding says what \
to do. If a sentence of docs/guarantees.md does not hold because of the finding, the finding \
quotes the sentence. A finding about several servers is printed once. If a server refuses to \
report a fact, doctor prints a note about it.

Example:
  leasehold doctor --json

Exit codes: 0 if there are no findings except notes; 1 if the worst finding is a warning; 2 when \
locks are unsafe on this server, and for wrong usage; 69 when no server answered; 77 when the \
server refused; 78 when a local file can't be read.";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = HELP)]
pub(crate) struct Doctor {
    /// Prefix for test lock names
    ///
    /// The user that you connect as needs access to the names that begin with this prefix.
    #[arg(long, value_name = "NAME", default_value = "leasehold-doctor")]
    pub(crate) name: String,

    /// Warn if fewer replicas are connected
    ///
    /// Use the number that your jobs pass to `run --replicas`.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) replicas: u8,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
