//! One client and the server that lies to it: everything follows from a seed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use leasehold_testkit::fake::{Action, FakeServer, Request, message, ordinary};

use super::mutate::mutate;
use super::oracle::Sent;
use super::{calls, mutate};

/// The grants and spoilt replies that the server of a session has sent.
pub(crate) struct Session {
    pub(crate) seed: u64,
    connections: AtomicUsize,
    granted: Mutex<HashSet<String>>,
    /// Number of guards that the client returned, all of them granted.
    guards: AtomicUsize,
    /// The last few spoilt replies, for the report.
    spoilt: Mutex<Vec<Vec<u8>>>,
}

impl Session {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            seed,
            connections: AtomicUsize::new(0),
            granted: Mutex::default(),
            guards: AtomicUsize::new(0),
            spoilt: Mutex::default(),
        })
    }

    /// Asserts that a hold was granted, because the client reports that it holds it.
    pub(crate) fn is_held(&self, hold: &str) {
        let granted = self.granted.lock().unwrap().contains(hold);
        assert!(granted, "{hold} was never granted\n{}", self.report());
        self.guards.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn guards(&self) -> usize {
        self.guards.load(Ordering::SeqCst)
    }

    fn grant(&self, holds: Vec<String>) {
        self.granted.lock().unwrap().extend(holds);
    }

    fn note(&self, bytes: &[u8]) {
        let mut spoilt = self.spoilt.lock().unwrap();
        if spoilt.len() == 4 {
            spoilt.remove(0);
        }
        spoilt.push(bytes.to_vec());
    }

    /// Reports how to repeat the session, and the last replies that were sent.
    pub(crate) fn report(&self) -> String {
        let spoilt = self.spoilt.lock().unwrap();
        let spoilt: Vec<_> = spoilt
            .iter()
            .map(|bytes| bytes.escape_ascii().to_string())
            .collect();
        format!(
            "again: LEASEHOLD_HOSTILE_SEED={} cargo test -p leasehold --test hostile mutated\n\
             the last spoilt replies: {spoilt:#?}",
            self.seed
        )
    }
}

/// A server that serves one session after the other.
pub(crate) struct Liar {
    pub(crate) server: FakeServer,
    present: Arc<Mutex<Arc<Session>>>,
}

impl Liar {
    /// Starts the server. `inputs` counts the spoilt replies.
    pub(crate) fn start(inputs: &Arc<AtomicUsize>) -> Self {
        let present = Arc::new(Mutex::new(Session::new(0)));
        let (inputs, sessions) = (Arc::clone(inputs), Arc::clone(&present));
        let server = FakeServer::start(move || {
            let session = Arc::clone(&sessions.lock().unwrap());
            let mut answerer = Answerer::new(session, Arc::clone(&inputs));
            move |request: &Request| answerer.answer(request)
        });
        Self { server, present }
    }

    /// Begins a new session, to which connections belong from now on.
    pub(crate) fn begin(&self, seed: u64) -> Arc<Session> {
        let session = Session::new(seed);
        *self.present.lock().unwrap() = Arc::clone(&session);
        session
    }
}

/// The server's side of one connection.
struct Answerer {
    session: Arc<Session>,
    inputs: Arc<AtomicUsize>,
    rng: Rng,
    sent: Sent,
    earlier: Vec<u8>,
    /// Percentages of spoilt replies to commands and to calls.
    spoils: (u8, u8),
}

impl Answerer {
    fn new(session: Arc<Session>, inputs: Arc<AtomicUsize>) -> Self {
        let number = session.connections.fetch_add(1, Ordering::SeqCst);
        let mut rng = Rng::with_seed(session.seed ^ ((number as u64) << 48));
        // Most connections begin well, or no session would get far.
        let spoils = (if rng.u8(..5) == 0 { 30 } else { 0 }, rng.u8(20..80));
        Self {
            session,
            inputs,
            rng,
            sent: Sent::default(),
            earlier: Vec::new(),
            spoils,
        }
    }

    fn answer(&mut self, request: &Request) -> Action {
        let call = calls::read(request);
        let (good, often) = match &call {
            Some(call) => {
                self.sent.asked(call);
                (calls::reply(call, &mut self.rng), self.spoils.1)
            }
            None => (ordinary(request), self.spoils.0),
        };
        let mut bytes = good.clone();
        let mut spoilt = self.rng.u8(..100) < often;
        if spoilt {
            bytes = mutate(bytes, &self.earlier, &mut self.rng);
        }
        if request.command() == "SUBSCRIBE" {
            bytes.extend_from_slice(&self.messages(&request.parts[1]));
            spoilt = true;
        }
        self.earlier = good;
        // Grants are noted before they are sent: the client may have them before this thread
        // continues.
        self.session.grant(self.sent.grants(&bytes));
        if !spoilt {
            return Action::Send(bytes);
        }
        self.session.note(&bytes);
        self.inputs.fetch_add(1, Ordering::SeqCst);
        if self.rng.bool() {
            Action::SendAndClose(bytes)
        } else {
            Action::Send(bytes)
        }
    }

    /// Builds the messages on a channel that a client listens to.
    fn messages(&mut self, channel: &[u8]) -> Vec<u8> {
        let rng = &mut self.rng;
        let good = message(channel, b"0");
        match rng.u8(..6) {
            0 => Vec::new(),
            1 => good.repeat(rng.usize(..200)),
            2 => {
                let random: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(..)).collect();
                message(channel, &random)
            }
            3 => message(b"another channel", b"0").repeat(rng.usize(..50)),
            4 => message(channel, &vec![b'x'; rng.usize(..3_000_000)]),
            _ => {
                let kinds = ["pmessage", "smessage", "subscribe", "unsubscribe", "x", ""];
                let kind = kinds[rng.usize(..kinds.len())];
                let odd = leasehold_testkit::fake::list(&[
                    leasehold_testkit::fake::bulk(kind.as_bytes()),
                    leasehold_testkit::fake::bulk(channel),
                    calls::int(rng.i64(..)),
                ]);
                mutate::mutate([odd, good].concat(), &self.earlier, rng)
            }
        }
    }
}
