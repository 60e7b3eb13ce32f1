//! The hold of a ticket, which `--resume` continues.

use leasehold::ticket::{Ticket, TicketKind};
use leasehold::{Client, Error, ErrorKind, LossReason, Result};

use super::holding::Holding;
use super::wait::{Aborted, Waited, Waiting};
use super::wanted::acknowledgement;
use super::{in_a_hurry, tidy, unless_hurried};
use crate::cli::Wanted as Args;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::input;
use crate::output::Shown;
use crate::signals::Signals;

impl Waiting<'_> {
    /// Takes the place of a ticket's hold.
    pub(in crate::cmd) async fn until_resumed(
        self,
        ticket: &str,
        signals: &mut Signals,
    ) -> Result<Waited, Failure> {
        let ticket = tokio::select! {
            ticket = ticket_of(ticket) => ticket?,
            signal = signals.next() => return Ok(Waited::Ended(signal)),
        };
        let clients = self.connect()?;
        let holding = {
            let work = resume(&clients[0], self.args, self.name, ticket);
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
}

/// Takes the place of the hold, and draws a token if one is wanted. The future borrows nothing.
fn resume(
    client: &Client,
    args: &Args,
    name: &str,
    ticket: Ticket,
) -> impl Future<Output = Result<Holding, Failure>> + Send + 'static {
    let (client, name) = (client.clone(), name.to_owned());
    let (by, fenced) = (acknowledgement(args), args.fenced);
    async move {
        let (lock, rw) = (client.lock(&name), client.rw_lock(&name));
        let resumed: Result<_> = match ticket.kind() {
            TicketKind::Permits => {
                let permits = client.expirable_semaphore(&name).resume(&ticket).await;
                permits.map(Holding::Permit)
            }
            TicketKind::Fair => {
                let fair = client.fair_lock(&name).acknowledged_by(by);
                fair.resume(&ticket).await.map(Holding::Lock)
            }
            TicketKind::Read => {
                let read = rw.read_lock().acknowledged_by(by).resume(&ticket).await;
                read.map(|guard| Holding::Lock(guard.into()))
            }
            TicketKind::Write => {
                let write = rw.write_lock().acknowledged_by(by).resume(&ticket).await;
                write.map(|guard| Holding::Lock(guard.into()))
            }
            _ => {
                let plain = lock.acknowledged_by(by).resume(&ticket).await;
                plain.map(Holding::Lock)
            }
        };
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

/// Returns the failure of a ticket whose hold no longer exists.
pub(in crate::cmd) fn invalid(ticket: &Ticket, error: &Error, so: &str) -> Failure {
    let reason = match error.loss() {
        Some(LossReason::Expired) | None => "its time is over, or it was released".to_owned(),
        Some(LossReason::Taken { by }) => {
            format!("it was used already, and {} is the next holder", Shown(by))
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
    Ok(line.parse()?)
}
