//! What can happen to one request or its reply.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::frames::Frame;

/// What happens to the request that an armed fault hits.
///
/// TCP loses nothing from the middle of a stream. So a request or a reply that is lost without
/// the connection being closed takes everything behind it along, and one that is held holds up
/// what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strike {
    /// The connection is closed instead, and the server sees nothing of the request.
    CutBefore,
    /// Half of the request reaches the server, then the connection is closed.
    CutInRequest,
    /// The request runs; its reply is dropped and the connection closed.
    CutAfter,
    /// The request runs; half of its reply reaches the client, then the connection is closed.
    CutInReply,
    /// The reply reaches the client, then the connection is closed.
    CutBehindReply,
    /// The request vanishes and the connection stays open.
    LoseRequest,
    /// The request runs, its reply vanishes and the connection stays open.
    LoseReply,
    /// The request reaches the server twice in a row; the second reply is dropped.
    Double,
    /// The request waits until [`Proxy::let_go`](super::Proxy::let_go).
    HoldRequest,
    /// The request runs; its reply waits until [`Proxy::let_go`](super::Proxy::let_go).
    HoldReply,
}

/// Says whether an armed fault has struck, and what.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<State>);

#[derive(Debug, Default)]
struct State {
    fired: AtomicBool,
    let_go: AtomicBool,
    request: Mutex<Vec<u8>>,
}

impl Fault {
    /// Whether it has happened: the connection is closed, the reply is lost, the request waits.
    pub fn fired(&self) -> bool {
        self.0.fired.load(SeqCst)
    }

    /// The bytes of the request it hit; empty before.
    pub fn request(&self) -> Vec<u8> {
        let request = self.0.request.lock();
        request.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn hits(&self, frame: &Frame) {
        let request = self.0.request.lock();
        *request.unwrap_or_else(PoisonError::into_inner) = frame.0.clone();
    }

    pub(super) fn fire(&self) {
        self.0.fired.store(true, SeqCst);
    }

    pub(super) fn let_go(&self) {
        self.0.let_go.store(true, SeqCst);
    }

    pub(super) fn is_let_go(&self) -> bool {
        self.0.let_go.load(SeqCst)
    }
}

/// A fault that waits for its request.
pub(super) struct Armed {
    pub(super) needle: Vec<u8>,
    /// How many requests with the needle go by before.
    pub(super) spare: usize,
    pub(super) strike: Strike,
    pub(super) fault: Fault,
}

impl Armed {
    /// Whether `frame` is the request it waits for.
    pub(super) fn is_for(&mut self, frame: &Frame) -> bool {
        if !frame.contains(&self.needle) {
            return false;
        }
        let is_due = self.spare == 0;
        self.spare = self.spare.saturating_sub(1);
        is_due
    }
}
