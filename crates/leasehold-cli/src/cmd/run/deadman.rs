//! The dead-man's switch: a second process that kills the command at its deadline, or when
//! `leasehold` has ended.
//!
//! A `leasehold` that was killed or stopped, or that gets no processor time, can't end its command,
//! so the switch ends it. The switch kills the command's group at the latest deadline that
//! `leasehold` has sent, and at once when `leasehold` no longer exists. Some time before the
//! deadline, the switch sends TERM. After each renewal, `leasehold` sends a later deadline. When
//! `leasehold` ends the command itself, it sends a deadline for which the switch sends no TERM.
//!
//! The switch learns the group before the command begins (see [`launch`](super::launch)), so the
//! command never runs without the switch.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use tokio::time::Instant;

use super::launch::{not_started, ourselves, take_name, tell_as_parent};
use super::processes::Process;
use crate::cli::RunDeadman;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::tell;

/// The part of the switch in `leasehold` itself. It sends the group and the deadline to the
/// switch's process.
pub(super) struct Deadman {
    /// The name of the lock.
    name: String,
    process: Child,
    line: UnixStream,
    group: Option<Pid>,
    /// The latest deadline that was sent, in milliseconds on the clock of [`since_boot`].
    deadline_ms: u64,
    /// The time at which the switch sends TERM, if it does, on the same clock.
    ask_ms: Option<u64>,
}

impl Deadman {
    /// Starts the switch's process, for a command under this lock. The switch does not know the
    /// command's group yet.
    pub(super) fn start(name: &str) -> Result<Self, Failure> {
        let (process, line) = spawn(name)?;
        Ok(Self {
            name: name.to_owned(),
            process,
            line,
            group: None,
            deadline_ms: u64::MAX,
            ask_ms: None,
        })
    }

    /// Sends the command's group to the switch, which kills the group when this process ends.
    pub(super) fn guard(&mut self, group: Pid) {
        self.group = Some(group);
        self.order(&format!("group {group}"));
    }

    /// Sends a deadline. The switch kills the group at that time, unless another deadline arrives
    /// earlier.
    pub(super) fn kill_at(&mut self, deadline: Instant) {
        self.end_at(deadline, None);
    }

    /// Sends a deadline like [`kill_at`](Self::kill_at), and the time before this deadline at which
    /// the group gets TERM.
    pub(super) fn end_at(&mut self, deadline: Instant, ask_before: Option<Duration>) {
        if self.has_struck() {
            return; // Too late: the command has been killed.
        }
        // Read the boot clock first: if this process is stopped between the two readings, the
        // deadline is too early, not too late.
        let now = since_boot();
        let left = deadline.saturating_duration_since(Instant::now());
        let deadline_ms = as_ms(now + left);
        let ask_ms = ask_before.map(|span| deadline_ms.saturating_sub(as_ms(span)));
        // The two clocks can differ by a millisecond from one reading to the next.
        let is_other = deadline_ms.abs_diff(self.deadline_ms) > 1;
        if is_other || ask_ms.is_some() != self.ask_ms.is_some() {
            (self.deadline_ms, self.ask_ms) = (deadline_ms, ask_ms);
            self.order_deadline();
        }
    }

    fn order_deadline(&mut self) {
        let ask = self
            .ask_ms
            .map_or_else(String::new, |ask| format!(" {ask}"));
        self.order(&format!("until {}{ask}", self.deadline_ms));
    }

    /// Returns the time at which the command is killed, in milliseconds on the clock of
    /// [`since_boot`], if the command has a deadline.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        (self.deadline_ms < u64::MAX).then_some(self.deadline_ms)
    }

    /// Returns the process id of the switch.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns whether the deadline has passed, so that the command has been killed.
    pub(super) fn has_struck(&self) -> bool {
        as_ms(since_boot()) >= self.deadline_ms
    }

    /// Returns whether the command has been killed, or has got TERM from the switch.
    pub(super) fn has_acted(&self) -> bool {
        as_ms(since_boot()) >= self.ask_ms.unwrap_or(self.deadline_ms)
    }

    /// Starts another process if the switch was killed.
    pub(super) fn look_after(&mut self) -> Result<(), Failure> {
        let ended = !matches!(self.process.try_wait(), Ok(None));
        if ended && !self.has_struck() {
            (self.process, self.line) = spawn(&self.name)?;
            self.order_deadline();
            if let Some(group) = self.group {
                self.guard(group);
            }
        }
        Ok(())
    }

    /// Ends the switch without killing the command. In contrast, dropping the switch kills the
    /// command: after an error, the command must not continue without `leasehold`.
    pub(super) fn dismiss(mut self) {
        // The signal is KILL, because a stopped process would ignore other signals. Both calls fail
        // only if the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn order(&mut self, order: &str) {
        // This fails if the process has ended, or if it is stopped and the socket is full. When
        // such a process is resumed, it would kill the command at an old deadline. So `look_after`
        // starts another process.
        if self
            .line
            .write_all(format!("{order}\n").as_bytes())
            .is_err()
        {
            let _ = self.process.kill();
        }
    }
}

fn spawn(name: &str) -> Result<(Child, UnixStream), Failure> {
    let start = || {
        let (line, other_end) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        let process = ourselves("run-deadman", name)
            .stdin(OwnedFd::from(other_end))
            // Do not inherit our stdout: a reader of the command's output waits until no process
            // can write to it.
            .stdout(Stdio::null())
            // Signals for the group of `leasehold`, including KILL, must not reach the switch.
            .process_group(0)
            .spawn()?;
        Ok((process, line))
    };
    start().map_err(not_started)
}

/// Runs `leasehold run-deadman`, the process of the switch.
pub(crate) fn main(args: &RunDeadman) -> Result<Exit, Failure> {
    take_name(c"run-deadman");
    tell_as_parent(args.json);
    // From now on, only KILL can end the switch early.
    let _ = SigSet::all().thread_block();
    let cant_listen = |error| Failure::io("can't listen to leasehold", error);
    let line = io::stdin().as_fd().try_clone_to_owned();
    let mut line = BufReader::new(UnixStream::from(line.map_err(cant_listen)?));
    let mut orders = Orders::default();
    let we_are_alone = orders.follow(&mut line).map_err(cant_listen)?;
    if orders
        .group
        .is_some_and(|group| group.signal(Signal::SIGKILL))
        && we_are_alone
    {
        tell("leasehold was killed, so its command was killed too");
    }
    Ok(Exit::Success)
}

/// The group to end.
struct Target {
    group: Pid,
    /// The time at which the leader of the group began, on systems that show it.
    began: Option<u64>,
}

impl Target {
    fn new(group: Pid) -> Self {
        let began = Process::look_at(group).map(|leader| leader.began);
        Self { group, began }
    }

    /// Sends the signal to the group. Returns `false` if the group no longer exists. If `leasehold`
    /// was killed and the command has ended, another process may have got the number of the group.
    /// That process gets no signal.
    fn signal(&self, signal: Signal) -> bool {
        let leader = Process::look_at(self.group).map(|leader| leader.began);
        let is_stranger = leader
            .zip(self.began)
            .is_some_and(|(now, then)| now != then);
        // This fails if no process is left, or if the command now runs as another user.
        !is_stranger && killpg(self.group, signal).is_ok()
    }
}

/// The orders that `leasehold` has sent so far.
#[derive(Default)]
struct Orders {
    group: Option<Target>,
    deadline_ms: Option<u64>,
    /// The time at which the group gets TERM.
    ask_ms: Option<u64>,
    /// The order that is being read.
    order: Vec<u8>,
}

impl Orders {
    /// Listens until it is time to kill. Returns `true` if the reason is that `leasehold` has
    /// ended.
    fn follow(&mut self, line: &mut BufReader<UnixStream>) -> io::Result<bool> {
        loop {
            line.get_ref().set_read_timeout(Some(self.nap()))?;
            match line.read_until(b'\n', &mut self.order) {
                Ok(0) => return Ok(true),
                Ok(_) => self.take(),
                // Look at the clock only when all orders that have arrived are read: after a pause
                // of this process, there may be many, and the last one may have a later deadline.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // If there is no group, the command has not begun. A `leasehold` that is
                    // stopped at the moment may still send the group.
                    if self.is_over() && self.group.is_some() {
                        return Ok(false);
                    }
                    self.ask_if_due();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(true),
            }
        }
    }

    fn take(&mut self) {
        let order = String::from_utf8_lossy(&self.order).into_owned();
        self.order.clear();
        // An order that is incomplete or can't be parsed changes nothing.
        let Some(order) = order.strip_suffix('\n') else {
            return;
        };
        match order.split_once(' ') {
            Some(("group", number)) => {
                // 0 is the group of this process, and 1 means all processes.
                let number = number.parse().ok().filter(|number| *number > 1);
                self.group = number.map(|number| Target::new(Pid::from_raw(number)));
            }
            Some(("until", times)) => {
                let mut times = times.split(' ').map(|ms| ms.parse().ok());
                if let Some(Some(deadline_ms)) = times.next() {
                    self.deadline_ms = Some(deadline_ms);
                    self.ask_ms = times.next().flatten();
                }
            }
            _ => {}
        }
    }

    fn is_over(&self) -> bool {
        has_come(self.deadline_ms)
    }

    /// Sends TERM to the group once, when it is time. A stopped command is not continued: it may
    /// belong to a job that the terminal has stopped.
    fn ask_if_due(&mut self) {
        if let Some(group) = self.group.as_ref().filter(|_| has_come(self.ask_ms)) {
            group.signal(Signal::SIGTERM);
            self.ask_ms = None;
        }
    }

    /// Returns how long to listen before the clock is read again. Timers stop while the machine
    /// sleeps, but leases do not.
    fn nap(&self) -> Duration {
        const LONGEST: Duration = Duration::from_millis(200);
        let next_ms = self.ask_ms.or(self.deadline_ms);
        let left_ms = next_ms.map_or(u64::MAX, |ms| ms.saturating_sub(as_ms(since_boot())));
        Duration::from_millis(left_ms.max(1)).min(LONGEST)
    }
}

fn has_come(ms: Option<u64>) -> bool {
    ms.is_some_and(|ms| as_ms(since_boot()) >= ms)
}

pub(super) fn as_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Reads a clock that all processes share. Like leases, the clock keeps running while the machine
/// sleeps.
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
        // After a pause of the process, the first deadline passed long ago.
        ours.write_all(b"group 7\nuntil 1\nuntil 2\nun")
            .expect("it fits");
        let later = as_ms(since_boot() + Duration::from_millis(50));
        ours.write_all(format!("til {later}\n").as_bytes())
            .expect("it fits");
        let mut orders = Orders::default();
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
            Orders::default()
                .follow(&mut theirs)
                .expect("it can be read")
        );
    }

    #[test]
    fn orders_that_make_no_sense_change_nothing() {
        let (mut ours, mut theirs) = line();
        ours.write_all(b"group 7\nuntil 1\ngroup 0\n")
            .expect("it fits");
        ours.write_all(b"group 1\nuntil x\nnonsense\ngroup 8")
            .expect("it fits");
        drop(ours);
        let mut orders = Orders::default();
        assert!(orders.follow(&mut theirs).expect("it can be read"));
        assert!(orders.group.is_none());
        assert_eq!(orders.deadline_ms, Some(1));
    }

    #[test]
    fn deadline_without_a_group_is_no_end() {
        let (mut ours, mut theirs) = line();
        ours.write_all(b"until 1\n").expect("it fits");
        let switch = std::thread::spawn(move || {
            let mut orders = Orders::default();
            let alone = orders.follow(&mut theirs).expect("it can be read");
            (alone, orders.group.map(|target| target.group))
        });
        // During this time, the clock is read several times.
        std::thread::sleep(Duration::from_millis(50));
        ours.write_all(b"group 7\n").expect("it listens");
        let seen = switch.join().expect("no panic");
        assert_eq!(seen, (false, Some(Pid::from_raw(7))));
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
        let began = told.began.expect("it is shown");
        let earlier = Target {
            group: told.group,
            began: Some(began - 1),
        };
        assert!(!earlier.signal(Signal::SIGKILL));
        // If the system does not show when the leader began, the command must still be ended.
        let unknown = Target {
            group: told.group,
            began: None,
        };
        assert!(unknown.signal(Signal::SIGKILL));
        stranger.wait().expect("it has ended");
    }
}
