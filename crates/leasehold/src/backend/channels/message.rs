//! The messages that arrive on channels. Messages that belong to one release are joined.

/// The ways in which messages reach their listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// `PUBLISH`: every node of a cluster receives every message.
    Global,
    /// `SPUBLISH`: only the nodes of the channel's slot receive the message.
    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    Sharded,
}

/// Joins a release's message and the message after it that notifies a client. A server sends the
/// two at once, so they arrive in one read.
#[derive(Debug, Default)]
pub(crate) struct MessageJoiner {
    release: Option<PendingRelease>,
    /// The channel of the last message about returned permits, if that message notified clients.
    /// The zeros after this message are for Redisson.
    permits: Option<String>,
}

/// The message of a release. The next message may notify a client.
#[derive(Debug)]
struct PendingRelease {
    channel: String,
    transport: Transport,
    /// Whether the release published a `1` before its zeros.
    wakes_all: bool,
    zeros: u8,
}

/// The number of zeros that follow the `1` that wakes all waiters.
const ZEROS: u8 = 2;

impl PendingRelease {
    fn continues_with(&self, channel: &str, payload: &[u8]) -> bool {
        self.wakes_all && self.zeros < ZEROS && payload == b"0" && self.channel == channel
    }

    /// Delivers the messages one by one, because the release has not notified a client.
    fn deliver(&self, mut deliver: impl FnMut(Message<'_>)) {
        if self.wakes_all {
            deliver(Message::new(&self.channel, b"1", self.transport));
        }
        for _ in 0..self.zeros {
            deliver(Message::new(&self.channel, b"0", self.transport));
        }
    }
}

/// A message on a channel. The message of a release and the notification after it are joined into
/// one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) channel: &'a str,
    pub(crate) payload: &'a [u8],
    /// The number of the client that the message notifies.
    pub(crate) notified: Option<u64>,
    pub(crate) transport: Transport,
}

impl<'a> Message<'a> {
    /// Makes a message that does not notify a client.
    pub(crate) fn new(channel: &'a str, payload: &'a [u8], transport: Transport) -> Self {
        Self {
            channel,
            payload,
            notified: None,
            transport,
        }
    }
}

impl MessageJoiner {
    /// Handles a message that has arrived. `deliver` receives the messages that are complete.
    pub(crate) fn message(
        &mut self,
        channel: String,
        payload: &[u8],
        transport: Transport,
        mut deliver: impl FnMut(Message<'_>),
    ) {
        if let Some(mut release) = self.release.take() {
            if let Some(notified) = number(payload).filter(|_| release.channel == channel) {
                let payload = if release.wakes_all { b"1" } else { b"0" };
                deliver(Message {
                    notified: Some(notified),
                    ..Message::new(&channel, payload, release.transport)
                });
                return;
            }
            if release.continues_with(&channel, payload) {
                release.zeros += 1;
                self.release = Some(release);
                return;
            }
            release.deliver(&mut deliver);
        }
        // The zeros for Redisson may arrive in a later read than the message before them, so
        // `permits` is kept from one read to the next.
        let is_for_redisson = payload == b"0" && self.permits.as_ref() == Some(&channel);
        if is_for_redisson {
            return;
        }
        self.permits = (notified_for_permits(payload) > 0).then(|| channel.clone());
        if let Some(own) = number(payload).filter(|_| is_of(&channel, payload)) {
            deliver(Message {
                notified: Some(own),
                ..Message::new(&channel, payload, transport)
            });
            return;
        }
        let wakes_all = payload == b"1";
        if wakes_all || payload == b"0" {
            self.release = Some(PendingRelease {
                channel,
                transport,
                wakes_all,
                zeros: u8::from(!wakes_all),
            });
        } else {
            deliver(Message::new(&channel, payload, transport));
        }
    }

    /// Ends a read. No more messages have arrived, so the pending release has not notified a
    /// client.
    pub(crate) fn end(&mut self, deliver: impl FnMut(Message<'_>)) {
        if let Some(release) = self.release.take() {
            release.deliver(deliver);
        }
    }
}

/// Returns how many clients were notified of permits: one for each leading zero before the number
/// of free permits.
pub(super) fn notified_for_permits(payload: &[u8]) -> u64 {
    let zeros = payload.iter().take_while(|byte| **byte == b'0').count();
    let is_number = payload.iter().all(u8::is_ascii_digit);
    // The number after the zeros is never 0, so a payload that has only zeros does not notify a
    // client.
    let calls = is_number && zeros < payload.len();
    if calls { zeros as u64 } else { 0 }
}

/// Returns whether the channel is the one that notifies the client with this number.
fn is_of(channel: &str, number: &[u8]) -> bool {
    let own = channel.as_bytes().strip_suffix(number);
    own.is_some_and(|before| before.ends_with(b":"))
}

/// Parses a client's number. A client's number has more digits than any number of permits, which
/// may also follow a message `0`.
fn number(payload: &[u8]) -> Option<u64> {
    let digits = payload.len() > 10 && payload.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(payload).ok().filter(|_| digits)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(messages: &[(&str, &str)]) -> Vec<String> {
        let (mut heard, mut told) = (MessageJoiner::default(), Vec::new());
        let mut deliver = |message: Message<'_>| {
            let payload = String::from_utf8_lossy(message.payload);
            told.push(format!(
                "{} {payload} {:?}",
                message.channel, message.notified
            ));
        };
        for (channel, payload) in messages {
            let payload = payload.as_bytes();
            heard.message((*channel).into(), payload, Transport::Global, &mut deliver);
        }
        heard.end(deliver);
        told
    }

    const ONE: &str = "111111111111111";
    const OTHER: &str = "222222222222222";

    #[test]
    fn call_belongs_to_the_release_before_it() {
        let calls = [("x", "0"), ("x", ONE), ("x", "0"), ("x", "0"), ("x", OTHER)];
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
        // If no client is notified, each message is delivered separately, and a later release is
        // not joined with them.
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

    #[test]
    fn clients_are_called_for_permits_on_channels_of_their_own() {
        let own = format!("x:{ONE}");
        let came_back = [
            (&*own, ONE),
            ("x", "001"),
            ("x", "0"),
            ("x", "0"),
            ("x", "3"),
            ("x", "0"),
        ];
        let told = [
            "x:111111111111111 111111111111111 Some(111111111111111)",
            "x 001 None",
            "x 3 None",
            "x 0 None",
        ];
        assert_eq!(heard(&came_back), told);
        let zeros = ["001", "0", "00", "10", "1", "", "0a", "0000123"];
        let notified = zeros.map(|payload| notified_for_permits(payload.as_bytes()));
        assert_eq!(notified, [2, 0, 0, 0, 0, 0, 0, 4]);
    }

    #[test]
    fn zeros_behind_a_call_are_for_redisson_in_a_later_read_as_well() {
        let (mut heard, mut told) = (MessageJoiner::default(), 0);
        for payload in ["01", "0", "0"] {
            let payload = payload.as_bytes();
            heard.message("x".into(), payload, Transport::Global, |_| told += 1);
            heard.end(|_| told += 1);
        }
        assert_eq!(told, 1);
    }
}
