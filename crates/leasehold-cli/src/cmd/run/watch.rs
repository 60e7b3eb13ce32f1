//! Watching the command while it runs: its end, its stops, signals for it, and the
//! loss of the lock.

use std::time::Duration;

use leasehold::LockGuard;
use nix::sys::signal::Signal;
use tokio::signal::unix;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::child::{Group, News};
use super::terminal::{StopRequests, Terminal};
use crate::duration;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::{Shown, tell};
use crate::signals::Signals;

/// A signal that is missed costs this much.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Watch<'a> {
    pub(super) grace: Duration,
    pub(super) group: Group,
    pub(super) guard: &'a LockGuard,
    pub(super) terminal: Terminal,
    pub(super) signals: Signals,
    pub(super) stops: StopRequests,
    /// Tells that the command has ended or stopped. Listened to before it starts.
    pub(super) children: unix::Signal,
}

impl Watch<'_> {
    /// Watches until the command has ended. [`Exit::Lost`] if the lock was lost
    /// before.
    pub(super) async fn until_ended(mut self) -> Result<Exit, Failure> {
        let lost = self.guard.lost();
        tokio::pin!(lost);
        let mut patience = Patience::NotNeeded;
        let exit = loop {
            // Looked at first: it may have ended before we listened.
            match self.group.news()? {
                Some(News::Ended(exit)) => break exit,
                Some(News::Stopped(signal)) => {
                    self.stopped(signal).await;
                    continue;
                }
                None => {}
            }
            tokio::select! {
                biased;
                reason = &mut lost, if patience == Patience::NotNeeded => {
                    self.tell_lost(&reason.to_string());
                    self.end_command();
                    patience = Patience::Until(Instant::now() + self.grace);
                }
                () = patience.over() => {
                    self.group.signal(Signal::SIGKILL);
                    patience = Patience::Over;
                }
                () = self.stops.next() => self.group.signal(Signal::SIGTSTP),
                signal = self.signals.next() => self.group.signal(signal),
                _ = self.children.recv() => {}
                () = sleep(LOOK_EVERY) => {}
            }
        };
        self.terminal.take_back(&self.group);
        match patience {
            Patience::NotNeeded => return Ok(exit),
            Patience::Until(kill_at) => self.end_rest(kill_at).await,
            Patience::Over => {}
        }
        Ok(Exit::Lost)
    }

    /// The command has been stopped. At a terminal the job it belongs to stops with
    /// it: us, and those who share our group.
    async fn stopped(&mut self, signal: Signal) {
        let by_terminal = matches!(signal, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU);
        // Stopped by hand from elsewhere: the lock stays held while it stands still.
        if !by_terminal || !self.terminal.is_there() {
            return;
        }
        self.terminal.take_back(&self.group);
        let wants_terminal = signal != Signal::SIGTSTP;
        if !(wants_terminal && self.terminal.is_ours()) {
            tell(format_args!(
                "stopped; `{}` is not renewed meanwhile, and is free to others when its lease is over",
                Shown(self.guard.name())
            ));
            self.terminal.stop_us();
            if wants_terminal && !self.terminal.is_ours() {
                // Put into the background, where it will ask for the terminal and be
                // stopped again at once. Not at full speed, where nobody stops us.
                sleep(Duration::from_millis(100)).await;
            }
        }
        // A lease that ended meanwhile: the command must not go on.
        if self.guard.is_held() {
            self.terminal.hand_over(&self.group);
            self.group.signal(Signal::SIGCONT);
        }
    }

    fn tell_lost(&self, reason: &str) {
        tell(format_args!(
            "the lock `{}` is lost: {reason}; ending the command, by force in {}",
            Shown(self.guard.name()),
            duration::shown(self.grace)
        ));
    }

    fn end_command(&self) {
        self.group.signal(Signal::SIGTERM);
        // One that is stopped would not hear of it.
        self.group.signal(Signal::SIGCONT);
    }

    /// What the command has started and left behind works without the lock as well.
    async fn end_rest(&self, kill_at: Instant) {
        let gone = async {
            while !self.group.is_gone() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout_at(kill_at, gone).await.is_err() {
            self.group.signal(Signal::SIGKILL);
        }
    }
}

/// With a command that goes on without the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    NotNeeded,
    Until(Instant),
    Over,
}

impl Patience {
    /// Resolves when it comes to an end.
    async fn over(self) {
        match self {
            Self::Until(moment) => sleep_until(moment).await,
            Self::NotNeeded | Self::Over => std::future::pending().await,
        }
    }
}
