//! The hold of a ticket, which `--resume` continues.

use std::time::Duration;

use leasehold::kind::OneKey;
use leasehold::ticket::{Ticket, TicketKind};
use leasehold::{Acknowledgement, Client, Error, ErrorKind, Lock, LossReason, Result};

use super::holding::Holding;
use super::wait::{Aborted, Waited, Waiting};
use super::wanted::{acknowledgement, wait_for_next_try};
use super::{in_a_hurry, tidy, unless_hurried};
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::input;
use crate::output::Shown;
use crate::signals::Signals;

impl Waiting<'_> {
    /// Resumes the hold of a ticket, unless a signal arrives first.
    pub(in crate::cmd) async fn until_resumed(
        self,
        ticket: &str,
        signals: &mut Signals,
    ) -> Result<Waited, Failure> {
        let ticket = tokio::select! {
            ticket = ticket_of(ticket) => ticket?,
            signal = signals.next() => return Ok(Waited::Ended(signal)),
        };
        self.check_options(&ticket)?;
        let clients = self.connect()?;
        let holding = {
            let work = self.resume(&clients[0], ticket);
            let mut resume = Aborted::on_drop(work);
            tokio::select! {
                holding = resume.result() => holding,
                signal = signals.next() => {
                    drop(resume);
                    let _ = in_a_hurry(tidy(&clients), signals).await;
                    return Ok(Waited::Ended(signal));
                }
            }
        };
        match holding {
            Ok(holding) => {
                self.tell_held(&holding);
                Ok(Waited::Held(clients, holding))
            }
            Err(failure) => {
                let _ = unless_hurried(tidy(&clients), signals).await;
                Err(failure)
            }
        }
    }

    /// Fails if an option can't be used with a ticket of this kind.
    fn check_options(&self, ticket: &Ticket) -> Result<(), Failure> {
        if ticket.kind() != TicketKind::Permits {
            return Ok(());
        }
        let options = [
            (self.args.fenced, "--fenced"),
            (self.args.replicas > 0, "--replicas"),
            (self.args.on_disk, "--on-disk"),
        ];
        let Some((_, impossible)) = options.iter().find(|(is_set, _)| *is_set) else {
            return Ok(());
        };
        Err(Failure::usage(format!(
            "the ticket is for a permit of `{}`; {impossible} is only for locks",
            Shown(ticket.name())
        )))
    }

    /// Resumes the hold, and draws a token if one is wanted. The future borrows nothing.
    fn resume(
        &self,
        client: &Client,
        ticket: Ticket,
    ) -> impl Future<Output = Result<Holding, Failure>> + Send + use<> {
        let (client, name) = (client.clone(), self.name.to_owned());
        let (by, fenced) = (acknowledgement(self.args), self.args.fenced);
        let within = self.limits.progress_within;
        let limit = match self.args.replicas > 0 || self.args.on_disk {
            // If the new hold is not confirmed, the ticket is used up.
            true => self.begun,
            false => self.begun + self.args.outage_timeout,
        };
        async move {
            let mut resumed = resumed(&client, &name, (by, within), &ticket).await;
            // Until a request may have run, another one does no harm.
            while let Err(error) = &resumed
                && error.kind() == ErrorKind::Unavailable
                && wait_for_next_try(limit).await
            {
                resumed = self::resumed(&client, &name, (by, within), &ticket).await;
            }
            match resumed {
                Ok(holding) if fenced => Ok(holding.with_token().await?),
                Ok(holding) => Ok(holding),
                Err(error) if error.kind() == ErrorKind::Lost => {
                    Err(invalid(&ticket, &error, "the command was not run"))
                }
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Resumes the hold of a ticket, once.
async fn resumed(
    client: &Client,
    name: &str,
    (by, within): (Acknowledgement, Option<Duration>),
    ticket: &Ticket,
) -> Result<Holding> {
    let (plain, fair) = (client.lock(name), client.fair_lock(name));
    let (rw, permits) = (client.rw_lock(name), client.expirable_semaphore(name));
    match (ticket.kind(), within) {
        (TicketKind::Permits, Some(within)) => {
            let permits = permits.progress_within(within).resume(ticket).await;
            permits.map(Holding::Permit)
        }
        (TicketKind::Permits, None) => permits.resume(ticket).await.map(Holding::Permit),
        (TicketKind::Fair, _) => taken(fair, by, within, ticket).await,
        (TicketKind::Read, _) => taken(rw.read_lock(), by, within, ticket).await,
        (TicketKind::Write, _) => taken(rw.write_lock(), by, within, ticket).await,
        _ => taken(plain, by, within, ticket).await,
    }
}

/// Resumes the hold of a lock with one name.
async fn taken<K: OneKey>(
    lock: Lock<K>,
    by: Acknowledgement,
    progress_within: Option<Duration>,
    ticket: &Ticket,
) -> Result<Holding> {
    let lock = lock.acknowledged_by(by);
    let lock = match progress_within {
        Some(within) => lock.progress_within(within),
        None => lock,
    };
    Ok(Holding::Lock(lock.resume(ticket).await?.into()))
}

/// Returns the failure of a ticket whose hold no longer exists.
pub(in crate::cmd) fn invalid(ticket: &Ticket, error: &Error, so: &str) -> Failure {
    let reason = match error.loss() {
        Some(LossReason::Expired) | None => "its lease has expired, or it was released".to_owned(),
        Some(LossReason::Taken { by }) => {
            // `by` is the hold that the ticket became when it was used, or the hold of a later
            // holder.
            format!(
                "it was used, or its lease has expired; after that, {} had the lock",
                Shown(by)
            )
        }
        Some(reason) => reason.to_string(),
    };
    let name = Shown(ticket.name());
    let what = format!("the ticket of `{name}` is no longer valid: {reason}; {so}");
    Failure::new(Exit::Lost, what)
}

/// Reads a ticket from the command line, or from the first line of standard input.
pub(in crate::cmd) async fn ticket_of(argument: &str) -> Result<Ticket, Failure> {
    if argument != "-" {
        return Ok(argument.parse()?);
    }
    let line = input::first_line().await;
    let line = line.map_err(|error| Failure::io("can't read the ticket", error))?;
    if line.trim().is_empty() {
        // The command that should have written the ticket has reported why.
        return Err(Failure::new(
            Exit::Usage,
            "there is no ticket on standard input",
        ));
    }
    Ok(line.parse()?)
}
