//! A minimal RESP2 client, which sends one command and reads one reply.

use std::io::{self, BufRead, Write};

/// The server's reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// A string that is UTF-8.
    Text(String),
    /// A string that is not UTF-8.
    Bytes(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
    /// The message of an error.
    Error(String),
}

impl Reply {
    /// Returns the number, if the reply is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the text, if the reply is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the elements, if the reply is an array.
    pub fn as_array(&self) -> Option<&[Reply]> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }
}

/// Sends a command and reads its reply.
pub(crate) fn call<S: BufRead + Write>(stream: &mut S, command: &[&str]) -> io::Result<Reply> {
    stream.write_all(request(command).as_bytes())?;
    stream.flush()?;
    read(stream)
}

/// Sends all commands at once, and then reads their replies.
pub(crate) fn call_all<S: BufRead + Write>(
    stream: &mut S,
    commands: &[&[&str]],
) -> io::Result<Vec<Reply>> {
    let requests: String = commands.iter().map(|command| request(command)).collect();
    stream.write_all(requests.as_bytes())?;
    stream.flush()?;
    commands.iter().map(|_| read(stream)).collect()
}

fn request(command: &[&str]) -> String {
    let mut request = format!("*{}\r\n", command.len());
    for part in command {
        request.push_str(&format!("${}\r\n{part}\r\n", part.len()));
    }
    request
}

/// Reads the next reply, or the next message.
pub(crate) fn read(stream: &mut impl BufRead) -> io::Result<Reply> {
    let line = read_line(stream)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => Ok(Reply::Int(number(rest)?)),
        "$" => match usize::try_from(number(rest)?) {
            Ok(length) => read_bulk(stream, length),
            Err(_) => Ok(Reply::Nil),
        },
        "*" => match usize::try_from(number(rest)?) {
            Ok(length) => (0..length)
                .map(|_| read(stream))
                .collect::<io::Result<_>>()
                .map(Reply::Array),
            Err(_) => Ok(Reply::Nil),
        },
        _ => Err(malformed(&line)),
    }
}

fn read_bulk(stream: &mut impl BufRead, length: usize) -> io::Result<Reply> {
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(match String::from_utf8(bytes) {
        Ok(text) => Reply::Text(text),
        Err(other) => Reply::Bytes(other.into_bytes()),
    })
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| malformed(text))
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not a RESP2 reply: {text:?}"),
    )
}
