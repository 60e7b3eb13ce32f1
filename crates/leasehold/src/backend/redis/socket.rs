//! A socket that belongs to one process. After a fork the child has the same socket. If the child
//! read from it, the parent would miss those bytes. If the child wrote to it, those bytes would mix
//! with the parent's requests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::process::Process;

/// A connection that does nothing in any process but the one that opened it.
#[derive(Debug)]
pub(crate) struct ProcessBound<S> {
    /// The stream; always present until `self` is dropped.
    stream: Option<S>,
    process: Process,
}

impl<S> ProcessBound<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream: Some(stream),
            process: Process::own(),
        }
    }
}

impl<S: Unpin> ProcessBound<S> {
    fn own_stream(&mut self) -> Option<Pin<&mut S>> {
        let stream = self.stream.as_mut().filter(|_| !self.process.is_forked());
        stream.map(Pin::new)
    }
}

impl<S> Drop for ProcessBound<S> {
    fn drop(&mut self) {
        if self.process.is_forked() {
            // The parent shares the event queue. If the child removed the socket from it, the
            // parent would never see the socket become ready again.
            std::mem::forget(self.stream.take());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ProcessBound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.own_stream() {
            Some(stream) => stream.poll_read(context, buffer),
            None => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ProcessBound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.own_stream() {
            Some(stream) => stream.poll_write(context, bytes),
            None => Poll::Pending,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.own_stream() {
            Some(stream) => stream.poll_flush(context),
            None => Poll::Pending,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.own_stream() {
            Some(stream) => stream.poll_shutdown(context),
            None => Poll::Pending,
        }
    }
}
