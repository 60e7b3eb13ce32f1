//! The dead-man's switch: a process beside us that kills the command when its time is
//! over, or when we are gone.
//!
//! A `leasehold` that was killed, stopped or starved can't end its command, so another
//! process does: it kills the command's group at the deadline it was told last, and at
//! once when nobody is there to tell it a later one. We tell a later one after each
//! renewal.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgid, getppid};
use tokio::time::Instant;

use super::child::children_of;
use super::launch::{not_started, ourselves, take_name};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::tell;

/// Our side: tells it the command and the deadline.
pub(super) struct Deadman {
    process: Child,
    line: UnixStream,
    group: Option<Pid>,
    /// The one told last, in milliseconds of [`since_boot`].
    deadline_ms: u64,
}

impl Deadman {
    /// Starts the process. It has nothing to kill yet.
    pub(super) fn start() -> Result<Self, Failure> {
        let (process, line) = spawn()?;
        Ok(Self {
            process,
            line,
            group: None,
            deadline_ms: u64::MAX,
        })
    }

    /// From now on the command's group dies when we do.
    pub(super) fn guard(&mut self, group: Pid) {
        self.group = Some(group);
        self.order(&format!("group {group}"));
    }

    /// The group is killed at `deadline`, unless another is told before.
    pub(super) fn kill_at(&mut self, deadline: Instant) {
        if self.has_struck() {
            return; // Late is late: the command is not there any more.
        }
        // The boot clock first: if we are stopped between the two looks, the deadline
        // comes too early, not too late.
        let now = since_boot();
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ms = as_ms(now + left);
        // Between the clocks a millisecond comes and goes.
        if deadline_ms.abs_diff(self.deadline_ms) > 1 {
            self.deadline_ms = deadline_ms;
            self.order(&format!("until {deadline_ms}"));
        }
    }

    /// The number of the process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether the deadline has passed, and the command has been killed.
    pub(super) fn has_struck(&self) -> bool {
        as_ms(since_boot()) >= self.deadline_ms
    }

    /// Starts another one if somebody has killed it.
    pub(super) fn look_after(&mut self) -> Result<(), Failure> {
        let ended = !matches!(self.process.try_wait(), Ok(None));
        if ended && !self.has_struck() {
            (self.process, self.line) = spawn()?;
            self.order(&format!("until {}", self.deadline_ms));
            if let Some(group) = self.group {
                self.guard(group);
            }
        }
        Ok(())
    }

    /// Ends it without a kill. Dropped, it kills: an error must not leave the command
    /// alone.
    pub(super) fn dismiss(mut self) {
        // By force: one that is stopped would not hear us. Both fail only when it has
        // ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn order(&mut self, order: &str) {
        // Fails when it has ended, and then another is started; or when it has been
        // stopped for long, and then waiting for it would stop us too.
        let _ = self.line.write_all(format!("{order}\n").as_bytes());
    }
}

fn spawn() -> Result<(Child, UnixStream), Failure> {
    let start = || {
        let (line, other_end) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        let process = ourselves("run-deadman")
            .stdin(OwnedFd::from(other_end))
            // Whoever reads what the command says waits for the last writer.
            .stdout(Stdio::null())
            // What is meant for our group, kills included, must not reach it.
            .process_group(0)
            .spawn()?;
        Ok((process, line))
    };
    start().map_err(not_started)
}

/// The other side: `leasehold run-deadman`.
pub(crate) fn main() -> Result<Exit, Failure> {
    take_name(c"run-deadman");
    // Nothing ends it before its time but KILL.
    let _ = SigSet::all().thread_block();
    let leasehold = getppid();
    let cant_listen = |error| Failure::io("can't listen to leasehold", error);
    let line = io::stdin().as_fd().try_clone_to_owned();
    let mut line = BufReader::new(UnixStream::from(line.map_err(cant_listen)?));
    let mut orders = Orders::default();
    let we_are_alone = orders.follow(&mut line).map_err(cant_listen)?;
    // The process that started us may have been stopped before it could tell.
    let Some(group) = orders.group.or_else(|| command_of(leasehold)) else {
        return Ok(Exit::Success);
    };
    // Fails when nobody is left, or when the command has become another user.
    let killed = killpg(group, Signal::SIGKILL).is_ok();
    if we_are_alone && killed {
        tell("leasehold was killed, so its command was killed too");
    }
    Ok(Exit::Success)
}

/// The group of the command that `leasehold` has started: its other child.
fn command_of(leasehold: Pid) -> Option<Pid> {
    let children = children_of(leasehold).into_iter().map(|child| child.id);
    let mut others = children.filter(|child| *child != Pid::this());
    others.find(|child| getpgid(Some(*child)) == Ok(*child))
}

/// What it has been told so far.
#[derive(Default)]
struct Orders {
    group: Option<Pid>,
    deadline_ms: Option<u64>,
    /// The one that is being read.
    order: Vec<u8>,
}

impl Orders {
    /// Listens until it is time to kill. `true` when that is because there is nobody
    /// to listen to any more.
    fn follow(&mut self, line: &mut BufReader<UnixStream>) -> io::Result<bool> {
        loop {
            line.get_ref().set_read_timeout(Some(self.nap()))?;
            match line.read_until(b'\n', &mut self.order) {
                Ok(0) => return Ok(true),
                Ok(_) => self.take(),
                // All that came in time is read before the clock is: after a pause of this
                // process it may be much.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.is_over() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(true),
            }
        }
    }

    fn take(&mut self) {
        let order = String::from_utf8_lossy(&self.order).into_owned();
        self.order.clear();
        match order.trim_end().split_once(' ') {
            Some(("group", number)) => self.group = number.parse().ok().map(Pid::from_raw),
            // One that can't be read changes nothing: the deadline before it stands.
            Some(("until", ms)) => self.deadline_ms = ms.parse().ok().or(self.deadline_ms),
            _ => {}
        }
    }

    fn is_over(&self) -> bool {
        self.deadline_ms.is_some_and(|ms| as_ms(since_boot()) >= ms)
    }

    /// How long to listen before the next look at the clock. Timers stand still while
    /// the machine sleeps, and leases do not.
    fn nap(&self) -> Duration {
        const LONGEST: Duration = Duration::from_millis(200);
        let left_ms = self
            .deadline_ms
            .map_or(u64::MAX, |ms| ms.saturating_sub(as_ms(since_boot())));
        Duration::from_millis(left_ms.max(1)).min(LONGEST)
    }
}

fn as_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A clock that all processes share and that goes on while the machine sleeps, as
/// leases do.
pub(super) fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    // Fails only before the machine was started.
    rustix::time::clock_gettime(CLOCK)
        .try_into()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (UnixStream, BufReader<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (ours, BufReader::new(theirs))
    }

    #[test]
    fn orders_that_waited_are_read_before_the_clock() {
        let (mut ours, mut theirs) = line();
        // As after a pause of the process: the first deadline is long over.
        ours.write_all(b"group 7\nuntil 1\nuntil 2\nun")
            .expect("it fits");
        let later = as_ms(since_boot() + Duration::from_millis(50));
        ours.write_all(format!("til {later}\n").as_bytes())
            .expect("it fits");
        let mut orders = Orders::default();
        assert!(!orders.follow(&mut theirs).expect("it can be read"));
        assert!(as_ms(since_boot()) >= later);
        assert_eq!(orders.group, Some(Pid::from_raw(7)));
    }

    #[test]
    fn nobody_to_listen_to_ends_it_at_once() {
        let (ours, mut theirs) = line();
        drop(ours);
        assert!(
            Orders::default()
                .follow(&mut theirs)
                .expect("it can be read")
        );
    }
}
