//! Helpers that start the binary and read its output.

use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold_testkit::{RedisServer, Reply, eventually};
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{FlowArg, tcflow};
use nix::unistd::Pid;

/// A limit longer than any wait in these tests, even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A script that ends on TERM. It prints the process id of its child, which ignores TERM.
pub(crate) const STUBBORN_CHILD: &str =
    "(trap '' TERM; while :; do sleep 1; done) & echo $!; trap 'exit 0' TERM; wait";

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// Returns a command for the binary, without settings from the environment.
pub(crate) fn leasehold() -> Command {
    let mut command = Command::new(BINARY);
    for name in [
        "LEASEHOLD_URL",
        "REDIS_URL",
        "LEASEHOLD_PASSWORD_FILE",
        "LEASEHOLD_LABEL",
        "LEASEHOLD_PREFIX",
        "LEASEHOLD_MAP",
        "RUST_LOG",
        "LC_ALL",
        "LC_CTYPE",
    ] {
        command.env_remove(name);
    }
    command.env("LANG", "C.UTF-8");
    command
}

/// Returns a command for the binary, with this server.
pub(crate) fn leasehold_at(server: &RedisServer) -> Command {
    let mut command = leasehold();
    command.env("LEASEHOLD_URL", server.url());
    command
}

/// Creates the user `app`, which may use everything, or changes its password.
pub(crate) fn set_password(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let user = ["ACL", "SETUSER", "app", "on", "resetpass", &password];
    let user = [&user[..], &["+@all", "~*", "&*"]].concat();
    let set = server.command(&user).expect("the server runs");
    assert_eq!(set, Reply::Text("OK".into()));
}

/// Deletes the key of the lock `job`, so that its holder loses the lock.
pub(crate) fn delete_job(server: &RedisServer) {
    server.command(&["DEL", "job"]).expect("the server runs");
}

/// Returns `leasehold run` of a shell script, with these options and the name `job`.
pub(crate) fn run_script(server: &RedisServer, options: &[&str], script: &str) -> Command {
    let mut command = leasehold_at(server);
    command
        .arg("run")
        .args(options)
        .args(["job", "--", "sh", "-c", script]);
    command
}

/// Returns the command with the default action for HUP, even if the tests run under `nohup`.
pub(crate) fn with_hangup(command: &Command) -> Command {
    let mut with = Command::new("env");
    with.arg("--default-signal=HUP")
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => with.env(name, value),
            None => with.env_remove(name),
        };
    }
    with
}

/// The result of a run that has ended.
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// Returns the exit code. Fails the test if a signal has ended the run.
    #[track_caller]
    pub(crate) fn code(&self) -> i32 {
        match self.status.code() {
            Some(code) => code,
            None => panic!("{}: {self}", self.status),
        }
    }

    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self
    }

    #[track_caller]
    pub(crate) fn expect_on_stderr(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no `{text}` in {self}");
        self
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} (signal {:?})\nstdout: {}\nstderr: {}",
            self.status,
            self.status.signal(),
            self.stdout,
            self.stderr
        )
    }
}

/// A running process, killed on drop.
pub(crate) struct Running {
    child: Child,
    stdout: Option<BufReader<std::process::ChildStdout>>,
    stderr: Option<JoinHandle<()>>,
    told: Arc<Mutex<Vec<u8>>>,
}

/// Starts a command, with pipes for all three streams.
pub(crate) fn start(command: &mut Command) -> Running {
    start_telling(command, Stdio::piped())
}

/// Starts a command with this stderr, and with pipes for the other streams.
pub(crate) fn start_telling(command: &mut Command, stderr: impl Into<Stdio>) -> Running {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn();
    Running::of(child.expect("the binary starts"))
}

impl Running {
    /// Wraps a child, and reads its stdout and stderr if they are pipes.
    pub(crate) fn of(mut child: Child) -> Self {
        let stdout = child.stdout.take().map(BufReader::new);
        let told = Arc::<Mutex<Vec<u8>>>::default();
        let stderr = child.stderr.take().map(|mut pipe| {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                let mut part = [0; 4096];
                loop {
                    match pipe.read(&mut part).expect("stderr can be read") {
                        0 => return,
                        read => told.lock().expect("no panic").extend(&part[..read]),
                    }
                }
            })
        });
        Self {
            child,
            stdout,
            stderr,
            told,
        }
    }

    /// Returns whether stderr contains this text so far.
    pub(crate) fn has_told(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.told.lock().expect("no panic")).contains(text)
    }
}

/// Returns a full pipe. No process reads it while the reader is kept.
pub(crate) fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let set_blocking = |blocking: bool| {
        rustix::io::ioctl_fionbio(&writer, !blocking).expect("it can be set");
    };
    set_blocking(false);
    let mut filling = writer.try_clone().expect("a second one");
    // Write whole pages first, then fill the rest of the last page.
    for part in [&[b'.'; 4096][..], b"."] {
        while filling.write(part).is_ok() {}
    }
    set_blocking(true);
    (reader, writer.into())
}

/// Returns a terminal that takes no output, like after Ctrl-S.
pub(crate) fn still_terminal() -> (OwnedFd, File) {
    let ends = openpty(None, None).expect("a terminal");
    tcflow(&ends.slave, FlowArg::TCOOFF).expect("it can be stopped");
    (ends.master, File::from(ends.slave))
}

/// Returns whether a thread of the process is blocked in a write to this descriptor.
pub(crate) fn is_writing(pid: i32, descriptor: i32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    // The number of the system call on either architecture, and its first argument.
    let calls = ["1", "64"].map(|call| format!("{call} {descriptor:#x} "));
    threads.flatten().any(|thread| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        calls.iter().any(|writes| call.starts_with(writes))
    })
}

/// Runs a command to its end.
pub(crate) fn done(command: &mut Command) -> Done {
    start(command).done()
}

impl Running {
    /// Returns the next line of stdout, or an empty line at the end. A process that is silent for
    /// [`LIMIT`] is killed, so that the test ends.
    pub(crate) fn line(&mut self) -> String {
        let pid = self.pid();
        let (said, silent) = mpsc::channel::<()>();
        let limit = thread::spawn(move || {
            if silent.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                send(pid, Signal::SIGKILL);
            }
        });
        let mut line = String::new();
        let stdout = self.stdout.as_mut().expect("stdout is still here");
        stdout.read_line(&mut line).expect("stdout can be read");
        drop(said);
        limit.join().expect("it was there to be killed");
        line.trim_end().to_owned()
    }

    /// Waits until stdout has the line `text`.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) {
        loop {
            match self.line().as_str() {
                line if line == text => return,
                "" => panic!("it ended, or said nothing for {LIMIT:?}, without `{text}`"),
                _ => {}
            }
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().expect("a process id")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("it is still there");
    }

    /// Writes a line to the stdin of the process.
    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin is still here");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Closes the stdin of the process.
    pub(crate) fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn done(mut self) -> Done {
        self.close_stdin();
        let mut status = None;
        // Read stdout at the same time, because a full pipe would keep the process from ending. The
        // pipe ends when its last writer does.
        let stdout = self.stdout.take().map(|mut stdout| {
            thread::spawn(move || {
                let mut text = Vec::new();
                stdout.read_to_end(&mut text).expect("stdout can be read");
                text
            })
        });
        eventually("the run has ended", LIMIT, || {
            if status.is_none() {
                status = self.child.try_wait().expect("it can be waited for");
            }
            status.is_some() && stdout.as_ref().is_none_or(JoinHandle::is_finished)
        });
        let text = stdout.map(|reader| reader.join().expect("stdout was read"));
        Done {
            status: status.expect("it has just been set"),
            stdout: String::from_utf8_lossy(&text.unwrap_or_default()).into_owned(),
            stderr: {
                if let Some(reader) = self.stderr.take() {
                    reader.join().expect("stderr was read");
                }
                String::from_utf8_lossy(&self.told.lock().expect("no panic")).into_owned()
            },
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This fails after a successful test, in which the process has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether no client holds `job`.
pub(crate) fn is_free(server: &RedisServer) -> bool {
    let exists = server.command(&["EXISTS", "job"]).expect("the server runs");
    exists.as_int() == Some(0)
}

/// Returns whether a process runs. A zombie does not count.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().unwrap_or_default();
        !state.trim_start().starts_with(['Z', 'X'])
    })
}

/// Returns the ids and command lines of all processes with this URL in their environment.
pub(crate) fn processes(url: &str) -> Vec<(i32, String)> {
    let marker = format!("LEASEHOLD_URL={url}\0");
    let read = |pid: i32, file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
    std::fs::read_dir("/proc")
        .expect("/proc is there")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let marker = marker.as_bytes();
            read(*pid, "environ")
                .is_ok_and(|bytes| bytes.windows(marker.len()).any(|part| part == marker))
        })
        .filter(|pid| is_alive(*pid))
        .filter_map(|pid| {
            let words = String::from_utf8_lossy(&read(pid, "cmdline").ok()?).replace('\0', " ");
            Some((pid, words))
        })
        .collect()
}

/// Waits for a process with this word on its command line, and returns its id.
pub(crate) fn process(url: &str, word: &str) -> i32 {
    let mut found = None;
    eventually(word, LIMIT, || {
        let all = processes(url);
        let mut all = all.iter();
        found = all
            .find(|(_, words)| words.split(' ').any(|one| one == word))
            .map(|(pid, _)| *pid);
        found.is_some()
    });
    found.expect("it has just been found")
}

/// Waits until no process with this URL in its environment runs any more.
#[track_caller]
pub(crate) fn expect_nothing_runs(url: &str) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = processes(url);
        if left.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "still there with {url}: {left:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it is still there");
}

/// A file to which commands append marks. The order of the marks is the order of the writes,
/// without any clock.
pub(crate) struct Trace(tempfile::NamedTempFile);

impl Trace {
    /// A script that prints "held", writes `A` forever from two processes, and ignores signals that
    /// would end it.
    pub(crate) const STUBBORN: &str = "trap '' TERM HUP INT; echo held; \
        (while :; do echo A >>$TRACE; sleep 0.01; done) & \
        while :; do echo A >>$TRACE; sleep 0.01; done";
    /// A script that writes `B`.
    pub(crate) const NEXT: &str = "echo B >>$TRACE";

    pub(crate) fn new() -> Self {
        Self(tempfile::NamedTempFile::new().expect("a file"))
    }

    /// Makes the command append its marks to this file.
    pub(crate) fn of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("TRACE", self.0.path())
    }

    /// Returns the last number that has a line end. The last line may be incomplete.
    pub(crate) fn last_number(&self) -> i64 {
        let marks = std::fs::read_to_string(self.0.path()).expect("it can be read");
        let whole = marks.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let last = whole.lines().next_back().unwrap_or_default();
        last.parse().unwrap_or_else(|_| panic!("{marks}"))
    }

    /// Returns whether the command has written a whole line.
    pub(crate) fn has_a_line(&self) -> bool {
        let marks = std::fs::read_to_string(self.0.path()).expect("it can be read");
        marks.contains('\n')
    }

    /// Fails if an `A` follows a `B`. No process may write when this is called.
    #[track_caller]
    pub(crate) fn expect_no_overlap(&self) {
        let marks = std::fs::read_to_string(self.0.path()).expect("it can be read");
        let marks: String = marks.split_whitespace().collect();
        assert!(marks.starts_with('A') && marks.ends_with('B'), "{marks}");
        let after = marks.trim_start_matches('A').trim_end_matches('B');
        assert_eq!(after, "", "both at work: {marks}");
    }
}

pub(crate) fn server() -> RedisServer {
    RedisServer::start().expect("redis-server starts")
}
