//! The terminal: who may read it, and Ctrl-Z.
//!
//! The command has a process group of its own, so that it can be ended with all it
//! has started. Only one group at a time may read the terminal, so it has to be
//! handed to the command and taken back, as a shell does for its jobs.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::thread;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use tokio::sync::mpsc;

use super::child::Group;
use crate::failure::Failure;

/// Our controlling terminal, if there is one.
pub(super) struct Terminal {
    tty: Option<File>,
}

impl Terminal {
    pub(super) fn open() -> Self {
        let tty = File::options().read(true).write(true).open("/dev/tty");
        Self { tty: tty.ok() }
    }

    pub(super) fn is_there(&self) -> bool {
        self.tty.is_some()
    }

    /// Whether our own group has it.
    pub(super) fn is_ours(&self) -> bool {
        self.tty
            .as_ref()
            .is_some_and(|tty| tcgetpgrp(tty) == Ok(getpgrp()))
    }

    /// Hands the terminal to a command that is about to begin and uses it for input and output. In
    /// `leasehold run x -- cmd | less` it is `less` that needs the terminal; a command that reads
    /// from it is stopped, and gets it then.
    pub(super) fn hand_over_at_start(&mut self, group: &Group) {
        if io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_ours() {
            self.hand_over(group);
        }
    }

    /// Hands it to the command, if it is ours to give.
    pub(super) fn hand_over(&mut self, group: &Group) {
        if self.is_ours() {
            self.give_to(group.id());
        }
    }

    /// Takes it back from the command. Does nothing if another has it, the shell for
    /// example.
    pub(super) fn take_back(&mut self, group: &Group) {
        let has_it = |tty: &File| tcgetpgrp(tty) == Ok(group.id());
        if self.tty.as_ref().is_some_and(has_it) {
            self.give_to(getpgrp());
        }
    }

    fn give_to(&self, group: Pid) {
        let Some(tty) = &self.tty else { return };
        // A process that does this from the background is stopped, unless it blocks the signal.
        let mut background = SigSet::empty();
        background.add(Signal::SIGTTOU);
        if background.thread_block().is_ok() {
            // Fails when the group or the terminal is gone: nothing left to hand over.
            let _ = tcsetpgrp(tty, group);
            let _ = background.thread_unblock();
        }
    }

    /// Stops our whole group, as the terminal does on Ctrl-Z, and returns when it has
    /// been continued. Where no shell could continue it, the system does not stop it.
    ///
    /// On the main thread only, the one that a signal for the process goes to first:
    /// with the stop signal held back everywhere else the stop takes place before
    /// `kill` returns. Otherwise we would go on for a moment, and the command with us.
    pub(super) fn stop_us(&self) {
        hold_back_stops(false);
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        hold_back_stops(true);
    }
}

/// Blocks or unblocks the terminal's stop signal in this thread, and in those that it
/// starts from now on.
pub(super) fn hold_back_stops(hold_back: bool) {
    let set = stop_signal();
    // Fails only for a signal that does not exist.
    let _ = if hold_back {
        set.thread_block()
    } else {
        set.thread_unblock()
    };
}

fn stop_signal() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTSTP);
    set
}

/// Ctrl-Z that comes to us and not to the command, because the terminal is ours. A
/// `leasehold` that stopped alone would let its lease run out while the command works
/// on.
pub(super) struct StopRequests(mpsc::UnboundedReceiver<()>);

impl StopRequests {
    /// Starts to listen. The signal must be held back in every thread.
    pub(super) fn listen() -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::unbounded_channel();
        thread::Builder::new()
            .name("stops".into())
            .spawn(
                move || {
                    while stop_signal().wait().is_ok() && sender.send(()).is_ok() {}
                },
            )
            .map_err(|error| Failure::io("can't start a thread", error))?;
        Ok(Self(receiver))
    }

    /// The next one. Nothing is lost by dropping the future.
    pub(super) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
