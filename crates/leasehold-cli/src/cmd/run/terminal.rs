//! The terminal: which group may read it, and Ctrl-Z.
//!
//! The command has its own process group, so that it can be ended with every process that it has
//! started. Only one group at a time may read the terminal. So we give the terminal to the command
//! and take it back, as a shell does for its jobs.

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

    /// Returns whether our own group has the terminal.
    pub(super) fn is_ours(&self) -> bool {
        self.tty
            .as_ref()
            .is_some_and(|tty| tcgetpgrp(tty) == Ok(getpgrp()))
    }

    /// Gives the terminal to a command that is about to begin, if the command uses it for both
    /// input and output. In `leasehold run x -- cmd | less`, it is `less` that needs the terminal.
    /// If a command without the terminal reads from it, the command is stopped, and then gets the
    /// terminal.
    pub(super) fn hand_over_at_start(&mut self, group: &Group) {
        if io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_ours() {
            self.hand_over(group);
        }
    }

    /// Gives the terminal to the command, if our group has it.
    pub(super) fn hand_over(&mut self, group: &Group) {
        if self.is_ours() {
            self.give_to(group.id());
        }
    }

    /// Takes the terminal back from the command. Does nothing if another group has it, for example
    /// the shell's.
    pub(super) fn take_back(&mut self, group: &Group) {
        let has_it = |tty: &File| tcgetpgrp(tty) == Ok(group.id());
        if self.tty.as_ref().is_some_and(has_it) {
            self.give_to(getpgrp());
        }
    }

    fn give_to(&self, group: Pid) {
        let Some(tty) = &self.tty else { return };
        // The system stops a background process that does this, unless the process blocks the
        // signal.
        let mut background = SigSet::empty();
        background.add(Signal::SIGTTOU);
        if background.thread_block().is_ok() {
            // This fails only if the group or the terminal no longer exists.
            let _ = tcsetpgrp(tty, group);
            let _ = background.thread_unblock();
        }
    }

    /// Stops our whole group, as the terminal does on Ctrl-Z, and returns when the group has been
    /// continued. If no shell could continue the group, the system does not stop it.
    ///
    /// Must be called on the main thread, which gets signals for the process first. All other
    /// threads block the stop signal, so the stop happens before `kill` returns. Otherwise this
    /// process and the command would continue for a moment.
    pub(super) fn stop_us(&self) {
        hold_back_stops(false);
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        hold_back_stops(true);
    }
}

/// Blocks or unblocks the terminal's stop signal in this thread, and in threads that it starts from
/// now on.
pub(in crate::cmd) fn hold_back_stops(hold_back: bool) {
    let set = stop_signal();
    // This fails only for a signal that does not exist.
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

/// A listener for the stop signal that Ctrl-Z sends to us instead of the command, because our group
/// has the terminal. If only `leasehold` stopped, its lease would end while the command continues.
pub(super) struct StopRequests(mpsc::UnboundedReceiver<()>);

impl StopRequests {
    /// Starts to listen. The signal must be blocked in every thread.
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

    /// Waits for the next Ctrl-Z. If the future is dropped, no Ctrl-Z is lost.
    pub(super) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}
