//! The metrics of a run, as a file that node_exporter reads.

mod exposition;

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{Unit, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::output::tell;
use crate::signals;
use exposition::Exposition;

/// The pause between two writes while the command runs. Prometheus rarely reads metrics more often.
const EVERY: Duration = Duration::from_secs(10);
/// The longest wait for the first write, and for the last write. A file system that does not
/// answer, or a folder that another process has locked, must not block the command.
const LIMIT: Duration = Duration::from_secs(5);
/// The maximum number of symbolic links to follow. The system has the same limit.
const MOST_LINKS: usize = 40;
/// Upper bounds of times, in seconds: from the acquire of a free lock to a job that runs all night.
const TIMES: [f64; 10] = [
    0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0,
];
/// Upper bounds of a fraction of the lease. When a renewal is on time, two thirds are left.
const PARTS: [f64; 6] = [0.1, 0.2, 0.33, 0.5, 0.6, 1.0];
/// Upper bounds of the number of operations in a call.
const SIZES: [f64; 5] = [1.0, 4.0, 16.0, 64.0, 256.0];

const LAST_START: &str = "leasehold.run.last_start.timestamp";
const LAST_END: &str = "leasehold.run.last_end.timestamp";
const LAST_SUCCESS: &str = "leasehold.run.last_success.timestamp";
const LAST_EXIT_CODE: &str = "leasehold.run.last_exit_code";

/// The file, and the thread that writes it. The threads that renew the lock and listen for signals
/// never wait for a disk.
pub(super) struct MetricsFile {
    asks: Sender<Ask>,
}

enum Ask {
    /// Writes the file now.
    Write,
    /// Writes the file, and sends the outcome.
    WriteAndTell(Sender<Outcome>),
    /// Writes the file for the last time, and sends the outcome.
    End(Sender<Outcome>),
}

type Outcome = Result<(), Failure>;

impl MetricsFile {
    /// Begins to collect metrics, and writes the file for the first time. Each metric is labelled
    /// with the name of the lock: node_exporter refuses two files that share a series.
    ///
    /// If the file can't be written, this is an error. If the write takes too long, this is only
    /// reported, and the run continues. The thread then writes the file when it can.
    pub(super) fn start(path: &Path, name: &str) -> Result<Self, Failure> {
        let handle = record(name).map_err(|error| {
            Failure::new(Exit::Failed, format!("can't collect metrics: {error}"))
        })?;
        let writer = Writer {
            path: target(path),
            handle,
            written: Exposition::default(),
            is_first: true,
        };
        let (asks, asked) = mpsc::channel();
        signals::on_thread("metrics", move || writer.write_when_asked(&asked))
            .map_err(|error| Failure::io("can't start the thread that writes metrics", error))?;
        let this = Self { asks };
        // Write before the acquire, so that the run fails at once if the file can't be written.
        match this.ask(Ask::WriteAndTell) {
            Some(outcome) => outcome?,
            None => tell(late()),
        }
        Ok(this)
    }

    /// Makes the thread write the file, and waits for the outcome. `None` if the write takes too
    /// long.
    fn ask(&self, how: impl FnOnce(Sender<Outcome>) -> Ask) -> Option<Outcome> {
        let (outcome, ended) = mpsc::channel();
        let _ = self.asks.send(how(outcome));
        ended.recv_timeout(LIMIT).ok()
    }

    /// Makes the thread write the file, and does not wait for the outcome.
    pub(super) fn refresh(&self) {
        // The thread lives as long as `self`.
        let _ = self.asks.send(Ask::Write);
    }

    /// Writes the file for the last time.
    pub(super) fn end(self) -> Result<(), Failure> {
        self.ask(Ask::End).unwrap_or_else(|| Err(late()))
    }
}

fn late() -> Failure {
    let limit = humantime::format_duration(LIMIT);
    Failure::new(
        Exit::Failed,
        format!("the metrics were not written within {limit}"),
    )
}

/// Records that the lock is held and the command starts.
pub(super) fn command_starts() {
    gauge!(LAST_START).set(now());
}

/// Records that the command has ended.
pub(super) fn command_ended() {
    gauge!(LAST_END).set(now());
}

/// Records the exit code of a run that had the lock.
pub(super) fn run_ended(exit: Exit) {
    gauge!(LAST_EXIT_CODE).set(f64::from(exit.code()));
    if exit.code() == 0 {
        gauge!(LAST_SUCCESS).set(now());
    }
}

/// Returns the wall-clock time, in seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // Round to milliseconds: clocks are not more exact, and the number is shorter.
    (since.unwrap_or_default().as_secs_f64() * 1000.0).round() / 1000.0
}

/// The metrics of this process, and the values of them that the file already includes.
struct Writer {
    path: PathBuf,
    handle: PrometheusHandle,
    written: Exposition,
    is_first: bool,
}

impl Writer {
    fn write_when_asked(mut self, asked: &Receiver<Ask>) {
        loop {
            match asked.recv_timeout(EVERY) {
                Ok(Ask::WriteAndTell(outcome)) => drop(outcome.send(self.write())),
                Ok(Ask::End(outcome)) => {
                    let _ = outcome.send(self.write());
                    return;
                }
                // Ignore a failure: the last write reports one if it fails, too.
                Ok(Ask::Write) | Err(RecvTimeoutError::Timeout) => drop(self.write()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Adds the changes in this process's metrics to the file. Several runs, which may overlap, add
    /// to the same file.
    fn write(&mut self) -> Result<(), Failure> {
        let now = Exposition::read(&self.handle.render());
        self.update(&now).map_err(|error| {
            let what = format!("can't write the metrics to {}", self.path.display());
            Failure::io(what, error)
        })?;
        self.written = now;
        self.is_first = false;
        Ok(())
    }

    fn update(&self, now: &Exposition) -> io::Result<()> {
        match fs::metadata(&self.path) {
            Ok(file) if !file.is_file() => {
                // Write directly to a device or a pipe, because a new file would replace it. If a
                // pipe has no reader, fail and do not wait.
                let mut file = File::options()
                    .write(true)
                    .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                    .open(&self.path)?;
                return file.write_all(now.to_string().as_bytes());
            }
            _ => {}
        }
        let folder = folder_of(&self.path);
        // Another run must not change the file after we have read it and before we write it. The
        // lock is released when the descriptor is closed.
        let locked = File::open(folder)?;
        flock(&locked, FlockOperation::LockExclusive)?;
        let mut sum = match fs::read_to_string(&self.path) {
            Ok(text) => Exposition::read(&text),
            Err(error) if error.kind() == ErrorKind::NotFound => Exposition::default(),
            Err(error) => return Err(error),
        };
        if self.is_first {
            // An earlier run that was killed may have left a gauge that says it holds the lock.
            sum.clear_gauges(|name| !name.starts_with("leasehold_run_"));
        }
        sum.add(&self.written, now);
        // Replace the file as a whole, so that a reader finds either the old or the new file.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(sum.to_string().as_bytes())?;
        // Let all users read the file, because node_exporter runs as another user.
        file.as_file()
            .set_permissions(Permissions::from_mode(0o644))?;
        file.persist(&self.path)?;
        Ok(())
    }
}

/// Follows symbolic links, so that a write replaces the file that a link names, not the link. The
/// file need not exist yet.
fn target(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(next) = fs::read_link(&target) else {
            return target;
        };
        target = folder_of(&target).join(next);
    }
    // The write fails later, and says what is wrong.
    path.to_owned()
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn record(name: &str) -> Result<PrometheusHandle, Box<dyn std::error::Error>> {
    let recorder = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .add_global_label("name", name)
        .set_buckets_for_metric(Matcher::Suffix("duration".into()), &TIMES)?
        .set_buckets_for_metric(Matcher::Suffix("margin".into()), &PARTS)?
        .set_buckets_for_metric(Matcher::Suffix("operations".into()), &SIZES)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    describe_gauge!(
        LAST_START,
        Unit::Seconds,
        "Start of the last command that ran under the lock"
    );
    describe_gauge!(
        LAST_END,
        Unit::Seconds,
        "End of the last command that ran under the lock"
    );
    describe_gauge!(
        LAST_SUCCESS,
        Unit::Seconds,
        "End of the last run with exit code 0"
    );
    describe_gauge!(
        LAST_EXIT_CODE,
        "Exit code of the last run that had the lock"
    );
    Ok(handle)
}
