//! Splits a byte stream into requests, replies and messages, so that a fault can affect exactly one
//! of them.

/// The bytes of one complete RESP2 or RESP3 value, or of one inline request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame(pub(crate) Vec<u8>);

impl Frame {
    /// Returns whether the frame contains the bytes of `needle`.
    pub(crate) fn contains(&self, needle: &[u8]) -> bool {
        self.0.windows(needle.len()).any(|window| window == needle)
    }

    /// Returns whether the frame is a request that subscribes. After such a request, messages can
    /// arrive.
    pub(crate) fn subscribes(&self) -> bool {
        let word = self.first_word().to_ascii_uppercase();
        word.ends_with(b"SUBSCRIBE") && !word.ends_with(b"UNSUBSCRIBE")
    }

    /// Returns how many replies a request gets: a subscription gets one for each channel.
    pub(crate) fn replies(&self) -> usize {
        let word = self.first_word().to_ascii_uppercase();
        if word.ends_with(b"SUBSCRIBE") {
            self.elements().saturating_sub(1).max(1)
        } else {
            1
        }
    }

    /// Returns whether the frame is a published message, and not the reply to a request. In RESP3 a
    /// message is a push. In RESP2 it is an ordinary array, so `subscribed` must say whether the
    /// connection has subscribed. The confirmation of a subscription is a reply, even when it
    /// arrives as a push.
    pub(crate) fn is_message(&self, subscribed: bool) -> bool {
        match self.0[0] {
            b'>' => !self.first_word().ends_with(b"subscribe"),
            b'*' => subscribed && self.first_word().ends_with(b"message"),
            _ => false,
        }
    }

    fn elements(&self) -> usize {
        let line = self.lines().next().unwrap_or_default();
        number(line).unwrap_or(0)
    }

    /// Returns the first element of an array, or the first word of an inline request.
    fn first_word(&self) -> &[u8] {
        let mut lines = self.lines();
        let head = lines.next().unwrap_or_default();
        if !head.starts_with(b"*") && !head.starts_with(b">") {
            return head.split(|byte| *byte == b' ').next().unwrap_or_default();
        }
        match lines.next().unwrap_or_default() {
            [b'$', ..] => lines.next().unwrap_or_default(),
            [b'+', word @ ..] => word,
            _ => &[],
        }
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.0
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// Finds the ends of the frames in one direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// The bytes of the current frame that have arrived.
    frame: Vec<u8>,
    /// The position at which the frame's last header line starts.
    line: usize,
    /// Number of bytes of a string's body that are still missing.
    body_left: usize,
    /// For each open aggregate, the number of elements that it still lacks, the outermost first.
    open: Vec<usize>,
    /// Whether the outermost open aggregate is an attribute, which only precedes the frame to which
    /// it belongs.
    is_attribute: bool,
}

impl Splitter {
    /// Reads `bytes`, and returns the frames that are now complete.
    pub(crate) fn split(&mut self, mut bytes: &[u8]) -> Vec<Frame> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let in_body = self.body_left > 0;
            let step = if in_body {
                self.body_left.min(bytes.len())
            } else {
                let end = bytes.iter().position(|byte| *byte == b'\n');
                end.map_or(bytes.len(), |end| end + 1)
            };
            self.frame.extend_from_slice(&bytes[..step]);
            bytes = &bytes[step..];
            let complete = if in_body {
                self.body_left -= step;
                self.body_left == 0 && self.end_element()
            } else {
                self.frame.ends_with(b"\n") && self.end_line()
            };
            if complete {
                frames.push(Frame(std::mem::take(&mut self.frame)));
                self.line = 0;
            }
        }
        frames
    }

    /// Reads a header line. Returns `true` if the frame ends with this line.
    fn end_line(&mut self) -> bool {
        let line = &self.frame[self.line..];
        match (line[0], number(line)) {
            (b'*' | b'~' | b'>', Some(elements)) => self.open(elements),
            (b'%', Some(pairs)) => self.open(pairs * 2),
            (b'|', Some(pairs)) => {
                // Attributes are not counted as elements. Inside an aggregate, the element to which
                // they belong still follows.
                match self.open.last_mut() {
                    Some(left) => *left += 1,
                    None => self.is_attribute = true,
                }
                self.open(pairs * 2)
            }
            (b'$' | b'=' | b'!', Some(length)) => {
                self.body_left = length + 2;
                false
            }
            // This is a number, a simple string, a missing value ("$-1"), or an inline request.
            _ => self.end_element(),
        }
    }

    fn open(&mut self, elements: usize) -> bool {
        if elements == 0 {
            return self.end_element();
        }
        self.line = self.frame.len();
        self.open.push(elements);
        false
    }

    fn end_element(&mut self) -> bool {
        self.line = self.frame.len();
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.open.pop();
        }
        !std::mem::take(&mut self.is_attribute)
    }
}

/// Returns the number in a header line.
fn number(line: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(line.get(1..)?).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frames in a stream that arrives one byte at a time, which is the hardest case.
    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let mut splitter = Splitter::default();
        let one_by_one: Vec<_> = bytes
            .chunks(1)
            .flat_map(|byte| splitter.split(byte))
            .collect();
        assert_eq!(Splitter::default().split(bytes), one_by_one);
        one_by_one
    }

    #[test]
    fn requests_are_cut_whole() {
        let stream = b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$4\r\nPI";
        let frames = frames(stream);
        let ends: Vec<_> = frames.iter().map(|frame| frame.0.len()).collect();
        assert_eq!(ends, [20, 14, 6]);
        assert!(frames[0].contains(b"GET") && !frames[1].contains(b"GET"));
    }

    #[test]
    fn replies_of_every_shape_are_one_frame_each() {
        for shapes in [
            &b"+OK\r\n:1\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n_\r\n"[..],
            b"*2\r\n*1\r\n:1\r\n$2\r\n\r\n\r\n+a\r\n+b\r\n+c\r\n+d\r\n+e\r\n+f\r\n",
            b"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n:2\r\n:1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n",
        ] {
            assert_eq!(frames(shapes).len(), 7);
        }
    }

    #[test]
    fn an_attribute_belongs_to_the_reply_behind_it() {
        assert_eq!(frames(b"|1\r\n+ttl\r\n:1\r\n:5\r\n").len(), 1);
        assert_eq!(
            frames(b"*2\r\n|1\r\n+ttl\r\n:1\r\n:5\r\n:6\r\n+OK\r\n").len(),
            2
        );
    }

    #[test]
    fn messages_answer_nothing_and_confirmations_do() {
        let kind = |bytes: &[u8]| frames(bytes)[0].is_message(true);
        assert!(kind(b">3\r\n+message\r\n+c\r\n$1\r\n0\r\n"));
        assert!(kind(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n"));
        assert!(!kind(b">3\r\n$9\r\nsubscribe\r\n+c\r\n:1\r\n"));
        assert!(!kind(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        // User data may contain any word, even the name of a command.
        let list = b"*1\r\n$7\r\nmessage\r\n";
        assert!(!frames(list)[0].is_message(false));
    }

    #[test]
    fn a_subscription_is_confirmed_once_for_each_channel() {
        let subscribe = &frames(b"*3\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n$1\r\nb\r\n")[0];
        assert!(subscribe.subscribes());
        assert_eq!(subscribe.replies(), 2);
        let all = &frames(b"*1\r\n$11\r\nunsubscribe\r\n")[0];
        assert!(!all.subscribes());
        assert_eq!(all.replies(), 1);
        assert_eq!(frames(b"*2\r\n$3\r\nGET\r\n$1\r\nx\r\n")[0].replies(), 1);
    }
}
