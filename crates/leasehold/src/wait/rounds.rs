//! One ask for all who wait: those who would ask the same at the same time share the
//! answer. A thousand waiters cost the server what one does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use crate::backend::Backend;
use crate::backend::step::{Failure, Operation, Value};
use crate::key::Key;

type Answer = Result<Value, Failure>;
type Ask = BoxFuture<'static, Answer>;

/// The asks that are on their way, by name.
#[derive(Default)]
pub(crate) struct Rounds {
    last: Mutex<HashMap<Key, Round>>,
}

struct Round {
    answer: WeakShared<Ask>,
    /// The request has left.
    left: Arc<AtomicBool>,
    /// How far the channel had moved before.
    mark: Option<u64>,
}

impl Rounds {
    fn last(&self) -> MutexGuard<'_, HashMap<Key, Round>> {
        // No code that can panic runs under this lock.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, or shares an ask that is as good: one that has not left yet, or one before
    /// which the channel had moved as far as it has now. `mark` says how far.
    pub(crate) async fn ask(
        &self,
        backend: &Backend,
        key: &Key,
        mark: Option<u64>,
        operation: Operation,
    ) -> Answer {
        let answer = self.join(backend, key, mark, operation);
        let result = answer.clone().await;
        drop(answer);
        let mut last = self.last();
        let over = |round: &Round| {
            round
                .answer
                .upgrade()
                .is_none_or(|ask| ask.peek().is_some())
        };
        if last.get(key).is_some_and(over) {
            last.remove(key);
        }
        result
    }

    fn join(
        &self,
        backend: &Backend,
        key: &Key,
        mark: Option<u64>,
        operation: Operation,
    ) -> Shared<Ask> {
        let mut last = self.last();
        let before = last
            .get(key)
            .and_then(|round| Some((round, round.answer.upgrade()?)))
            .filter(|(_, answer)| answer.peek().is_none());
        if let Some((round, answer)) = &before
            && (!round.left.load(Ordering::SeqCst) || (mark.is_some() && round.mark == mark))
        {
            return answer.clone();
        }
        let (before, backend) = (before.map(|(_, answer)| answer), backend.clone());
        let left = Arc::new(AtomicBool::new(false));
        let leaves = Arc::clone(&left);
        let ask = async move {
            // One at a time: whoever comes meanwhile shares this one.
            if let Some(before) = before {
                let _ = before.await;
            }
            leaves.store(true, Ordering::SeqCst);
            backend.submit(operation).await
        };
        let answer = ask.boxed().shared();
        if let Some(weak) = answer.downgrade() {
            let round = Round {
                answer: weak,
                left,
                mark,
            };
            last.insert(key.clone(), round);
        }
        answer
    }
}
