//! The grants that were really sent: the bytes, parsed by other code than the client's.

use std::collections::HashMap;

use super::calls::Call;

/// The bytes that were sent on one connection.
#[derive(Default)]
pub(crate) struct Sent {
    bytes: Vec<u8>,
    /// Whether nothing that follows can be parsed.
    broken: bool,
    calls: HashMap<i64, Call>,
}

impl Sent {
    pub(crate) fn asked(&mut self, call: &Call) {
        self.calls.insert(call.number, call.clone());
    }

    /// Returns the holds that `bytes` grant, which are sent after all earlier bytes.
    pub(crate) fn grants(&mut self, bytes: &[u8]) -> Vec<String> {
        if self.broken {
            return Vec::new();
        }
        self.bytes.extend_from_slice(bytes);
        let mut granted = Vec::new();
        loop {
            let mut reader = Reader {
                bytes: &self.bytes,
                at: 0,
                depth: 0,
            };
            match reader.value() {
                Ok(value) => {
                    let read = reader.at;
                    self.bytes.drain(..read);
                    self.note_grants(&value, &mut granted);
                }
                Err(Trouble::Short) => return granted,
                Err(Trouble::Garbage) => {
                    self.broken = true;
                    self.bytes = Vec::new();
                    return granted;
                }
            }
        }
    }

    /// Notes the grants. A grant is a nil in place of an acquire, in a list that names its call. If
    /// the call is one acquire, a grant is the number of the call alone.
    fn note_grants(&self, value: &Value, granted: &mut Vec<String>) {
        if let Value::Text(text) = value {
            let mut calls = self.calls.values();
            let named = calls.find(|call| call.number.to_string().as_bytes() == text);
            if let Some([only]) = named.map(|call| &call.operations[..])
                && only.step == "lock.acquire"
            {
                granted.push(only.hold.clone());
            }
            return;
        }
        let Value::List(replies) = value else { return };
        let Some(Value::Int(number)) = replies.first() else {
            return;
        };
        let Some(call) = self.calls.get(number) else {
            return;
        };
        if replies.len() != call.operations.len() + 1 {
            return;
        }
        for (operation, reply) in call.operations.iter().zip(&replies[1..]) {
            if operation.step.starts_with("lock.acquire") && *reply == Value::Nil {
                granted.push(operation.hold.clone());
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Value {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Value>),
    Other,
}

enum Trouble {
    /// More bytes must follow.
    Short,
    Garbage,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Result<Value, Trouble> {
        let line = self.line()?;
        let Some((kind, rest)) = line.split_first() else {
            return Err(Trouble::Garbage);
        };
        let number = || -> Result<i64, Trouble> {
            let text = std::str::from_utf8(rest).map_err(|_| Trouble::Garbage)?;
            text.trim().parse().map_err(|_| Trouble::Garbage)
        };
        match kind {
            b':' => Ok(Value::Int(number()?)),
            b'_' => Ok(Value::Nil),
            b'+' | b'-' | b',' | b'#' | b'(' => Ok(Value::Other),
            b'$' | b'=' | b'!' => match usize::try_from(number()?) {
                Ok(length) => self.body(length).map(|text| match kind {
                    b'$' => Value::Text(text),
                    _ => Value::Other,
                }),
                Err(_) => Ok(Value::Nil),
            },
            b'*' => match usize::try_from(number()?) {
                Ok(length) => Ok(Value::List(self.values(length)?)),
                Err(_) => Ok(Value::Nil),
            },
            b'~' | b'%' | b'|' => {
                let length = usize::try_from(number()?).map_err(|_| Trouble::Garbage)?;
                let (times, more) = match kind {
                    b'~' => (1, 0),
                    b'%' => (2, 0),
                    _ => (2, 1),
                };
                self.values(length.saturating_mul(times).saturating_add(more))?;
                Ok(Value::Other)
            }
            _ => Err(Trouble::Garbage),
        }
    }

    fn values(&mut self, length: usize) -> Result<Vec<Value>, Trouble> {
        // No client accepts a deeper reply.
        if self.depth == 100 {
            return Err(Trouble::Garbage);
        }
        self.depth += 1;
        let values = (0..length).map(|_| self.value()).collect();
        self.depth -= 1;
        values
    }

    fn body(&mut self, length: usize) -> Result<Vec<u8>, Trouble> {
        let rest = &self.bytes[self.at..];
        let whole = length.checked_add(2).ok_or(Trouble::Garbage)?;
        if rest.len() < whole {
            return Err(Trouble::Short);
        }
        if &rest[length..whole] != b"\r\n" {
            return Err(Trouble::Garbage);
        }
        self.at += whole;
        Ok(rest[..length].to_vec())
    }

    fn line(&mut self) -> Result<&'a [u8], Trouble> {
        let rest = &self.bytes[self.at..];
        // The byte that announces the type of the line can't end it.
        let end = rest
            .windows(2)
            .skip(1)
            .position(|two| two == b"\r\n")
            .ok_or(Trouble::Short)?;
        self.at += end + 3;
        Ok(&rest[..=end])
    }
}

#[test]
fn oracle_finds_only_complete_grants() {
    use super::calls::Operation;
    let call = Call {
        number: 7,
        operations: vec![Operation {
            step: "lock.acquire".into(),
            hold: "me:1".into(),
        }],
        own: false,
    };
    for (bytes, granted) in [
        (&b"*2\r\n:7\r\n$-1\r\n"[..], true),
        (b"+OK\r\n$3\r\nx\r\n\r\n*2\r\n:7\r\n_\r\n", true),
        (b"*2\r\n:8\r\n$-1\r\n", false),
        (b"*2\r\n:7\r\n:5\r\n", false),
        (b"*3\r\n:7\r\n$-1\r\n:1\r\n", false),
        (b"*2\r\n:7\r\n$-1\r", false),
        (b"?*2\r\n:7\r\n$-1\r\n", false),
        (b"$16\r\n*2\r\n:7\r\n$-1\r\n\r\n", false),
        (b"*1\r\n*2\r\n:7\r\n$-1\r\n", false),
        (b"$1\r\n7\r\n", true),
        (b"$3\r\n7:1\r\n", false),
        (b"$1\r\n8\r\n", false),
        (b"+7\r\n", false),
    ] {
        let mut sent = Sent::default();
        sent.asked(&call);
        let grants: Vec<_> = bytes.chunks(1).flat_map(|byte| sent.grants(byte)).collect();
        assert_eq!(!grants.is_empty(), granted, "{bytes:?}");
    }
}
