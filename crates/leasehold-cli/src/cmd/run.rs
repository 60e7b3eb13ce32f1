//! `leasehold run`: a command under a lock.

mod child;
pub(super) mod deadman;
mod holding;
pub(super) mod launch;
mod terminal;
mod wait;
mod wanted;
mod watch;

use std::ffi::OsString;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{Client, ErrorKind};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::{name_of_lock, runtime, shut_down};
use crate::cli::Run;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::tell;
use crate::server::Server;
use crate::signals::Signals;
use crate::usage::command_line;
use child::Group;
use deadman::Deadman;
use holding::Holding;
use terminal::{StopRequests, Terminal};
use wait::{Waited, Waiting};
use watch::{Schedule, Watch};

/// How long the program stays after a signal, or after a release that failed, to
/// leave nothing behind.
const TIDY_LIMIT: Duration = Duration::from_secs(3);

/// What is to be run, and how.
struct Job<'a> {
    args: &'a Run,
    name: String,
    schedule: Schedule,
}

/// Not a future: the part that stops this process on Ctrl-Z has to run on the main
/// thread (see [`Terminal::stop_us`]).
pub(crate) fn run(args: &Run, servers: &[Server]) -> Result<Exit, Failure> {
    let job = Job {
        args,
        name: what_to_run(args)?,
        schedule: Schedule::new(args.lease, args.grace)?,
    };
    // The runtime's threads must not take the stop signal of the terminal.
    terminal::hold_back_stops(true);
    let runtime = runtime()?;
    terminal::hold_back_stops(false);
    let result = under_lock(&runtime, &job, servers);
    shut_down(runtime);
    result
}

/// Checks that there is a command, and returns the name of the lock.
fn what_to_run(args: &Run) -> Result<String, Failure> {
    let right = |name: OsString, command: &[OsString]| {
        let mut words = vec!["leasehold".into(), "run".into(), name, "--".into()];
        words.extend_from_slice(command);
        command_line(&words)
    };
    let Some(name) = args.name.clone() else {
        let placeholder = [OsString::from("CMD")];
        let command = match args.command.as_slice() {
            [] => &placeholder,
            command => command,
        };
        return Err(Failure::usage(format!(
            "the name of the lock is missing; write: {}",
            right("NAME".into(), command)
        )));
    };
    if args.command.is_empty() {
        return Err(Failure::usage(format!(
            "there is no command to run under the lock; write: {}",
            right(name, &["CMD".into()])
        )));
    }
    name_of_lock(name)
}

fn under_lock(runtime: &Runtime, job: &Job<'_>, servers: &[Server]) -> Result<Exit, Failure> {
    // Before the first request leaves: a signal from now on leaves nothing behind.
    let mut signals = {
        let _context = runtime.enter();
        Signals::listen()?
    };
    let waiting = Waiting::new(job.args, &job.name, servers);
    let (clients, guard) = match runtime.block_on(waiting.until_held(&mut signals))? {
        Waited::Held(clients, guard) => (clients, guard),
        Waited::Busy => return Ok(Exit::Busy(job.args.conflict_exit_code)),
        Waited::Ended(signal) => return Ok(Exit::Signal(signal as i32)),
    };
    terminal::hold_back_stops(true);
    let end = runtime.block_on(supervise(job, &guard, signals));
    terminal::hold_back_stops(false);
    runtime.block_on(give_back(clients, guard, end))
}

/// Runs the command until it has ended, or until the lock is lost and it has been
/// ended.
async fn supervise(job: &Job<'_>, guard: &Holding, signals: Signals) -> Result<Exit, Failure> {
    let stops = StopRequests::listen()?;
    // Before the command starts: where our parent has its children's ends ignored,
    // a command that is quick would otherwise leave no exit code.
    let children = signal(SignalKind::child())
        .map_err(|error| Failure::io("can't listen for the command's end", error))?;
    let mut terminal = Terminal::open();
    let mut deadman = Deadman::start()?;
    // From before the command is there: if we are stopped right after its start, it has
    // to end in time all the same.
    deadman.kill_at(job.schedule.kill_at(guard.valid_until()));
    if !guard.is_held() || deadman.has_struck() {
        deadman.dismiss();
        tell("the lock was lost before the command began; run it again");
        return Ok(Exit::Lost);
    }
    // The command inherits what is held back, and must stop on Ctrl-Z.
    terminal::hold_back_stops(false);
    let group = Group::spawn(&job.name, guard.token(), &job.args.command);
    terminal::hold_back_stops(true);
    let group = group?;
    deadman.guard(group.id());
    terminal.hand_over_at_start(&group);
    let watch = Watch {
        schedule: job.schedule,
        group,
        deadman,
        guard,
        terminal,
        signals,
        stops,
        children,
    };
    watch.until_ended().await
}

/// Releases the lock, however the command ended.
async fn give_back(
    clients: Vec<Client>,
    guard: Holding,
    end: Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    if matches!(end, Ok(Exit::Lost)) {
        // Told already. What is left of the lock is given back, until it ends by itself.
        let limit = guard.valid_until().min(Instant::now() + TIDY_LIMIT);
        let _ = tokio::time::timeout_at(limit, guard.release()).await;
        return end;
    }
    match guard.release().await {
        Ok(()) => end,
        Err(error) if error.kind() == ErrorKind::Lost => Err(match end {
            // The command never ran, so nothing was unprotected.
            Err(failure) => failure,
            Ok(_) => error.into(),
        }),
        Err(error) => {
            // The command was protected to its end; its exit code stands.
            tell(Failure::from(error));
            tidy(&clients).await;
            end
        }
    }
}

/// Waits until nothing is left to release, within reason.
async fn tidy(clients: &[Client]) {
    let close = join_all(clients.iter().map(Client::close));
    // Over time: the lease does what is left.
    let _ = tokio::time::timeout(TIDY_LIMIT, close).await;
}
