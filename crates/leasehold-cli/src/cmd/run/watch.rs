//! The supervision of a running command: handles the command's end, its stops, signals for it, its
//! progress, and the loss of the lock.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::LossReason;
use nix::sys::signal::Signal;
use tokio::signal::unix;
use tokio::time::{Instant, sleep, sleep_until};

use super::child::{Group, News};
use super::copy::Rest;
use super::deadman::{Deadman, since_boot};
use super::progress::Signs;
use super::terminal::{StopRequests, Terminal};
use crate::cli::OnLoss;
use crate::cmd::acquire::Holding;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, tell};
use crate::signals::Signals;

/// The longest interval between checks. If an event such as a signal is missed, a check notices it
/// after this time at the latest.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The longest wait until the other processes of the group have ended. Processes of another user
/// can't be ended.
const END_OF_REST: Duration = Duration::from_secs(1);

pub(super) struct Watch<'a> {
    pub(super) schedule: Schedule,
    pub(super) on_loss: &'a OnLoss,
    /// The time at which the command must end, on the clock of [`since_boot`], and the time for
    /// which it may run (`--max-run`).
    pub(super) max_run: Option<(Duration, Duration)>,
    pub(super) group: Group,
    pub(super) deadman: Deadman,
    pub(super) guard: &'a Holding,
    pub(super) terminal: Terminal,
    pub(super) signals: &'a mut Signals,
    pub(super) stops: StopRequests,
    /// Whether orphans become children of this process.
    pub(super) inherits: bool,
    /// A listener for SIGCHLD, which arrives when the command has ended or stopped. The listener
    /// was created before the command started.
    pub(super) children: unix::Signal,
    pub(super) signs: Signs,
    pub(super) ending: Ending,
}

/// The steps that were taken so far to end the command.
#[derive(Default)]
pub(super) struct Ending {
    /// The time at which the command is killed. `None` while it may continue.
    killed_at: Option<Instant>,
    /// The reason of the loss, if the command is ended because the lock is lost or about to be
    /// lost.
    for_loss: Option<String>,
    /// Whether the loss was reported, and the command continues without the lock.
    warned: bool,
}

impl Ending {
    fn exit(&self) -> Exit {
        match self.for_loss {
            Some(_) => Exit::Lost,
            None => Exit::TooLong,
        }
    }

    /// Returns this time, or the time of the kill if that is earlier.
    fn no_later_than(&self, at: Instant) -> Instant {
        self.killed_at.map_or(at, |killed_at| killed_at.min(at))
    }
}

/// The end of a command.
pub(in crate::cmd) struct End {
    /// Whether the command's program ran.
    pub(in crate::cmd) began: bool,
    /// The reason of the loss, if the command was ended for it.
    pub(in crate::cmd) lost_for: Option<String>,
    /// [`Exit::Lost`] if the command was ended because the lock was lost or about to be lost,
    /// [`Exit::TooLong`] if it ran for too long.
    pub(in crate::cmd) exit: Result<Exit, Failure>,
    /// The output of the command that has yet to be written, if the output is copied.
    pub(in crate::cmd) rest: Option<Rest>,
}

impl Watch<'_> {
    /// Watches until the command has ended.
    pub(super) async fn until_ended(mut self) -> End {
        let mut exit = self.follow().await;
        if exit.is_err() {
            // The lock is released next, so the command must end.
            self.end_rest(Instant::now()).await;
        }
        if let (Err(failure), Some(_)) = (&exit, self.ending.killed_at) {
            // The command was already being ended, and its exit code shows why.
            tell(failure);
            exit = Ok(self.ending.exit());
        }
        let began = !self.group.never_began();
        self.deadman.dismiss();
        self.group.reap();
        let lost_for = self.ending.for_loss.take();
        End {
            began,
            lost_for,
            exit,
            rest: self.signs.finish(),
        }
    }

    async fn follow(&mut self) -> Result<Exit, Failure> {
        let exit = loop {
            // Check before listening, because the command may have ended already.
            match self.group.news()? {
                Some(News::Ended(exit)) => break exit,
                Some(News::Stopped(signal)) => {
                    self.stopped(signal).await;
                    continue;
                }
                None => {}
            }
            if self.ending.killed_at.is_none() {
                self.signs.look(self.guard, self.schedule.look_every());
            }
            self.end_if_due();
            self.end_if_too_long();
            self.deadman.look_after()?;
            self.reap_orphans();
            self.listen().await;
        };
        self.terminal.take_back(&self.group);
        // If the command ended before the loss, it was protected until its end, even if little time
        // was left.
        if self.has_missed_the_loss() || self.guard.loss().is_some() {
            self.end_if_due();
        }
        let Some(killed_at) = self.ending.killed_at else {
            return Ok(exit);
        };
        self.end_rest(killed_at).await;
        Ok(self.ending.exit())
    }

    /// Waits until there may be something to do. Forwards signals to the command.
    async fn listen(&mut self) {
        let now = Instant::now();
        let is_over = self.ending.killed_at.is_some_and(|over| over <= now);
        if is_over {
            // The dead-man's switch has already sent this KILL, unless a signal has stopped the
            // switch.
            self.group.signal(Signal::SIGKILL);
        }
        let acts_on_loss = self.ending.for_loss.is_none() && *self.on_loss != OnLoss::Warn;
        let loss = acts_on_loss.then(|| self.schedule.end_at(self.guard.valid_until()));
        let due = [self.ending.killed_at, loss].into_iter().flatten();
        let due = due
            .filter(|due| *due > now)
            .min()
            .unwrap_or(now + LOOK_EVERY);
        let awaits_loss = self.ending.for_loss.is_none() && !self.ending.warned;
        let awaits_stall = awaits_loss && self.ending.killed_at.is_none();
        tokio::select! {
            biased;
            _ = self.guard.lost(), if awaits_loss => {}
            () = self.signs.until_stalled(self.guard), if awaits_stall => {}
            () = self.stops.next() => self.group.signal(Signal::SIGTSTP),
            signal = self.signals.next() => self.group.signal(signal),
            _ = self.children.recv() => {}
            () = sleep_until(due) => {}
            () = sleep(self.schedule.look_every()) => {}
        }
    }

    /// Returns whether the dead-man's switch has begun to end the command before this process was
    /// aware of a loss.
    fn has_missed_the_loss(&self) -> bool {
        self.ending.killed_at.is_none() && self.deadman.has_acted()
    }

    /// Makes the dead-man's switch end the command at this time, if this process can't end the
    /// command earlier. The switch first sends TERM, but only if this process would send TERM.
    fn is_due_at(&mut self, kill_at: Instant) {
        let asks = *self.on_loss == OnLoss::Term && self.ending.killed_at.is_none();
        let ask_before = asks.then(|| self.schedule.switch_asks_before());
        let kill_at = self.ending.no_later_than(kill_at);
        self.deadman.end_at(kill_at, ask_before);
    }

    /// Makes the dead-man's switch kill the command at this time, or at an earlier time that was
    /// set before.
    fn kill_at(&mut self, at: Instant) {
        let at = self.ending.no_later_than(at);
        self.ending.killed_at = Some(at);
        self.deadman.kill_at(at);
    }

    /// Ends the command if it has run for `--max-run`.
    fn end_if_too_long(&mut self) {
        let max_run = self.max_run.filter(|(at, _)| *at <= since_boot());
        let Some((_, most)) = max_run.filter(|_| self.ending.killed_at.is_none()) else {
            return;
        };
        let grace = self.schedule.grace;
        self.kill_at(Instant::now() + grace);
        tell(format_args!(
            "the command has run for {}, the most that --max-run allows, and is ended; KILL follows {}",
            duration::shown(most),
            duration::soon(grace)
        ));
        self.group.ask_to_end();
    }

    /// Ends the command if the lock is lost, or if the rest of its lease is just long enough to end
    /// the command.
    fn end_if_due(&mut self) {
        if self.ending.for_loss.is_some() || self.ending.warned {
            return;
        }
        let loss = self.guard.loss();
        if *self.on_loss == OnLoss::Warn {
            self.ending.warned = loss.is_some();
            if let Some(reason) = loss {
                self.warn(&reason);
            }
            return;
        }
        let kill_at = self.schedule.kill_at(self.guard.valid_until());
        let is_due = Instant::now() >= self.schedule.end_at(self.guard.valid_until());
        let (state, reason) = match loss {
            Some(reason) => ("is lost", reason.to_string()),
            None if is_due || self.has_missed_the_loss() => {
                let failure = self.guard.renewal_failure();
                let reason = failure
                    .map(|reason| reason.to_string())
                    .or_else(|| self.signs.reason(self.guard))
                    .unwrap_or_else(|| "it was not renewed in time".to_owned());
                ("is about to be lost", reason)
            }
            None => {
                self.is_due_at(kill_at);
                return;
            }
        };
        self.end_for_loss(kill_at, state, reason);
    }

    fn end_for_loss(&mut self, kill_at: Instant, state: &str, reason: String) {
        // If the lock was lost before the end of its lease, another client may already have it. So
        // the command gets at most the grace time. After a pause of this process, no time may be
        // left.
        let now = Instant::now();
        let left = match self.on_loss {
            OnLoss::Kill => Duration::ZERO,
            _ => kill_at
                .saturating_duration_since(now)
                .min(self.schedule.grace),
        };
        self.kill_at(now + left);
        tell(format_args!(
            "the lock `{}` {state}: {reason}; ending the command; KILL follows {}",
            Shown(self.guard.name()),
            duration::soon(left)
        ));
        output::event(Event::Losing, self.guard.name(), || {
            vec![("reason", reason.clone().into())]
        });
        match self.on_loss {
            OnLoss::Exec(line) => self.run_instead(line, &format!("{state}: {reason}")),
            // Send KILL without TERM, so the command can't react.
            OnLoss::Kill => self.group.signal(Signal::SIGKILL),
            _ => self.group.ask_to_end(),
        }
        self.ending.for_loss = Some(reason);
    }

    /// Reports that the lock is lost, and that the command continues.
    fn warn(&self, reason: &LossReason) {
        let name = self.guard.name();
        tell(format_args!(
            "the lock `{}` is lost: {reason}; the command continues without it",
            Shown(name)
        ));
        output::event(Event::Losing, name, || {
            vec![("reason", reason.to_string().into())]
        });
    }

    /// Runs the program of `--on-loss exec` instead of sending TERM. Does not wait for the program,
    /// because little time is left until the command must end.
    fn run_instead(&self, line: &str, reason: &str) {
        let started = Command::new("sh")
            .args(["-c", line])
            .env("LEASEHOLD_NAME", self.guard.name())
            .env("LEASEHOLD_PID", self.group.id().to_string())
            .env("LEASEHOLD_REASON", reason)
            .stdin(Stdio::null())
            .spawn();
        if let Err(error) = started {
            tell(format_args!("can't run `{}`: {error}", Shown(line)));
            self.group.ask_to_end();
        }
    }

    /// Handles a stop of the command. At a terminal, the whole job stops with the command: this
    /// process, and the processes in this process's group.
    async fn stopped(&mut self, signal: Option<Signal>) {
        let by_terminal = matches!(
            signal,
            Some(Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)
        );
        // A signal from elsewhere stopped the command. The lock stays held while the command is
        // stopped.
        if !by_terminal || !self.terminal.is_there() {
            return;
        }
        self.terminal.take_back(&self.group);
        let wants_terminal = signal != Some(Signal::SIGTSTP);
        if !(wants_terminal && self.terminal.is_ours()) {
            self.announce_stop();
            self.terminal.stop_us();
            if wants_terminal && !self.terminal.is_ours() {
                // A command in the background that uses the terminal is stopped again at once. The
                // pause slows this loop down if no shell stops this process.
                sleep(Duration::from_millis(100)).await;
            }
        }
        // If the lease ended during the stop, the command must not continue, unless the user chose
        // `warn`.
        if self.guard.is_held() || *self.on_loss == OnLoss::Warn {
            self.terminal.hand_over(&self.group);
            self.group.signal(Signal::SIGCONT);
        }
    }

    /// Reports the stop, and when the lock will be lost.
    fn announce_stop(&mut self) {
        let name = Shown(self.guard.name());
        let left = |until: Instant| duration::soon(until.saturating_duration_since(Instant::now()));
        if *self.on_loss == OnLoss::Warn {
            tell(format_args!(
                "stopped; until leasehold continues, `{name}` is not renewed, and is lost when its lease ends, {}",
                left(self.guard.valid_until())
            ));
        } else {
            let kill_at = self.schedule.kill_at(self.guard.valid_until());
            let kill_at = self.ending.no_later_than(kill_at);
            self.deadman.kill_at(kill_at);
            tell(format_args!(
                "stopped; until leasehold continues, `{name}` is not renewed, and the command is killed when the lease ends, {}",
                left(kill_at)
            ));
        }
        output::flush();
    }

    /// Ends the processes that the command has started and that outlive it, because they would work
    /// without the lock.
    async fn end_rest(&mut self, killed_at: Instant) {
        while !self.group.is_gone() && Instant::now() < killed_at + END_OF_REST {
            if Instant::now() >= killed_at {
                // The dead-man's switch may have been stopped or killed.
                self.group.signal(Signal::SIGKILL);
            }
            self.reap_orphans();
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn reap_orphans(&self) {
        if self.inherits {
            self.group.reap_orphans(self.deadman.id());
        }
    }
}

/// The schedule by which the command is ended if the lock is not renewed.
///
/// A lease consists of four parts: the time until a renewal is due, the time in which the renewal
/// may fail and be retried, the grace time of the command, and the time in which the kill takes
/// effect.
#[derive(Clone, Copy)]
pub(in crate::cmd) struct Schedule {
    lease: Duration,
    grace: Duration,
}

impl Schedule {
    /// Creates a schedule with the given grace time. The default is a third of the lease, at most
    /// 10 s.
    pub(in crate::cmd) fn new(lease: Duration, grace: Option<Duration>) -> Result<Self, Failure> {
        const LONGEST_DEFAULT: Duration = Duration::from_secs(10);
        let grace = grace.unwrap_or_else(|| (lease / 3).min(LONGEST_DEFAULT));
        if grace > lease / 2 {
            return Err(Failure::usage(format!(
                "a grace time of {} is more than half of the lease of {}; write --grace {} or --lease {}",
                duration::shown(grace),
                duration::shown(lease),
                duration::shown(lease / 2),
                duration::shown(grace * 2),
            )));
        }
        Ok(Self { lease, grace })
    }

    /// Returns the time at which the command gets TERM.
    fn end_at(&self, valid_until: Instant) -> Instant {
        earlier(self.kill_at(valid_until), self.grace)
    }

    /// Returns the time at which the command is killed. It is early enough that even on a loaded
    /// machine, the kill takes effect before another client can have the lock.
    pub(super) fn kill_at(&self, valid_until: Instant) -> Instant {
        earlier(valid_until, self.lease / 20)
    }

    /// Returns how long before the kill the dead-man's switch sends TERM. This process should
    /// already have sent TERM a quarter of the grace time earlier.
    fn switch_asks_before(&self) -> Duration {
        self.grace * 3 / 4
    }

    /// Returns the interval between checks. It is short enough to notice each renewal long before
    /// the deadline that the renewal moves, and shorter than the time by which a renewal moves it.
    fn look_every(&self) -> Duration {
        (self.lease / 10).min(LOOK_EVERY)
    }
}

/// Subtracts a span from an instant. Returns the instant itself if the result would be before the
/// machine's start.
fn earlier(instant: Instant, span: Duration) -> Instant {
    instant.checked_sub(span).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_told_and_killed_in_time() {
        let hour = Duration::from_secs(3600);
        let valid_until = Instant::now() + hour;
        let before = |instant: Instant| valid_until.saturating_duration_since(instant);
        let seconds = Duration::from_secs;
        for (lease, grace, kill, end) in [
            // The last twentieth of the lease is for the kill. The grace time precedes it.
            (seconds(30), None, seconds(30) / 20, seconds(10)),
            (seconds(6), None, seconds(6) / 20, seconds(2)),
            (seconds(600), None, seconds(30), seconds(10)),
            (seconds(60), Some(seconds(1)), seconds(3), seconds(1)),
        ] {
            let schedule = Schedule::new(lease, grace).expect("it fits");
            assert_eq!(before(schedule.kill_at(valid_until)), kill, "{lease:?}");
            assert_eq!(
                before(schedule.end_at(valid_until)),
                kill + end,
                "{lease:?}"
            );
        }
    }
}
