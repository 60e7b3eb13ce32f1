//! What several give back of one name at the same time goes as one request.
//!
//! A batch is open from the first of them until its request is queued, which happens under
//! the lock of the table: whoever finds none open knows that all before is in the queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::markers::Marked;
use crate::backend::Reply;
use crate::backend::step::{Failure, Operation};
use crate::clock::Moment;
use crate::key::Key;

/// The batches that are open, by name.
#[derive(Default)]
pub(crate) struct Batches {
    open: Mutex<HashMap<Key, Open>>,
}

struct Open {
    amount: i64,
    sent: Slot,
    ending: watch::Receiver<Ending>,
}

type Slot = Arc<Mutex<Option<Sent>>>;
type Ending = Option<Result<(), Failure>>;

/// A request for a batch, on its way.
pub(crate) struct Sent {
    pub(crate) marked: Marked,
    pub(crate) operation: Operation,
    pub(crate) reply: Reply,
    pub(crate) at: Moment,
}

/// For whoever opened a batch: the one who sees it through.
pub(crate) struct Carrier {
    sent: Slot,
    ending: watch::Sender<Ending>,
}

/// How a batch ends, for those in it who want to know.
pub(crate) struct Member(watch::Receiver<Ending>);

impl Batches {
    fn open(&self) -> MutexGuard<'_, HashMap<Key, Open>> {
        // What runs under this lock leaves the table as it should be, also if it panics.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `amount` to the open batch of the name, or opens one: then there is a carrier.
    pub(crate) fn join(&self, key: &Key, amount: u32) -> (Member, Option<Carrier>) {
        let mut table = self.open();
        if let Some(open) = table.get_mut(key) {
            open.amount += i64::from(amount);
            return (Member(open.ending.clone()), None);
        }
        let (ending, member) = watch::channel(None);
        let sent = Slot::default();
        let open = Open {
            amount: amount.into(),
            sent: Arc::clone(&sent),
            ending: member.clone(),
        };
        table.insert(key.clone(), open);
        (Member(member), Some(Carrier { sent, ending }))
    }

    /// Sends the open batch of the name, if there is one.
    pub(crate) fn send(&self, key: &Key, submit: impl FnOnce(i64) -> Sent) -> bool {
        let mut table = self.open();
        let Some(open) = table.remove(key) else {
            return false;
        };
        *slot(&open.sent) = Some(submit(open.amount));
        true
    }
}

fn slot(sent: &Slot) -> MutexGuard<'_, Option<Sent>> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Carrier {
    /// The request, once it was sent.
    pub(crate) fn take(&self) -> Option<Sent> {
        slot(&self.sent).take()
    }

    /// Whether anybody waits for the end.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.ending.is_closed()
    }

    pub(crate) fn end(self, ending: Result<(), Failure>) {
        self.ending.send_replace(Some(ending));
    }
}

impl Member {
    /// The end; `None` when nobody will see to it any more.
    pub(crate) async fn ending(mut self) -> Ending {
        let ending = self.0.wait_for(Option::is_some).await;
        ending.ok().and_then(|ending| ending.clone())
    }
}
