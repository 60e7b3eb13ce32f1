//! The process with the driver, and the lines that are sent to it and received from it.

use std::{
    collections::HashMap,
    fmt,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::answer::{Answer, Pending, RedissonError, Slot, Timed};

/// A running driver, shared by the handles of its clients and threads.
pub(super) struct Jvm {
    pid: u32,
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    waiting: Mutex<Waiting>,
    stderr: Mutex<String>,
}

#[derive(Default)]
struct Waiting {
    next_id: u64,
    /// Whether the JVM has ended, so that there will be no further answers.
    is_gone: bool,
    slots: HashMap<u64, Arc<Slot>>,
}

/// One line from the driver.
#[derive(Deserialize)]
struct Line {
    id: u64,
    #[serde(default)]
    ok: Value,
    error: Option<String>,
    #[serde(default)]
    message: String,
    from_ns: u64,
    until_ns: u64,
}

impl Jvm {
    /// Starts the driver from the folder `target`, with these flags. Does not wait until the driver
    /// has started.
    pub(super) fn start(target: &Path, redis_url: &str, flags: &[&str]) -> Arc<Self> {
        let target = target.display();
        let mut child = Command::new("java")
            .args(flags)
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
            .arg("-cp")
            .arg(format!("{target}/driver.jar:{target}/lib/*"))
            .args(["org.leasehold.interop.Driver", redis_url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a JDK is installed");
        let stdin = child.stdin.take().expect("stdin is a pipe");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let stderr = child.stderr.take().expect("stderr is a pipe");
        let jvm = Arc::new(Self {
            pid: child.id(),
            child: Mutex::new(child),
            stdin: Mutex::new(stdin),
            waiting: Mutex::default(),
            stderr: Mutex::default(),
        });
        let reader = Arc::clone(&jvm);
        thread::spawn(move || reader.read_answers(stdout));
        let reader = Arc::clone(&jvm);
        thread::spawn(move || reader.keep_errors(stderr));
        jvm
    }

    /// Sends a request. The returned value waits for its answer.
    pub(super) fn send<T: DeserializeOwned>(
        &self,
        op: &str,
        mut request: Map<String, Value>,
    ) -> Pending<T> {
        request.insert("op".to_owned(), op.into());
        let slot = Arc::new(Slot::new(Value::from(request.clone()).to_string()));
        let mut waiting = lock(&self.waiting);
        if waiting.is_gone {
            slot.fill(self.gone());
            return Pending::new(slot);
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        waiting.slots.insert(id, Arc::clone(&slot));
        drop(waiting);

        request.insert("id".to_owned(), id.into());
        let line = format!("{}\n", Value::from(request));
        // A closed pipe means that the JVM has ended. The thread that reads answers then fills the
        // slot.
        let _ = lock(&self.stdin).write_all(line.as_bytes());
        Pending::new(slot)
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the JVM. Does nothing if it has already ended.
    pub(super) fn kill(&self) {
        let mut child = lock(&self.child);
        // This fails only if the process has already ended and was reaped.
        let _ = child.kill();
        let _ = child.wait();
    }

    pub(super) fn stderr(&self) -> String {
        lock(&self.stderr).clone()
    }

    fn read_answers(&self, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str::<Line>(&line) {
                Ok(line) => self.deliver(line),
                Err(error) => {
                    lock(&self.stderr).push_str(&format!("not an answer ({error}): {line}\n"));
                }
            }
        }
        let mut waiting = lock(&self.waiting);
        waiting.is_gone = true;
        let slots = std::mem::take(&mut waiting.slots);
        drop(waiting);
        for slot in slots.into_values() {
            slot.fill(self.gone());
        }
    }

    fn deliver(&self, line: Line) {
        let slot = lock(&self.waiting).slots.remove(&line.id);
        let Some(slot) = slot else { return };
        slot.fill(match line.error {
            Some(class) => Err(RedissonError::new(&class, line.message)),
            None => Ok(Timed {
                value: line.ok,
                from_ns: line.from_ns,
                until_ns: line.until_ns,
            }),
        });
    }

    fn keep_errors(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = lock(&self.stderr);
            kept.push_str(&line);
            kept.push('\n');
        }
    }

    fn gone<T>(&self) -> Answer<T> {
        let message = format!("the JVM has ended; it printed:\n{}", self.stderr());
        Err(RedissonError::new(RedissonError::GONE, message))
    }
}

impl fmt::Debug for Jvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jvm")
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The flags for a small JVM that starts quickly. The tests run several JVMs at once, each for a
/// few seconds.
pub(super) const QUICK_TO_START: [&str; 6] = [
    "-Xshare:auto",
    // Warnings about the archive would be printed among the answers.
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
    "-XX:TieredStopAtLevel=1",
    "-Xmx256m",
    "-XX:+UseSerialGC",
];
