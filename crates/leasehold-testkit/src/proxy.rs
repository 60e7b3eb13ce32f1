//! A TCP proxy in front of a server. On command, it loses, delays and duplicates traffic, and cuts
//! connections.

mod fault;
mod link;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use self::{fault::Armed, link::Link};
pub use fault::{Fault, Strike};

/// A proxy on the loopback interface that distinguishes requests from replies. Its faults can be
/// turned on and off while traffic flows.
///
/// A change does not affect a request or reply that is already inside the proxy.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Opens a proxy to a port on this machine. The server need not run yet.
    ///
    /// # Panics
    ///
    /// Panics if no loopback port is free.
    pub fn to(port: u16) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port is free");
        let own = listener
            .local_addr()
            .expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            target: AtomicU16::new(port),
            state: Mutex::default(),
            changed: Condvar::new(),
            connections: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
            swallowed: AtomicUsize::new(0),
        });
        let acceptor = Arc::clone(&shared);
        Self {
            shared,
            port: own.port(),
            acceptor: Some(thread::spawn(move || acceptor.accept(&listener))),
        }
    }

    /// Returns the URL for clients: `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port to which clients connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns how many connections were accepted so far, including the refused ones.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }

    /// Returns how many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.state().links.len()
    }

    /// Returns how many of the armed faults have happened.
    pub fn faults_fired(&self) -> usize {
        self.shared.faults.load(SeqCst)
    }

    /// Returns how many replies and messages were dropped.
    pub fn swallowed(&self) -> usize {
        self.shared.swallowed.load(SeqCst)
    }
}

/// Methods that affect all traffic.
impl Proxy {
    /// Closes all current connections on both sides, even if data is in flight. Returns their
    /// number.
    pub fn cut(&self) -> usize {
        self.cut_if(|_| true)
    }

    /// Closes the current connections that have subscribed. Returns their number.
    pub fn cut_messages(&self) -> usize {
        self.cut_if(Link::has_subscribed)
    }

    /// Closes the current connections that have not subscribed. Returns their number.
    pub fn cut_calls(&self) -> usize {
        self.cut_if(|link| !link.has_subscribed())
    }

    /// Connects new clients to this port on the loopback interface. Current connections are not
    /// closed, as when a host name is moved to another server.
    pub fn move_to(&self, port: u16) {
        self.shared.target.store(port, SeqCst);
    }

    /// While `true`, closes each new connection as soon as it is accepted. Current connections are
    /// not closed.
    pub fn refuse(&self, refuse: bool) {
        self.shared.state().refuse = refuse;
    }

    /// While `true`, drops everything that the server sends. A connection that has lost a reply in
    /// this way receives no further replies.
    pub fn swallow_replies(&self, swallow: bool) {
        self.shared.state().swallow_all = swallow;
    }

    /// While `true`, drops published messages. Replies and confirmations pass.
    pub fn swallow_messages(&self, swallow: bool) {
        self.shared.state().swallow_messages = swallow;
    }

    /// While `true`, holds everything back in both directions. With `false`, everything that was
    /// held back passes.
    pub fn hold(&self, hold: bool) {
        self.switch(|state| (state.hold_requests, state.hold_replies) = (hold, hold));
    }

    /// While `true`, holds requests back. Replies pass.
    pub fn hold_requests(&self, hold: bool) {
        self.switch(|state| state.hold_requests = hold);
    }

    /// While `true`, holds replies and messages back. Requests pass.
    pub fn hold_replies(&self, hold: bool) {
        self.switch(|state| state.hold_replies = hold);
    }

    fn cut_if(&self, which: impl Fn(&Link) -> bool) -> usize {
        let mut links = self.shared.state().links.clone();
        links.retain(|link| which(link));
        for link in &links {
            self.shared.close(link);
        }
        links.len()
    }

    fn switch(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.changed.notify_all();
    }
}

/// Methods that arm faults, each for one request or its reply.
impl Proxy {
    /// Arms a fault for the next request that contains the bytes of `needle`, on any connection.
    pub fn strike_next(&self, needle: &[u8], strike: Strike) -> Fault {
        self.strike_after(0, needle, strike)
    }

    /// Like [`Proxy::strike_next`], but first lets `spare` such requests pass.
    ///
    /// # Panics
    ///
    /// Panics if the needle is empty.
    pub fn strike_after(&self, spare: usize, needle: &[u8], strike: Strike) -> Fault {
        assert!(!needle.is_empty(), "an empty needle is in every request");
        let fault = Fault::default();
        self.shared.state().armed.push(Armed {
            needle: needle.to_owned(),
            spare,
            strike,
            fault: fault.clone(),
        });
        fault
    }

    /// Arms [`Strike::CutAfter`] for the next request with `needle`.
    pub fn cut_after_next(&self, needle: &[u8]) -> Fault {
        self.strike_next(needle, Strike::CutAfter)
    }

    /// Arms [`Strike::CutBefore`] for the next request with `needle`.
    pub fn cut_before_next(&self, needle: &[u8]) -> Fault {
        self.strike_next(needle, Strike::CutBefore)
    }

    /// Stops holding back the request or reply of `fault`, which passes at once or when it arrives.
    pub fn let_go(&self, fault: &Fault) {
        // The lock is held here. Otherwise a thread that is about to wait would miss the change.
        self.switch(|_| fault.let_go());
    }

    /// Removes the faults that have not happened yet.
    pub fn disarm(&self) {
        self.shared.state().armed.clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        // The thread that accepts connections checks `closed` when a client connects.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // This is the last step, because the thread that accepts connections may have opened one
        // more.
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

/// The state that the threads of a proxy share.
struct Shared {
    target: AtomicU16,
    state: Mutex<State>,
    /// Notified when traffic that was held back may pass, or when a link was closed.
    changed: Condvar,
    connections: AtomicUsize,
    faults: AtomicUsize,
    swallowed: AtomicUsize,
}

#[derive(Default)]
struct State {
    closed: bool,
    refuse: bool,
    swallow_all: bool,
    swallow_messages: bool,
    hold_requests: bool,
    hold_replies: bool,
    links: Vec<Arc<Link>>,
    armed: Vec<Armed>,
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
            // If there is no server, the client's connection is closed because `client` is dropped.
            let _ = client.and_then(|client| {
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target.load(SeqCst)))?;
                self.serve(client, server)
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
