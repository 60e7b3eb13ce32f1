//! Reading stdin.

use std::io::{self, Read as _};

use tokio::sync::oneshot;

use crate::signals;

/// Reads a line, or the rest of the input if it has no line end.
pub(crate) async fn line() -> io::Result<String> {
    read(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        Ok(line)
    })
    .await
}

/// Reads and discards stdin until it ends.
pub(crate) async fn end() -> io::Result<()> {
    read(|| {
        let mut unread = [0; 4096];
        while io::stdin().read(&mut unread)? > 0 {}
        Ok(())
    })
    .await
}

/// Runs a read on a separate thread, because a read can't be cancelled, and the caller must handle
/// signals while it waits. The thread does not belong to the runtime, which would wait for it at
/// shutdown.
async fn read<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, answered) = oneshot::channel();
    signals::on_thread("stdin", move || {
        // Fails when the caller no longer waits for the answer.
        let _ = answer.send(read());
    })?;
    answered
        .await
        .unwrap_or_else(|gone| Err(io::Error::other(gone)))
}
