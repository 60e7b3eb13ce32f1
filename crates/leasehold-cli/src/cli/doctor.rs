//! Flags of `leasehold doctor`.

use clap::Args;

const HELP: &str = "\
It asks each server that has keys about itself, and takes and gives back a few locks under names that
begin with --name. It changes nothing else. Each finding says what to do, and which sentence of
docs/guarantees.md does not hold with it, if there is one. What several servers have in common is told
once. What the server refuses to tell is a note.

Example:
  leasehold doctor --json

Exit codes: 0 when there is nothing but notes; 1 with warnings; 2 when locks are unsafe there, and for
wrong usage; 69 when no server answered; 77 when the server refused; 78 when a local file can't be
read.";

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Doctor {
    /// Name to try locks with, and the beginning of others: one that this user may use
    #[arg(long, value_name = "NAME", default_value = "leasehold-doctor")]
    pub(crate) name: String,

    /// Warns if fewer replicas are connected than locks are to be confirmed by (`run --replicas`)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) replicas: u8,

    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
}
