//! Reading stdin.

use std::io::{self, Read as _};

use nix::unistd;
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

/// Reads the first line and nothing after it, because the rest belongs to the command that is run
/// next.
pub(crate) async fn first_line() -> io::Result<String> {
    /// The limit for the length of a line, in bytes. It is longer than any ticket.
    const LONGEST: usize = 1 << 20;
    read(|| {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.len() < LONGEST && unistd::read(io::stdin(), &mut byte)? > 0 && byte[0] != b'\n'
        {
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
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
        // This fails if the caller no longer waits for the answer.
        let _ = answer.send(read());
    })?;
    answered
        .await
        .unwrap_or_else(|gone| Err(io::Error::other(gone)))
}
