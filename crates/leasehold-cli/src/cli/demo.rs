//! The flags of `leasehold demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::MORE;
use crate::duration;

const DEMO_HELP: &str = "\
The stock is a file outside the lock: a worker reads it, works for --pause, and writes it back. \
With the lock, every item is sold once. Without it (--no-lock), sales get lost and items are sold \
twice.

Without --redis, the workers are tasks of this process and need no server; $LEASEHOLD_URL and \
$REDIS_URL are ignored. With --redis, they are processes. The demo prints their process ids, so \
that you can kill one.

Exit codes: 0 when every item was sold once, or, with --no-lock, when items were sold twice or \
sales got lost; 1 for any other outcome; 128+n when signal n ended it; 69 when no server answered; \
77 when the server refused; 78 when a local file can't be read.";

#[derive(Args)]
#[command(after_help = MORE, after_long_help = DEMO_HELP)]
pub(crate) struct Demo {
    /// Start this number of workers
    ///
    /// 2 to 64. The default is 5, and 8 with --redis.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) workers: Option<u8>,

    /// Sell this number of items
    ///
    /// 2 to 10000.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    pub(crate) stock: u64,

    /// Duration of a sale
    ///
    /// At most 10s. The default is 5ms, and 25ms with --redis.
    #[arg(long, value_name = "TIME", value_parser = pause, allow_hyphen_values = true)]
    pub(crate) pause: Option<Duration>,

    /// Kill the holder when half of the stock is sold
    #[arg(long)]
    pub(crate) kill: bool,

    /// Sell without the lock, to see what happens
    #[arg(long, conflicts_with = "kill")]
    pub(crate) no_lock: bool,

    /// Draw with plain ASCII
    ///
    /// Use this at a terminal that can't show UTF-8 although its locale says that it can.
    #[arg(long)]
    pub(crate) ascii: bool,
}

/// A worker of the demo, as a process. Its parent reads its output.
#[derive(Args)]
pub(crate) struct DemoWorker {
    /// Folder of the stock.
    #[arg(long)]
    pub(crate) stock: PathBuf,

    /// Number of the worker, from 1.
    #[arg(long)]
    pub(crate) number: usize,

    /// Lock to hold for each sale; none with --no-lock.
    #[arg(long)]
    pub(crate) lock: Option<String>,

    /// Duration of a sale.
    #[arg(long, value_parser = duration::parse)]
    pub(crate) pause: Duration,

    /// Number of items that are left when a worker stops and waits to be killed.
    #[arg(long)]
    pub(crate) victim_at: Option<u64>,

    /// Maximum number of items that a worker without a lock sells.
    #[arg(long)]
    pub(crate) limit: u64,
}

fn pause(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        pause if pause > Duration::from_secs(10) => Err("a sale can take at most 10s".into()),
        pause => Ok(pause),
    }
}
