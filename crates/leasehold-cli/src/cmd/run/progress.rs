//! The progress of a command, for `--progress-within`: detects progress, and reports that there is
//! none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use leasehold::{LossReason, Progress};
use tokio::time::Instant;

use super::copy::{Copies, Rest, Streams};
use crate::cli::Progress as Args;
use crate::cmd::acquire::{Holding, as_ms, unix_ms};
use crate::duration;
use crate::failure::Failure;
use crate::output::{self, Event, Shown, tell};
use crate::signals;

/// The longest time between two checks of the file.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The watch over a command's progress.
#[derive(Default)]
pub(super) struct Signs {
    /// The longest time from progress until it is noticed. `None` if the hold does not depend on
    /// progress.
    lag: Option<Duration>,
    copies: Option<Copies>,
    /// The channel whose end stops the thread that looks at the file.
    file: Option<mpsc::Sender<()>>,
    /// The time at which a stall was noticed.
    stalled_at: Option<Instant>,
    /// The time at which the lock is lost without a renewal. Set from the report of a stall until
    /// the next renewal.
    told: Option<Instant>,
}

impl Signs {
    /// Starts to watch. Also returns the streams to which the command must write, if its output
    /// counts.
    pub(super) fn watch(args: &Args, guard: &Holding) -> Result<(Self, Option<Streams>), Failure> {
        let Some(within) = args.within else {
            return Ok((Self::default(), None));
        };
        let progress = guard.progress_handle();
        let mut signs = Self {
            lag: Some(Duration::ZERO),
            ..Self::default()
        };
        let Some(path) = &args.file else {
            let (copies, streams) = Copies::start(&progress)?;
            signs.copies = Some(copies);
            return Ok((signs, Some(streams)));
        };
        let pause = (within / 10).min(LONGEST_PAUSE);
        signs.lag = Some(pause);
        signs.file = Some(
            look_at(path.clone(), pause, progress)
                .map_err(|error| Failure::io("can't start a thread", error))?,
        );
        Ok((signs, None))
    }

    /// Waits until the command stalls. If a stall has already been noticed, waits forever.
    pub(super) async fn until_stalled(&self, guard: &Holding) {
        match self.lag {
            Some(_) if self.stalled_at.is_none() => drop(guard.stalled().await),
            _ => std::future::pending().await,
        }
    }

    /// Reports a stall, and its end. A renewal extends the hold by more than `step`.
    pub(super) fn look(&mut self, guard: &Holding, step: Duration) {
        let Some(lag) = self.lag else { return };
        let Some(since) = stalled_for(guard) else {
            self.stalled_at = None;
            // Until a renewal, the lock may still be lost. Two readings of the same end differ a
            // little, because each compares two clocks.
            let is_renewed = |until: Instant| guard.valid_until() > until + step;
            if self.told.is_some_and(is_renewed) && guard.is_held() {
                self.told = None;
                tell_progress(guard.name());
            }
            return;
        };
        let stalled_at = *self.stalled_at.get_or_insert_with(Instant::now);
        // Wait for the time `lag`, because the latest progress may not have been noticed yet.
        if self.told.is_none() && stalled_at.elapsed() < lag {
            return;
        }
        // A renewal that was under way at the time of the stall may have moved the end.
        if self.told.replace(guard.valid_until()).is_none() {
            tell_stall(guard, since);
        }
    }

    /// Returns why the lock is not renewed, if the reason is a lack of progress.
    pub(super) fn reason(&self, guard: &Holding) -> Option<String> {
        match stalled_for(guard) {
            Some(since) => Some(LossReason::Stalled { since }.to_string()),
            None => self
                .told
                .map(|_| "its work made progress too late for a renewal".to_owned()),
        }
    }

    /// Stops watching, because the command has ended. Returns the output that has yet to be
    /// written.
    pub(super) fn finish(self) -> Option<Rest> {
        drop(self.file);
        self.copies.map(Copies::finish)
    }
}

/// Returns the time since the last progress, if the work under the hold has stalled.
fn stalled_for(guard: &Holding) -> Option<Duration> {
    guard.stalled().now_or_never()
}

fn tell_stall(guard: &Holding, since: Duration) {
    let last = SystemTime::now() - since;
    let is_event = output::event(Event::Stalled, guard.name(), || {
        vec![
            ("no_progress_ms", as_ms(since)),
            ("last_progress_ms", unix_ms(Some(last)).into()),
        ]
    });
    // Print nothing after a loss, which is reported together with its reason.
    if is_event || !guard.is_held() {
        return;
    }
    let left = guard
        .valid_until()
        .saturating_duration_since(Instant::now());
    tell(format_args!(
        "the command has made no progress for {}, since {}; until it does, `{}` is not renewed, and \
         is lost when its lease ends, {}",
        duration::shown(since),
        humantime::format_rfc3339_seconds(last),
        Shown(guard.name()),
        duration::soon(left)
    ));
}

fn tell_progress(name: &str) {
    if !output::event(Event::Progressing, name, Vec::new) {
        tell(format_args!(
            "the command makes progress again, so `{}` is renewed",
            Shown(name)
        ));
    }
}

/// Starts a thread that reports progress each time the file's modification time has changed. This
/// is a thread because a network file system may not answer. The thread ends when the sender is
/// dropped.
fn look_at(path: PathBuf, pause: Duration, progress: Progress) -> io::Result<mpsc::Sender<()>> {
    let (sender, ended) = mpsc::channel();
    signals::on_thread("progress", move || {
        let mut look = Look::first(&path);
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            if look.has_moved(&path) {
                progress.report();
            }
        }
    })?;
    Ok(sender)
}

/// The result of the last look at a file.
struct Look {
    /// The last known modification time of the file. It is compared only with other modification
    /// times of the file, because the file may be on a machine with another clock.
    modified: Option<SystemTime>,
    is_told: bool,
}

impl Look {
    fn first(path: &Path) -> Self {
        let mut look = Self {
            modified: None,
            is_told: false,
        };
        look.has_moved(path);
        look
    }

    /// Returns whether the file's modification time has changed. A missing file is not progress,
    /// and neither is a file that appears again with its old time.
    fn has_moved(&mut self, path: &Path) -> bool {
        match path.metadata().and_then(|file| file.modified()) {
            Ok(modified) => self.modified.replace(modified) != Some(modified),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound
                    && !std::mem::replace(&mut self.is_told, true)
                {
                    tell(format_args!(
                        "can't look at `{}`: {error}; this counts as no progress",
                        Shown(&path.to_string_lossy())
                    ));
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn only_a_changed_time_is_progress() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("progress");
        let set = |seconds| {
            let file = File::create(&path).expect("it can be written");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            file.set_modified(time).expect("it can be set");
        };
        let mut look = Look::first(&path);
        assert!(!look.has_moved(&path), "it is not there");
        // Set the time to the year 2100, and then to an earlier time: our clock does not matter.
        for seconds in [4_102_444_800, 1_000_000_000] {
            set(seconds);
            assert!(look.has_moved(&path), "{seconds}");
            assert!(!look.has_moved(&path), "{seconds}");
        }
        fs::remove_file(&path).expect("it is there");
        assert!(!look.has_moved(&path), "it is gone");
        set(1_000_000_000);
        assert!(!look.has_moved(&path), "it is the old one");
        assert!(!Look::first(&path).has_moved(&path), "it was there before");
    }
}
