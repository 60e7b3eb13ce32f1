//! Permits of one name that several holders give back at the same time go as one request.
//!
//! A batch is open from its first return until its request is queued. That happens under its
//! lock: a request that finds no open batch knows that all returns before it are in
//! the queue. Each request for the name sends the open batch first, so that it never overtakes
//! permits that were given back before it.

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
    open: Mutex<Option<Open>>,
}

struct Open {
    permits: i64,
    members: u32,
    sent: oneshot::Sender<Sent>,
    ending: watch::Receiver<Ending>,
}

/// A request that has been sent.
pub(crate) struct Sent {
    pub(crate) marked: Marked,
    pub(crate) operation: Operation,
    pub(crate) reply: Reply,
    pub(crate) left_at: Moment,
    /// This client listens to the channel on which the return is published.
    pub(crate) we_listen: bool,
}

/// The most returns in one request, which sends a message for each.
const MOST: u32 = 64;

type Ending = Option<Result<(), Failure>>;

/// For the task that sees a batch through. None of its holders does: a future that nobody polls
/// must not hold up the others.
pub(crate) struct Carrier {
    sent: oneshot::Receiver<Sent>,
    ending: watch::Sender<Ending>,
}

/// A place in a batch.
pub(crate) struct Member(watch::Receiver<Ending>);

impl Returns {
    /// Adds `permits` to the open batch, or opens one: then there is a carrier. `None` when it is
    /// full, and has to be sent first.
    pub(crate) fn join(&self, permits: u32) -> Option<(Member, Option<Carrier>)> {
        // Joined under the lock under which it is sent: no return comes behind its request.
        let mut batch = self.open.lock();
        if let Some(open) = &mut *batch {
            if open.members == MOST {
                return None;
            }
            open.permits += i64::from(permits);
            open.members += 1;
            return Some((Member(open.ending.clone()), None));
        }
        let (end, ending) = watch::channel(None);
        let (sender, sent) = oneshot::channel();
        let member = Member(ending.clone());
        *batch = Some(Open {
            permits: permits.into(),
            members: 1,
            sent: sender,
            ending,
        });
        Some((member, Some(Carrier { sent, ending: end })))
    }

    /// Sends the open batch, if there is one.
    pub(crate) fn send(&self, submit: impl FnOnce(i64) -> Sent) -> bool {
        // Locked while the request is submitted: a request that finds no batch in between could
        // overtake it. (If the runtime has ended, requests are dropped under the lock, and none
        // of them comes back for it.)
        let mut batch = self.open.lock();
        let Some(open) = batch.take() else {
            return false;
        };
        // Without a carrier nobody reads the reply, but the request goes nevertheless.
        let _ = open.sent.send(submit(open.permits));
        true
    }
}

impl Carrier {
    /// The request, once it was sent.
    pub(crate) fn sent(&mut self) -> Option<Sent> {
        self.sent.try_recv().ok()
    }

    pub(crate) fn end(self, ending: Result<(), Failure>) {
        self.ending.send_replace(Some(ending));
    }
}

impl Member {
    /// How the batch ended; `None` when nobody sees it through any more.
    pub(crate) async fn ending(mut self) -> Ending {
        let ending = self.0.wait_for(Option::is_some).await;
        ending.ok().and_then(|ending| ending.clone())
    }
}
