//! A check of the bytes that a server sends on a connection for calls, before the driver reads
//! them.
//!
//! The driver trusts the bytes: it waits for the announced number of bytes, follows a hundred
//! nested levels, and takes an unexpected push as the reply to the oldest request. With this check,
//! a connection ends at the first byte that no answer to our requests can have, before anything
//! waits for an announced length. So memory stays bounded, and no request gets the reply to another
//! one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::text::Shown;

/// The largest number of bytes in one reply: far more than the 256 longest replies that one call
/// can have.
const MAX_REPLY: usize = 1024 * 1024;
/// The largest depth of lists in lists. The greeting of RESP3, with its list of modules, has four
/// levels.
const MAX_DEPTH: usize = 8;
/// The largest number of bytes that are stored from an error's text.
const MAX_SHOWN: usize = 120;
/// The number of bytes in the longest line that announces a length: a sign and 19 digits.
const MAX_HEADER: usize = 20;

/// A connection whose incoming bytes are checked.
#[derive(Debug)]
pub(crate) struct Checked<S> {
    stream: S,
    replies: ReplyPosition,
}

impl<S> Checked<S> {
    /// Makes a connection on which every reply answers a request.
    pub(crate) fn calls(stream: S) -> Self {
        Self {
            stream,
            replies: ReplyPosition::default(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let capacity = buffer.remaining();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let new = &buffer.filled()[before..];
        // A read into a full buffer returns no bytes either, but that is not the end.
        if new.is_empty() && capacity > 0 {
            return Poll::Ready(self.replies.end());
        }
        let checked = self.replies.read(new);
        Poll::Ready(checked.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Checked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The position in the reply that is being read.
#[derive(Debug, Default)]
struct ReplyPosition {
    /// The number of elements that are still missing in each open list, outermost first.
    open: Vec<usize>,
    /// The number of bytes of the current reply so far.
    size: usize,
    /// The number of bytes of a bulk string that are still missing, including its line end.
    body_remaining: usize,
    /// The current line so far. If the line does not announce a length, only its start and its end
    /// are kept.
    line: Vec<u8>,
    /// The last line, if it is an error, up to `MAX_SHOWN` bytes.
    error: Vec<u8>,
}

type Check = Result<(), String>;

impl ReplyPosition {
    fn read(&mut self, mut bytes: &[u8]) -> Check {
        while !bytes.is_empty() {
            let taken = if self.body_remaining > 0 {
                self.read_body(bytes)
            } else {
                self.read_line(bytes)?
            };
            self.size += taken;
            // This is checked before the reply is complete, because the reply may never end.
            if self.size > MAX_REPLY {
                return Err(format!("a reply of over {MAX_REPLY} bytes"));
            }
            if self.open.is_empty() && self.body_remaining == 0 && self.line.is_empty() {
                self.size = 0;
            }
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn read_body(&mut self, bytes: &[u8]) -> usize {
        let taken = self.body_remaining.min(bytes.len());
        self.body_remaining -= taken;
        if self.body_remaining == 0 {
            self.end_element();
        }
        taken
    }

    fn read_line(&mut self, bytes: &[u8]) -> Result<usize, String> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.line.is_empty() {
                // This is checked at the first byte, because the line may never end.
                check_kind(*byte)?;
                self.error.clear();
            }
            self.line.push(*byte);
            if self.line[0] == b'-' && self.error.len() < MAX_SHOWN {
                self.error.push(*byte);
            }
            if self.line.ends_with(b"\r\n") && self.line.len() > 2 {
                self.end_line()?;
                return Ok(at + 1);
            }
            if self.line.len() > MAX_HEADER + 2 {
                if !is_simple(self.line[0]) {
                    return Err("an invalid length".into());
                }
                // Only the start and the end of a long line matter, so its middle is not kept.
                self.line.drain(1..MAX_HEADER);
            }
        }
        Ok(bytes.len())
    }

    /// Returns the error for a connection that the server has closed. A server that accepts no more
    /// clients sends an error before it closes the connection. The driver has no request that this
    /// error could answer.
    fn end(&self) -> io::Result<()> {
        let Some((_, error)) = self.error.split_first() else {
            return Ok(());
        };
        let said = String::from_utf8_lossy(error);
        Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            format!("the server's last message was: {}", Shown(said.trim_end())),
        ))
    }

    fn end_line(&mut self) -> Check {
        let kind = self.line[0];
        let announced = match kind {
            kind if is_simple(kind) => None,
            _ => length(&self.line[1..self.line.len() - 2])?,
        };
        self.line.clear();
        match (kind, announced) {
            (b'$' | b'=' | b'!', Some(length)) => {
                self.body_remaining = length + 2;
                Ok(())
            }
            (b'*' | b'~', Some(elements)) => self.open(elements),
            // This doesn't overflow: `length` has limited the number of pairs.
            (b'%', Some(pairs)) => self.open(pairs * 2),
            // The attributes are followed by the element that they describe.
            (b'|', Some(pairs)) => self.open(pairs * 2 + 1),
            // Only bulk strings and arrays may be null: `$-1` and `*-1` are the nulls of RESP2.
            (b'=' | b'!' | b'~' | b'%' | b'|', None) => Err("a length below zero".into()),
            _ => {
                self.end_element();
                Ok(())
            }
        }
    }

    fn open(&mut self, elements: usize) -> Check {
        if elements == 0 {
            self.end_element();
            return Ok(());
        }
        if self.open.len() == MAX_DEPTH {
            return Err(format!("lists in lists, over {MAX_DEPTH} deep"));
        }
        self.open.push(elements);
        Ok(())
    }

    fn end_element(&mut self) {
        while let Some(remaining) = self.open.last_mut() {
            *remaining -= 1;
            if *remaining > 0 {
                return;
            }
            self.open.pop();
        }
    }
}

/// Returns whether a line of this kind is an element by itself.
fn is_simple(kind: u8) -> bool {
    b"+-:_,#(".contains(&kind)
}

fn check_kind(kind: u8) -> Check {
    match kind {
        b'>' => Err("an unexpected push message".into()),
        kind if is_simple(kind) || b"$*%~|=!".contains(&kind) => Ok(()),
        kind => Err(format!("a reply that starts with the byte {kind:#04x}")),
    }
}

/// Reads a length that a reply can have; `None` for a missing value.
fn length(digits: &[u8]) -> Result<Option<usize>, String> {
    if digits == b"-1" {
        return Ok(None);
    }
    let text = std::str::from_utf8(digits).unwrap_or("");
    match text.parse() {
        // Signs and blanks are refused: the driver would read them, but no server sends them.
        Ok(length) if text.starts_with(|c: char| c.is_ascii_digit()) && length <= MAX_REPLY => {
            Ok(Some(length))
        }
        Ok(length) if length > MAX_REPLY => Err(format!("a length of {length}")),
        _ => Err("an invalid length".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the bytes in one piece, and again byte by byte, which is the worst way to cut a
    /// stream. Both must give the same result.
    fn read(bytes: &[u8]) -> Check {
        let mut pieces = ReplyPosition::default();
        let in_pieces = bytes.chunks(1).try_for_each(|byte| pieces.read(byte));
        let whole = ReplyPosition::default().read(bytes);
        assert_eq!(whole, in_pieces);
        whole
    }

    #[test]
    fn every_shape_of_a_reply_passes() {
        for reply in [
            &b"+OK\r\n-ERR no\r\n:-1\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n_\r\n"[..],
            b"*3\r\n:1\r\n*2\r\n:5\r\n$2\r\n\r\n\r\n_\r\n",
            b"%1\r\n+modules\r\n*1\r\n%1\r\n+name\r\n*0\r\n",
            b",1.5\r\n#t\r\n(123456789012345678901234567890\r\n=5\r\ntxt:x\r\n!3\r\nERR\r\n",
            b"*1\r\n|1\r\n+ttl\r\n:1\r\n:5\r\n+\rlone\n\r\n",
        ] {
            assert_eq!(read(reply), Ok(()));
        }
        let long = [&b"+"[..], &[b'x'; 5000], b"\r\n:1\r\n"].concat();
        assert_eq!(read(&long), Ok(()));
    }

    #[test]
    fn malformed_reply_is_refused_at_once() {
        for reply in [
            &b"*1000000000\r\n"[..],
            b"$2147483647\r\n",
            b"$-2\r\n",
            b"*-7\r\n",
            b"$+5\r\n",
            b"* 5\r\n",
            b"%9223372036854775807\r\n",
            b"=-1\r\n",
            b"$999999999999999999999999",
            b">2\r\n+invalidate\r\n",
            b"\0",
            b"HTTP/1.1 200 OK\r\n",
            b"$?\r\n",
            b"\r",
        ] {
            assert!(read(reply).is_err(), "{reply:?}");
        }
        assert!(read(&b"*1\r\n".repeat(9)).is_err(), "deep");
        assert_eq!(read(&b"*1\r\n".repeat(8)), Ok(()));
    }

    #[test]
    fn endless_reply_is_refused_at_the_limit() {
        // CR and LF are among the pieces because neither alone ends a line, so an endless line of
        // them must be refused like any other.
        for piece in [&b"x"[..], b"\r", b"\n"] {
            let mut replies = ReplyPosition::default();
            replies.read(b"+").unwrap();
            let error = (0..2 * MAX_REPLY).find_map(|_| replies.read(piece).err());
            assert!(error.is_some(), "an endless line of {piece:?}");
            assert!(replies.line.capacity() < 100);
        }
        let mut replies = ReplyPosition::default();
        replies.read(b"*1048576\r\n").unwrap();
        let error = (0..MAX_REPLY).find_map(|_| replies.read(b":1\r\n").err());
        assert!(error.is_some(), "an endless list");
    }

    #[test]
    fn last_error_explains_the_closed_connection() {
        let mut replies = ReplyPosition::default();
        replies
            .read(b"+OK\r\n-ERR max number of clients reached\r\n")
            .unwrap();
        let error = replies.end().unwrap_err().to_string();
        assert_eq!(
            error,
            "the server's last message was: ERR max number of clients reached"
        );
        replies.read(b"+OK\r\n").unwrap();
        assert!(replies.end().is_ok());
    }

    #[test]
    fn the_size_counts_for_each_reply() {
        let mut replies = ReplyPosition::default();
        let body = [&b"$500000\r\n"[..], &[b'x'; 500_000], b"\r\n"].concat();
        // The five replies are longer in total than one reply may be.
        for _ in 0..5 {
            assert_eq!(replies.read(&body), Ok(()));
        }
    }
}
