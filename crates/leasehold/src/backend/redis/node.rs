//! The facts about one server, however many connections lead to it: its address, clock and age,
//! what it refuses, whether it knows the script. Connections write down here what they hear and
//! read what they need; the node knows none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Endpoint;
use super::address::Address;
use super::connect::Connector;
use super::refusals::Refusals;
use super::script::Script;
#[cfg(feature = "tls")]
use super::tls;
use crate::backend::about::About;
use crate::backend::step::Step;
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// One server.
pub(crate) struct Node {
    /// Opens connections to it.
    pub(crate) connector: Connector,
    pub(crate) clock: Clock,
    /// What runs there.
    pub(crate) script: Arc<Script>,
    /// It did not know the script when it was asked last.
    script_missing: AtomicBool,
    /// Its time minus our clock, in ms.
    offset_ms: AtomicI64,
    /// What it has said of itself.
    pub(crate) about: About,
    /// What it refuses.
    pub(crate) refusals: Refusals,
    /// Notified when the connection for calls goes to another server: the one for messages has
    /// to follow.
    pub(crate) moved: Notify,
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint, steps: &[&Step], clock: Clock) -> Result<Arc<Self>> {
        let address = Address::parse(&endpoint.url)?;
        let connector = Connector {
            credentials: endpoint.credentials,
            connect_timeout: endpoint.connect_timeout,
            reply_timeout: endpoint.reply_timeout,
            #[cfg(feature = "tls")]
            tls: address
                .is_tls()
                .then(|| tls::Connector::new(&endpoint.authorities))
                .transpose()?,
            address,
        };
        Ok(Arc::new(Self {
            connector,
            clock,
            script: Script::of(steps),
            // Each connection loads the script (`prepare`). If that failed, the server refuses the
            // first call, and it goes again with the source.
            script_missing: AtomicBool::new(false),
            offset_ms: AtomicI64::new(0),
            about: About::default(),
            // A server that loads for longer than an attempt to connect may take is left.
            refusals: Refusals::new(endpoint.connect_timeout),
            moved: Notify::new(),
        }))
    }

    /// Its address without credentials, for messages.
    pub(crate) fn address(&self) -> &Arc<str> {
        self.connector.address.shown()
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        self.connector.reply_timeout
    }

    /// It has told its time.
    pub(crate) fn learn_time(&self, server_ms: i64, at: Moment) {
        // Relaxed: no promise depends on it. A call that an old value makes late brings the new
        // one.
        self.offset_ms
            .store(server_ms.saturating_sub(ms(at)), Ordering::Relaxed);
    }

    /// Its time, as far as we know it, after which nobody waits for the reply to a call that
    /// leaves now.
    pub(crate) fn not_after_ms(&self) -> i64 {
        let timeout = i64::try_from(self.reply_timeout().as_millis()).unwrap_or(i64::MAX);
        self.offset_ms
            .load(Ordering::Relaxed)
            .saturating_add(ms(self.clock.now()))
            .saturating_add(timeout)
    }

    /// It did not know the script: the next call has to bring it.
    pub(crate) fn forgot_the_script(&self) {
        self.script_missing.store(true, Ordering::Relaxed);
    }

    /// Whether the call that leaves now has to bring the script. Asked once per call: the calls
    /// behind it rely on this one.
    pub(crate) fn lacks_the_script(&self) -> bool {
        self.script_missing.swap(false, Ordering::Relaxed)
    }

    /// The connection before this one was to the same server, and that was not started again
    /// since.
    pub(crate) fn is_the_one_of(&self, told: &Told) -> bool {
        // Two servers that do not say which they are must not pass for one.
        told.run_id.is_some() && told.run_id.as_deref() == self.about.run_id().as_deref()
    }

    /// A connection is used from now on, on which the server has said this.
    pub(crate) fn learn(&self, told: &Told) {
        if let Some(ms) = told.time_ms {
            self.learn_time(ms, told.at);
        }
        self.about
            .connected(told.at, told.uptime, told.run_id.as_deref());
    }
}

/// What a server says of itself at first. It counts from when its connection is used.
pub(crate) struct Told {
    pub(crate) at: Moment,
    /// Its clock.
    pub(crate) time_ms: Option<i64>,
    pub(crate) uptime: Option<Duration>,
    pub(crate) run_id: Option<String>,
}

fn ms(moment: Moment) -> i64 {
    i64::try_from(moment.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Arc<Node> {
        let endpoint = Endpoint {
            url: "redis://h".into(),
            credentials: None,
            connect_timeout: Duration::from_secs(3),
            reply_timeout: Duration::from_secs(2),
            #[cfg(feature = "tls")]
            authorities: Vec::new(),
        };
        Node::new(endpoint, &[], Clock::Boot).expect("the URL can be read")
    }

    fn told(run_id: Option<&str>) -> Told {
        Told {
            at: Moment::from_millis(90_000),
            time_ms: Some(1_000_000),
            uptime: Some(Duration::from_secs(60)),
            run_id: run_id.map(str::to_owned),
        }
    }

    #[test]
    fn grant_deadline_follows_the_server_clock() {
        let node = node();
        let before = node.clock.now();
        node.learn_time(1_000_000, before);
        let not_after = node.not_after_ms();
        let passed = ms(node.clock.now()) - ms(before);
        assert!((1_002_000..=1_002_000 + passed).contains(&not_after));
    }

    #[test]
    fn missing_script_is_sent_by_one_call() {
        let node = node();
        assert!(!node.lacks_the_script());
        node.forgot_the_script();
        assert!(node.lacks_the_script());
        assert!(!node.lacks_the_script());
    }

    #[test]
    fn server_identity_is_its_run_id() {
        let node = node();
        assert!(!node.is_the_one_of(&told(Some("a"))), "the first one");
        node.learn(&told(Some("a")));
        assert_eq!(node.about.started(), Some(Moment::from_millis(30_000)));
        assert!(node.is_the_one_of(&told(Some("a"))));
        assert!(!node.is_the_one_of(&told(Some("b"))));
        assert!(!node.is_the_one_of(&told(None)), "it may be another one");
        node.learn(&told(None));
        assert!(!node.is_the_one_of(&told(None)), "nor can it be known now");
    }
}
