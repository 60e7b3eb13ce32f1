//! Messages as they come, and what belongs together.

/// How messages reach their listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// `PUBLISH`: every node of a cluster has every message.
    Global,
    /// `SPUBLISH`: only the nodes of the channel's slot have it.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    Sharded,
}

/// Puts the call of a client to the release before it. A server sends the two at once, so they come
/// in one read.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    release: Option<Release>,
}

/// A release, which may call a client.
#[derive(Debug)]
struct Release {
    channel: String,
    transport: Transport,
    /// It has published a `1`, before the zeros.
    wakes_all: bool,
    zeros: u8,
}

/// So many zeros follow the `1` that wakes all.
const ZEROS: u8 = 2;

impl Release {
    fn goes_on(&self, channel: &str, payload: &[u8]) -> bool {
        self.wakes_all && self.zeros < ZEROS && payload == b"0" && self.channel == channel
    }

    /// Tells its messages one by one: it calls nobody.
    fn tell(&self, mut tell: impl FnMut(Message<'_>)) {
        if self.wakes_all {
            tell(Message::new(&self.channel, b"1", self.transport));
        }
        for _ in 0..self.zeros {
            tell(Message::new(&self.channel, b"0", self.transport));
        }
    }
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) channel: &'a str,
    pub(crate) payload: &'a [u8],
    /// The number of the client that it calls.
    pub(crate) called: Option<u64>,
    pub(crate) transport: Transport,
}

impl<'a> Message<'a> {
    /// One that calls nobody.
    pub(crate) fn new(channel: &'a str, payload: &'a [u8], transport: Transport) -> Self {
        Self {
            channel,
            payload,
            called: None,
            transport,
        }
    }
}

impl Heard {
    /// A message came. `tell` gets what is complete.
    pub(crate) fn message(
        &mut self,
        channel: String,
        payload: &[u8],
        transport: Transport,
        mut tell: impl FnMut(Message<'_>),
    ) {
        if let Some(mut release) = self.release.take() {
            if let Some(called) = number(payload).filter(|_| release.channel == channel) {
                let payload = if release.wakes_all { b"1" } else { b"0" };
                tell(Message {
                    called: Some(called),
                    ..Message::new(&channel, payload, release.transport)
                });
                return;
            }
            if release.goes_on(&channel, payload) {
                release.zeros += 1;
                self.release = Some(release);
                return;
            }
            release.tell(&mut tell);
        }
        let wakes_all = payload == b"1";
        if wakes_all || payload == b"0" {
            self.release = Some(Release {
                channel,
                transport,
                wakes_all,
                zeros: u8::from(!wakes_all),
            });
        } else {
            tell(Message::new(&channel, payload, transport));
        }
    }

    /// Nothing more has come: a release that calls nobody.
    pub(crate) fn end(&mut self, tell: impl FnMut(Message<'_>)) {
        if let Some(release) = self.release.take() {
            release.tell(tell);
        }
    }
}

/// The number of a client. It is longer than any number of permits, which may follow a message `0`.
fn number(payload: &[u8]) -> Option<u64> {
    let digits = payload.len() > 10 && payload.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(payload).ok().filter(|_| digits)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(messages: &[(&str, &str)]) -> Vec<String> {
        let (mut heard, mut told) = (Heard::default(), Vec::new());
        let mut tell = |message: Message<'_>| {
            let payload = String::from_utf8_lossy(message.payload);
            told.push(format!(
                "{} {payload} {:?}",
                message.channel, message.called
            ));
        };
        for (channel, payload) in messages {
            let payload = payload.as_bytes();
            heard.message((*channel).into(), payload, Transport::Global, &mut tell);
        }
        heard.end(tell);
        told
    }

    const ONE: &str = "111111111111111";
    const OTHER: &str = "222222222222222";

    #[test]
    fn call_belongs_to_the_release_before_it() {
        let calls = [
            ("x", "0"),
            ("x", ONE),
            ("x", "0"),
            ("x", "0"),
            ("x", OTHER),
        ];
        assert_eq!(
            heard(&calls),
            [
                "x 0 Some(111111111111111)",
                "x 0 None",
                "x 0 Some(222222222222222)"
            ]
        );
    }

    #[test]
    fn call_belongs_to_all_messages_of_a_release_that_wakes_all() {
        let calls = [("x", "1"), ("x", "0"), ("x", "0"), ("x", ONE)];
        assert_eq!(heard(&calls), ["x 1 Some(111111111111111)"]);
        // Without a call each message is told, and a release behind it is another one.
        assert_eq!(heard(&calls[..3]), ["x 1 None", "x 0 None", "x 0 None"]);
        let mixed = [&calls[..3], &[("x", "0"), ("x", ONE)]].concat();
        assert_eq!(
            heard(&mixed),
            [
                "x 1 None",
                "x 0 None",
                "x 0 None",
                "x 0 Some(111111111111111)"
            ]
        );
    }

    #[test]
    fn what_is_no_call_is_told_by_itself() {
        let mixed = [
            ("x", "0"),
            ("y", ONE),
            ("x", "0"),
            ("x", "1"),
            ("y", "0"),
            ("x", ONE),
            ("x", "0"),
            ("x", "2147483647"),
        ];
        let told = [
            "x 0 None",
            "y 111111111111111 None",
            "x 0 None",
            "x 1 None",
            "y 0 None",
            "x 111111111111111 None",
            "x 0 None",
            "x 2147483647 None",
        ];
        assert_eq!(heard(&mixed), told);
    }
}
