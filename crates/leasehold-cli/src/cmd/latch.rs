//! `leasehold latch`: a start that several wait for.

use leasehold::CountDownLatch;

use super::name_of_lock;
use crate::cli::{Latch, LatchAction};
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Shown, tell};
use crate::server::Server;
use crate::signals::Signals;

pub(crate) async fn latch(args: Latch, server: &Server) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        exit = act(args, server) => exit,
        signal = signals.next() => Ok(Exit::Signal(signal as i32)),
    }
}

async fn act(args: Latch, server: &Server) -> Result<Exit, Failure> {
    let (Latch { action }, client) = (args, server.connect(None).await?);
    match action {
        LatchAction::Wait {
            name,
            wait,
            outage_limit,
        } => {
            let latch = client.count_down_latch(&name_of_lock(name)?);
            open_in_time(&latch.outage_limit(outage_limit), wait).await
        }
        LatchAction::Down { name, by } => {
            let latch = client.count_down_latch(&name_of_lock(name)?);
            output::result(latch.count_down_by(by).await?)?;
            Ok(Exit::Success)
        }
        LatchAction::Set { name, count } => {
            let latch = client.count_down_latch(&name_of_lock(name)?);
            set(&latch, count).await
        }
    }
}

async fn open_in_time(
    latch: &CountDownLatch,
    limit: Option<std::time::Duration>,
) -> Result<Exit, Failure> {
    let Some(limit) = limit else {
        latch.wait().await?;
        return Ok(Exit::Success);
    };
    if latch.wait_for(limit).await? {
        return Ok(Exit::Success);
    }
    let name = Shown(latch.name());
    let left = match latch.count().await {
        Ok(0) => return Ok(Exit::Success),
        Ok(left) => format!(": {left} to count down"),
        // What counts is that the time is over.
        Err(_) => String::new(),
    };
    tell(format_args!(
        "`{name}` was not open within {}{left}; wait longer with --wait",
        duration::shown(limit)
    ));
    Ok(Exit::Busy(Exit::DEFAULT_BUSY))
}

async fn set(latch: &CountDownLatch, count: u64) -> Result<Exit, Failure> {
    if latch.try_set_count(count).await? {
        return Ok(Exit::Success);
    }
    let name = Shown(latch.name());
    let left = match latch.count().await {
        Ok(left) => format!(", with {left} to count down"),
        Err(_) => String::new(),
    };
    tell(format_args!(
        "`{name}` is set already{left}; wait until it is open, or use another name"
    ));
    Ok(Exit::Busy(Exit::DEFAULT_BUSY))
}
