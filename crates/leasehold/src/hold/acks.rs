//! Who waits for the server's word about a grant that was handed over: a holder whose hold went
//! to another waiter of its process is told by the next reply whether it was held until then.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Grant;
use super::watchdog::{Renewed, try_renew, why_lost};
use crate::backend::Backend;
use crate::backend::failure::{Cause, Failure};
use crate::backend::retry::Pauses;
use crate::clock::Timers;
use crate::error::Error;
use crate::loss::LossReason;
use crate::sync::Mutex;

/// What the server says of a grant to those who had it.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// It was held until now.
    Held,
    Lost(LossReason),
    /// Nobody can know: it is not there, and its lease is over, or a request without an answer may
    /// have ended it.
    Unknown,
    /// It refuses to say.
    Failed(Failure),
}

impl Word {
    /// Converts a loss for the holders that gave the hold up before it. A lease that ran out later says
    /// nothing about their time.
    fn of_loss(reason: &LossReason) -> Self {
        match reason {
            LossReason::Expired | LossReason::RenewalFailed { .. } | LossReason::Closed => {
                Self::Unknown
            }
            reason => Self::Lost(reason.clone()),
        }
    }
}

/// Those who wait, each until a request is answered that left behind its release.
#[derive(Default)]
pub(super) struct Acks(Mutex<Option<Box<Waiting>>>);

#[derive(Default)]
struct Waiting {
    /// How many have ever waited.
    came: u64,
    senders: VecDeque<(u64, oneshot::Sender<Word>)>,
    /// A task asks for them.
    asked: bool,
    /// A release has left, whose reply tells all.
    released: bool,
    /// A request has left that ends the hold or makes it another one, and its answer may be missed.
    may_be_gone: bool,
}

/// Those who waited when a request left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl Acks {
    /// One more waits. `true` if nobody asks for it yet.
    fn wait(&self) -> (oneshot::Receiver<Word>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.lock();
        let waiting = waiting.get_or_insert_default();
        waiting.came += 1;
        waiting.senders.push_back((waiting.came, sender));
        let begins = !std::mem::replace(&mut waiting.asked, true);
        (receiver, begins)
    }

    /// Taken before a release leaves. Nobody comes behind it: its reply tells all who wait.
    pub(super) fn release(&self) -> Mark {
        let mut waiting = self.0.lock();
        Mark(waiting.as_mut().map_or(0, |waiting| {
            waiting.released = true;
            waiting.came
        }))
    }

    /// The same for a request whose answer may be missed.
    fn end(&self) -> Mark {
        let mut waiting = self.0.lock();
        Mark(waiting.as_mut().map_or(0, |waiting| {
            (waiting.released, waiting.may_be_gone) = (true, true);
            waiting.came
        }))
    }

    fn may_be_gone(&self) -> bool {
        let waiting = self.0.lock();
        waiting.as_ref().is_some_and(|waiting| waiting.may_be_gone)
    }

    fn is_released(&self) -> bool {
        let waiting = self.0.lock();
        waiting.as_ref().is_some_and(|waiting| waiting.released)
    }

    /// The same for the task that asks: `None`, and the task has ended, when nobody waits.
    fn next(&self) -> Option<Mark> {
        let mut waiting = self.0.lock();
        let waiting = waiting.as_mut()?;
        // Whoever does not wait any more needs no request.
        waiting.senders.retain(|(_, sender)| !sender.is_closed());
        // Decided under the lock: who comes next finds this task at work, or starts one.
        waiting.asked = !waiting.released && !waiting.senders.is_empty();
        waiting.asked.then_some(Mark(waiting.came))
    }

    /// The server has said this to a request behind `mark`.
    pub(super) fn tell(&self, mark: Mark, word: &Word) {
        let mut told = Vec::new();
        if let Some(waiting) = self.0.lock().as_mut() {
            let before = |(number, _): &(u64, _)| *number <= mark.0;
            let count = waiting.senders.iter().take_while(|one| before(one)).count();
            told.extend(waiting.senders.drain(..count));
        }
        // Behind the lock: whoever is woken may hand over the next hold at once.
        for (_, sender) in told {
            // Nobody waits any more if this fails.
            let _ = sender.send(word.clone());
        }
    }
}

impl Grant {
    /// Waits for the server's next word. Whoever begins has to have [`ask_for_word`] run.
    pub(crate) fn await_word(&self) -> (oneshot::Receiver<Word>, bool) {
        self.acks.wait()
    }

    /// Whether anybody waits.
    pub(crate) fn has_waiting(&self) -> bool {
        let waiting = self.acks.0.lock();
        let mut senders = waiting.iter().flat_map(|waiting| &waiting.senders);
        senders.any(|(_, sender)| !sender.is_closed())
    }

    /// A release leaves.
    pub(crate) fn mark(&self) -> Mark {
        self.acks.release()
    }

    /// A request leaves that ends this hold or makes it another one. Its future may be dropped before
    /// the answer, so from then on the hold's absence does not mean that it was lost.
    pub(crate) fn ends_or_turns(&self) -> Mark {
        self.acks.end()
    }

    /// Reports whether such a request has left.
    pub(super) fn may_be_gone(&self) -> bool {
        self.acks.may_be_gone()
    }

    /// The server has answered a release.
    pub(crate) fn tell(&self, mark: Mark, word: &Word) {
        self.acks.tell(mark, word);
    }

    /// The server has answered a request that ends it, and it was lost before. All who want to know
    /// are told.
    pub(crate) fn was_lost(&self, mark: Mark, reason: LossReason) -> Error {
        self.tell(mark, &Word::of_loss(&reason));
        self.ended_lost(&reason);
        Error::lost(&self.key, reason)
    }
}

/// Renews a grant that is handed from one to the next, as long as somebody waits for a word of
/// the server: one request at a time tells all who waited when it left. Ends when a release
/// leaves, which tells the others. A hold that was forgotten has none, and is asked for as it is.
pub(crate) async fn ask_for_word(backend: Backend, timers: Timers, grant: Arc<Grant>) {
    let pauses = || Pauses::from(Duration::from_millis(10)).up_to(Duration::from_secs(1));
    let mut pause = pauses();
    while let Some(mark) = grant.acks.next() {
        let lease = match grant.is_over() {
            // It is left to its lease, which this must not lengthen.
            true => Duration::from_millis(1),
            false => grant.lease_to_ask(timers.now()),
        };
        match try_renew(&backend, &timers, &grant, lease).await {
            Ok(Renewed::Yes) => {
                pause = pauses();
                grant.acks.tell(mark, &Word::Held);
            }
            // It was given back before this request left: the reply to that tells.
            Ok(Renewed::Lost) if grant.acks.is_released() => {}
            Ok(Renewed::Lost) => {
                let reason = match grant.loss() {
                    Some(reason) => reason,
                    None => why_lost(&backend, &grant, &timers).await,
                };
                grant.acks.tell(mark, &Word::of_loss(&reason));
                grant.ended_lost(&reason);
            }
            Err(failure) if failure.may_heal() => {
                // Earlier holders only need the server's own answer.
                if matches!(failure.cause, Cause::Unconfirmed(_)) {
                    grant.acks.tell(mark, &Word::Held);
                }
                timers.sleep(pause.take()).await;
            }
            Err(failure) => grant.acks.tell(mark, &Word::Failed(failure)),
        }
    }
}
