//! The terminal that `top` draws on. A separate thread writes to the terminal, which may stop
//! taking output (after Ctrl-S, or because a connection hangs). This must delay neither signals nor
//! renewals.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::queue;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::failure::Failure;
use crate::signals;

/// The longest wait at the end of `top` for a terminal that takes no output.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Bytes>>,
    drawn: Bytes,
    /// The channel to the thread that writes. At most one picture waits in it.
    pictures: mpsc::Sender<Vec<u8>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Screen {
    /// Takes control of the terminal. Nothing is written before the first picture.
    pub(super) fn open() -> Result<Self, Failure> {
        let failed = |error| Failure::io("can't draw on the terminal", error);
        let mut drawn = Bytes::default();
        queue!(drawn, EnterAlternateScreen).map_err(failed)?;
        let terminal = Terminal::new(CrosstermBackend::new(drawn.clone())).map_err(failed)?;
        let (pictures, queue) = mpsc::channel(1);
        let (told, ended) = oneshot::channel();
        signals::on_thread("screen", move || {
            // This fails if the screen no longer waits for the end.
            let _ = told.send(write_all(queue));
        })
        .map_err(failed)?;
        restore_on_panic();
        enable_raw_mode().map_err(failed)?;
        Ok(Self {
            terminal,
            drawn,
            pictures,
            ended,
        })
    }

    /// Draws as soon as the thread has taken the previous picture. If the future is dropped before
    /// that, nothing is drawn.
    pub(super) async fn draw(
        &mut self,
        picture: impl FnOnce(&mut Frame<'_>),
    ) -> Result<(), Failure> {
        let failed = |error| Failure::io("can't draw on the terminal", error);
        let Ok(room) = self.pictures.reserve().await else {
            // While `self` has a sender, the thread ends only with an error.
            let ended = (&mut self.ended).await;
            let error = ended.ok().and_then(Result::err);
            return Err(failed(error.unwrap_or(io::ErrorKind::BrokenPipe.into())));
        };
        self.terminal.draw(picture).map_err(failed)?;
        room.send(self.drawn.take());
        Ok(())
    }

    /// Restores the terminal. Gives up after [`PATIENCE`] if the terminal takes no output.
    pub(super) async fn close(self) {
        let Self {
            terminal,
            mut drawn,
            pictures,
            ended,
        } = self;
        // Dropping the terminal shows the cursor again.
        drop(terminal);
        let _ = disable_raw_mode();
        let _ = queue!(drawn, LeaveAlternateScreen, Show);
        let _ = timeout(PATIENCE, async {
            let _ = pictures.send(drawn.take()).await;
            drop(pictures);
            ended.await
        })
        .await;
    }
}

fn write_all(mut pictures: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(picture) = pictures.blocking_recv() {
        let mut stdout = io::stdout().lock();
        stdout.write_all(&picture)?;
        stdout.flush()?;
    }
    Ok(())
}

fn restore_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        ratatui::restore();
        hook(info);
    }));
}

/// The bytes of a picture that has not been sent to the thread yet.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
