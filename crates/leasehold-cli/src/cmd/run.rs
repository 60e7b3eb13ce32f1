//! `leasehold run`: a command under a lock.

mod child;
pub(super) mod deadman;
pub(super) mod launch;
mod metrics_file;
mod terminal;
mod watch;

use std::ffi::OsString;

use leasehold::{Client, ErrorKind};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::acquire::{Holding, TIDY_LIMIT, Waited, Waiting, tidy};
use super::doctor::brief;
use super::{name_of_lock, runtime, shut_down};
use crate::cli::{OnLoss, Run};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, tell};
use crate::server::Server;
use crate::signals::Signals;
use crate::usage::command_line;
use child::Group;
use deadman::Deadman;
use metrics_file::MetricsFile;
use terminal::{StopRequests, Terminal};
use watch::{Schedule, Watch};

/// What is to be run, and how.
struct Job<'a> {
    args: &'a Run,
    name: String,
    command: Vec<OsString>,
    schedule: Schedule,
}

/// Not a future: the part that stops this process on Ctrl-Z has to run on the main
/// thread (see [`Terminal::stop_us`]).
pub(crate) fn run(args: &Run, servers: &[Server]) -> Result<Exit, Failure> {
    if args.json {
        output::tell_json();
    }
    let command = match &args.line {
        Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
        None => args.command.clone(),
    };
    let job = Job {
        args,
        name: what_to_run(args, &command)?,
        command,
        schedule: Schedule::new(args.wanted.lease, args.grace)?,
    };
    // The runtime's threads must not take the stop signal of the terminal.
    terminal::hold_back_stops(true);
    let runtime = runtime()?;
    terminal::hold_back_stops(false);
    let path = args.metrics_file.as_deref();
    let metrics = path.map(|path| MetricsFile::start(&runtime, path, &job.name));
    let metrics = metrics.transpose()?;
    let result = under_lock(&runtime, &job, servers);
    if let Some(metrics) = metrics
        && let Err(failure) = metrics.write()
    {
        // The command has run; its exit code stands.
        tell(failure);
    }
    shut_down(runtime);
    result
}

/// Checks that there is a command, and returns the name of the lock.
fn what_to_run(args: &Run, command: &[OsString]) -> Result<String, Failure> {
    let right = |name: OsString, command: &[OsString]| {
        let mut words = vec!["leasehold".into(), "run".into(), name, "--".into()];
        words.extend_from_slice(command);
        command_line(&words)
    };
    let Some(name) = args.name.clone() else {
        let placeholder = [OsString::from("CMD")];
        let command = match command {
            [] => &placeholder,
            command => command,
        };
        return Err(Failure::usage(format!(
            "the name of the lock is missing; write: {}",
            right("NAME".into(), command)
        )));
    };
    if command.is_empty() {
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
    let waiting = Waiting::new(&job.args.wanted, &job.name, servers);
    let (clients, guard) = match runtime.block_on(waiting.until_held(&mut signals))? {
        Waited::Held(clients, guard) => (clients, guard),
        Waited::Busy => return Ok(Exit::Busy(job.args.wanted.conflict_exit_code)),
        Waited::Ended(signal) => return Ok(Exit::Signal(signal as i32)),
    };
    let rests_until = job.args.min_hold.map(|least| Instant::now() + least);
    output::event(Event::Held, &job.name, || guard.told());
    if output::is_watched() {
        // Beside the command, which waits for no warning.
        for client in clients.clone() {
            runtime.spawn(async move {
                if let Some(warning) = brief(&client).await {
                    output::note(warning);
                }
            });
        }
    }
    terminal::hold_back_stops(true);
    let end = runtime.block_on(supervise(job, &guard, &mut signals));
    terminal::hold_back_stops(false);
    if let (Some(until), Ok(exit)) = (rests_until, &end)
        && *exit != Exit::Lost
    {
        runtime.block_on(rest(&guard, until, &mut signals));
    }
    let exit = runtime.block_on(give_back(job, clients, guard, end));
    output::event(Event::Released, &job.name, Vec::new);
    exit
}

/// Keeps the lock for a while behind the command. A signal ends this, and so does the loss of the
/// lock: nothing runs that would have to be told.
async fn rest(guard: &Holding, until: Instant, signals: &mut Signals) {
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        _ = signals.next() => {}
        _ = guard.lost() => {}
    }
}

/// Runs the command until it has ended, or until the lock is lost and it has been
/// ended.
async fn supervise(job: &Job<'_>, guard: &Holding, signals: &mut Signals) -> Result<Exit, Failure> {
    let stops = StopRequests::listen()?;
    // Before the command starts: where our parent has its children's ends ignored,
    // a command that is quick would otherwise leave no exit code.
    let children = signal(SignalKind::child())
        .map_err(|error| Failure::io("can't listen for the command's end", error))?;
    let mut terminal = Terminal::open();
    let mut deadman = Deadman::start()?;
    // From before the command is there: if we are stopped right after its start, it has
    // to end in time all the same.
    if job.args.on_loss != OnLoss::Warn {
        deadman.kill_at(job.schedule.kill_at(guard.valid_until()));
    }
    if !guard.is_held() || deadman.has_struck() {
        deadman.dismiss();
        tell("the lock was lost before the command began; run it again");
        return Ok(Exit::Lost);
    }
    // The command inherits what is held back, and must stop on Ctrl-Z.
    terminal::hold_back_stops(false);
    let group = Group::spawn(&job.name, guard.token(), &job.command);
    terminal::hold_back_stops(true);
    let group = group?;
    deadman.guard(group.id());
    terminal.hand_over_at_start(&group);
    output::event(Event::Started, &job.name, || {
        vec![("pid", group.id().as_raw().into())]
    });
    let watch = Watch {
        schedule: job.schedule,
        on_loss: &job.args.on_loss,
        max_run: job.args.max_run.map(|most| (Instant::now() + most, most)),
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
    job: &Job<'_>,
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
    let was_told = guard.loss().is_some();
    let end = match guard.release().await {
        Ok(()) => end,
        Err(error) if error.kind() == ErrorKind::Lost && job.args.on_loss == OnLoss::Warn => {
            if !was_told {
                tell(Failure::from(error));
            }
            end
        }
        Err(error) if error.kind() == ErrorKind::Lost => Err(match end {
            // The command never ran, so nothing was unprotected.
            Err(failure) => failure,
            Ok(_) => error.into(),
        }),
        Err(error) => {
            // The command was protected to its end; its exit code stands.
            tell(Failure::from(error));
            end
        }
    };
    // Operators must not see a command that has ended.
    tidy(&clients).await;
    end
}
