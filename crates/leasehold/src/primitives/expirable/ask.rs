//! How permits with leases are asked for.

use std::sync::Arc;
use std::time::Duration;

use super::steps::{Names, Permits};
use super::{ExpirablePermit, ExpirableSemaphore, PermitId};
use crate::backend::failure::Failure;
use crate::backend::step::Value;
use crate::config::Terms;
use crate::error::Result;
use crate::guard::Share;
use crate::hold::{Grant, HoldSteps, Undo};
use crate::local::line::Line;
use crate::local::reentry::Held;
use crate::primitives::absence::Absence;
use crate::wait::{Answer, Ask, Deadline, Wait};

pub(super) async fn acquire(
    semaphore: &ExpirableSemaphore,
    names: &Names,
    terms: Terms,
    permits: u32,
    deadline: Deadline,
) -> Result<Option<ExpirablePermit>> {
    let context = &semaphore.context;
    let wait = Wait {
        context,
        key: &names.key,
        line_key: &names.key,
        channels: &[(context.backend.channels(), &names.channel)],
        settings: &semaphore.settings,
        deadline,
        line: Line::OneAsks,
        place: None,
    };
    let asker = Asker {
        semaphore,
        names,
        terms,
        permits,
        absence: Absence::new(semaphore.must_exist, deadline),
    };
    let granted = wait.until_granted(&asker).await?;
    Ok(granted.map(|(undo, ids)| {
        context.watchdog.keep(undo.hold());
        // Without an owner: a permit is never entered again, because each acquire takes permits of
        // its own.
        let held = Held::new(&context.standing, undo, None, None);
        ExpirablePermit::new(Share::new(Arc::clone(context), held), ids)
    }))
}

struct Asker<'a> {
    semaphore: &'a ExpirableSemaphore,
    names: &'a Names,
    terms: Terms,
    permits: u32,
    absence: Absence,
}

/// A hold with its undo, and the ids of its permits.
type Granted = (Undo, Arc<[PermitId]>);

impl Ask for Asker<'_> {
    type Grant = Granted;

    async fn ask(&self) -> Result<Answer<Granted>, Failure> {
        let context = &self.semaphore.context;
        // Fresh ids each time, so that no other request can be taken for this one.
        let ids: Arc<[PermitId]> = (0..self.permits).map(|_| PermitId::random()).collect();
        let steps = Permits::new(self.names.clone(), Arc::clone(&ids));
        let operation = steps.acquire(self.terms.lease);
        let hold = Grant::new(
            self.names.key.clone(),
            Box::new(steps),
            self.terms,
            context.clock,
            context.margin,
            // Taken before the request leaves: the validity counts from here, because the server's
            // lease begins before its answer comes.
            context.clock.now(),
        );
        // Armed before the request leaves: a future dropped while the answer is on its way
        // must not keep permits for a whole lease.
        let mut undo = Undo::arm(&context.cleanup, Arc::clone(&hold));
        let reply = context.backend.submit(operation);
        undo.watch(&reply);
        match reply.await {
            Ok(Value::Nil) => {
                undo.granted();
                if hold.granted(None) {
                    return Ok(Answer::Granted((undo, ids)));
                }
                // The undo is still armed, so the permits go back when it is dropped here.
                Err(context.backend.granted_too_late())
            }
            Ok(Value::List(items)) => match items[..] {
                [
                    Value::Int(free),
                    Value::Int(ttl_ms),
                    Value::Int(there),
                    Value::Int(held),
                ] => {
                    // The step grants all or none, so nothing has to go back.
                    undo.disarm();
                    if there != 1 {
                        self.absence.found(context, &self.names.key)?;
                    }
                    // -1 is no `u64`: then no lease is in use whose end could wake this waiter.
                    let within = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
                    // The number of free permits can be the same although permits changed hands.
                    // Their ids tell a release from a flood of messages.
                    let evidence = (free, held.to_be_bytes().into());
                    Ok(Answer::Later { within, evidence })
                }
                // Not disarmed: a list that makes no sense may stand for a grant.
                _ => Err(context.backend.malformed()),
            },
            Ok(_) => Err(context.backend.malformed()),
            Err(failure) => {
                undo.failed(failure.outcome);
                Err(failure)
            }
        }
    }
}
