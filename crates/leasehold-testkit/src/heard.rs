//! Records the messages that are published on a server, and the keys that change there.

use std::{fmt, io::Write};

use crate::{
    reply::{Reply, call, read},
    server::BufStream,
};

/// The prefix of the channels on which the server reports what happens to keys.
const OF_A_KEY: &str = "__keyspace@0__:";

/// A listener on all channels of a [`RedisServer`](crate::RedisServer), and on all its keys.
pub struct Heard {
    stream: BufStream,
    messages: Vec<(String, String)>,
    keys: Vec<String>,
}

impl Heard {
    pub(crate) fn new(mut stream: BufStream) -> Self {
        let answer = call(&mut stream, &["PSUBSCRIBE", "*"]).expect("it runs");
        assert!(answer.as_array().is_some(), "{answer:?}");
        Self {
            stream,
            messages: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Returns the channel and the text of each message that was published since the last call.
    ///
    /// # Panics
    ///
    /// Panics if the server does not answer, or a message is not UTF-8.
    pub fn messages(&mut self) -> Vec<(String, String)> {
        self.catch_up();
        std::mem::take(&mut self.messages)
    }

    /// Returns the keys that were written or removed since the last call, including those that no
    /// longer exist.
    ///
    /// # Panics
    ///
    /// Like [`messages`](Self::messages).
    pub fn keys(&mut self) -> Vec<String> {
        self.catch_up();
        std::mem::take(&mut self.keys)
    }

    /// Reads everything that the server has already sent. It sends a `PING` and reads until the
    /// answer, which arrives last.
    fn catch_up(&mut self) {
        let ping = b"*1\r\n$4\r\nPING\r\n";
        self.stream.write_all(ping).expect("it runs");
        loop {
            let reply = read(&mut self.stream).expect("it runs");
            match reply.as_array() {
                Some([kind, _, channel, text]) if kind.as_text() == Some("pmessage") => {
                    let [channel, text] = [channel, text].map(text_of);
                    match channel.strip_prefix(OF_A_KEY) {
                        Some(key) => self.keys.push(key.to_owned()),
                        None => self.messages.push((channel, text)),
                    }
                }
                Some([kind, _]) if kind.as_text() == Some("pong") => return,
                _ => panic!("no message and no answer: {reply:?}"),
            }
        }
    }
}

fn text_of(reply: &Reply) -> String {
    let text = reply.as_text();
    text.unwrap_or_else(|| panic!("no text: {reply:?}"))
        .to_owned()
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heard").finish_non_exhaustive()
    }
}
