//! Lines for a stream whose reader may stop reading: a queue, and a thread that writes.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of bytes that may wait before lines are dropped.
const ROOM: usize = 1 << 20;

/// A bounded queue of lines. Adding a line never waits for the reader of the stream.
pub(super) struct Lines {
    state: Mutex<State>,
    changed: Condvar,
    room: usize,
}

struct State {
    queue: VecDeque<String>,
    /// Number of bytes in the queue.
    size: usize,
    /// Number of lines dropped since the last note about dropped lines.
    dropped: u64,
    is_writing: bool,
    /// Number of lines written. It grows while the stream is read.
    written: u64,
    /// The value of `written` when [`Lines::settle`] gave up.
    stalled_at: Option<u64>,
}

impl State {
    fn is_done(&self) -> bool {
        self.queue.is_empty() && self.dropped == 0 && !self.is_writing
    }
}

impl Lines {
    pub(super) const fn new() -> Self {
        Self::with_room(ROOM)
    }

    const fn with_room(room: usize) -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                size: 0,
                dropped: 0,
                is_writing: false,
                written: 0,
                stalled_at: None,
            }),
            changed: Condvar::new(),
            room,
        }
    }

    /// Queues text, which is written in one piece. Counts it as dropped if the queue is full.
    pub(super) fn push(&self, text: String) {
        let mut state = self.lock();
        if state.size + text.len() > self.room {
            state.dropped += 1;
        } else {
            state.size += text.len();
            state.queue.push_back(text);
        }
        self.changed.notify_all();
    }

    /// Waits until everything has been written, or until nothing has been written for the time
    /// `patience`. Returns whether everything has been written.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let mut state = self.lock();
        let (mut written, mut still_since) = (state.written, Instant::now());
        while !state.is_done() {
            if state.written != written {
                (written, still_since) = (state.written, Instant::now());
            }
            let Some(left) = patience.checked_sub(still_since.elapsed()) else {
                return false;
            };
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Flushes, but waits only the first time for a reader that has stalled.
    pub(super) fn settle(&self, patience: Duration) {
        let is_stalled = {
            let state = self.lock();
            state.stalled_at == Some(state.written)
        };
        if !is_stalled && !self.flush(patience) {
            let mut state = self.lock();
            state.stalled_at = Some(state.written);
        }
    }

    /// Writes queued text, forever. `dropped` formats the note about dropped lines.
    pub(super) fn write_to(&self, stream: &mut impl Write, dropped: impl Fn(u64) -> String) {
        loop {
            let text = self.next(&dropped);
            // A closed stream must not end a run that holds a lock.
            let _ = stream.write_all(text.as_bytes());
            let mut state = self.lock();
            state.is_writing = false;
            state.written += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self, dropped: impl Fn(u64) -> String) -> String {
        let mut state = self.lock();
        loop {
            if let Some(text) = state.queue.pop_front() {
                state.size -= text.len();
                state.is_writing = true;
                return text;
            }
            let missing = std::mem::take(&mut state.dropped);
            if missing > 0 {
                state.is_writing = true;
                return dropped(missing);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    /// A stream that takes one write for each permission that the reader gives.
    struct Gate {
        may: Receiver<()>,
        wrote: Sender<String>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.may.recv();
            let text = String::from_utf8_lossy(bytes).into_owned();
            let _ = self.wrote.send(text);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated(room: usize) -> (Arc<Lines>, Sender<()>, Receiver<String>) {
        let lines = Arc::new(Lines::with_room(room));
        let (allow, may) = channel();
        let (wrote, written) = channel();
        let writer = Arc::clone(&lines);
        std::thread::spawn(move || {
            writer.write_to(&mut Gate { may, wrote }, |count| {
                format!("{count} dropped\n")
            });
        });
        (lines, allow, written)
    }

    #[test]
    fn lines_for_a_stalled_reader_are_dropped_and_counted() {
        let (lines, allow, written) = gated(4);
        for text in ["1\n", "2\n", "3\n", "4\n", "5\n", "6\n"] {
            lines.push(text.to_owned());
        }
        assert!(!lines.flush(SHORT), "nobody reads");
        for _ in 0..6 {
            allow.send(()).expect("it writes");
        }
        assert!(lines.flush(LONG));
        let written: Vec<_> = written.try_iter().collect();
        // The writer may have taken the first line before the other lines were queued.
        let (kept, note) = written.split_at(written.len() - 1);
        assert!((2..=3).contains(&kept.len()), "{written:?}");
        assert_eq!(note, [format!("{} dropped\n", 6 - kept.len())]);
    }

    #[test]
    fn slow_reader_gets_every_line_before_the_end() {
        let (lines, allow, written) = gated(1000);
        for _ in 0..5 {
            lines.push("line\n".to_owned());
        }
        let reader = std::thread::spawn(move || {
            for _ in 0..5 {
                std::thread::sleep(SHORT);
                allow.send(()).expect("it writes");
            }
        });
        assert!(lines.flush(LONG));
        // The last line must be written before the reader has ended.
        assert_eq!(written.try_iter().count(), 5);
        reader.join().expect("it has read");
    }

    #[test]
    fn stalled_reader_is_waited_for_once() {
        let (lines, allow, _written) = gated(1000);
        lines.push("line\n".to_owned());
        lines.settle(SHORT);
        // With this patience, a second wait would never end.
        lines.settle(Duration::MAX);
        allow.send(()).expect("it writes");
        assert!(lines.flush(LONG));
    }
}
