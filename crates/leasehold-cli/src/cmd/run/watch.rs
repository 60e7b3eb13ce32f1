//! The watch over a running command: its end, its stops, signals for it, and the loss of the lock.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix;
use tokio::time::{Instant, sleep, sleep_until};

use super::child::{Group, News};
use super::deadman::{Deadman, since_boot};
use super::terminal::{StopRequests, Terminal};
use crate::cli::OnLoss;
use crate::cmd::acquire::Holding;
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, tell};
use crate::signals::Signals;

/// The longest interval between looks. A missed event, for example a signal, costs at most this
/// delay.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The longest wait for the rest of the group. Processes of another user can't be ended.
const END_OF_REST: Duration = Duration::from_secs(1);

pub(super) struct Watch<'a> {
    pub(super) schedule: Schedule,
    pub(super) on_loss: &'a OnLoss,
    /// The end of the command's time, on the clock of [`since_boot`], and the length of that time
    /// (`--max-run`).
    pub(super) max_run: Option<(Duration, Duration)>,
    pub(super) group: Group,
    pub(super) deadman: Deadman,
    pub(super) guard: &'a Holding,
    pub(super) terminal: Terminal,
    pub(super) signals: &'a mut Signals,
    pub(super) stops: StopRequests,
    /// Whether orphans become children of this process.
    pub(super) inherits: bool,
    /// SIGCHLD, when the command has ended or stopped. Listening begins before the command starts.
    pub(super) children: unix::Signal,
}

impl Watch<'_> {
    /// Watches until the command has ended. Returns [`Exit::Lost`] if it was ended because the lock
    /// was lost or about to be lost, and [`Exit::TooLong`] if it ran for too long.
    pub(super) async fn until_ended(mut self) -> Result<Exit, Failure> {
        let end = self.follow().await;
        match end {
            // The lock is released next, so the command must end.
            Err(_) => self.group.signal(Signal::SIGKILL),
            Ok(_) => self.deadman.dismiss(),
        }
        end
    }

    async fn follow(&mut self) -> Result<Exit, Failure> {
        let (mut killed_at, mut told, mut too_long) = (None, false, false);
        let exit = loop {
            // Look before listening: the command may have ended already.
            match self.group.news()? {
                Some(News::Ended(exit)) => break exit,
                Some(News::Stopped(signal)) => {
                    self.stopped(signal).await;
                    continue;
                }
                None => {}
            }
            if killed_at.is_none() && !told {
                killed_at = self.end_if_due();
                told = killed_at.is_none() && self.guard.loss().is_some();
            }
            if killed_at.is_none() {
                killed_at = self.end_if_too_long();
                too_long = killed_at.is_some();
            }
            self.deadman.look_after()?;
            if self.inherits {
                self.group.reap_orphans(self.deadman.id());
            }
            self.listen(killed_at, told).await;
        };
        self.terminal.take_back(&self.group);
        // A command that ended in time was protected, however little was left of the lease.
        if killed_at.is_none()
            && !told
            && (self.guard.loss().is_some() || self.deadman.has_struck())
        {
            killed_at = self.end_if_due();
        }
        let Some(killed_at) = killed_at else {
            return Ok(exit);
        };
        self.end_rest(killed_at).await?;
        Ok(match too_long {
            true => Exit::TooLong,
            false => Exit::Lost,
        })
    }

    /// Waits until there may be something to do. Passes signals on to the command.
    async fn listen(&mut self, killed_at: Option<Instant>, loss_was_told: bool) {
        let due = match killed_at {
            None if loss_was_told => Instant::now() + LOOK_EVERY,
            None => self.schedule.end_at(self.guard.valid_until()),
            Some(over) if over <= Instant::now() => {
                // The dead-man's switch has killed the group, unless the switch was stopped.
                self.group.signal(Signal::SIGKILL);
                Instant::now() + LOOK_EVERY
            }
            Some(soon) => soon,
        };
        tokio::select! {
            biased;
            _ = self.guard.lost(), if killed_at.is_none() && !loss_was_told => {}
            () = self.stops.next() => self.group.signal(Signal::SIGTSTP),
            signal = self.signals.next() => self.group.signal(signal),
            _ = self.children.recv() => {}
            () = sleep_until(due) => {}
            () = sleep(self.schedule.look_every()) => {}
        }
    }

    /// Ends the command if its `--max-run` is over. Returns the time of its KILL.
    fn end_if_too_long(&mut self) -> Option<Instant> {
        let (_, most) = self.max_run.filter(|(at, _)| *at <= since_boot())?;
        let grace = self.schedule.grace;
        tell(format_args!(
            "the command has run for {}, the most that --max-run allows; ending it, by force {}",
            duration::shown(most),
            soon(grace)
        ));
        self.group.ask_to_end();
        Some(Instant::now() + grace)
    }

    /// Ends the command if the lock is lost, or if the rest of the lease is just enough to end it.
    /// Returns the time of its KILL.
    fn end_if_due(&mut self) -> Option<Instant> {
        if *self.on_loss == OnLoss::Warn {
            self.warn_if_lost();
            return None;
        }
        let kill_at = self.schedule.kill_at(self.guard.valid_until());
        let struck = self.deadman.has_struck();
        let state = match self.guard.loss() {
            Some(reason) => format!("is lost: {reason}"),
            None if struck || Instant::now() >= self.schedule.end_at(self.guard.valid_until()) => {
                let reason = self.guard.renewal_failure();
                let reason = reason.map_or_else(
                    || "it was not renewed in time".to_owned(),
                    |reason| reason.to_string(),
                );
                format!("is about to be lost: {reason}")
            }
            None => {
                self.deadman.kill_at(kill_at);
                return None;
            }
        };
        // Another client may already have a lock that was lost early, so the command gets at most
        // the grace time. After a pause of this process, no time may be left.
        let now = Instant::now();
        let left = match self.on_loss {
            OnLoss::Kill => Duration::ZERO,
            _ => kill_at
                .saturating_duration_since(now)
                .min(self.schedule.grace),
        };
        self.deadman.kill_at(now + left);
        tell(format_args!(
            "the lock `{}` {state}; ending the command, by force {}",
            Shown(self.guard.name()),
            soon(left)
        ));
        output::event(Event::Losing, self.guard.name(), || {
            vec![("reason", state.as_str().into())]
        });
        match self.on_loss {
            OnLoss::Exec(line) => self.run_instead(line, &state),
            // Without a TERM before, to which the command could react.
            OnLoss::Kill => self.group.signal(Signal::SIGKILL),
            _ => self.group.ask_to_end(),
        }
        Some(now + left)
    }

    /// Reports that the lock is lost, and that the command continues.
    fn warn_if_lost(&self) {
        if let Some(reason) = self.guard.loss() {
            let name = self.guard.name();
            tell(format_args!(
                "the lock `{}` is lost: {reason}; the command goes on without it",
                Shown(name)
            ));
            output::event(Event::Losing, name, || {
                vec![("reason", reason.to_string().into())]
            });
        }
    }

    /// Runs the line of `--on-loss exec` instead of a TERM. Does not wait for it, because the
    /// command's time is short.
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

    /// Handles a stop of the command. At a terminal, the whole job stops with it: this process, and
    /// the processes that share our group.
    async fn stopped(&mut self, signal: Option<Signal>) {
        let by_terminal = matches!(
            signal,
            Some(Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)
        );
        // A signal from elsewhere stopped the command. The lock stays held while it is stopped.
        if !by_terminal || !self.terminal.is_there() {
            return;
        }
        self.terminal.take_back(&self.group);
        let wants_terminal = signal != Some(Signal::SIGTSTP);
        if !(wants_terminal && self.terminal.is_ours()) {
            let kill_at = self.schedule.kill_at(self.guard.valid_until());
            if *self.on_loss != OnLoss::Warn {
                self.deadman.kill_at(kill_at);
            }
            tell(format_args!(
                "stopped; `{}` is not renewed meanwhile, and the command is killed when its lease is over, {}",
                Shown(self.guard.name()),
                soon(kill_at.saturating_duration_since(Instant::now()))
            ));
            output::flush();
            self.terminal.stop_us();
            if wants_terminal && !self.terminal.is_ours() {
                // We are in the background, where the command asks for the terminal and is stopped
                // again at once. The pause limits this loop if nothing stops us.
                sleep(Duration::from_millis(100)).await;
            }
        }
        // If the lease ended meanwhile, the command must not continue.
        if self.guard.is_held() {
            self.terminal.hand_over(&self.group);
            self.group.signal(Signal::SIGCONT);
        }
    }

    /// Waits until the processes that the command has left behind are killed: they work without the
    /// lock.
    async fn end_rest(&mut self, killed_at: Instant) -> Result<(), Failure> {
        while !self.group.is_gone() && Instant::now() < killed_at + END_OF_REST {
            self.deadman.look_after()?;
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

fn soon(left: Duration) -> String {
    match left.as_millis() {
        0 => "at once".to_owned(),
        _ => format!("in {}", duration::shown(left)),
    }
}

/// The schedule by which the command is ended if the lock is not renewed.
///
/// A lease consists of the time until a renewal is due, the time in which the renewal may fail and
/// be retried, the grace time of the command, and a rest in which the kill takes effect.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    lease: Duration,
    grace: Duration,
}

impl Schedule {
    /// Creates a schedule with the given grace time. The default is a third of the lease, at most
    /// 10 s.
    pub(super) fn new(lease: Duration, grace: Option<Duration>) -> Result<Self, Failure> {
        const LONGEST_DEFAULT: Duration = Duration::from_secs(10);
        let grace = grace.unwrap_or_else(|| (lease / 3).min(LONGEST_DEFAULT));
        if grace > lease / 2 {
            return Err(Failure::usage(format!(
                "a grace time of {} is over half of the lease of {}; write --grace {} or --lease {}",
                duration::shown(grace),
                duration::shown(lease),
                duration::shown(lease / 2),
                duration::shown(grace * 2),
            )));
        }
        Ok(Self { lease, grace })
    }

    /// Returns when the command gets TERM.
    fn end_at(&self, valid_until: Instant) -> Instant {
        earlier(self.kill_at(valid_until), self.grace)
    }

    /// Returns when the command is killed. This is before another client can have the lock, by the
    /// time that a loaded machine needs for the kill.
    pub(super) fn kill_at(&self, valid_until: Instant) -> Instant {
        earlier(valid_until, self.lease / 20)
    }

    /// Returns the interval between looks. It is short enough to see each renewal long before the
    /// deadline that it replaces.
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
            // A twentieth of the lease is left for the kill. Before it is the grace time.
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
