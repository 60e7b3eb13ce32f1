//! A connection for messages, with a small reader of our own. The driver's reader takes any
//! confirmation as the answer to the current request, but a cluster also sends confirmations that
//! answer no request. The connection always uses RESP2: with one format, less can go wrong.
//!
//! Whatever bytes arrive, memory stays bounded: an announced length is checked before the reader
//! waits for it, and the connection ends at the first byte that no server has a reason to send.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::backend::channels::Transport;
use crate::text::Shown;

/// The largest number of bytes in one frame.
const MAX_FRAME: usize = 1024 * 1024;
/// The number of bytes in the longest line that announces a length: a sign and 19 digits.
const MAX_HEADER: usize = 20;
/// Capacity for the bytes of one read. All of them are handled before any other event.
const READ: usize = 16 * 1024;

/// A frame that a server sends on such a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Message {
        transport: Transport,
        channel: String,
        payload: Vec<u8>,
    },
    Subscribed(Transport, String),
    Unsubscribed(Transport, String),
    /// The answer to a ping, or to a step of the handshake.
    Status,
    /// An error reply.
    Refused(String),
}

/// A connection to a server, of any transport.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A connection for messages.
pub(crate) struct Messages {
    stream: Box<dyn Io>,
    frames: Frames,
}

impl Messages {
    pub(crate) fn new(stream: Box<dyn Io>) -> Self {
        Self {
            stream,
            frames: Frames::default(),
        }
    }

    /// Sends commands, which were written by [`write_command`].
    pub(crate) async fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.write_all(commands).await?;
        self.stream.flush().await
    }

    /// Returns the next frame, if it has arrived completely.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, String> {
        self.frames.next_frame()
    }

    /// Waits for more bytes. Cancel safe: no byte is lost.
    pub(crate) async fn read_more(&mut self) -> Result<(), String> {
        match self.stream.read_buf(self.frames.free_space()).await {
            Ok(0) => Err("the server closed it".into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits for the next frame.
    pub(crate) async fn frame(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(frame);
            }
            self.read_more().await?;
        }
    }
}

/// Appends a command to commands that are sent in one write.
pub(crate) fn write_command<'a>(
    commands: &mut Vec<u8>,
    name: &'a str,
    arguments: impl IntoIterator<Item = &'a str>,
) {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let announced = format!("*{}\r\n", 1 + arguments.len());
    commands.extend_from_slice(announced.as_bytes());
    for part in std::iter::once(name).chain(arguments) {
        commands.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
    }
}

/// A buffer that cuts the bytes of a connection into frames.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    /// The end of the bytes that have been handled.
    done: usize,
}

impl Frames {
    /// Returns the buffer for the next bytes.
    fn free_space(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.done);
        self.done = 0;
        self.bytes.reserve(READ);
        &mut self.bytes
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, String> {
        let mut rest = Rest(&self.bytes[self.done..]);
        let before = rest.0.len();
        let frame = rest.frame()?;
        if frame.is_some() {
            self.done += before - rest.0.len();
        } else if before > MAX_FRAME {
            return Err(format!("a message of over {MAX_FRAME} bytes"));
        } else if self.done == self.bytes.len() {
            // The buffer may have grown for a long message, so its memory is freed.
            self.bytes = Vec::new();
            self.done = 0;
        }
        Ok(frame)
    }
}

/// Bytes that have not been read yet. A reading method returns `None` while bytes are missing.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn frame(&mut self) -> Result<Option<Frame>, String> {
        let Some(kind) = self.0.first() else {
            return Ok(None);
        };
        match kind {
            b'+' => Ok(self.line(MAX_FRAME)?.map(|_| Frame::Status)),
            b'-' => Ok(self.line(MAX_FRAME)?.map(|line| {
                let said = String::from_utf8_lossy(line);
                Frame::Refused(Shown(&said).to_string())
            })),
            b'*' => self.list(),
            other => Err(format!("a message that starts with the byte {other:#04x}")),
        }
    }

    fn list(&mut self) -> Result<Option<Frame>, String> {
        let elements = match self.line(MAX_HEADER)? {
            None => return Ok(None),
            // A pong has two elements, and every other list three.
            Some(b"2") => 2,
            Some(b"3") => 3,
            Some(_) => return Err("a list that is not a message".into()),
        };
        let Some(word) = self.text()? else {
            return Ok(None);
        };
        if elements == 2 {
            return match word {
                b"pong" => Ok(self.text()?.map(|_| Frame::Status)),
                _ => Err(unexpected_kind()),
            };
        }
        let (begins, transport) = match word {
            b"message" => (None, Transport::Global),
            b"smessage" => (None, Transport::Sharded),
            b"subscribe" => (Some(true), Transport::Global),
            b"unsubscribe" => (Some(false), Transport::Global),
            b"ssubscribe" => (Some(true), Transport::Sharded),
            b"sunsubscribe" => (Some(false), Transport::Sharded),
            _ => return Err(unexpected_kind()),
        };
        let Some(channel) = self.text()? else {
            return Ok(None);
        };
        let channel = String::from_utf8(channel.to_vec());
        let channel = channel.map_err(|_| "a channel that is not UTF-8")?;
        let Some(begins) = begins else {
            return Ok(self.text()?.map(|payload| Frame::Message {
                transport,
                channel,
                payload: payload.to_vec(),
            }));
        };
        let Some(count) = self.line(MAX_HEADER)? else {
            return Ok(None);
        };
        if count.is_empty() || !count.iter().all(u8::is_ascii_digit) {
            return Err("a confirmation without a number".into());
        }
        Ok(Some(match begins {
            true => Frame::Subscribed(transport, channel),
            false => Frame::Unsubscribed(transport, channel),
        }))
    }

    /// Reads a bulk string: its length, and then its bytes.
    fn text(&mut self) -> Result<Option<&'a [u8]>, String> {
        if self.0.first().is_some_and(|kind| *kind != b'$') {
            return Err("a message without a text".into());
        }
        let Some(digits) = self.line(MAX_HEADER)? else {
            return Ok(None);
        };
        // Signs and blanks are refused: no server sends them.
        let digits = std::str::from_utf8(digits).unwrap_or("");
        let length = digits.bytes().all(|digit| digit.is_ascii_digit());
        let length = length.then(|| digits.parse::<usize>().ok()).flatten();
        let length = length.ok_or("a length that is not a number")?;
        if length > MAX_FRAME {
            return Err(format!("a length of {length}"));
        }
        let rest = self.0;
        let Some((text, rest)) = rest.split_at_checked(length) else {
            return Ok(None);
        };
        match rest {
            [b'\r', b'\n', rest @ ..] => {
                self.0 = rest;
                Ok(Some(text))
            }
            [] | [b'\r'] => Ok(None),
            _ => Err("a text of another length".into()),
        }
    }

    /// Reads the rest of a line, after its first byte.
    fn line(&mut self, longest: usize) -> Result<Option<&'a [u8]>, String> {
        let rest = self.0;
        let end = rest.windows(2).position(|two| two == b"\r\n");
        if end.unwrap_or(rest.len()) > longest + 1 {
            return Err("a line that is too long".into());
        }
        let Some(end) = end else {
            return Ok(None);
        };
        self.0 = &rest[end + 2..];
        Ok(Some(&rest[1..end]))
    }
}

fn unexpected_kind() -> String {
    "an unexpected kind of message".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the bytes in one piece, and again byte by byte, which is the worst way to cut a
    /// stream. Both must give the same result.
    fn frames(bytes: &[u8]) -> Result<Vec<Frame>, String> {
        let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let (mut frames, mut read) = (Frames::default(), Vec::new());
            for piece in pieces {
                frames.free_space().extend_from_slice(piece);
                while let Some(frame) = frames.next_frame()? {
                    read.push(frame);
                }
            }
            Ok(read)
        };
        let in_pieces = read(&mut bytes.chunks(1));
        let whole = read(&mut std::iter::once(bytes));
        assert_eq!(whole.is_ok(), in_pieces.is_ok());
        if whole.is_ok() {
            assert_eq!(whole, in_pieces);
        }
        whole
    }

    #[test]
    fn each_frame_is_recognised() {
        let bytes = b"+OK\r\n-NOPERM no\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n\
            *3\r\n$10\r\nssubscribe\r\n$1\r\ny\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$2\r\n\r\n\r\n\
            *3\r\n$8\r\nsmessage\r\n$1\r\ny\r\n$0\r\n\r\n*3\r\n$12\r\nsunsubscribe\r\n$1\r\ny\r\n:0\r\n\
            *2\r\n$4\r\npong\r\n$0\r\n\r\n*3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n";
        let message = |transport, channel: &str, payload: &[u8]| Frame::Message {
            transport,
            channel: channel.into(),
            payload: payload.to_vec(),
        };
        let expected = vec![
            Frame::Status,
            Frame::Refused("NOPERM no".into()),
            Frame::Subscribed(Transport::Global, "x".into()),
            Frame::Subscribed(Transport::Sharded, "y".into()),
            message(Transport::Global, "x", b"\r\n"),
            message(Transport::Sharded, "y", b""),
            Frame::Unsubscribed(Transport::Sharded, "y".into()),
            Frame::Status,
            Frame::Unsubscribed(Transport::Global, "x".into()),
        ];
        assert_eq!(frames(bytes), Ok(expected));
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        for bytes in [
            &b"*1000000000\r\n"[..],
            b"*4\r\n$8\r\npmessage\r\n",
            b"*3\r\n$8\r\npmessage\r\n",
            b"*3\r\n$2147483647\r\n",
            b"*3\r\n$-1\r\n",
            b"*3\r\n$+5\r\n",
            b"*3\r\n$ 5\r\n",
            b"*3\r\n$\r\n",
            b"*3\r\n:1\r\n",
            b"*3\r\n*1\r\n",
            b"*-1\r\n",
            b"*2\r\n$4\r\npint\r\n",
            b"*3\r\n$7\r\nmessage\r\n$1\r\nxyz",
            b"*3\r\n$7\r\nmessage\r\n$1\r\n\xff\r\n",
            b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:\r\n",
            b"$99999999999999999999999",
            b">2\r\n+invalidate\r\n",
            b":1\r\n",
            b"\0",
            b"HTTP/1.1 200 OK\r\n",
        ] {
            assert!(
                frames(bytes).is_err(),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn endless_frame_is_refused_at_the_limit() {
        let endless = |start: &[u8]| {
            let mut frames = Frames::default();
            frames.free_space().extend_from_slice(start);
            let piece = [b'x'; 4096];
            let refused = (0..2 * MAX_FRAME / piece.len()).any(|_| {
                frames.free_space().extend_from_slice(&piece);
                frames.next_frame().is_err()
            });
            assert!(refused, "{:?}", String::from_utf8_lossy(start));
            assert!(frames.bytes.len() <= MAX_FRAME + 2 * piece.len());
        };
        endless(b"+");
        endless(b"-");
        endless(b"*3\r\n$7\r\nmessage\r\n$1048576\r\n");
    }
}
