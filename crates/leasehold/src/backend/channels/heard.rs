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
    /// A release of this channel, which may call a client.
    release: Option<(String, Transport)>,
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
        if let Some((release, by)) = self.release.take() {
            let called = number(payload).filter(|_| release == channel);
            tell(Message {
                called,
                ..Message::new(&release, b"0", by)
            });
            if called.is_some() {
                return;
            }
        }
        match payload {
            b"0" => self.release = Some((channel, transport)),
            _ => tell(Message::new(&channel, payload, transport)),
        }
    }

    /// Nothing more has come: a release that calls nobody.
    pub(crate) fn end(&mut self, mut tell: impl FnMut(Message<'_>)) {
        if let Some((release, transport)) = self.release.take() {
            tell(Message::new(&release, b"0", transport));
        }
    }
}

fn number(payload: &[u8]) -> Option<u64> {
    let digits = payload.len() > 2 && payload.iter().all(u8::is_ascii_digit);
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

    #[test]
    fn call_belongs_to_the_release_before_it() {
        let calls = [
            ("x", "0"),
            ("x", "123"),
            ("x", "0"),
            ("x", "0"),
            ("x", "456"),
        ];
        assert_eq!(
            heard(&calls),
            ["x 0 Some(123)", "x 0 None", "x 0 Some(456)"]
        );
    }

    #[test]
    fn what_is_no_call_is_told_by_itself() {
        let mixed = [
            ("x", "0"),
            ("y", "123"),
            ("x", "0"),
            ("x", "1"),
            ("x", "123"),
        ];
        let told = [
            "x 0 None",
            "y 123 None",
            "x 0 None",
            "x 1 None",
            "x 123 None",
        ];
        assert_eq!(heard(&mixed), told);
    }
}
