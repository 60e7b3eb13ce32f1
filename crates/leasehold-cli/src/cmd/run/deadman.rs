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
            .args(["--parent", &id().to_string()])
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
pub(crate) fn main(args: &RunDeadman) -> Result<Exit, Failure> {
    take_name(c"run-deadman");
    // Nothing ends it before its time but KILL.
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
    /// When its leader began. `None` if the leader had ended before we looked.
    began: Option<u64>,
}

impl Target {
    fn new(group: Pid) -> Self {
        Self {
            group,
            began: Process::look_at(group).map(|leader| leader.began),
        }
    }

    /// Finds the group of the command that `leasehold` has started: its child that leads a group
    /// and is younger than this process.
    fn of(leasehold: Pid) -> Option<Self> {
        // An orphan is the child of another process, whose other children are strangers.
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

    /// Kills the group. `false` if there is none: a group that has ended may have left its number
    /// to a stranger.
    fn kill(&self) -> bool {
        let leader = Process::look_at(self.group);
        let is_stranger = leader.is_some_and(|leader| Some(leader.began) != self.began);
        // Fails when nothing is left, or when the command has become another user.
        !is_stranger && killpg(self.group, Signal::SIGKILL).is_ok()
    }
}

/// What it has been told so far.
struct Orders {
    /// The process that gives the orders.
    leasehold: Pid,
    group: Option<Target>,
    deadline_ms: Option<u64>,
    /// The one that is being read.
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
                    // It may have been stopped before it could tell.
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
