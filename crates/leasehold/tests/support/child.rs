//! A child process, which is this test binary, started once more for one job.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_testkit::{ClockShim, ForkShim, Hosts, eventually, process};

const JOB: &str = "LEASEHOLD_TEST_JOB";

/// In a child: returns a flag that is set as soon as the parent closes this process's input.
pub(crate) fn until_parent_stops() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopped.store(true, Ordering::SeqCst);
    });
    stop
}

/// A running child process. It is killed when this is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Child {
    /// Starts the test `test` of this binary as the child. The child reads the words of its job
    /// with [`job`].
    pub(crate) fn start(test: &str, job: &str) -> Self {
        Self::of(Command::new(std::env::current_exe().unwrap()), test, job)
    }

    /// Like [`start`](Self::start), but on one of these hosts.
    pub(crate) fn on(hosts: &Hosts, host: usize, test: &str, job: &str) -> Self {
        let there = hosts.on(host);
        let mut command = Command::new(&there[0]);
        command.args(&there[1..]);
        command.arg(std::env::current_exe().unwrap());
        Self::of(command, test, job)
    }

    /// Like [`start`](Self::start), but with the library that enables the child to fork.
    pub(crate) fn forking(shim: &ForkShim, test: &str, job: &str) -> Self {
        Self::with([shim.environment()], test, job)
    }

    /// Like [`start`](Self::start), but with this wall clock.
    pub(crate) fn by(clock: &ClockShim, test: &str, job: &str) -> Self {
        Self::with(clock.environment(), test, job)
    }

    fn with(
        environment: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
        test: &str,
        job: &str,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(environment);
        Self::of(command, test, job)
    }

    fn of(mut command: Command, test: &str, job: &str) -> Self {
        let mut process = command
            .args(["--exact", test, "--nocapture"])
            .env(JOB, job)
            // The child ends when this pipe is closed, which this process does when it waits for
            // the child.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let said = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                said.lock().unwrap().push(line);
            }
        });
        Self {
            process,
            lines,
            reader: Some(reader),
        }
    }

    /// Returns the rest of the first line that begins with `word`, or `None` if there is none yet.
    pub(crate) fn said(&self, word: &str) -> Option<String> {
        let lines = self.lines.lock().unwrap();
        let rest = lines.iter().find_map(|line| line.strip_prefix(word));
        rest.map(|rest| rest.trim().to_owned())
    }

    /// Counts the lines so far that begin with `word`.
    pub(crate) fn count(&self, word: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.starts_with(word)).count()
    }

    /// Blocks this thread until the child has printed `word`.
    pub(crate) fn wait_for(&self, word: &str) -> String {
        eventually(word, Duration::from_secs(20), || self.said(word).is_some());
        self.said(word).unwrap()
    }

    /// Pauses the child.
    pub(crate) fn pause(&self) {
        process::pause(self.process.id()).unwrap();
    }

    /// Resumes the paused child.
    pub(crate) fn resume(&self) {
        process::resume(self.process.id()).unwrap();
    }

    /// Kills the child, which has no chance to clean up. Returns when it has ended.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Returns whether the child has ended, by itself or because it was killed.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the child to end, and returns all lines that it printed.
    pub(crate) fn lines(mut self) -> Vec<String> {
        self.process.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    /// Like [`Self::lines`], for a child that must end without an error.
    pub(crate) fn finished(mut self) -> Vec<String> {
        let success = self.process.wait().unwrap().success();
        let lines = self.lines();
        assert!(success, "{lines:#?}");
        lines
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the words of this process's job, if it is a child.
pub(crate) fn job() -> Option<Vec<String>> {
    let job = std::env::var(JOB).ok()?;
    // The test harness has not ended its own output line yet.
    println!();
    Some(job.split(' ').map(ToOwned::to_owned).collect())
}
