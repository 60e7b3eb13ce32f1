//! Signals that ask the program to end.

use std::fs;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::thread;

use futures_util::FutureExt as _;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tokio::signal::unix::{self, SignalKind};

use crate::failure::Failure;

/// The signals that users send, and that end a program by default.
const ENDING: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// A listener for the ending signals that reach this process.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Starts to listen. Must be called within a runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ignored = ignored();
        let streams = ENDING
            .into_iter()
            // With `nohup` and with a shell's `&`, this process and the command ignore some
            // signals. If this process listened for such a signal, it would no longer be ignored.
            .filter(|signal| ignored & (1 << (*signal as i32 - 1)) == 0)
            .map(|signal| {
                let stream = unix::signal(SignalKind::from_raw(signal as i32))?;
                Ok((signal, stream))
            })
            .collect::<io::Result<_>>()
            .map_err(|error| Failure::io("can't listen for signals", error))?;
        Ok(Self { streams })
    }

    /// Waits for the next signal. If the future is dropped, no signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = Pin::new(stream).poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Discards the signals that have arrived.
    pub(crate) fn forget(&mut self) {
        while self.next().now_or_never().is_some() {}
    }
}

/// Starts a thread that blocks all signals. Signals for the process are delivered to the other
/// threads, and a terminal does not stop the process when this thread reads or writes in the
/// background.
pub(crate) fn on_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // A new thread inherits the signal mask of its parent.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let started = thread::Builder::new().name(name.into()).spawn(work);
    before.thread_set_mask()?;
    started.map(drop)
}

/// Returns the mask of the ignored signals, or 0 if the system does not show it.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
