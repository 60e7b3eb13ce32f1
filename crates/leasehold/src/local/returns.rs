//! The return of permits: if several holders give back permits of one name at the same time, one
//! request returns all of them.
//!
//! A batch is open from its first return until its request is queued. The request is queued under
//! the batch's lock: if another request does not find an open batch, all earlier returns are
//! already in the queue. Each request for the name sends the open batch first, so that no request
//! overtakes permits that were given back before it.

use tokio::sync::{oneshot, watch};

use super::Marked;
use crate::backend::Reply;
use crate::backend::failure::Failure;
use crate::backend::step::Operation;
use crate::clock::Moment;
use crate::sync::Mutex;

/// The open batch of a name, if there is one.
#[derive(Default)]
pub(crate) struct Returns {
    open: Mutex<Option<ReturnBatch>>,
}

struct ReturnBatch {
    permits: i64,
    members: u32,
    sent: oneshot::Sender<SentReturn>,
    result: watch::Receiver<ReturnResult>,
}

/// The request of a batch, once it was sent.
pub(crate) struct SentReturn {
    pub(crate) marked: Marked,
    pub(crate) operation: Operation,
    pub(crate) reply: Reply,
    pub(crate) sent_at: Moment,
    /// Whether this client listens to the channel on which the return is published.
    pub(crate) we_listen: bool,
}

/// The largest number of returns in one request. The request sends a message for each return.
const MAX_RETURNS: u32 = 64;

type ReturnResult = Option<Result<(), Failure>>;

/// The sending half of a batch's result, for the task that waits for the reply. A task waits, and
/// not a holder's future: if that future were not polled, the other holders would not get their
/// results.
pub(crate) struct Carrier {
    sent: oneshot::Receiver<SentReturn>,
    result: watch::Sender<ReturnResult>,
}

/// One return in a batch.
pub(crate) struct BatchMember(watch::Receiver<ReturnResult>);

impl Returns {
    /// Adds `permits` to the open batch. Opens a batch if there is none, and then returns its
    /// carrier too. Returns `None` if the batch is full and must be sent first.
    pub(crate) fn join(&self, permits: u32) -> Option<(BatchMember, Option<Carrier>)> {
        // Join while the batch is locked. Sending takes the same lock, so no return is added to a
        // batch that was sent.
        let mut batch = self.open.lock();
        if let Some(open) = &mut *batch {
            if open.members == MAX_RETURNS {
                return None;
            }
            open.permits += i64::from(permits);
            open.members += 1;
            return Some((BatchMember(open.result.clone()), None));
        }
        let (end, result) = watch::channel(None);
        let (sender, sent) = oneshot::channel();
        let member = BatchMember(result.clone());
        *batch = Some(ReturnBatch {
            permits: permits.into(),
            members: 1,
            sent: sender,
            result,
        });
        Some((member, Some(Carrier { sent, result: end })))
    }

    /// Sends the open batch. Returns `false` if there is none.
    pub(crate) fn send(&self, submit: impl FnOnce(i64) -> SentReturn) -> bool {
        // Keep the batch locked while its request is submitted. Otherwise another request could
        // find that no batch is open, and overtake this request. (If the runtime has ended, the
        // request is dropped under the lock; its drop does not take the lock.)
        let mut batch = self.open.lock();
        let Some(open) = batch.take() else {
            return false;
        };
        // If the carrier no longer exists, the reply is never read, but the request is sent anyway.
        let _ = open.sent.send(submit(open.permits));
        true
    }
}

impl Carrier {
    /// Returns the request, once it was sent.
    pub(crate) fn sent(&mut self) -> Option<SentReturn> {
        self.sent.try_recv().ok()
    }

    pub(crate) fn end(self, result: Result<(), Failure>) {
        self.result.send_replace(Some(result));
    }
}

impl BatchMember {
    /// Waits for the result of the batch. Returns `None` if the task that waits for the reply has
    /// ended.
    pub(crate) async fn result(mut self) -> ReturnResult {
        let result = self.0.wait_for(Option::is_some).await;
        result.ok().and_then(|result| result.clone())
    }
}
