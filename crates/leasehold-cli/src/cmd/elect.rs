//! `leasehold elect`: runs a command while this process leads.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold::{Client, Election};
use nix::sys::signal::Signal;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use super::acquire::{Holding, TIDY_LIMIT, as_ms, tidy, unless_hurried};
use super::run::{End, Schedule, Task, supervise, terminal};
use super::{name_of_lock, runtime, shut_down};
use crate::cli::{Elect, OnLoss};
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, note, tell};
use crate::server::{Server, Terms};
use crate::signals::Signals;

/// The longest delay before the candidate tries again.
const LONGEST_DELAY: Duration = Duration::from_secs(60);
/// The time after which a command counts as stable, so that the next delay is short again.
const STEADY: Duration = Duration::from_secs(10);
/// A command that still runs this long after a HUP has survived it. Many programs read their
/// configuration again when they get a HUP.
const SURVIVED: Duration = Duration::from_secs(10);
/// The time for which the library waits after a term before it requests the lead again, so that
/// another candidate can lead.
const LIBRARY_PAUSE: Duration = Duration::from_secs(1);

/// Runs the command whenever this process leads, until a signal arrives. This is not a future, for
/// the same reason as [`run`](super::run::run).
pub(crate) fn elect(args: &Elect, server: &Server) -> Result<Exit, Failure> {
    let task = Task {
        name: name_of_lock(args.name.clone())?,
        command: args.command.clone(),
        schedule: Schedule::new(args.lease, args.grace)?,
        on_loss: OnLoss::Term,
        max_run: None,
        progress: args.progress.clone(),
    };
    if args.json {
        output::tell_json(Some(&task.name));
    }
    terminal::hold_back_stops(true);
    let runtime = runtime()?;
    terminal::hold_back_stops(false);
    let result = until_ended(&runtime, args, &task, server);
    shut_down(runtime);
    result
}

fn until_ended(
    runtime: &Runtime,
    args: &Elect,
    task: &Task,
    server: &Server,
) -> Result<Exit, Failure> {
    // The first listener passes signals on to the command. The second listener remembers them.
    let (mut signals, mut told) = {
        let _context = runtime.enter();
        (Signals::listen()?, Signals::listen()?)
    };
    let client = {
        let _context = runtime.enter();
        server.connect_in_background(Terms {
            lease: args.lease,
            failover_guard: None,
            rust_only: false,
        })?
    };
    let election = client.election(&task.name).payload(args.payload.as_str());
    let election = match args.progress.within {
        Some(within) => election.progress_within(within),
        None => election,
    };
    let mut delays = Delays::new(args.restart_delay);
    let mut hurries = false;
    let end = loop {
        let stood = runtime.block_on(stand(&election, hurries, &mut told));
        let pause = match stood {
            Ok(Some(guard)) => {
                signals.forget();
                hurries = args.restart_delay < LIBRARY_PAUSE;
                // A signal may have arrived at the same time as the lead.
                if let Some(signal) = ending(&mut told).now_or_never() {
                    let _ = runtime.block_on(unless_hurried(guard.decline(), &mut signals));
                    break Ok(Exit::Signal(signal as i32));
                }
                let began = Instant::now();
                terminal::hold_back_stops(true);
                let work = supervise(task, &guard, &mut signals);
                let (end, ended_by) = runtime.block_on(noting_signals(work, &mut told));
                terminal::hold_back_stops(false);
                let exit =
                    runtime.block_on(give_up(task, guard, end, began.elapsed(), &mut signals));
                if let Some(end) = exit.transpose() {
                    break end;
                }
                if let Some(signal) = ended_by {
                    break Ok(Exit::Signal(signal as i32));
                }
                delays.after(began.elapsed())
            }
            // The candidate has already waited during an outage, so the delay need not grow.
            Ok(None) => args.restart_delay,
            Err(Stopped::Signal(signal)) => break Ok(Exit::Signal(signal as i32)),
            Err(Stopped::Failed(failure)) => break Err(failure),
        };
        if let Some(signal) = runtime.block_on(pause_unless_told(&mut told, pause)) {
            break Ok(Exit::Signal(signal as i32));
        }
    };
    let closed = tidy(std::slice::from_ref::<Client>(&client));
    let _ = runtime.block_on(unless_hurried(closed, &mut signals));
    end
}

/// The reason why a candidate no longer waits.
enum Stopped {
    Signal(Signal),
    Failed(Failure),
}

/// Waits until the candidate leads. Returns `None` if an outage has ended the wait: the caller then
/// tries again. With `hurries`, first requests the lead once without the library's pause.
async fn stand(
    election: &Election,
    hurries: bool,
    told: &mut Signals,
) -> Result<Option<Holding>, Stopped> {
    let begun = Instant::now();
    let standing = async {
        // If this fails, the wait below reports the failure, unless it was a short outage.
        match hurries {
            true => match election.try_stand().await {
                Ok(Some(term)) => Ok(term),
                _ => election.stand().await,
            },
            false => election.stand().await,
        }
    };
    let term = tokio::select! {
        biased;
        signal = ending(told) => return Err(Stopped::Signal(signal)),
        term = standing => term,
    };
    match term {
        Ok(term) => {
            let (name, token) = (election.name(), term.token());
            let guard = Holding::Lock(term.into());
            if !output::event(Event::Held, name, || guard.told(begun.elapsed())) {
                output::detail(format_args!("leads `{}`, with token {token}", Shown(name)));
            }
            Ok(Some(guard))
        }
        Err(error) if error.is_transient() => {
            tell(Failure::from(error));
            Ok(None)
        }
        Err(error) => Err(Stopped::Failed(error.into())),
    }
}

/// Runs the command while this process leads. Also returns the signal after which this process must
/// end: any signal that ends programs, except a HUP that the command has survived.
async fn noting_signals(
    work: impl Future<Output = End>,
    told: &mut Signals,
) -> (End, Option<Signal>) {
    let mut work = pin!(work);
    let (mut hung_up, mut ended_by) = (None, None);
    loop {
        tokio::select! {
            biased;
            signal = ending(told) => match signal {
                Signal::SIGHUP => hung_up = Some(Instant::now()),
                signal => ended_by = Some(signal),
            },
            end = &mut work => {
                let of_hang_up = hung_up.filter(|at| {
                    end.lost_for.is_none() && at.elapsed() < SURVIVED
                });
                return (end, ended_by.or(of_hang_up.map(|_| Signal::SIGHUP)));
            }
        }
    }
}

/// Gives up the lead. If the command can't be started at all, returns the exit code with which this
/// process must exit.
async fn give_up(
    task: &Task,
    guard: Holding,
    mut end: End,
    held: Duration,
    signals: &mut Signals,
) -> Result<Option<Exit>, Failure> {
    let rest = end.rest.take();
    let name = Shown(&task.name);
    let held_ms = as_ms(held);
    let limit = tokio::time::timeout(TIDY_LIMIT, guard.release());
    match unless_hurried(limit, signals).await {
        Some(Ok(Ok(()))) => {
            if !output::event(Event::Released, &task.name, || {
                vec![("held_ms", held_ms.clone())]
            }) {
                output::detail(format_args!("gave up the lead of `{name}`"));
            }
        }
        Some(Ok(Err(error))) => note(format_args!("`{name}`: {}", Failure::from(error))),
        _ => note(format_args!(
            "`{name}`: the end of the term is not confirmed"
        )),
    }
    if let Some(rest) = rest {
        let _ = unless_hurried(rest.written(), signals).await;
    }
    if let Some(reason) = end.lost_for {
        output::event(Event::Lost, &task.name, || {
            vec![("held_ms", held_ms), ("reason", reason.into())]
        });
        return Ok(None);
    }
    match end.exit {
        // The command can't be started here, so another attempt is useless. A command that runs may
        // end with the same code.
        Ok(exit @ Exit::Command(126 | 127)) if !end.began => Ok(Some(exit)),
        Ok(Exit::Command(code)) if code != 0 => {
            note(format_args!("the command has ended with {code}"));
            Ok(None)
        }
        Ok(Exit::Signal(signal)) => {
            let signal = Signal::try_from(signal).map_or("a signal", Signal::as_str);
            note(format_args!("{signal} has ended the command"));
            Ok(None)
        }
        Ok(_) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Waits for a signal that ends this process.
async fn ending(told: &mut Signals) -> Signal {
    loop {
        match told.next().await {
            // These signals are only for the command.
            Signal::SIGUSR1 | Signal::SIGUSR2 => {}
            signal => return signal,
        }
    }
}

/// Waits for the time `pause`. If a signal arrives, or has arrived before, ends the wait and
/// returns the signal.
async fn pause_unless_told(told: &mut Signals, pause: Duration) -> Option<Signal> {
    if let Some(signal) = ending(told).now_or_never() {
        return Some(signal);
    }
    output::detail(format_args!(
        "tries to lead again {}",
        duration::soon(pause)
    ));
    tokio::select! {
        biased;
        signal = ending(told) => Some(signal),
        () = sleep(pause) => None,
    }
}

/// The delays before the candidate tries again.
struct Delays {
    first: Duration,
    next: Duration,
}

impl Delays {
    fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    /// Returns the delay after a command that ran for this long.
    fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= STEADY {
            self.next = self.first;
        }
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST_DELAY.max(self.first));
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_until_a_command_lasts() {
        let mut delays = Delays::new(Duration::from_secs(1));
        let short = [0; 8].map(|_| delays.after(Duration::ZERO).as_secs());
        assert_eq!(short, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delays.after(STEADY).as_secs(), 1);
    }
}
