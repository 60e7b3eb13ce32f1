//! Faults that can affect one request or its reply.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::frames::Frame;

/// The effect of an armed fault on its request.
///
/// TCP never loses data in the middle of a stream. So if a request or reply is lost and the
/// connection is not closed, everything after it is lost too. A request or reply that is held back
/// also delays everything after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strike {
    /// The connection is closed before any of the request reaches the server.
    CutBefore,
    /// Half of the request reaches the server, then the connection is closed.
    CutInRequest,
    /// The request runs. Its reply is dropped, and the connection is closed.
    CutAfter,
    /// The request runs; half of its reply reaches the client, then the connection is closed.
    CutInReply,
    /// The reply reaches the client, then the connection is closed.
    CutBehindReply,
    /// The request is lost, and the connection is not closed.
    LoseRequest,
    /// The request runs, its reply is lost, and the connection is not closed.
    LoseReply,
    /// The request reaches the server twice in a row. The second reply is dropped.
    Double,
    /// The request waits until [`Proxy::let_go`](super::Proxy::let_go).
    HoldRequest,
    /// The request runs. Its reply waits until [`Proxy::let_go`](super::Proxy::let_go).
    HoldReply,
}

/// A handle for an armed fault. It shows whether the fault has happened, and to which request.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<State>);

#[derive(Debug, Default)]
struct State {
    fired: AtomicBool,
    let_go: AtomicBool,
    request: Mutex<Vec<u8>>,
}

impl Fault {
    /// Returns whether the fault has happened: the connection is closed, the reply is lost, or the
    /// request waits.
    pub fn fired(&self) -> bool {
        self.0.fired.load(SeqCst)
    }

    /// Returns the bytes of the request to which the fault has happened, or no bytes before that.
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

/// An armed fault, which waits for its request.
pub(super) struct Armed {
    pub(super) needle: Vec<u8>,
    /// Number of requests with the needle that pass before the fault happens.
    pub(super) spare: usize,
    pub(super) strike: Strike,
    pub(super) fault: Fault,
}

impl Armed {
    /// Returns whether `frame` is the request that this fault waits for.
    pub(super) fn is_for(&mut self, frame: &Frame) -> bool {
        if !frame.contains(&self.needle) {
            return false;
        }
        let is_due = self.spare == 0;
        self.spare = self.spare.saturating_sub(1);
        is_due
    }
}
