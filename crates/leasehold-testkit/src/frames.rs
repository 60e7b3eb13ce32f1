//! Counts requests and replies in a byte stream, so that a fault can hit exactly one of them.

/// Counts the complete RESP2 or RESP3 frames of one direction of a connection.
///
/// Pushes are left out: they answer nothing. (RESP2 has no pushes; there, a published message
/// counts as a reply.)
#[derive(Debug, Default)]
pub(crate) struct FrameCounter {
    complete: u64,
    /// The header line read so far.
    line: Vec<u8>,
    /// Bytes of a string's body that are still to come.
    body_left: usize,
    /// How many elements each open aggregate still lacks, outermost first.
    open: Vec<usize>,
    /// The outermost open aggregate answers nothing.
    is_push: bool,
}

impl FrameCounter {
    /// Frames complete so far.
    pub(crate) fn complete(&self) -> u64 {
        self.complete
    }

    /// Reads `bytes`, but not beyond the end of frame number `last`. Returns how many were read.
    pub(crate) fn read_to(&mut self, bytes: &[u8], last: u64) -> usize {
        let mut read = 0;
        while read < bytes.len() && self.complete < last {
            if self.body_left > 0 {
                let step = self.body_left.min(bytes.len() - read);
                read += step;
                self.body_left -= step;
                if self.body_left == 0 {
                    self.end_element();
                }
            } else {
                self.line.push(bytes[read]);
                read += 1;
                if self.line.ends_with(b"\n") {
                    self.end_line();
                }
            }
        }
        read
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let count = String::from_utf8_lossy(&line[1..]).trim().parse().ok();
        match (line[0], count) {
            (b'*' | b'~', Some(elements)) => self.open(elements),
            (b'%', Some(pairs)) => self.open(pairs * 2),
            // Attributes come before the reply they belong to and are part of no count.
            (kind @ (b'>' | b'|'), Some(elements)) => {
                self.is_push |= self.open.is_empty();
                // Inside an aggregate, the attributed element follows as one more element.
                let nested = usize::from(kind == b'|');
                if let (Some(left), 1) = (self.open.last_mut(), nested) {
                    *left += 1;
                }
                self.open(elements << nested);
            }
            (b'$' | b'=' | b'!', Some(length)) => self.body_left = length + 2,
            // A number, a simple string, a missing value ("$-1"), or an inline request.
            _ => self.end_element(),
        }
    }

    fn open(&mut self, elements: usize) {
        if elements == 0 {
            self.end_element();
        } else {
            self.open.push(elements);
        }
    }

    fn end_element(&mut self) {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.open.pop();
        }
        if !std::mem::take(&mut self.is_push) {
            self.complete += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(bytes: &[u8]) -> u64 {
        // One byte at a time is the worst way to cut a stream.
        let mut frames = FrameCounter::default();
        for byte in bytes {
            assert_eq!(frames.read_to(&[*byte], u64::MAX), 1);
        }
        frames.complete()
    }

    #[test]
    fn requests_are_counted_whole() {
        assert_eq!(
            count(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n*1\r\n$4\r\nPING\r\n"),
            2
        );
        assert_eq!(count(b"*2\r\n$3\r\nGET\r\n$1\r\nx"), 0);
        assert_eq!(count(b"PING\r\n"), 1);
    }

    #[test]
    fn replies_of_every_shape_count_once() {
        assert_eq!(
            count(b"+OK\r\n:1\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n_\r\n"),
            7
        );
        assert_eq!(count(b"*2\r\n*1\r\n:1\r\n$2\r\n\r\n\r\n"), 1);
        assert_eq!(count(b"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n:2\r\n"), 1);
    }

    #[test]
    fn pushes_and_attributes_are_no_replies() {
        assert_eq!(count(b">3\r\n+message\r\n+c\r\n$1\r\n0\r\n:1\r\n"), 1);
        assert_eq!(count(b"|1\r\n+ttl\r\n:1\r\n:5\r\n"), 1);
        assert_eq!(count(b"*2\r\n|1\r\n+ttl\r\n:1\r\n:5\r\n:6\r\n"), 1);
    }

    #[test]
    fn reading_stops_at_the_frame_asked_for() {
        let mut frames = FrameCounter::default();
        assert_eq!(frames.read_to(b"+OK\r\n:12\r\n:3\r\n", 2), 10);
        assert_eq!(frames.complete(), 2);
    }
}
