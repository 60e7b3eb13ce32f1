//! How permits are asked for: the head of the line asks for those behind it as well.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::Semaphore;
use super::permit::SemaphorePermit;
use super::returns::{self, Granted, Names};
use super::steps;
use crate::backend::step::{Failure, Outcome, Value};
use crate::cleanup::Undo;
use crate::clock::Moment;
use crate::context::Context;
use crate::error::Result;
use crate::primitives::absence::Absence;
use crate::primitives::once;
use crate::wait::company::{Slot, Standing};
use crate::wait::tenure::Asked;
use crate::wait::turns::Line;
use crate::wait::{Answer, Ask, Deadline, Wait};

/// Those that one request asks for. More would make the server wait.
const MOST_AT_ONCE: usize = 64;

pub(super) async fn acquire(
    semaphore: &Semaphore,
    names: Names,
    permits: u32,
    deadline: Deadline,
) -> Result<Option<SemaphorePermit>> {
    let context = &semaphore.context;
    let key = names.key.clone();
    // Who asks once stands in no line.
    let standing =
        (!matches!(deadline, Deadline::Now)).then(|| context.companies.join(&names.key, permits));
    let asker = Asker {
        semaphore,
        names,
        permits,
        standing,
        absence: Absence::new(semaphore.must_exist, deadline),
    };
    let wait = Wait {
        context,
        key: &key,
        wanted: &key,
        channels: &[(context.backend.channels(), &semaphore.channel)],
        settings: &semaphore.settings,
        deadline,
        line: Line::OneAsks,
    };
    wait.until_granted(&asker).await
}

struct Asker<'a> {
    semaphore: &'a Semaphore,
    names: Names,
    permits: u32,
    standing: Option<Standing>,
    absence: Absence,
}

impl Asker<'_> {
    fn leave(&self) {
        if self.standing.as_ref().is_some_and(Standing::leave) {
            // Granted by another, and nobody came for it.
            drop(self.permit());
        }
    }

    fn permit(&self) -> SemaphorePermit {
        SemaphorePermit::new(&self.semaphore.context, self.names.clone(), self.permits)
    }

    fn request(&self) -> Request {
        let context = &self.semaphore.context;
        let head = self.standing.as_ref();
        // Who has no time to stand down asks for itself alone.
        let behind = match (head, self.not_before()) {
            (Some(head), None) => context.companies.behind(head, MOST_AT_ONCE - 1),
            _ => Vec::new(),
        };
        Request {
            context: Arc::clone(context),
            names: self.names.clone(),
            permits: self.permits,
            head: head.map(Standing::slot),
            behind,
        }
    }
}

impl Ask for Asker<'_> {
    type Grant = SemaphorePermit;

    async fn ask(&self) -> Result<Answer<SemaphorePermit>, Failure> {
        let context = &self.semaphore.context;
        let request = self.request();
        let said = match request.behind.is_empty() {
            true => request.answered().await?,
            // Whoever stands behind gets its permits even if nobody polls this waiter.
            false => {
                let (sender, answered) = oneshot::channel();
                context.cleanup.spawn(request.carried(sender));
                let address = context.backend.address();
                let ended = |_| Failure::runtime_ended(Outcome::MayHaveRun, address);
                answered.await.map_err(ended)??
            }
        };
        if let Some(permit) = said.granted {
            return Ok(Answer::Granted(permit));
        }
        if !said.there {
            self.absence.found(context, &self.names.key)?;
        }
        let sign = (said.free, said.released);
        Ok(Answer::Later { within: None, sign })
    }

    fn not_before(&self) -> Option<Moment> {
        let context = &self.semaphore.context;
        let now = context.clock.now();
        context.companies.not_before(&self.names.key, now)
    }

    async fn meanwhile(&self) -> SemaphorePermit {
        match &self.standing {
            Some(standing) => standing.granted().await,
            None => std::future::pending().await,
        }
        self.permit()
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// One request, for the head of a line and those who stand behind it.
struct Request {
    context: Arc<Context>,
    names: Names,
    permits: u32,
    head: Option<Arc<Slot>>,
    behind: Vec<Arc<Slot>>,
}

impl Request {
    /// Sends it, and gives everybody what the server granted for them, the head first.
    async fn carried(self, head: oneshot::Sender<Result<Said, Failure>>) {
        let said = self.answered().await;
        // No await from here on: each permit finds whom it is for, or goes back.
        let granted = said.as_ref().map_or(0, |said| said.asks);
        drop(head.send(said));
        for slot in self.behind.iter().take(granted.saturating_sub(1)) {
            if !slot.grant() {
                drop(self.permit(slot.permits));
            }
        }
    }

    /// Sends it. The head's permits come with the answer.
    async fn answered(&self) -> Result<Said, Failure> {
        let context = &self.context;
        let (companies, key) = (&context.companies, &self.names.key);
        let others = self.behind.iter().map(|slot| slot.permits);
        let sizes: Vec<u32> = std::iter::once(self.permits).chain(others).collect();
        let marked = once::mark(context, key);
        let operation = steps::acquire(key, &marked, &sizes);
        // Armed before the request leaves: what is granted while nobody waits for the
        // answer any more must not be lost.
        let mut undo = Undo::arm(
            &context.cleanup,
            Arc::new(Granted {
                names: self.names.clone(),
                marker: marked.marker.clone(),
            }),
        );
        returns::send(context, &self.names);
        let given_back = companies.given_back(key, context.clock.now());
        let reply = context.backend.submit(operation);
        undo.watch(&reply);
        let mut said = match reply.await {
            Ok(reply) => read(&reply, sizes.len()).ok_or_else(|| context.backend.senseless())?,
            Err(failure) => {
                undo.failed(failure.outcome);
                return Err(failure);
            }
        };
        undo.disarm();
        let now = context.clock.now();
        context.markers.answered(key, marked, now);
        let asks = said.asks;
        let taken: i64 = sizes.iter().take(asks).map(|size| i64::from(*size)).sum();
        let asked = Asked {
            given_back,
            free: said.free.saturating_add(taken),
            granted: asks > 0,
            now,
        };
        companies.answered(key, asked);
        if asks > 0 {
            // It has what it asked for: what others of its line give back is not for it.
            if self.head.as_ref().is_some_and(|slot| slot.go()) {
                drop(self.permit(self.permits));
            }
            said.granted = Some(self.permit(self.permits));
        }
        Ok(said)
    }

    fn permit(&self, permits: u32) -> SemaphorePermit {
        SemaphorePermit::new(&self.context, self.names.clone(), permits)
    }
}

/// What the server said to an ask.
struct Said {
    /// So many were granted.
    asks: usize,
    /// The permits of the first one.
    granted: Option<SemaphorePermit>,
    /// So many permits are free.
    free: i64,
    /// Whether there is a semaphore.
    there: bool,
    /// Which request has given permits back last.
    released: Vec<u8>,
}

/// The answer to a request for so many.
fn read(reply: &Value, most: usize) -> Option<Said> {
    let Value::List(items) = reply else {
        return None;
    };
    let [
        Value::Int(asks),
        Value::Int(free),
        Value::Int(there),
        Value::Text(released),
    ] = &items[..]
    else {
        return None;
    };
    Some(Said {
        asks: usize::try_from(*asks).ok().filter(|asks| *asks <= most)?,
        granted: None,
        free: *free,
        there: *there == 1,
        released: released.clone(),
    })
}
