//! The driver of the connection for calls, which moves its bytes. A task polls it; whoever
//! finds out that the runtime ends polls it once more, so that what was handed over leaves.

use std::future::poll_fn;
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::unconstrained;

use crate::clock::Clock;
use crate::sync::{Mutex, MutexGuard};

/// Moves the bytes of one connection; the connection is gone when it ends.
pub(crate) struct Driver {
    moves: Pin<Box<dyn Future<Output = ()> + Send>>,
    socket: Socket,
}

impl Driver {
    pub(super) fn new(moves: impl Future<Output = ()> + Send + 'static, socket: Socket) -> Self {
        Self {
            moves: Box::pin(moves),
            socket,
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.moves.as_mut().poll(context)
    }
}

/// The connection's socket, beside the driver that uses it. `None` where there are no more
/// file descriptors.
pub(super) struct Socket(Option<OwnedFd>);

impl Socket {
    pub(super) fn of(stream: &impl AsFd) -> Self {
        Self(stream.as_fd().try_clone_to_owned().ok())
    }

    /// Waits until the server has taken what was sent, and ends the connection itself: one
    /// that is closed while replies are on their way is reset, and the server drops what it
    /// has not read.
    fn close_after_the_last(self, clock: Clock) -> Option<()> {
        let until = clock.now() + LAST_WAIT;
        // Of whatever kind it is: what is asked of it is the same for all.
        let mut socket = TcpStream::from(self.0?);
        socket.set_nonblocking(false).ok()?;
        socket.shutdown(Shutdown::Write).ok()?;
        let mut unread = [0; 4096];
        loop {
            // Of no time at all there is none: that is an error, and the end.
            let left = until.saturating_sub(clock.now());
            socket.set_read_timeout(Some(left)).ok()?;
            if socket.read(&mut unread).ok()? == 0 {
                return Some(());
            }
        }
    }
}

/// How long a runtime that ends is held up at most by a server that does not answer.
const LAST_WAIT: Duration = Duration::from_millis(250);

/// The driver of the connection that stands, for all who may have to poll it.
#[derive(Default)]
pub(super) struct Shared(Mutex<Option<Driven>>);

struct Driven {
    driver: Driver,
    /// Of the task that polls it.
    waker: Waker,
}

impl Shared {
    fn driven(&self) -> MutexGuard<'_, Option<Driven>> {
        self.0.lock()
    }

    /// A connection stands; it does nothing until it is polled.
    pub(super) fn set(&self, driver: Driver) {
        let waker = Waker::noop().clone();
        let old = self.driven().replace(Driven { driver, waker });
        drop(old);
    }

    /// Ends the connection.
    pub(super) fn remove(&self) {
        let old = self.driven().take();
        drop(old);
    }

    /// Drives the connection until it is over.
    pub(super) async fn run(&self) {
        poll_fn(|context| {
            if let Some(driven) = &mut *self.driven() {
                driven.waker.clone_from(context.waker());
            }
            self.poll()
        })
        .await;
    }

    /// What was handed over goes into the socket now, as far as that takes it.
    pub(super) fn flush(&self) {
        // Who polls the last time may have used up its share of the time.
        let _ = unconstrained(poll_fn(|_| self.poll())).now_or_never();
    }

    /// Ends the connection when the server has taken what was sent, or after a short while.
    pub(super) fn close_after_the_last(&self, clock: Clock) {
        self.flush();
        let last = self.driven().take();
        if let Some(Driven { driver, .. }) = last {
            let Driver { moves, socket } = driver;
            drop(moves);
            let _ = socket.close_after_the_last(clock);
        }
    }

    fn poll(&self) -> Poll<()> {
        let mut slot = self.driven();
        let Some(Driven { driver, waker }) = &mut *slot else {
            return Poll::Ready(());
        };
        // Whoever polls it, the task is woken for what comes next.
        let over = Pin::new(driver).poll(&mut Context::from_waker(waker));
        if over.is_ready() {
            let last = slot.take();
            drop(slot);
            // The task has to learn that the connection is gone.
            if let Some(last) = last {
                last.waker.wake();
            }
        }
        over
    }
}
