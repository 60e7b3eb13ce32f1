//! `leasehold run`: runs a command under a lock.

mod child;
mod copy;
pub(super) mod deadman;
pub(super) mod launch;
#[cfg(feature = "metrics")]
mod metrics_file;
#[cfg(not(feature = "metrics"))]
#[path = "run/no_metrics_file.rs"]
mod metrics_file;
mod processes;
mod progress;
pub(super) mod terminal;
mod watch;

use std::ffi::OsString;
use std::time::Duration;

use leasehold::{Client, ErrorKind, LossReason};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::acquire::{HURRIED, HoldLimits, Holding, TIDY_LIMIT, Waited, Waiting};
use super::acquire::{as_ms, next_holder, not_released, tidy, unless_hurried};
use super::doctor::brief;
use super::{name_of_lock, runtime, shut_down};
use crate::cli::{OnLoss, Progress, Run};
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, tell};
use crate::server::Server;
use crate::signals::Signals;
use crate::usage::command_line;
use child::Group;
use deadman::{Deadman, since_boot};
use metrics_file::MetricsFile;
use progress::Signs;
use terminal::{StopRequests, Terminal};
pub(super) use watch::{End, Schedule};
use watch::{Ending, Watch};

/// A command that runs under a lock.
pub(super) struct Task {
    pub(super) name: String,
    pub(super) command: Vec<OsString>,
    pub(super) schedule: Schedule,
    pub(super) on_loss: OnLoss,
    pub(super) max_run: Option<Duration>,
    pub(super) progress: Progress,
}

/// The task of one run, and its settings.
struct Job<'a> {
    args: &'a Run,
    task: Task,
}

/// Runs a command under its lock. This is not a future: [`Terminal::stop_us`], which stops this
/// process on Ctrl-Z, must run on the main thread.
pub(crate) fn run(args: &Run, servers: &[Server]) -> Result<Exit, Failure> {
    if args.json {
        let name = args.name.as_ref().map(|name| name.to_string_lossy());
        output::tell_json(name.as_deref());
    }
    let command = match &args.line {
        Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
        None => args.command.clone(),
    };
    let job = Job {
        args,
        task: Task {
            name: what_to_run(args, &command)?,
            command,
            schedule: Schedule::new(args.wanted.lease, args.grace)?,
            on_loss: args.on_loss.clone(),
            max_run: args.max_run,
            progress: args.progress.clone(),
        },
    };
    check_min_hold(args)?;
    // Of all threads, only the main thread may receive the terminal's stop signal, so the runtime's
    // threads start with the signal blocked.
    terminal::hold_back_stops(true);
    let runtime = runtime()?;
    terminal::hold_back_stops(false);
    let path = args.metrics_file.as_deref();
    let metrics = path.map(|path| MetricsFile::start(path, &job.task.name));
    let metrics = metrics.transpose()?;
    let result = under_lock(&runtime, &job, servers, metrics.as_ref());
    if let Some(metrics) = metrics
        && let Err(failure) = metrics.end()
    {
        // The command has run, so leasehold still exits with the command's code.
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

/// Refuses `--min-hold` if the server can't keep the lock as one key with an expiry, or if it is
/// longer than `--failover-guard` or `--progress-within`.
fn check_min_hold(args: &Run) -> Result<(), Failure> {
    let Some(least) = args.min_hold else {
        return Ok(());
    };
    let wanted = &args.wanted;
    let other = [
        (wanted.kind.limit.is_some(), "--limit"),
        (wanted.kind.read, "--read"),
        (!wanted.also.is_empty(), "--also"),
        (!wanted.redlock.is_empty(), "--redlock"),
    ];
    if let Some((_, flag)) = other.iter().find(|(is_set, _)| *is_set) {
        return Err(Failure::usage(format!(
            "--min-hold works only with a lock that is a single key, and with {flag} there are several keys; \
             leave out one of the two"
        )));
    }
    if let Some(within) = args.progress.within.filter(|within| *within < least) {
        return Err(Failure::usage(format!(
            "--min-hold {} is longer than --progress-within {}, so without progress the lock would be \
             free too early; make one of them as long as the other",
            duration::shown(least),
            duration::shown(within)
        )));
    }
    match wanted.failover_guard.filter(|span| *span < least) {
        None => Ok(()),
        Some(span) => Err(Failure::usage(format!(
            "--min-hold {} is longer than --failover-guard {}, so after a failover the lock could be \
             free too early; make the guard as long",
            duration::shown(least),
            duration::shown(span)
        ))),
    }
}

fn under_lock(
    runtime: &Runtime,
    job: &Job<'_>,
    servers: &[Server],
    metrics: Option<&MetricsFile>,
) -> Result<Exit, Failure> {
    // Listen before the first request is sent. So if a signal arrives from now on, the lock is
    // released before this process ends.
    let mut signals = {
        let _context = runtime.enter();
        Signals::listen()?
    };
    let limits = HoldLimits {
        min_hold: job.args.min_hold,
        progress_within: job.args.progress.within,
    };
    let waiting = Waiting::new(&job.args.wanted, &job.task.name, servers).limits(limits);
    let turns = &job.args.turns;
    let has_turns = turns.slot.is_some() || turns.once.is_some();
    let waited = match (&job.args.resume, has_turns) {
        (Some(ticket), _) => runtime.block_on(waiting.until_resumed(ticket, &mut signals)),
        (None, true) => runtime.block_on(waiting.until_begun(turns, &mut signals)),
        (None, false) => runtime.block_on(waiting.until_held(&mut signals)),
    };
    let (clients, guard) = match waited? {
        Waited::Held(clients, guard) => (clients, guard),
        Waited::Busy => return Ok(Exit::Busy(job.args.wanted.busy_exit_code())),
        Waited::NotOurs => {
            let code = job.args.wanted.conflict_exit_code;
            return Ok(code.map_or(Exit::Success, Exit::Busy));
        }
        Waited::Ended(signal) => return Ok(Exit::Signal(signal as i32)),
    };
    let held_since = since_boot();
    metrics_file::command_starts();
    if let Some(metrics) = metrics {
        // Write the metrics now that all series exist. So monitoring sees a count of 0 before the
        // first loss.
        metrics.refresh();
    }
    if output::is_watched() {
        // This runs in the background, because the command does not wait for warnings.
        for client in clients.clone() {
            runtime.spawn(async move {
                if let Some(warning) = brief(&client).await {
                    output::note(warning);
                }
            });
        }
    }
    terminal::hold_back_stops(true);
    let mut end = runtime.block_on(supervise(&job.task, &guard, &mut signals));
    terminal::hold_back_stops(false);
    metrics_file::command_ended();
    let rest = end.rest.take();
    let given_back = give_back(job, clients, guard, held_since, end, &mut signals);
    let exit = runtime.block_on(given_back);
    if let Some(rest) = rest {
        // The command has ended and the lock is free, so a slow reader can delay only this process.
        let _ = runtime.block_on(unless_hurried(rest.written(), &mut signals));
    }
    metrics_file::run_ended(exit.as_ref().map_or_else(Failure::exit, |exit| *exit));
    exit
}

/// Runs the command until it has ended, or until the lock is lost and the command was ended.
pub(super) async fn supervise(task: &Task, guard: &Holding, signals: &mut Signals) -> End {
    let never_began = |exit| End {
        began: false,
        lost_for: guard.loss().map(|reason| reason.to_string()),
        exit,
        rest: None,
    };
    match start(task, guard, signals) {
        Ok(Some(watch)) => watch.until_ended().await,
        Ok(None) => {
            tell("the lock was lost before the command began; run it again");
            never_began(Ok(Exit::Lost))
        }
        Err(failure) => never_began(Err(failure)),
    }
}

/// Starts the command. Returns `None` if the lock has already been lost.
fn start<'a>(
    task: &'a Task,
    guard: &'a Holding,
    signals: &'a mut Signals,
) -> Result<Option<Watch<'a>>, Failure> {
    let stops = StopRequests::listen()?;
    // Listen before the command starts. Otherwise, if our parent ignores SIGCHLD, a command that
    // ends quickly would leave no exit code.
    let children = signal(SignalKind::child())
        .map_err(|error| Failure::io("can't watch for the command's exit", error))?;
    let mut terminal = Terminal::open();
    let mut deadman = Deadman::start(&task.name)?;
    if task.on_loss != OnLoss::Warn {
        deadman.kill_at(task.schedule.kill_at(guard.valid_until()));
    }
    if !guard.is_held() || deadman.has_struck() {
        deadman.dismiss();
        return Ok(None);
    }
    let (signs, streams) = Signs::watch(&task.progress, guard)?;
    // The command inherits blocked signals, and must stop on Ctrl-Z.
    terminal::hold_back_stops(false);
    let group = Group::spawn(
        &task.name,
        &guard.variables(),
        deadman.deadline_ms(),
        &task.command,
        streams,
    );
    terminal::hold_back_stops(true);
    let group = group?;
    // Tell the switch the group before the command begins: if this process is stopped or killed
    // right after the beginning, the command must still end in time.
    deadman.guard(group.id());
    terminal.hand_over_at_start(&group);
    group.begin();
    guard.command_begins();
    output::event(Event::Started, &task.name, || {
        vec![("pid", group.id().as_raw().into())]
    });
    Ok(Some(Watch {
        schedule: task.schedule,
        on_loss: &task.on_loss,
        max_run: task.max_run.map(|most| (since_boot() + most, most)),
        group,
        deadman,
        guard,
        terminal,
        signals,
        stops,
        inherits: child::inherits_orphans(),
        children,
        signs,
        ending: Ending::default(),
    }))
}

/// The shortest time for which the server can keep the lock after the command.
const SHORTEST_REST: Duration = Duration::from_millis(10);

/// Returns the rest of `--min-hold`, for which the server keeps the lock, at least
/// [`SHORTEST_REST`]. `None` if nothing is left of it.
fn rest_of(least: Duration, held: Duration) -> Option<Duration> {
    let rest = least.saturating_sub(held);
    (!rest.is_zero()).then(|| rest.max(SHORTEST_REST))
}

/// Releases the lock, or makes the server keep it for the rest of `--min-hold`, however the command
/// has ended.
async fn give_back(
    job: &Job<'_>,
    clients: Vec<Client>,
    guard: Holding,
    held_since: Duration,
    end: End,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let End {
        began,
        lost_for,
        exit: end,
        ..
    } = end;
    let held = since_boot().saturating_sub(held_since);
    let valid_until = guard.valid_until();
    let loss = guard.loss();
    if matches!(end, Ok(Exit::Lost)) {
        // The loss has already been reported. Whatever remains of the lock is released before its
        // lease ends.
        let limit = valid_until.min(Instant::now() + TIDY_LIMIT);
        let _ = tokio::time::timeout_at(limit, guard.release()).await;
        if matches!(loss, Some(LossReason::Taken { .. })) {
            tell_next_holder(job, &clients).await;
        }
        tell_lost(job, held, lost_for);
        return end;
    }
    let rest = (job.args.min_hold).and_then(|least| rest_of(least, held));
    let code = end.as_ref().map_or_else(Failure::exit, |exit| *exit).code();
    // If the command never ran, release the lock at once.
    let rest = rest.filter(|_| began);
    let is_turn = guard.is_turn();
    let ending = async move {
        match began {
            true => guard.end(rest, code).await,
            false => guard.decline().await,
        }
    };
    let end = match unless_hurried(ending, signals).await {
        Some(Ok(())) => {
            tell_given_back(job, held, rest);
            end
        }
        Some(Err(error)) if error.kind() == ErrorKind::Lost => {
            tell_lost(job, held, error.loss().map(LossReason::to_string));
            lost_before_the_end(job, &error, loss.is_some(), end)
        }
        // The command was protected until it ended, so leasehold exits with the command's code.
        Some(Err(error)) => {
            let why = Failure::from(error).to_string();
            tell(not_released(&job.task.name, &why, rest, valid_until));
            tell_not_recorded(job, is_turn && began);
            end
        }
        None => {
            tell(not_released(&job.task.name, HURRIED, rest, valid_until));
            tell_not_recorded(job, is_turn && began);
            return end;
        }
    };
    // The clients are closed, so that operators do not see a command that has ended.
    let _ = unless_hurried(tidy(&clients), signals).await;
    end
}

/// Returns the outcome of a command that has ended after its lock was lost.
fn lost_before_the_end(
    job: &Job<'_>,
    error: &leasehold::Error,
    was_told: bool,
    end: Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let reason = error
        .loss()
        .map_or_else(|| error.to_string(), LossReason::to_string);
    let what = format!(
        "the command has ended, but the lock `{}` was lost before that: {reason}",
        Shown(&job.task.name)
    );
    match end {
        // The user chose to continue after a loss, so only report the loss.
        Ok(exit) if job.args.on_loss == OnLoss::Warn => {
            if !was_told {
                tell(what);
            }
            Ok(exit)
        }
        Ok(_) => Err(Failure::new(Exit::Lost, what)),
        // The command never ran, so nothing was unprotected.
        Err(failure) => Err(failure),
    }
}

/// Reports which client has the lock after its loss, if the servers answer within a second.
async fn tell_next_holder(job: &Job<'_>, clients: &[Client]) {
    const LIMIT: Duration = Duration::from_secs(1);
    let names = std::iter::once(&job.task.name).chain(&job.args.wanted.also);
    let locks: Vec<_> = names
        .flat_map(|name| clients.iter().map(|client| (client.clone(), name.clone())))
        .collect();
    if let Ok(Some(said)) = tokio::time::timeout(LIMIT, next_holder(&locks)).await {
        tell(said);
    }
}

/// Reports that another run may repeat the command, because the server may not know that the
/// command has ended.
fn tell_not_recorded(job: &Job<'_>, is_lost: bool) {
    if is_lost {
        tell(format_args!(
            "the server may not know that the command of `{}` has ended, so another run may repeat it; \
             `leasehold show` says what the server knows",
            Shown(&job.task.name)
        ));
    }
}

fn tell_given_back(job: &Job<'_>, held: Duration, rest: Option<Duration>) {
    let event = if rest.is_some() {
        Event::Kept
    } else {
        Event::Released
    };
    let is_told = output::event(event, &job.task.name, || {
        let mut told = vec![("held_ms", as_ms(held))];
        told.extend(rest.map(|rest| ("kept_for_ms", as_ms(rest))));
        told
    });
    if is_told {
        return;
    }
    let (name, held) = (Shown(&job.task.name), duration::shown(held));
    match rest {
        None => output::detail(format_args!("released `{name}`, held for {held}")),
        Some(rest) => output::detail(format_args!(
            "`{name}` was held for {held}, and --min-hold keeps it for another {}",
            duration::shown(rest)
        )),
    }
}

fn tell_lost(job: &Job<'_>, held: Duration, reason: Option<String>) {
    output::event(Event::Lost, &job.task.name, || {
        vec![("held_ms", as_ms(held)), ("reason", reason.into())]
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lock_is_given_back_before_its_least_time() {
        let (least, ms) = (Duration::from_secs(3), Duration::from_millis(1));
        assert_eq!(rest_of(least, Duration::ZERO), Some(least));
        assert_eq!(rest_of(least, least - ms * 99), Some(ms * 99));
        assert_eq!(rest_of(least, least - ms), Some(ms * 10));
        assert_eq!(rest_of(least, least), None);
        assert_eq!(rest_of(least, least + ms), None);
    }
}
