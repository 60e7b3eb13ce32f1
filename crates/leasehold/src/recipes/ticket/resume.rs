//! The use of a ticket by the next process: it takes over the hold, or ends it.

use std::any::TypeId;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::steps::{Look, Take, TakePermits, TakeRead};
use super::text::{Ticket, TicketHold, TicketKind};
use super::{misuse, taken};
use crate::backend::NameKind;
use crate::backend::failure::{Failure, Outcome, accept_refusal};
use crate::backend::retry::{FailedAttempt, RetryDelays, until_answered};
use crate::backend::step::{Operation, Value};
use crate::client::Client;
use crate::config::{Terms, wire_ms};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Share;
use crate::hold::{Asked, Grant, HoldSteps, SwapSteps, Undo};
use crate::key::Key;
use crate::local::reentry::Held;
use crate::loss::LossReason;
use crate::observe::{Observed, ObservedKind};
use crate::primitives::expirable::steps::{PermitHold, concat_ids};
use crate::primitives::expirable::{ExpirablePermit, ExpirableSemaphore};
use crate::primitives::fair::Fair;
use crate::primitives::fenced::Fenced;
use crate::primitives::fenced::steps::counter_ms;
use crate::primitives::lock::kind::{FromLockGuard, Named};
use crate::primitives::lock::{Kind, Lock, LockGuard, OneKey, Plain};
use crate::primitives::request;
use crate::primitives::rw::{Read, Write};

impl Client {
    /// Takes over a ticket's hold in one request: at no time is the lock free, or held by two
    /// clients. From then on the hold is renewed with this client's lease until the guard is
    /// released or dropped. If the hold has a fencing token, the guard gets a new and greater
    /// token, so a resource can refuse late writes by the earlier holder.
    ///
    /// Only the first caller gets the hold, and the hold has a new id. To choose settings, or to
    /// get the guard of a particular kind, use [`Lock::resume`]. For permits, use
    /// [`ExpirableSemaphore::resume`].
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`] if the hold no longer exists. [`Error::loss`] is
    ///   [`Taken`](LossReason::Taken) with the id of the new hold, if another caller has resumed
    ///   the ticket, or if another client has acquired the lock in the meantime. It is
    ///   [`Forced`](LossReason::Forced) after a forced unlock, and [`Expired`](LossReason::Expired)
    ///   otherwise: the lease has expired, the ticket was [released](Self::release_ticket), or this
    ///   client uses another server.
    /// - `Misuse` for a ticket whose name lacks this client's
    ///   [prefix](crate::ClientBuilder::prefix), a ticket for permits, or a client that was closed.
    /// - `WrongKind` if the name is in use as something else.
    /// - `Unavailable` or `OutcomeUnknown` if no server answered. After `OutcomeUnknown`, the
    ///   client releases in the background any hold that it may have got.
    /// - `Denied` if the server refuses the request.
    ///
    /// # Cancel safety
    ///
    /// If the request was not sent yet, dropping the future changes nothing. Otherwise the client
    /// releases the lock in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    /// use leasehold::LossReason;
    ///
    /// let client = leasehold::Client::embedded();
    /// let first = client.fenced_lock("export:7").acquire().await?;
    /// let token = first.token();
    /// let ticket = first.into_ticket(Duration::from_secs(60)).await?;
    ///
    /// let second = client.resume(&ticket).await?;
    /// assert!(second.token() > Some(token));
    /// let late = client.resume(&ticket).await.unwrap_err();
    /// assert!(matches!(late.loss(), Some(LossReason::Taken { .. })));
    /// second.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resume(&self, ticket: &Ticket) -> Result<LockGuard> {
        let name = self.name_of(ticket)?;
        match ticket.kind {
            TicketKind::Plain => self.lock(name).resume(ticket).await,
            TicketKind::Fenced => Ok(self.fenced_lock(name).resume(ticket).await?.into()),
            TicketKind::Fair => self.fair_lock(name).resume(ticket).await,
            TicketKind::Read => {
                let lock = self.rw_lock(name).read_lock();
                Ok(lock.resume(ticket).await?.into())
            }
            TicketKind::Write => {
                let lock = self.rw_lock(name).write_lock();
                Ok(lock.resume(ticket).await?.into())
            }
            TicketKind::Permits => Err(misuse(
                &self.context().key(name, NameKind::Other)?,
                "this is a ticket for permits; pass it to `ExpirableSemaphore::resume`",
            )),
        }
    }

    /// Ends a ticket's hold without resuming it, and wakes the waiters as any release does.
    ///
    /// # Errors
    ///
    /// Same as [`resume`](Self::resume).
    ///
    /// # Cancel safety
    ///
    /// The server may carry out the request even if the future is dropped before the answer.
    pub async fn release_ticket(&self, ticket: &Ticket) -> Result<()> {
        let name = self.name_of(ticket)?;
        let (key, steps) = self.steps_of(ticket, name)?;
        let context = self.context();
        context.check_open(&key)?;
        let (clock, release) = (context.clock, steps.release());
        let (mut end, mut unanswered) = (None, None);
        let should_retry = |failed: FailedAttempt<'_>| {
            if failed.failure.outcome == Outcome::MayHaveRun {
                unanswered = Some(failed.failure.clone());
            }
            let end = *end.get_or_insert(clock.now() + context.backend.reply_timeout());
            failed.failure.may_heal() && clock.now() < end
        };
        let send = || context.backend.submit(release.clone());
        let first = (send(), clock.now());
        let pauses = RetryDelays::from(Duration::from_millis(10));
        match until_answered(&context.timers, first, pauses, send, should_retry).await {
            Ok(Value::Int(1..)) => Ok(()),
            // An earlier copy of the request may have released the hold.
            Ok(Value::Int(_)) if let Some(failure) = unanswered => {
                Err(failure.into_error_of_change(&key))
            }
            Ok(Value::Int(_)) => {
                let reply = request::query(context, &key, look(&key, ticket)).await?;
                let reason = Answer::read(&reply).and_then(|answer| answer.loss(""));
                Err(Error::used_up(&key, reason.unwrap_or(LossReason::Expired)))
            }
            Ok(_) => Err(request::malformed(context, &key)),
            Err(failure) => Err(failure.into_error_of_change(&key)),
        }
    }

    /// Returns the name in a ticket, without this client's prefix.
    fn name_of<'a>(&self, ticket: &'a Ticket) -> Result<&'a str> {
        let prefix = &self.context().prefix;
        let name = ticket.name.strip_prefix(&**prefix);
        name.filter(|name| !name.is_empty()).ok_or_else(|| {
            let name = crate::text::Shown(&ticket.name);
            let message = format!(
                "the ticket is for `{name}`, and the names of this client begin with `{prefix}`; \
                 use a client with the prefix of the client that made the ticket"
            );
            Error::new(ErrorKind::Misuse, message)
        })
    }

    /// Returns the key of a ticket, and the operations on its hold.
    fn steps_of(&self, ticket: &Ticket, name: &str) -> Result<(Key, Box<dyn HoldSteps>)> {
        match ticket.kind {
            TicketKind::Plain | TicketKind::Fenced => old_hold(&self.lock(name), ticket),
            TicketKind::Fair => old_hold(&self.fair_lock(name), ticket),
            TicketKind::Read => old_hold(&self.rw_lock(name).read_lock(), ticket),
            TicketKind::Write => old_hold(&self.rw_lock(name).write_lock(), ticket),
            TicketKind::Permits => {
                let (key, steps) = old_permits(&self.expirable_semaphore(name), ticket)?;
                Ok((key, Box::new(steps)))
            }
        }
    }
}

impl<K: OneKey> Lock<K> {
    /// Takes over a ticket's hold with the settings of this handle, and returns a guard of this
    /// handle's kind: see [`Client::resume`].
    ///
    /// A ticket for a plain lock can be resumed with a [`FencedLock`](crate::FencedLock), and vice
    /// versa.
    ///
    /// # Errors
    ///
    /// Same as [`Client::resume`]. `Misuse` also for a ticket with another name or kind, and for a
    /// handle with an [`Owner`](crate::Owner).
    ///
    /// # Cancel safety
    ///
    /// Same as [`Client::resume`].
    pub async fn resume(&self, ticket: &Ticket) -> Result<<K as Kind>::Guard> {
        let (context, key) = (self.context(), self.key()?);
        if self.owner().is_some() {
            return Err(misuse(
                key,
                "a ticket is resumed without an owner; use a handle without `owned_by`",
            ));
        }
        check_name(key, ticket)?;
        let kind = kind_of::<K>(key)?;
        check_kind(key, kind, ticket)?;
        // A minimum time ends with the hold that had it.
        let terms = Terms {
            min_hold: None,
            ..self.kind().terms(self.settings().terms(key)?)
        };
        let steps = K::hold(self, key, context.fresh_wire_id());
        let operation = match kind {
            TicketKind::Read => take_read(key, ticket, &*steps, terms, &self.channel()),
            _ => {
                let is_fenced = kind == TicketKind::Fenced || ticket.token.is_some();
                take(
                    context,
                    ticket,
                    (key, is_fenced),
                    &*steps,
                    terms,
                    &self.channel(),
                )
            }
        };
        let share = take_over(context, key, K::OBSERVED, terms, steps, operation).await?;
        let share = share.reporting(terms.progress_within);
        Ok(K::Guard::from_lock_guard(LockGuard::new(share)))
    }
}

impl ExpirableSemaphore {
    /// Takes over the permits of a ticket with the settings of this handle, in one request. The
    /// permits get new ids: see [`Client::resume`].
    ///
    /// # Errors
    ///
    /// Same as [`Client::resume`]. `Misuse` also for a ticket with another name, or for a lock.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Client::resume`], with permits.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let client = leasehold::Client::embedded();
    /// let semaphore = client.expirable_semaphore("supplier:calls");
    /// semaphore.try_set_permits(3).await?;
    /// let permits = semaphore.acquire_many(2).await?;
    /// let ticket = permits.into_ticket(Duration::from_secs(60)).await?;
    /// let permits = semaphore.resume(&ticket).await?;
    /// assert_eq!((permits.ids().len(), semaphore.available_permits().await?), (2, 1));
    /// # permits.release().await
    /// # }
    /// ```
    pub async fn resume(&self, ticket: &Ticket) -> Result<ExpirablePermit> {
        let (key, old) = old_permits(self, ticket)?;
        let (context, terms) = (self.context(), self.terms(&key)?);
        let (steps, _) = old.swap(terms.lease);
        let next: &dyn std::any::Any = &*steps;
        let next = next.downcast_ref::<PermitHold>();
        let operation = TakePermits {
            permits: key.as_str().as_bytes(),
            timeout: key.timeout_key().as_bytes(),
            taken: taken(&key).as_bytes(),
            ids: &concat_ids(&old.ids),
            next: &next.map(|next| concat_ids(&next.ids)).unwrap_or_default(),
            lease_ms: wire_ms(terms.lease),
            old: ticket.holder_id().as_bytes(),
            hold: steps.wire_id().as_bytes(),
        }
        .operation();
        let kind = ObservedKind::Permit;
        let share = take_over(context, &key, kind, terms, steps, operation).await?;
        Ok(ExpirablePermit::new(share.reporting(terms.progress_within)))
    }
}

/// Returns the kind of ticket for a kind of lock.
fn kind_of<K: 'static>(key: &Key) -> Result<TicketKind> {
    let kinds = [
        (TypeId::of::<Plain>(), TicketKind::Plain),
        (TypeId::of::<Fenced>(), TicketKind::Fenced),
        (TypeId::of::<Fair>(), TicketKind::Fair),
        (TypeId::of::<Read>(), TicketKind::Read),
        (TypeId::of::<Write>(), TicketKind::Write),
    ];
    let found = kinds.iter().find(|(id, _)| *id == TypeId::of::<K>());
    found
        .map(|(_, kind)| *kind)
        .ok_or_else(|| misuse(key, "there are no tickets for locks of this kind"))
}

fn check_name(key: &Key, ticket: &Ticket) -> Result<()> {
    match key.as_str() == ticket.name {
        true => Ok(()),
        false => Err(misuse(
            key,
            &format!("the ticket is for `{}`", crate::text::Shown(&ticket.name)),
        )),
    }
}

fn check_kind(key: &Key, kind: TicketKind, ticket: &Ticket) -> Result<()> {
    // A plain lock and a fenced lock with the same name are the same lock.
    let family = |kind| match kind {
        TicketKind::Fenced => TicketKind::Plain,
        other => other,
    };
    match family(kind) == family(ticket.kind) {
        true => Ok(()),
        false => {
            let found = ticket.kind;
            let what = format!("this is a ticket of the kind `{found}`, and not `{kind}`");
            Err(misuse(key, &what))
        }
    }
}

/// Returns the operations on the hold of a ticket.
fn old_hold<K: Named>(lock: &Lock<K>, ticket: &Ticket) -> Result<(Key, Box<dyn HoldSteps>)> {
    let key = lock.key()?;
    let TicketHold::Lock { client, number } = &ticket.hold else {
        return Err(misuse(key, "this is a ticket for permits"));
    };
    let steps = K::hold(lock, key, format!("{client}:{number}"));
    Ok((key.clone(), steps))
}

/// Returns the operations on the permits of a ticket.
fn old_permits(semaphore: &ExpirableSemaphore, ticket: &Ticket) -> Result<(Key, PermitHold)> {
    let names = semaphore.names()?;
    check_name(&names.key, ticket)?;
    let TicketHold::Permits(ids) = &ticket.hold else {
        let what = format!(
            "this is a ticket of the kind `{}`, and not for permits",
            ticket.kind
        );
        return Err(misuse(&names.key, &what));
    };
    let steps = PermitHold::new(names.clone(), ids.clone().into());
    Ok((names.key.clone(), steps))
}

fn take(
    context: &Context,
    ticket: &Ticket,
    (key, is_fenced): (&Key, bool),
    next: &dyn HoldSteps,
    terms: Terms,
    channel: &str,
) -> Operation {
    Take {
        lock: key.as_str().as_bytes(),
        counter: key.token_counter().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        taken: taken(key).as_bytes(),
        queue: match ticket.kind {
            TicketKind::Fair => key.fair_queue(),
            _ => key.as_str().to_owned(),
        }
        .as_bytes(),
        old: ticket.holder_id().as_bytes(),
        hold: next.wire_id().as_bytes(),
        lease_ms: wire_ms(terms.lease),
        channel: channel.as_bytes(),
        fenced: is_fenced,
        counter_ms: counter_ms(context.peers, terms.lease),
        writes: ticket.kind == TicketKind::Write,
    }
    .operation()
}

fn take_read(
    key: &Key,
    ticket: &Ticket,
    next: &dyn HoldSteps,
    terms: Terms,
    channel: &str,
) -> Operation {
    let old = ticket.holder_id();
    TakeRead {
        lock: key.as_str().as_bytes(),
        old_timeout: key.read_timeout(&old).as_bytes(),
        timeout: key.read_timeout(next.wire_id()).as_bytes(),
        marker: key.forced_marker().as_bytes(),
        taken: taken(key).as_bytes(),
        old: old.as_bytes(),
        hold: next.wire_id().as_bytes(),
        lease_ms: wire_ms(terms.lease),
        channel: channel.as_bytes(),
    }
    .operation()
}

/// Asks the server what happened to a ticket's hold.
fn look(key: &Key, ticket: &Ticket) -> Operation {
    Look {
        lock: key.as_str().as_bytes(),
        marker: key.forced_marker().as_bytes(),
        taken: taken(key).as_bytes(),
        old: ticket.holder_id().as_bytes(),
    }
    .operation()
}

/// Replaces a ticket's hold with the hold that has these steps.
async fn take_over(
    context: &Arc<Context>,
    key: &Key,
    kind: ObservedKind,
    terms: Terms,
    steps: Box<dyn HoldSteps>,
    operation: Operation,
) -> Result<Share> {
    context.check_lease(terms.lease, key)?;
    context.check_acknowledged(terms, key)?;
    context.check_open(key)?;
    let observed = context.observer.of(kind, key);
    let acquiring = observed.begin_acquire(key, &context.timers);
    let taking = take_once(context, key, &observed, terms, steps, operation);
    let share = acquiring.watch(pin!(taking)).await;
    let ended = acquiring.ended(&share, Share::entry);
    // There is always a share: if the ticket was already taken, the result is an error.
    let share = share?.ok_or_else(|| request::malformed(context, key))?;
    Ok(share.after(ended))
}

async fn take_once(
    context: &Arc<Context>,
    key: &Key,
    observed: &Observed,
    terms: Terms,
    steps: Box<dyn HoldSteps>,
    operation: Operation,
) -> Result<Option<Share>> {
    let (clock, margin) = (context.clock, context.margin);
    // The validity counts from the moment before the request is sent, as for an acquire.
    let now = clock.now();
    let hold = Grant::new(
        key.clone(),
        steps,
        terms,
        clock,
        margin,
        Asked {
            lease: terms.lease,
            at: now,
        },
        observed.clone(),
    );
    let mut undo = Undo::arm(&context.cleanup, Arc::clone(&hold));
    match send_until_answered(context, &mut undo, operation).await? {
        Answer::Granted { token } => {
            undo.granted();
            if !hold.granted(token) {
                return Err(context.backend.granted_too_late().into_error(key));
            }
        }
        gone @ Answer::Gone { .. } => {
            let reason = gone.loss(hold.steps.wire_id());
            return Err(Error::used_up(key, reason.unwrap_or(LossReason::Expired)));
        }
    }
    context.watchdog.watch(&hold);
    let held = Held::new(&context.live_holds, undo, None, None);
    Ok(Some(Share::new(Arc::clone(context), held)))
}

/// The server's answer to a request to take over a ticket's hold.
enum Answer {
    Granted {
        token: Option<u64>,
    },
    /// The hold no longer exists.
    Gone {
        /// The note that the hold was ended by force.
        note: Option<Vec<u8>>,
        /// The hold that has replaced it.
        by: String,
        /// The current holder.
        holder: String,
    },
}

impl Answer {
    fn read(reply: &Value) -> Option<Self> {
        let Value::List(items) = reply else {
            return None;
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &items[..] {
            [Value::Int(1), Value::Int(token)] => Some(Self::Granted {
                token: u64::try_from(*token).ok().filter(|token| *token > 0),
            }),
            [Value::Int(0), note, Value::Text(by), Value::Text(holder)] => Some(Self::Gone {
                note: match note {
                    Value::Text(note) => Some(note.clone()),
                    _ => None,
                },
                by: text(by),
                holder: text(holder),
            }),
            _ => None,
        }
    }

    /// Returns why the ticket's hold no longer exists, for a caller that requested the hold `own`.
    fn loss(self, own: &str) -> Option<LossReason> {
        match self {
            // An earlier copy of the request has replaced the hold, and the new hold has been lost
            // since then.
            Self::Gone { by, .. } if by == own && !by.is_empty() => None,
            Self::Gone { by, .. } if !by.is_empty() => Some(LossReason::Taken { by }),
            Self::Gone {
                note: Some(note), ..
            } => Some(LossReason::forced(&note)),
            Self::Gone { holder, .. } if !holder.is_empty() => {
                Some(LossReason::Taken { by: holder })
            }
            _ => None,
        }
    }
}

/// Sends the request until it is answered, but not long after the reply timeout. A repeated request
/// finds the hold that an earlier copy has obtained.
async fn send_until_answered(
    context: &Context,
    undo: &mut Undo,
    operation: Operation,
) -> Result<Answer> {
    let (clock, hold) = (context.clock, Arc::clone(undo.hold()));
    let mut end = None;
    let (route, mut may_have_run) = (hold.route(), false);
    let mut sent = context.backend.submit_by(operation.clone(), route);
    undo.watch(&sent);
    let mut pauses = RetryDelays::from(Duration::from_millis(10));
    let reply = loop {
        let failure = match sent.await {
            Ok(reply) => break Ok(reply),
            Err(failure) => failure,
        };
        may_have_run |= failure.outcome == Outcome::MayHaveRun;
        // Count from the first failure, because a lost reply takes the whole reply timeout.
        let end = *end.get_or_insert(clock.now() + context.backend.reply_timeout());
        if !failure.may_heal() || clock.now() >= end {
            break Err(failure);
        }
        context.timers.sleep(pauses.next_delay()).await;
        sent = context.backend.submit_by(operation.clone(), route);
        if !may_have_run {
            // After a request that may have run, a later one is not watched: if the later one were
            // never sent, the undo would conclude that there is nothing to give back.
            undo.watch(&sent);
        }
    };
    let gives = |reply: &Value| matches!(Answer::read(reply), Some(Answer::Granted { .. }));
    match accept_refusal(reply, gives) {
        Ok(reply) => match Answer::read(&reply) {
            Some(answer) => {
                if matches!(answer, Answer::Gone { .. }) && !may_have_run {
                    undo.disarm();
                }
                Ok(answer)
            }
            None => Err(request::malformed(context, &hold.key)),
        },
        Err(failure) => {
            if !may_have_run {
                undo.failed(failure.outcome);
            }
            let outcome = match may_have_run {
                true => Outcome::MayHaveRun,
                false => failure.outcome,
            };
            Err(Failure { outcome, ..failure }.into_error(&hold.key))
        }
    }
}
