//! Reading stdin.

use std::io::{self, Read as _};

use tokio::sync::oneshot;

use crate::signals;

/// Reads a line, or what is left of the input.
pub(crate) async fn line() -> io::Result<String> {
    read(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        Ok(line)
    })
    .await
}

/// Waits until nothing can be read any more.
pub(crate) async fn end() -> io::Result<()> {
    read(|| {
        let mut unread = [0; 4096];
        while io::stdin().read(&mut unread)? > 0 {}
        Ok(())
    })
    .await
}

/// On a thread of its own: no read can be broken off, and the reader has to hear of signals
/// meanwhile. It is none of the runtime's, which would wait for it at its end.
async fn read<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, answered) = oneshot::channel();
    signals::on_thread("stdin", move || {
        // Fails when nobody waits for it any more.
        let _ = answer.send(read());
    })?;
    answered
        .await
        .unwrap_or_else(|gone| Err(io::Error::other(gone)))
}
