//! The facts about one server, however many connections lead to it: its address, clock and age,
//! what it refuses, and whether it knows the script. Connections note here what they learn and read
//! what they need. The node does not know the connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::Endpoint;
use super::address::{Address, Host, SentinelTopology};
use super::call::Redirect;
use super::connect::{Connector, CurrentServer};
use super::refusals::Refusals;
use super::script::{Form, Script, Text};
use super::sentinel::Sentinels;
use super::server_info::AppendOnlyFile;
use super::slots::{Range, slot_of};
#[cfg(feature = "tls")]
use super::tls;
use crate::address_map::AddressMap;
use crate::backend::about::{About, Uptime};
use crate::backend::failure::{Cause, Failure};
use crate::backend::step::{Operation, Step};
use crate::clock::{Clock, ClockPair, Moment};
use crate::credentials::CredentialsSource;
use crate::error;
use crate::observe::ServerObserved;
use crate::sync::Mutex;

/// One server.
pub(crate) struct Node {
    /// The state and settings for opening connections to the server.
    pub(crate) connector: Connector,
    pub(crate) clock: Clock,
    /// The scripts that run on the server.
    pub(crate) script: Arc<Script>,
    common: NodeCommon,
    /// Whether the server has the scripts of single steps, which every connection loads.
    has_own_scripts: AtomicBool,
    /// Whether the server runs only operations whose keys are declared.
    wants_declared_keys: AtomicBool,
    /// The number of operations in a row that ran only after their keys had been declared, and then
    /// at the first attempt.
    ran_when_declared: AtomicU32,
    /// The server's time minus our clock's time, in ms.
    offset_ms: AtomicI64,
    /// The name that the server shows for our connections; empty for no name.
    pub(crate) label: String,
    /// The address of the connection for calls, as the server sees it.
    pub(crate) client_address: Mutex<Option<String>>,
    /// The facts that the server has reported about itself.
    pub(crate) about: About,
    /// The refusals of the server.
    pub(crate) refusals: Refusals,
    /// Notified when a connection for calls leads to another server, which might not have the
    /// holds. Only the watchdog waits for this.
    pub(crate) holds_in_doubt: Notify,
    pub(crate) observed: ServerObserved,
}

/// The settings and scripts that all nodes of a client share.
#[derive(Clone)]
pub(crate) struct NodeCommon {
    credentials: Option<CredentialsSource>,
    credentials_every: Duration,
    label: String,
    connect_timeout: Duration,
    pub(crate) reply_timeout: Duration,
    #[cfg(feature = "tls")]
    tls: Option<tls::TlsClient>,
    pub(crate) clock: Clock,
    script: Arc<Script>,
    /// Whether each operation is sent to a node of a cluster in its own call, with its keys
    /// declared.
    declare_keys: bool,
    /// Notified when slots may have moved; `None` for a single server.
    slots_may_have_moved: Option<Arc<Notify>>,
    /// The map from announced addresses to the addresses that are reachable from here.
    pub(crate) addresses: AddressMap,
}

impl NodeCommon {
    /// Makes the settings for a server at `address`, or for the nodes of its cluster.
    pub(crate) fn new(
        endpoint: &Endpoint,
        address: &Address,
        steps: &[&Step],
        clock: Clock,
        form: Form,
    ) -> error::Result<Self> {
        address.check()?;
        Ok(Self {
            credentials: endpoint.credentials.clone(),
            credentials_every: endpoint.credentials_every,
            label: endpoint.label.clone(),
            connect_timeout: endpoint.connect_timeout,
            reply_timeout: endpoint.reply_timeout,
            #[cfg(feature = "tls")]
            tls: address
                .is_tls()
                .then(|| tls::TlsClient::new(&endpoint.tls))
                .transpose()?,
            clock,
            script: Script::of(steps, form),
            declare_keys: endpoint.declare_keys,
            slots_may_have_moved: form.is_of_a_cluster().then(Arc::default),
            addresses: endpoint.addresses.clone(),
        })
    }

    /// Resolves when slots may have moved.
    pub(crate) async fn slots_may_have_moved(&self) {
        match &self.slots_may_have_moved {
            Some(notify) => notify.notified().await,
            None => std::future::pending().await,
        }
    }

    fn connector(&self, address: Address) -> Connector {
        Connector {
            sentinels: None,
            current: watch::Sender::new(CurrentServer::at(&address)),
            credentials: self.credentials.clone(),
            credentials_every: self.credentials_every,
            connect_timeout: self.connect_timeout,
            reply_timeout: self.reply_timeout,
            created: ClockPair::now(),
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
            address,
        }
    }

    pub(crate) fn request_map_refresh(&self) {
        if let Some(notify) = &self.slots_may_have_moved {
            notify.notify_one();
        }
    }
}

impl Node {
    pub(crate) fn new(address: Address, common: &NodeCommon) -> Arc<Self> {
        Self::with_connector(common.connector(address), common)
    }

    /// Makes the node of the master that sentinels name, whichever server that is.
    pub(crate) fn master(topology: SentinelTopology, common: &NodeCommon) -> Arc<Self> {
        let sentinels = topology.sentinels.into_iter().map(|address| Connector {
            // Sentinels use the credentials in the URL, if there are any. The client's credentials
            // are for the master.
            credentials: None,
            ..common.connector(address)
        });
        let (all, master) = (sentinels.collect(), topology.master.clone());
        let addresses = common.addresses.clone();
        let sentinels = Sentinels::new(topology.name, all, master, addresses, common.clock);
        let connector = Connector {
            sentinels: Some(sentinels),
            current: watch::Sender::default(),
            ..common.connector(topology.master)
        };
        Self::with_connector(connector, common)
    }

    fn with_connector(connector: Connector, common: &NodeCommon) -> Arc<Self> {
        Arc::new(Self {
            observed: ServerObserved::new(connector.address.shown()),
            connector,
            clock: common.clock,
            script: Arc::clone(&common.script),
            common: common.clone(),
            has_own_scripts: AtomicBool::new(false),
            wants_declared_keys: AtomicBool::new(false),
            ran_when_declared: AtomicU32::new(0),
            offset_ms: AtomicI64::new(0),
            label: common.label.clone(),
            client_address: Mutex::default(),
            about: About::default(),
            // The client disconnects from a server that loads its data for longer than the connect
            // timeout.
            refusals: Refusals::new(common.connect_timeout),
            holds_in_doubt: Notify::new(),
        })
    }

    /// Returns whether the server is a node of a cluster.
    pub(crate) fn is_of_a_cluster(&self) -> bool {
        self.common.slots_may_have_moved.is_some()
    }

    /// Notes that slots of this node may have moved to another node, or slots of another node to
    /// this one.
    pub(crate) fn slots_may_have_moved(&self) {
        self.common.request_map_refresh();
    }

    /// Returns whether operations must declare their keys, because the server refuses to run others
    /// or the client's settings require it.
    pub(crate) fn wants_declared_keys(&self) -> bool {
        self.common.declare_keys || self.wants_declared_keys.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wants_declared_keys(&self, wants: bool) {
        self.wants_declared_keys.store(wants, Ordering::Relaxed);
        self.ran_when_declared.store(0, Ordering::Relaxed);
    }

    /// Notes that the server ran an operation only after its keys had been declared, and then at
    /// the first attempt. Returns the number of such operations in a row.
    pub(crate) fn ran_when_declared(&self) -> u32 {
        self.ran_when_declared.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that the server has run an operation whose keys are not declared.
    pub(crate) fn ran_undeclared(&self) {
        self.ran_when_declared.store(0, Ordering::Relaxed);
    }

    /// Returns the server's address as errors and logs show it: without credentials.
    pub(crate) fn address(&self) -> Arc<str> {
        self.connector.shown()
    }

    pub(crate) fn reply_timeout(&self) -> Duration {
        self.connector.reply_timeout
    }

    /// Returns the reply timeout for an error, with a hint if tokio's clock has jumped.
    pub(crate) fn shown_reply_timeout(&self) -> String {
        let limit = self.reply_timeout();
        format!("{limit:?}{}", self.connector.created.paused_hint(limit))
    }

    /// Counts an operation that the server redirected.
    pub(crate) fn count_redirect(&self, redirect: &Redirect) {
        match redirect {
            Redirect::Moved(_) | Redirect::Ask(_) => self.observed.count_redirect(),
            Redirect::Later(_) => {}
        }
    }

    /// Returns the failure of an operation that can't be sent here, because there is no connection.
    /// In a cluster, another node may have redirected the operation here.
    pub(crate) fn unreached(&self, failure: &Failure, operation: &Operation) -> Failure {
        let mut failure = failure.clone();
        if self.common.slots_may_have_moved.is_some()
            && let Cause::NoAnswer(what) = &mut failure.cause
            && let Some(name) = operation.name()
        {
            let slot = slot_of(name);
            what.push_str(&format!(
                "; according to the cluster's map, this node has the slot {slot}"
            ));
        }
        failure
    }

    /// Notes the time that the server has reported.
    pub(crate) fn learn_time(&self, server_ms: i64, at: Moment) {
        self.observed.record_server_time(server_ms);
        // Relaxed is enough, because no promise depends on the offset. If an old value makes a call
        // late, the reply brings the new value.
        self.offset_ms
            .store(server_ms.saturating_sub(ms(at)), Ordering::Relaxed);
    }

    /// Returns the deadline of a call that is sent now, in the server's time as the client
    /// estimates it. After this deadline, no client waits for the reply.
    pub(crate) fn not_after_ms(&self) -> i64 {
        let timeout = i64::try_from(self.reply_timeout().as_millis()).unwrap_or(i64::MAX);
        self.offset_ms
            .load(Ordering::Relaxed)
            .saturating_add(ms(self.clock.now()))
            .saturating_add(timeout)
    }

    /// Notes that the server did not know a script. All calls use the script that runs any step,
    /// until another connection has loaded the scripts of single steps.
    pub(crate) fn note_scripts_missing(&self) {
        self.has_own_scripts.store(false, Ordering::Relaxed);
    }

    /// Returns the script that runs only this step, if there is one and the server knows it.
    pub(crate) fn own_script(&self, step: &Step) -> Option<&Text> {
        let has = step.own_script && self.has_own_scripts.load(Ordering::Relaxed);
        has.then(|| self.script.own(step)).flatten()
    }

    /// Returns whether a connection for calls was ever used.
    pub(crate) fn was_connected(&self) -> bool {
        self.connector.current.borrow().reported_at.is_some()
    }

    /// Returns the time at which the newest connection for calls was opened.
    pub(crate) fn connected_at(&self) -> Option<Moment> {
        self.connector.current.borrow().reported_at
    }

    /// Records what the server reported on a new connection for calls, which is used from now on.
    pub(crate) fn learn(&self, hello: &Hello) -> ReachedServer {
        self.client_address.lock().clone_from(&hello.client_address);
        self.learn_of_server(hello)
    }

    /// Like [`learn`](Self::learn), for the connection for acknowledged calls. If the two
    /// connections call this in the wrong order, the later report still counts.
    pub(crate) fn learn_of_server(&self, hello: &Hello) -> ReachedServer {
        if let Some(ms) = hello.time_ms {
            self.learn_time(ms, hello.at);
        }
        self.has_own_scripts
            .store(hello.has_scripts, Ordering::Relaxed);
        self.about
            .connected(hello.at, hello.uptime, hello.run_id.as_deref());
        let reached = ReachedServer {
            host: hello.address.to_host(),
            run_id: hello.run_id.clone(),
            number: REPLACED,
        };
        reached.note_in(&self.connector.current, hello)
    }
}

/// The number of a server that has already been replaced.
const REPLACED: u64 = u64::MAX;

/// Returns whether two run ids are of one server that was not restarted in between.
fn is_same_run(run_id: Option<&str>, other: Option<&str>) -> bool {
    // Two servers that report no run id must not count as the same one.
    run_id.is_some() && run_id == other
}

/// The server to which one connection for calls leads. Each connection compares this with the
/// latest report, because other connections may lead to another server.
#[derive(Clone, Debug)]
pub(crate) struct ReachedServer {
    pub(crate) host: Option<Host>,
    pub(crate) run_id: Option<String>,
    /// The server's number in [`CurrentServer`].
    pub(crate) number: u64,
}

impl ReachedServer {
    /// Returns whether a new connection leads to the same server, which was not restarted in
    /// between.
    pub(crate) fn is_same_server(&self, hello: &Hello) -> bool {
        is_same_run(hello.run_id.as_deref(), self.run_id.as_deref())
    }

    /// Notes that calls use this server now, unless another connection has a later report.
    fn note_in(mut self, current: &watch::Sender<CurrentServer>, hello: &Hello) -> Self {
        current.send_if_modified(|current| {
            let is_first = current.reported_at.is_none();
            // A client calls `learn` twice for its first connection.
            let is_same_report =
                current.reported_at == Some(hello.at) && current.run_id == self.run_id;
            let is_same = is_same_run(self.run_id.as_deref(), current.run_id.as_deref());
            let is_current = is_first || is_same_report || is_same;
            let is_newer = current.reported_at.is_none_or(|before| hello.at >= before);
            if is_newer {
                current.address = Some(Arc::clone(&hello.address));
                current.reported_at = Some(hello.at);
                current.run_id.clone_from(&self.run_id);
                current.number += u64::from(!is_current);
            }
            if is_newer || is_current {
                self.number = current.number;
            }
            is_newer && !is_current
        });
        self
    }
}

/// The facts that a server reports on a new connection. They apply from the moment when the
/// connection is used.
pub(crate) struct Hello {
    /// The server's address.
    pub(crate) address: Arc<Address>,
    pub(crate) at: Moment,
    /// The server's clock.
    pub(crate) time_ms: Option<i64>,
    /// Whether the server has loaded all scripts.
    pub(crate) has_scripts: bool,
    pub(crate) uptime: Option<Uptime>,
    pub(crate) run_id: Option<String>,
    /// Whether the server has an append-only file.
    pub(crate) append_only_file: AppendOnlyFile,
    /// The address of our connection, as the server sees it.
    pub(crate) client_address: Option<String>,
    /// The nodes with their slots, if the server is a node of a cluster.
    pub(crate) slots: Option<Result<Vec<Range>, Failure>>,
}

fn ms(moment: Moment) -> i64 {
    i64::try_from(moment.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn node() -> Arc<Node> {
        let endpoint = Endpoint {
            url: "redis://h".into(),
            label: String::new(),
            credentials: None,
            credentials_every: Duration::from_secs(10),
            addresses: AddressMap::default(),
            connect_timeout: Duration::from_secs(3),
            reply_timeout: Duration::from_secs(2),
            peers: crate::config::Peers::All,
            failover_guard: None,
            declare_keys: false,
            #[cfg(feature = "tls")]
            tls: crate::tls::TlsSettings::default(),
        };
        let address = Address::parse(&endpoint.url).expect("it can be read");
        let common = NodeCommon::new(&endpoint, &address, &[], Clock::Boot, Form::Server);
        Node::new(address, &common.expect("no TLS"))
    }

    fn hello(run_id: Option<&str>, at: u64) -> Hello {
        Hello {
            address: Arc::new(Address::parse("redis://h").expect("it can be read")),
            at: Moment::from_millis(at),
            has_scripts: false,
            time_ms: Some(1_000_000),
            uptime: Some(Uptime {
                least: Duration::from_secs(60),
                most: Duration::from_secs(62),
            }),
            run_id: run_id.map(str::to_owned),
            append_only_file: AppendOnlyFile::Unknown,
            client_address: None,
            slots: None,
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
    fn server_identity_is_its_run_id() {
        let node = node();
        let learned = |run_id, at| node.learn(&hello(run_id, at)).number;
        let first = learned(Some("a"), 90_000);
        assert_eq!(node.about.started(), Some(Moment::from_millis(30_000)));
        assert_eq!(learned(Some("a"), 91_000), first);
        let second = learned(Some("b"), 92_000);
        assert_ne!(second, first);
        let third = learned(None, 93_000);
        assert_ne!(third, second, "it may be another one");
        assert_ne!(learned(None, 94_000), third, "nor can it be known now");
        assert_ne!(
            learned(Some("a"), 95_000),
            first,
            "it was another one meanwhile"
        );
    }

    #[test]
    fn connection_that_a_client_begins_with_is_one_server() {
        for run_id in [Some("a"), None] {
            let node = node();
            let before = node.connector.current_number();
            let first = node.learn(&hello(run_id, 90_000)).number;
            assert_eq!(node.learn(&hello(run_id, 90_000)).number, first);
            assert_eq!(node.connector.current_number(), before);
        }
    }

    #[test]
    fn every_connection_compares_where_it_leads_itself() {
        let node = node();
        let old = node.learn(&hello(Some("a"), 90_000));
        let has_moved = |reached: &ReachedServer| {
            let another = node.connector.moved_from(reached.number);
            another.now_or_never().is_some()
        };
        assert!(!has_moved(&old));
        let new = node.learn_of_server(&hello(Some("b"), 91_000));
        // Each connection gets its own answer, however often it calls `has_moved`.
        assert!(has_moved(&old) && has_moved(&old) && !has_moved(&new));
        // This connection got its report before the other server took over, but notes it later.
        let late = node.learn_of_server(&hello(Some("a"), 90_500));
        assert!(has_moved(&late) && !has_moved(&new));
        assert!(old.is_same_server(&hello(Some("a"), 92_000)));
        assert!(!old.is_same_server(&hello(Some("b"), 92_000)));
    }
}
