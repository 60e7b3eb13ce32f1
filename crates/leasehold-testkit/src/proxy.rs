//! A TCP proxy in front of a server that loses, delays and cuts on command.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use crate::frames::FrameCounter;

/// A loopback proxy whose faults can be switched while traffic flows.
///
/// A chunk that is on its way through when a switch is thrown still goes the old way.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Opens a proxy to a port of this machine. The server need not run yet.
    ///
    /// # Panics
    ///
    /// When no loopback port is free.
    pub fn to(port: u16) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port is free");
        let own = listener
            .local_addr()
            .expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            target: port,
            state: Mutex::default(),
            changed: Condvar::new(),
            connections: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
        });
        let acceptor = Arc::clone(&shared);
        Self {
            shared,
            port: own.port(),
            acceptor: Some(thread::spawn(move || acceptor.accept(&listener))),
        }
    }

    /// Where clients connect: `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Closes all present connections, on both sides, whatever is on its way.
    pub fn cut(&self) {
        let links = self.shared.state().links.clone();
        for link in links {
            self.shared.close(&link);
        }
    }

    /// While `true`, new connections are accepted and closed at once. Present ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state().refuse = refuse;
    }

    /// While `true`, what the server says is read and dropped.
    pub fn swallow_replies(&self, swallow: bool) {
        self.shared.state().swallow = swallow;
    }

    /// While `true`, nothing goes through in either direction; with `false` all that waited does.
    pub fn hold(&self, hold: bool) {
        self.shared.state().hold = hold;
        self.shared.changed.notify_all();
    }

    /// How many connections were accepted so far, refused ones included.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.state().links.len()
    }

    /// Loses one reply: the next request with `needle` reaches the server, and when its reply
    /// arrives, that is dropped and the connection closed. Replies to earlier requests of a
    /// pipeline still go through.
    ///
    /// Replies are counted to find the right one, so on a RESP2 connection that also receives
    /// published messages the cut can come early.
    pub fn cut_after_next(&self, needle: &[u8]) -> Fault {
        self.arm(needle, Moment::After)
    }

    /// Loses one request: the connection is closed when a request with `needle` comes from a
    /// client, and the server sees none of it, or only its beginning.
    pub fn cut_before_next(&self, needle: &[u8]) -> Fault {
        self.arm(needle, Moment::Before)
    }

    /// How many of the armed faults have struck.
    pub fn faults_fired(&self) -> usize {
        self.shared.faults.load(SeqCst)
    }

    fn arm(&self, needle: &[u8], moment: Moment) -> Fault {
        assert!(!needle.is_empty(), "an empty needle is in every request");
        let fault = Fault::default();
        self.shared.state().armed.push(Armed {
            needle: needle.to_owned(),
            moment,
            fault: fault.clone(),
        });
        fault
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        // The acceptor looks at `closed` when somebody comes.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // Last: the acceptor may have opened one more.
        self.cut();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port)
            .field("target", &self.shared.target)
            .finish_non_exhaustive()
    }
}

/// Says whether an armed fault has struck.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<AtomicBool>);

impl Fault {
    /// Whether the connection was cut.
    pub fn fired(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// What the threads of a proxy share.
struct Shared {
    target: u16,
    state: Mutex<State>,
    /// `hold` ended, or a link was closed.
    changed: Condvar,
    connections: AtomicUsize,
    faults: AtomicUsize,
}

#[derive(Default)]
struct State {
    closed: bool,
    refuse: bool,
    swallow: bool,
    hold: bool,
    links: Vec<Arc<Link>>,
    armed: Vec<Armed>,
}

struct Armed {
    needle: Vec<u8>,
    moment: Moment,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    After,
}

/// One client's connection and the one to the server that belongs to it.
struct Link {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    flow: Mutex<Flow>,
}

/// How far the conversation on a link is.
#[derive(Default)]
struct Flow {
    requests: FrameCounter,
    replies: FrameCounter,
    /// The last bytes from the client: a needle may come in two chunks.
    tail: Vec<u8>,
    /// The number of the reply to lose.
    lose: Option<(u64, Fault)>,
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let state = self.state();
            if state.closed {
                return;
            }
            self.connections.fetch_add(1, SeqCst);
            if state.refuse {
                continue;
            }
            drop(state);
            // Without a server the client's connection is closed: `client` is dropped.
            let _ = client.and_then(|client| self.link(client));
        }
    }

    fn link(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let link = Arc::new(Link {
            client,
            server,
            closed: AtomicBool::new(false),
            flow: Mutex::default(),
        });
        self.state().links.push(Arc::clone(&link));

        let (shared, upward) = (Arc::clone(self), Arc::clone(&link));
        thread::spawn(move || {
            // Any error ends the link, and the peers see that.
            let _ = shared.forward_requests(&upward);
            shared.close(&upward);
        });
        let shared = Arc::clone(self);
        thread::spawn(move || {
            let _ = shared.forward_replies(&link);
            shared.close(&link);
        });
        Ok(())
    }

    fn forward_requests(&self, link: &Link) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = read_chunk(&link.client, &mut buffer)?;
            self.wait_while_held(link)?;
            if self.strikes_before(link, chunk) {
                return Ok(());
            }
            (&link.server).write_all(chunk)?;
        }
    }

    fn forward_replies(&self, link: &Link) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let chunk = read_chunk(&link.server, &mut buffer)?;
            self.wait_while_held(link)?;
            let (good, lost) = link.flow().replies(chunk);
            if !self.state().swallow {
                (&link.client).write_all(&chunk[..good])?;
            }
            if let Some(fault) = lost {
                self.strike(link, &fault);
                return Ok(());
            }
        }
    }

    /// Looks for armed needles in a chunk of requests. `true` when it must not go on; a reply to
    /// lose is only noted, before the request leaves.
    fn strikes_before(&self, link: &Link, chunk: &[u8]) -> bool {
        let mut state = self.state();
        let mut flow = link.flow();
        let found = state
            .armed
            .iter()
            .position(|armed| flow.end_of(&armed.needle, chunk).is_some());
        let Some(armed) = found.map(|index| state.armed.remove(index)) else {
            flow.requests(chunk);
            return false;
        };
        drop(state);
        if armed.moment == Moment::Before {
            drop(flow);
            self.strike(link, &armed.fault);
            return true;
        }
        let end = flow.end_of(&armed.needle, chunk).unwrap_or(chunk.len());
        // Up to the needle's last byte the request cannot be over, so its number is the next one.
        flow.requests(&chunk[..end - 1]);
        flow.lose = Some((flow.requests.complete() + 1, armed.fault));
        flow.requests(&chunk[end - 1..]);
        false
    }

    fn strike(&self, link: &Link, fault: &Fault) {
        // Closed first: a test that sees the fault counts on the connection being gone.
        self.close(link);
        fault.0.store(true, SeqCst);
        self.faults.fetch_add(1, SeqCst);
    }

    fn wait_while_held(&self, link: &Link) -> io::Result<()> {
        let held = |state: &mut State| state.hold && !link.closed.load(SeqCst);
        let state = self.changed.wait_while(self.state(), held);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        // What was held when the link was cut is lost, even if a socket is still open.
        if link.closed.load(SeqCst) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn close(&self, link: &Link) {
        let mut state = self.state();
        // Under the lock, or a thread about to wait would miss it.
        link.closed.store(true, SeqCst);
        state.links.retain(|other| !std::ptr::eq(&**other, link));
        drop(state);
        self.changed.notify_all();
        // It fails when the peer has closed already, which is what is wanted.
        let _ = link.client.shutdown(Shutdown::Both);
        let _ = link.server.shutdown(Shutdown::Both);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flow {
    /// Where in `chunk` the first needle ends that is not over before it.
    fn end_of(&self, needle: &[u8], chunk: &[u8]) -> Option<usize> {
        // As much of the past as a needle can reach back and still end in the chunk.
        let past = &self.tail[self.tail.len().saturating_sub(needle.len() - 1)..];
        let text = [past, chunk].concat();
        text.windows(needle.len())
            .position(|window| window == needle)
            .map(|start| start + needle.len() - past.len())
    }

    fn requests(&mut self, bytes: &[u8]) {
        self.requests.read_to(bytes, u64::MAX);
        self.tail.extend_from_slice(bytes);
        let surplus = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..surplus);
    }

    /// Reads replies. Returns how many bytes may go on, and the fault if the reply to lose is
    /// complete.
    fn replies(&mut self, bytes: &[u8]) -> (usize, Option<Fault>) {
        let Some((number, _)) = self.lose else {
            self.replies.read_to(bytes, u64::MAX);
            return (bytes.len(), None);
        };
        let good = self.replies.read_to(bytes, number - 1);
        self.replies.read_to(&bytes[good..], number);
        if self.replies.complete() < number {
            return (good, None);
        }
        (good, self.lose.take().map(|(_, fault)| fault))
    }
}

fn read_chunk<'a>(mut from: &TcpStream, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    loop {
        match from.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => return Ok(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const CHUNK: usize = 64 * 1024;

/// How much of the past is kept for needles that come in two chunks.
const TAIL: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{RedisServer, Reply, eventually};

    /// A server, a proxy in front of it and one client behind that.
    struct Setup {
        proxy: Proxy,
        server: RedisServer,
    }

    fn setup() -> Setup {
        let server = RedisServer::start().expect("redis-server is installed");
        let proxy = Proxy::to(server.port());
        Setup { proxy, server }
    }

    impl Setup {
        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(("127.0.0.1", self.proxy.port())).expect("it listens");
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .expect("a limit can be set");
            stream
        }

        fn value(&self, key: &str) -> Reply {
            self.server.command(&["GET", key]).expect("the server runs")
        }

        fn is_set(&self, key: &str) -> bool {
            self.value(key) != Reply::Nil
        }
    }

    fn send(mut stream: &TcpStream, text: &str) {
        stream.write_all(text.as_bytes()).expect("the proxy reads");
    }

    /// Reads until something came or the connection ended.
    fn receive(mut stream: &TcpStream) -> String {
        let mut buffer = [0; 1024];
        let length = stream.read(&mut buffer).unwrap_or(0);
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn traffic_goes_through() {
        let setup = setup();
        let client = setup.connect();
        send(&client, "SET x 1\r\n");
        assert_eq!(receive(&client), "+OK\r\n");
        assert_eq!(setup.proxy.connections(), 1);
        assert_eq!(setup.proxy.open_connections(), 1);
        drop(client);
        eventually("link closed", LIMIT, || setup.proxy.open_connections() == 0);
        assert_eq!(setup.proxy.faults_fired(), 0);
    }

    #[test]
    fn cut_closes_present_connections_only() {
        let setup = setup();
        let client = setup.connect();
        send(&client, "PING\r\n");
        receive(&client);
        setup.proxy.cut();
        assert_eq!(receive(&client), "");
        let next = setup.connect();
        send(&next, "PING\r\n");
        assert_eq!(receive(&next), "+PONG\r\n");
    }

    #[test]
    fn refused_connections_are_closed_and_counted() {
        let setup = setup();
        setup.proxy.refuse(true);
        assert_eq!(receive(&setup.connect()), "");
        assert_eq!(setup.proxy.connections(), 1);
        setup.proxy.refuse(false);
        let client = setup.connect();
        send(&client, "PING\r\n");
        assert_eq!(receive(&client), "+PONG\r\n");
    }

    #[test]
    fn swallowed_reply_belongs_to_a_command_that_ran() {
        let setup = setup();
        let client = setup.connect();
        setup.proxy.swallow_replies(true);
        send(&client, "SET x 1\r\n");
        eventually("x is set", LIMIT, || setup.is_set("x"));
        // The reply leaves the server after the key is set; give it time to be lost.
        thread::sleep(Duration::from_millis(50));
        setup.proxy.swallow_replies(false);
        send(&client, "GET x\r\n");
        assert_eq!(receive(&client), "$1\r\n1\r\n");
    }

    #[test]
    fn held_traffic_goes_through_afterwards() {
        let setup = setup();
        let client = setup.connect();
        setup.proxy.hold(true);
        send(&client, "SET x 1\r\n");
        thread::sleep(Duration::from_millis(50));
        assert_eq!(setup.value("x"), Reply::Nil);
        setup.proxy.hold(false);
        assert_eq!(receive(&client), "+OK\r\n");
    }

    #[test]
    fn held_connection_can_be_cut() {
        let setup = setup();
        let client = setup.connect();
        setup.proxy.hold(true);
        send(&client, "SET x 1\r\n");
        eventually("linked", LIMIT, || setup.proxy.open_connections() == 1);
        setup.proxy.cut();
        assert_eq!(receive(&client), "");
        assert_eq!(setup.value("x"), Reply::Nil);
    }

    #[test]
    fn cut_after_loses_the_reply_of_a_command_that_ran() {
        let setup = setup();
        let client = setup.connect();
        let fault = setup.proxy.cut_after_next(b"SET x");
        send(&client, "SET y 1\r\n");
        assert_eq!(receive(&client), "+OK\r\n");
        assert!(!fault.fired());

        // In two chunks, and in a pipeline whose first reply is not the one to lose.
        send(&client, "GET y\r\nSE");
        assert_eq!(receive(&client), "$1\r\n1\r\n");
        send(&client, "T x 1\r\nSET z 1\r\n");
        assert_eq!(receive(&client), "");
        eventually("fault fired", LIMIT, || fault.fired());
        assert_eq!(setup.proxy.faults_fired(), 1);
        assert!(setup.is_set("x"));
    }

    #[test]
    fn cut_after_lets_earlier_replies_of_a_pipeline_through() {
        let setup = setup();
        let client = setup.connect();
        let fault = setup.proxy.cut_after_next(b"SET x");
        send(&client, "SET y 1\r\nSET x 1\r\nSET z 1\r\n");
        let mut seen = receive(&client);
        seen.push_str(&receive(&client));
        assert_eq!(seen, "+OK\r\n");
        eventually("fault fired", LIMIT, || fault.fired());
        assert!(setup.is_set("x"));
    }

    #[test]
    fn cut_before_loses_the_command() {
        let setup = setup();
        let client = setup.connect();
        let fault = setup.proxy.cut_before_next(b"SET x");
        send(&client, "SET x 1\r\n");
        assert_eq!(receive(&client), "");
        eventually("fault fired", LIMIT, || fault.fired());
        assert_eq!(setup.proxy.faults_fired(), 1);
        assert_eq!(setup.value("x"), Reply::Nil);

        let next = setup.connect();
        send(&next, "SET x 1\r\n");
        assert_eq!(receive(&next), "+OK\r\n");
    }

    #[test]
    fn proxy_outlives_its_server() {
        let setup = setup();
        let client = setup.connect();
        send(&client, "PING\r\n");
        receive(&client);
        setup.server.kill().expect("the process is ours");
        assert_eq!(receive(&client), "");
        assert_eq!(receive(&setup.connect()), "");
        setup.server.restart().expect("redis-server is installed");
        let next = setup.connect();
        send(&next, "PING\r\n");
        assert_eq!(receive(&next), "+PONG\r\n");
    }
}
