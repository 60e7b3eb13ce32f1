//! The flags of `leasehold doctor`.

use clap::Args;

use super::MORE;

const HELP: &str = "\
doctor queries each server that has keys, and acquires and releases a few locks under names that \
begin with --name. It changes nothing else. Each finding says what to do, and which sentence of \
docs/guarantees.md does not hold because of it, if there is one. A finding that several servers \
share is printed once. Facts that the server refuses to give are notes.

Example:
  leasehold doctor --json

Exit codes: 0 with nothing but notes; 1 with warnings; 2 when locks are unsafe on this server, and \
for wrong usage; 69 when no server answered; 77 when the server refused; 78 when a local file \
can't be read.";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = HELP)]
pub(crate) struct Doctor {
    /// Prefix for test lock names
    ///
    /// This user needs access to the names that begin with this prefix.
    #[arg(long, value_name = "NAME", default_value = "leasehold-doctor")]
    pub(crate) name: String,

    /// Warn about fewer replicas than this
    ///
    /// Use the number that your jobs pass to `run --replicas`.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) replicas: u8,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
