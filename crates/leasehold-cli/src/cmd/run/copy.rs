//! The output of a command, with `--progress-output`: `leasehold` copies the output, because
//! anything that the command writes is progress.
//!
//! The command writes to a pipe, and a thread copies the output from the pipe to our stdout or
//! stderr. For the command, this is the same as with `command | cat`: its bytes arrive in order,
//! unchanged and at once, a slow reader makes it wait, and when the reader has closed the stream,
//! SIGPIPE ends it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use leasehold::Progress;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use tokio::sync::mpsc;

use crate::failure::Failure;
use crate::output::tell;
use crate::signals;

/// Number of bytes that are copied at a time: the capacity of a pipe on Linux.
const PART: usize = 1 << 16;

/// The ends to which the command writes: its stdout and its stderr.
pub(super) struct Streams {
    pub(super) stdout: PipeWriter,
    pub(super) stderr: PipeWriter,
}

/// The copying of a command's output.
pub(super) struct Copies {
    /// Closed when the command has ended.
    stop: PipeWriter,
    rest: Rest,
}

/// The output that has yet to be written after the command has ended.
pub(in crate::cmd) struct Rest(mpsc::Receiver<()>);

impl Rest {
    /// Waits until all output has been written.
    pub(in crate::cmd) async fn written(mut self) {
        // Nothing is sent on this channel. It closes when the last thread ends.
        let _ = self.0.recv().await;
    }
}

impl Copies {
    /// Starts to copy. Whatever the command writes is reported as progress.
    pub(super) fn start(progress: &Progress) -> Result<(Self, Streams), Failure> {
        Self::threads(progress)
            .map_err(|error| Failure::io("can't copy the command's output", error))
    }

    fn threads(progress: &Progress) -> io::Result<(Self, Streams)> {
        let (stopped, stop) = pipe()?;
        let stopped = Arc::new(stopped);
        let (ended, rest) = mpsc::channel(1);
        let copy = |to: BorrowedFd<'_>| -> io::Result<PipeWriter> {
            let (from, writer) = pipe()?;
            let mut copy = Copy {
                from,
                to: File::from(to.try_clone_to_owned()?),
                has_reader: is_pipe(to)?,
                stopped: Arc::clone(&stopped),
                progress: progress.clone(),
            };
            let ended = ended.clone();
            signals::on_thread("output", move || {
                if let Err(error) = copy.run() {
                    tell(format_args!("can't copy the command's output: {error}"));
                }
                // The command gets SIGPIPE from now on.
                drop(copy);
                drop(ended);
            })?;
            Ok(writer)
        };
        let stdout = copy(io::stdout().as_fd())?;
        let stderr = match is_same_file()? {
            // With two pipes, the order between the two streams would be lost.
            true => stdout.try_clone()?,
            false => copy(io::stderr().as_fd())?,
        };
        let copies = Self {
            stop,
            rest: Rest(rest),
        };
        Ok((copies, Streams { stdout, stderr }))
    }

    /// Copies the output that is in the pipes at this moment, and then stops copying, because
    /// processes that the command has left running may keep the pipes open.
    pub(super) fn finish(self) -> Rest {
        drop(self.stop);
        self.rest
    }
}

/// Returns whether our stdout and our stderr are the same file, pipe or terminal.
fn is_same_file() -> io::Result<bool> {
    let (out, err) = (fstat(io::stdout())?, fstat(io::stderr())?);
    Ok((out.st_dev, out.st_ino) == (err.st_dev, err.st_ino))
}

fn is_pipe(stream: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = FileType::from_raw_mode(fstat(stream)?.st_mode);
    Ok(matches!(kind, FileType::Fifo | FileType::Socket))
}

/// The copying of one stream.
struct Copy {
    from: PipeReader,
    to: File,
    /// Whether `to` is a pipe or a socket, whose reader may close it.
    has_reader: bool,
    stopped: Arc<PipeReader>,
    progress: Progress,
}

/// The event that ended a wait.
enum News {
    Output,
    Stopped,
    /// The reader of our stream has closed it.
    NoReader,
}

impl Copy {
    fn run(&mut self) -> io::Result<()> {
        let copied = self.copy();
        match copied {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            copied => copied,
        }
    }

    fn copy(&mut self) -> io::Result<()> {
        let mut part = vec![0; PART];
        loop {
            match self.wait()? {
                News::Output => {
                    if self.copy_part(&mut part)? == 0 {
                        return Ok(());
                    }
                }
                News::Stopped => return self.copy_rest(&mut part),
                News::NoReader => return Ok(()),
            }
        }
    }

    fn wait(&self) -> io::Result<News> {
        let mut files = [
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.from.as_fd(), PollFlags::POLLIN),
            // Listen for errors only. The system always reports errors.
            PollFd::new(self.to.as_fd(), PollFlags::empty()),
        ];
        let watched = if self.has_reader { 3 } else { 2 };
        wait_for(&mut files[..watched])?;
        let [stopped, from, _] = files;
        Ok(if stopped.any() == Some(true) {
            News::Stopped
        } else if from.any() == Some(true) {
            // If there is no reader, the write below fails.
            News::Output
        } else {
            News::NoReader
        })
    }

    /// Copies the output that is in the pipe. Returns the number of bytes, or 0 at the end of the
    /// output.
    fn copy_part(&mut self, part: &mut [u8]) -> io::Result<usize> {
        let read = loop {
            match self.from.read(part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if read > 0 {
            self.progress.report();
            self.write(&part[..read])?;
        }
        Ok(read)
    }

    /// Copies the output that is in the pipe at this moment.
    fn copy_rest(&mut self, part: &mut [u8]) -> io::Result<()> {
        let mut left = usize::try_from(ioctl_fionread(&self.from)?).unwrap_or(usize::MAX);
        while left > 0 {
            let most = left.min(part.len());
            match self.copy_part(&mut part[..most])? {
                0 => break,
                read => left -= read,
            }
        }
        Ok(())
    }

    fn write(&mut self, mut part: &[u8]) -> io::Result<()> {
        while !part.is_empty() {
            match self.to.write(part) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => part = &part[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process that shares the stream has made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&mut [PollFd::new(self.to.as_fd(), PollFlags::POLLOUT)])?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn wait_for(files: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(files, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            ready => return Ok(ready.map(drop)?),
        }
    }
}
