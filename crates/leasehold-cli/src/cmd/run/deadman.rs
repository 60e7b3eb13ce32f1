//! The dead-man's switch: a second process that kills the command when its time is over, or when we
//! have ended.
//!
//! A `leasehold` that was killed, stopped or starved can't end its command, so the switch does. We
//! send it a later deadline after each renewal. It kills the command's group at the last deadline,
//! or at once when we have ended.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio, id};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgid, getppid};
use tokio::time::Instant;

use super::launch::{not_started, ourselves, take_name};
use super::processes::{Process, children_of};
use crate::cli::RunDeadman;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::tell;

/// Our side of the switch: sends the command's group and the deadline.
pub(super) struct Deadman {
    process: Child,
    line: UnixStream,
    group: Option<Pid>,
    /// The last deadline sent, in milliseconds of [`since_boot`].
    deadline_ms: u64,
}

impl Deadman {
    /// Starts the switch. It has no group to kill yet.
    pub(super) fn start() -> Result<Self, Failure> {
        let (process, line) = spawn()?;
        Ok(Self {
            process,
            line,
            group: None,
            deadline_ms: u64::MAX,
        })
    }

    /// Binds the command's group to this process: the switch kills the group when we die.
    pub(super) fn guard(&mut self, group: Pid) {
        self.group = Some(group);
        self.order(&format!("group {group}"));
    }

    /// Sends a deadline. The switch kills the group then, unless another deadline arrives before.
    pub(super) fn kill_at(&mut self, deadline: Instant) {
        if self.has_struck() {
            return; // Too late: the command has been killed.
        }
        // Read the boot clock first: if we are stopped between the two readings, the deadline is
        // too early, not too late.
        let now = since_boot();
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ms = as_ms(now + left);
        // The two clocks can differ by a millisecond from one reading to the next.
        if deadline_ms.abs_diff(self.deadline_ms) > 1 {
            self.deadline_ms = deadline_ms;
            self.order(&format!("until {deadline_ms}"));
        }
    }

    /// Returns the process id of the switch.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns whether the deadline has passed, so that the command has been killed.
    pub(super) fn has_struck(&self) -> bool {
        as_ms(since_boot()) >= self.deadline_ms
    }

    /// Starts another switch if this one was killed.
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

    /// Ends the switch without killing the command. Dropping the switch kills the command: an error
    /// must not leave the command running alone.
    pub(super) fn dismiss(mut self) {
        // KILL, because a stopped process would ignore other signals. Both calls fail only when
        // the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn order(&mut self, order: &str) {
        // Fails when the switch has ended: then another one is started. Also fails when the switch
        // has been stopped for long: then waiting for it would stop us too.
        let _ = self.line.write_all(format!("{order}\n").as_bytes());
    }
}

fn spawn() -> Result<(Child, UnixStream), Failure> {
    let start = || {
        let (line, other_end) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        let process = ourselves("run-deadman")
            .args(["--parent", &id().to_string()])
            .stdin(OwnedFd::from(other_end))
            // A reader of the command's stdout waits until the last writer has closed it.
            .stdout(Stdio::null())
            // Signals for our group, KILL included, must not reach the switch.
            .process_group(0)
            .spawn()?;
        Ok((process, line))
    };
    start().map_err(not_started)
}

/// The other side of the switch: `leasehold run-deadman`.
pub(crate) fn main(args: &RunDeadman) -> Result<Exit, Failure> {
    take_name(c"run-deadman");
    // Only KILL can end the switch before its time.
    let _ = SigSet::all().thread_block();
    let cant_listen = |error| Failure::io("can't listen to leasehold", error);
    let line = io::stdin().as_fd().try_clone_to_owned();
    let mut line = BufReader::new(UnixStream::from(line.map_err(cant_listen)?));
    let mut orders = Orders::of(Pid::from_raw(args.parent));
    let we_are_alone = orders.follow(&mut line).map_err(cant_listen)?;
    if orders.group.is_some_and(|group| group.kill()) && we_are_alone {
        tell("leasehold was killed, so its command was killed too");
    }
    Ok(Exit::Success)
}

/// The group to kill.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    group: Pid,
    /// The start time of its leader. `None` if the leader had ended before we looked.
    began: Option<u64>,
}

impl Target {
    fn new(group: Pid) -> Self {
        Self {
            group,
            began: Process::look_at(group).map(|leader| leader.began),
        }
    }

    /// Finds the group of the command that `leasehold` has started: the child that leads a group
    /// and is younger than this process.
    fn of(leasehold: Pid) -> Option<Self> {
        // If we are an orphan, our parent is a stranger, and so are its other children.
        if getppid() != leasehold {
            return None;
        }
        let ours = Process::look_at(Pid::this())?.began;
        let mut children = children_of(leasehold);
        let (group, leader) = children.find(|(id, child)| {
            *id != Pid::this() && child.began >= ours && getpgid(Some(*id)) == Ok(*id)
        })?;
        Some(Self {
            group,
            began: Some(leader.began),
        })
    }

    /// Kills the group. Returns `false` if the group no longer exists: a stranger may have its
    /// number.
    fn kill(&self) -> bool {
        let leader = Process::look_at(self.group);
        let is_stranger = leader.is_some_and(|leader| Some(leader.began) != self.began);
        // Fails when no process is left, or when the command runs as another user.
        !is_stranger && killpg(self.group, Signal::SIGKILL).is_ok()
    }
}

/// The orders received so far.
struct Orders {
    /// The process that gives the orders.
    leasehold: Pid,
    group: Option<Target>,
    deadline_ms: Option<u64>,
    /// The order that is being read.
    order: Vec<u8>,
}

impl Orders {
    fn of(leasehold: Pid) -> Self {
        Self {
            leasehold,
            group: None,
            deadline_ms: None,
            order: Vec::new(),
        }
    }

    /// Listens until it is time to kill. Returns `true` if the reason is that the other side has
    /// ended.
    fn follow(&mut self, line: &mut BufReader<UnixStream>) -> io::Result<bool> {
        loop {
            line.get_ref().set_read_timeout(Some(self.nap()))?;
            match line.read_until(b'\n', &mut self.order) {
                Ok(0) => return Ok(true),
                Ok(_) => self.take(),
                // Every order that has arrived is read before the clock. After a pause of this
                // process, many orders may wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // leasehold may have been stopped before it sent the group.
                    if self.group.is_none() {
                        self.group = Target::of(self.leasehold);
                    }
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
            Some(("group", number)) => {
                self.group = number.parse().ok().map(|id| Target::new(Pid::from_raw(id)));
            }
            // If the deadline can't be parsed, the previous one remains.
            Some(("until", ms)) => self.deadline_ms = ms.parse().ok().or(self.deadline_ms),
            _ => {}
        }
    }

    fn is_over(&self) -> bool {
        self.deadline_ms.is_some_and(|ms| as_ms(since_boot()) >= ms)
    }

    /// Returns how long to listen before the next look at the clock. Timers stop while the machine
    /// sleeps, and leases do not.
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

/// Reads a clock that all processes share, and that runs while the machine sleeps, like leases.
pub(super) fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    // The conversion fails only for a negative time.
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
        // Like after a pause of the process: the first deadline is long over.
        ours.write_all(b"group 7\nuntil 1\nuntil 2\nun")
            .expect("it fits");
        let later = as_ms(since_boot() + Duration::from_millis(50));
        ours.write_all(format!("til {later}\n").as_bytes())
            .expect("it fits");
        let mut orders = Orders::of(Pid::this());
        assert!(!orders.follow(&mut theirs).expect("it can be read"));
        assert!(as_ms(since_boot()) >= later);
        assert_eq!(
            orders.group.map(|target| target.group),
            Some(Pid::from_raw(7))
        );
    }

    #[test]
    fn nobody_to_listen_to_ends_it_at_once() {
        let (ours, mut theirs) = line();
        drop(ours);
        assert!(
            Orders::of(Pid::this())
                .follow(&mut theirs)
                .expect("it can be read")
        );
    }

    #[test]
    fn stranger_that_got_the_number_of_the_group_is_spared() {
        let mut stranger = std::process::Command::new("sleep")
            .arg("300")
            .process_group(0)
            .spawn()
            .expect("it starts");
        let id = i32::try_from(stranger.id()).expect("a process id");
        let told = Target::new(Pid::from_raw(id));
        let earlier = Target {
            group: told.group,
            began: told.began.map(|began| began - 1),
        };
        let ended_before = Target {
            group: told.group,
            began: None,
        };
        assert!(!earlier.kill());
        assert!(!ended_before.kill());
        assert!(matches!(stranger.try_wait(), Ok(None)));
        assert!(told.kill());
        stranger.wait().expect("it has ended");
    }
}
