//! Holds that are passed on as tickets. Checks that if several tasks resume a ticket, exactly one
//! of them gets the hold, and that no other client gets the lock in between.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::{Client, Error, ErrorKind, LockGuard, LossReason};
use tokio::time::Instant;

use super::{ROUNDING, Taking};
use crate::faults::Kind;
use crate::stage::Stage;
use crate::subject::recipes::Resumed;
use crate::subject::{Subject, Wish};

/// The tickets of a history.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<Vec<Given>>);

/// A ticket that a task has made.
struct Given {
    /// The ticket as a string.
    line: String,
    token: Option<u64>,
    /// The number of tasks that will still try to resume the ticket.
    offers: u32,
    /// The number of tasks that have tried to resume or release the ticket.
    tried: u32,
    /// The time at which the first of these tasks tried.
    first_tried: Option<Instant>,
    is_released: bool,
    resumed: u32,
    /// The earliest time at which the server may end the ticket's hold.
    kept_until: Instant,
}

/// A ticket that a task tries to resume.
pub(super) struct Offer {
    pub(super) number: usize,
    line: String,
    token: Option<u64>,
}

impl Offer {
    pub(super) fn resumed(&self, client: &Client, wish: &Wish<'_>) -> Resumed {
        let ticket = self.line.parse().expect("a ticket that the library made");
        Resumed::new(client, wish, ticket)
    }
}

impl Tickets {
    fn given(&self) -> MutexGuard<'_, Vec<Given>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a ticket that waits to be resumed.
    fn take(&self) -> Option<Offer> {
        let mut given = self.given();
        let (number, ticket) = given
            .iter_mut()
            .enumerate()
            .find(|(_, one)| one.offers > 0)?;
        ticket.offers -= 1;
        Some(Offer {
            number,
            line: ticket.line.clone(),
            token: ticket.token,
        })
    }

    fn give(&self, ticket: Given) -> Offer {
        let mut given = self.given();
        let offer = Offer {
            number: given.len(),
            line: ticket.line.clone(),
            token: ticket.token,
        };
        given.push(ticket);
        offer
    }

    /// Records that a task begins to resume or release a ticket.
    pub(super) fn tried(&self, number: usize) {
        let ticket = &mut self.given()[number];
        ticket.tried += 1;
        ticket.first_tried.get_or_insert(Instant::now());
    }

    /// Returns the number of tickets that tasks tried to resume in time without success.
    pub(crate) fn resumed_by_none(&self, stage: &Stage) -> usize {
        let trip = Duration::from_millis(stage.scenario.latency_ms) + ROUNDING;
        let given = self.given();
        let in_vain = given.iter().filter(|ticket| {
            let is_in_time = |tried: Instant| tried + trip < ticket.kept_until;
            !ticket.is_released && ticket.resumed == 0 && ticket.first_tried.is_some_and(is_in_time)
        });
        in_vain.count()
    }

    /// Returns the numbers of the tickets that no task has tried to resume.
    pub(super) fn open(&self) -> Vec<usize> {
        let given = self.given();
        let open = given.iter().enumerate().filter(|(_, one)| one.tried == 0);
        open.map(|(number, _)| number).collect()
    }
}

impl Taking<'_> {
    /// Returns a ticket for this turn to resume.
    pub(super) fn ticket(&self) -> Option<Offer> {
        let resumes =
            self.stage.scenario.subject == Subject::Ticket && !self.turn.way.is_multiple_of(3);
        resumes.then(|| self.stage.tickets.take()).flatten()
    }

    /// Returns whether a fault may let a ticket be resumed twice, or free its lock early.
    fn may_be_forgotten(&self) -> bool {
        self.stage.any(Kind::ends_the_promise)
    }

    fn is_disturbed(&self) -> bool {
        self.stage.any(Kind::disturbs_calls)
    }

    /// Checks that no other task has resumed the ticket, and that the new token is greater than the
    /// old one.
    pub(super) fn check_resumed(&self, offer: &Offer, guard: &LockGuard) {
        let mut given = self.stage.tickets.given();
        given[offer.number].resumed += 1;
        let times = given[offer.number].resumed;
        drop(given);
        if times > 1 && !self.may_be_forgotten() {
            self.violation("resumed a ticket that another task had resumed");
        }
        // A ticket for a fenced lock has a token, and so has the hold that resumes it.
        let rises = offer.token.is_none() || guard.token() > offer.token;
        if !rises && !self.may_be_forgotten() {
            self.violation("resumed a ticket and got a token that is not greater");
        }
    }

    /// Checks that a ticket that could not be resumed had expired, or that another task has resumed
    /// it.
    pub(super) fn check_not_resumed(&self, offer: &Offer, error: &Error) {
        if error.kind() != ErrorKind::Lost {
            return self.check_error("resume", error);
        }
        let given = self.stage.tickets.given();
        let (tried, kept_until) = {
            let ticket = &given[offer.number];
            (ticket.tried, ticket.kept_until)
        };
        drop(given);
        let is_over = Instant::now() + ROUNDING > kept_until;
        let lost = matches!(error.loss(), Some(LossReason::Forced { .. }));
        // A request that arrived late or twice may have used the ticket up, for a grant that was
        // undone.
        let explained = tried > 1
            || is_over
            || self.may_be_forgotten()
            || self.stage.any(|kind| kind == Kind::Closed)
            || self.is_disturbed();
        if !explained || (lost && !self.stage.any(|kind| kind == Kind::Forced)) {
            self.violation(&format!("a ticket could not be resumed: {error}"));
        }
    }

    /// Checks that a grant to an acquire was legal: that no ticket kept the lock for the whole time
    /// from the call to the return.
    pub(super) fn check_no_ticket_was_passed_over(&self, open: &[usize]) {
        if self.stage.scenario.subject != Subject::Ticket || self.may_be_forgotten() {
            return;
        }
        let given = self.stage.tickets.given();
        let now = Instant::now();
        let passed = open.iter().any(|number| {
            let ticket = &given[*number];
            ticket.tried == 0 && now + ROUNDING < ticket.kept_until
        });
        drop(given);
        if passed {
            self.violation("got a lock that a ticket keeps");
        }
    }

    /// Turns the hold into a ticket. Then offers the ticket to other tasks, releases it, or loses
    /// it.
    pub(super) async fn give_ticket(&self, guard: LockGuard, lease: Duration, was_lost: bool) {
        let (token, asked) = (guard.token(), Instant::now());
        let ticket = match guard.into_ticket(lease).await {
            Ok(_) if was_lost => return self.violation("a lost guard became a ticket"),
            Ok(ticket) => ticket,
            // The lease may have ended before the request was repeated.
            Err(error) if error.kind() == ErrorKind::Lost && self.is_disturbed() => return,
            Err(error) => return self.check_error("ticket", &error),
        };
        self.stage.fired(Kind::Ticketed);
        let is_released = self.turn.way % 7 == 6;
        let offer = self.stage.tickets.give(Given {
            line: ticket.to_string(),
            token,
            // Some tickets are resumed by several tasks, and some are lost.
            offers: [1, 1, 2, 2, 3, 0, 0][usize::from(self.turn.way % 7)],
            tried: 0,
            first_tried: None,
            is_released,
            resumed: 0,
            kept_until: asked + lease,
        });
        if !is_released {
            return;
        }
        self.stage.tickets.tried(offer.number);
        match self.machine.clients[0].release_ticket(&ticket).await {
            Ok(()) => {}
            Err(error) => self.check_not_resumed(&offer, &error),
        }
    }
}
