//! Drives the connection for calls: the driver reads and writes the calls' bytes. A task polls the
//! driver. When the runtime ends, that task no longer exists. The code that drops a call then polls
//! the driver once more, so that the call's bytes are sent. Therefore the driver belongs to the
//! lane, not to the task.

use std::future::poll_fn;
use std::io::Read;
use std::net::{Shutdown, TcpStream};
#[cfg(unix)]
use std::os::fd::{AsFd as AsSocket, OwnedFd as OwnedSocket};
#[cfg(windows)]
use std::os::windows::io::{AsSocket, OwnedSocket};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::unconstrained;

use crate::clock::Clock;
use crate::sync::{Mutex, MutexGuard};

/// The driver of one connection. When it ends, the connection has ended.
pub(crate) struct Driver {
    io: Pin<Box<dyn Future<Output = ()> + Send>>,
    socket: Socket,
}

impl Driver {
    pub(super) fn new(io: impl Future<Output = ()> + Send + 'static, socket: Socket) -> Self {
        Self {
            io: Box::pin(io),
            socket,
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.io.as_mut().poll(context)
    }
}

/// A second handle of the connection's socket, besides the driver's. `None` if the process had no
/// file descriptor left.
pub(super) struct Socket(Option<OwnedSocket>);

impl Socket {
    pub(super) fn of(stream: &impl AsSocket) -> Self {
        // This is a descriptor of our own: the driver closes its descriptor when it is dropped, but
        // the socket must stay open until the server has read the last request.
        #[cfg(unix)]
        let own = stream.as_fd().try_clone_to_owned();
        #[cfg(windows)]
        let own = stream.as_socket().try_clone_to_owned();
        Self(own.ok())
    }

    /// Waits until the server has read all requests and has ended the connection on its side.
    /// Closing a socket while replies are on their way resets the connection, and the server then
    /// discards requests that it has not read.
    fn close_when_drained(self, clock: Clock, final_ping: Option<&[u8]>) -> Option<()> {
        // This works for a unix socket, too: these calls are the same for each kind of socket.
        let mut socket = TcpStream::from(self.0?);
        socket.set_nonblocking(false).ok()?;
        if final_ping.is_some() {
            // If the reply to the final ping does not arrive in time, the server may still read the
            // remaining requests.
            let _ = read_until(&mut socket, clock, final_ping);
        }
        socket.shutdown(Shutdown::Write).ok()?;
        read_until(&mut socket, clock, None)
    }
}

/// Reads for at most `CLOSE_TIMEOUT`: with `last`, until these bytes arrive, and without it, until
/// the connection ends.
fn read_until(socket: &mut TcpStream, clock: Clock, last: Option<&[u8]>) -> Option<()> {
    let until = clock.now() + CLOSE_TIMEOUT;
    let (mut unread, mut read) = ([0; 4096], Vec::new());
    loop {
        // If no time remains, the timeout is zero, which is an error and so ends the wait, too.
        let remaining = until.saturating_sub(clock.now());
        socket.set_read_timeout(Some(remaining)).ok()?;
        let count = socket.read(&mut unread).ok()?;
        if count == 0 {
            return Some(());
        }
        if let Some(last) = last {
            read.extend_from_slice(&unread[..count]);
            if read.ends_with(last) {
                return Some(());
            }
        }
    }
}

/// A request that the server runs after all others, and the last bytes of its reply.
pub(super) struct FinalPing {
    pub(super) reply: Vec<u8>,
    pub(super) request: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The longest time for which an unresponsive server delays the end of a runtime; twice this time
/// if the server must confirm something.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// The driver of the current connection, shared by all code that may have to poll it.
#[derive(Default)]
pub(super) struct SharedDriver(Mutex<Option<Driven>>);

struct Driven {
    driver: Driver,
    /// The waker of the task that runs the driver.
    waker: Waker,
}

impl SharedDriver {
    fn driven(&self) -> MutexGuard<'_, Option<Driven>> {
        self.0.lock()
    }

    /// Sets the driver of a new connection, which does nothing until it is polled.
    pub(super) fn set(&self, driver: Driver) {
        let waker = Waker::noop().clone();
        // Drop the old driver only after unlocking: dropping it wakes the waiters of its requests,
        // and no other code may run under this lock.
        let old = self.driven().replace(Driven { driver, waker });
        drop(old);
    }

    /// Ends the connection.
    pub(super) fn remove(&self) {
        let old = self.driven().take();
        drop(old);
    }

    /// Drives the connection until it ends.
    pub(super) async fn run(&self) {
        poll_fn(|context| {
            if let Some(driven) = &mut *self.driven() {
                driven.waker.clone_from(context.waker());
            }
            self.poll()
        })
        .await;
    }

    /// Writes the driver's requests to the socket, as many as the socket takes.
    pub(super) fn flush(&self) {
        // The poll is unconstrained: the task that polls for the last time may have used up tokio's
        // budget, and then nothing would be written.
        let _ = unconstrained(poll_fn(|_| self.poll())).now_or_never();
    }

    /// Ends the connection when the server has read all requests, or after a short while. With
    /// `final_ping`, also waits for the reply to this ping.
    pub(super) fn close_when_drained(&self, clock: Clock, final_ping: Option<FinalPing>) {
        self.flush();
        let unanswered = final_ping.and_then(|FinalPing { reply, mut request }| {
            let is_answered = request.as_mut().now_or_never().is_some();
            (!is_answered).then_some(reply)
        });
        let last = self.driven().take();
        if let Some(Driven { driver, .. }) = last {
            let Driver { io, socket } = driver;
            // Drop the driver before the socket is set to blocking mode, because both descriptors
            // share that mode.
            drop(io);
            // This fails if the server does not answer in time. The socket is closed even so,
            // because the end of the runtime can't wait any longer.
            let _ = socket.close_when_drained(clock, unanswered.as_deref());
        }
    }

    fn poll(&self) -> Poll<()> {
        let mut slot = self.driven();
        let Some(Driven { driver, waker }) = &mut *slot else {
            return Poll::Ready(());
        };
        // Always poll with the waker of the driver's task: `flush` must not make the driver forget
        // which task to wake for the next bytes.
        let over = Pin::new(driver).poll(&mut Context::from_waker(waker));
        if over.is_ready() {
            let last = slot.take();
            drop(slot);
            // `flush` may have found the end, so the task must learn that the connection has ended.
            if let Some(last) = last {
                last.waker.wake();
            }
        }
        over
    }
}
