//! The terms of an election, as seen by candidates and observers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::{Election, Leader, Term};
use tokio::time::{Instant, sleep};

use super::{ROUNDING, Taking, Told};
use crate::faults::Kind;
use crate::scenario::{Ask, End};
use crate::stage::{REPLY_LIMIT, Stage};
use crate::subject::NAME;
use crate::subject::recipes::payload;

/// The terms that candidates had and observers saw.
#[derive(Default)]
pub(crate) struct Terms(Mutex<State>);

#[derive(Default)]
struct State {
    /// The id of the hold that had each token.
    ids: BTreeMap<u64, String>,
    /// The last state that each observer saw.
    shown: BTreeMap<usize, Option<Leader>>,
}

impl Terms {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a term. Returns `false` if another term has had the same token.
    fn is_one_term(&self, token: u64, id: &str) -> bool {
        let mut state = self.state();
        state.ids.entry(token).or_insert_with(|| id.into()) == id
    }

    /// Returns the state that an observer still shows after the end of the history, or `None` if
    /// all observers show no leader. Observers on dead machines or with closed clients do not
    /// count.
    pub(crate) fn unfinished(&self, stage: &Stage) -> Option<String> {
        let state = self.state();
        let mut shown = state.shown.iter().filter(|(number, _)| {
            let machine = &stage.machines[**number];
            !machine.life.is_dead() && !machine.closed.load(Ordering::SeqCst)
        });
        shown.find_map(|(_, leader)| leader.as_ref().map(|leader| format!("{leader:?}")))
    }
}

/// Observes the election from machine `number`, until the simulated history ends.
pub(crate) async fn observe(stage: Arc<Stage>, number: usize) {
    let poll = Duration::from_millis(stage.scenario.observer_poll_ms());
    let client = &stage.machines[number].clients[0];
    let mut terms = client.election(NAME).poll_interval(poll).observe();
    let mut greatest = 0;
    while let Some(seen) = terms.next().await {
        let leader = match seen {
            Ok(leader) => leader,
            Err(error) if error.is_transient() && stage.any(Kind::disturbs_calls) => continue,
            Err(error) => {
                stage.violation(format!("observer {number}: {error}"));
                return;
            }
        };
        if let Some(leader) = &leader {
            check_seen(&stage, number, leader, &mut greatest);
        }
        // A holder without a token and payload may be granted the lock again under the same id, so
        // its state may be shown twice.
        let announces = leader.as_ref().is_none_or(|leader| leader.token.is_some());
        let before = stage.terms.state().shown.insert(number, leader.clone());
        if announces && before == Some(leader) {
            stage.violation(format!("observer {number}: was shown the same state twice"));
        }
    }
}

/// Checks that a leader that an observer sees is one of the candidates, and that the observer sees
/// terms in their order.
fn check_seen(stage: &Stage, number: usize, leader: &Leader, greatest: &mut u64) {
    let violation = |what: &str| stage.violation(format!("observer {number}: {what}: {leader:?}"));
    let candidate = stage.machines.iter().position(|machine| {
        let of = |client: &leasehold::Client| leader.id.starts_with(client.id());
        machine.clients.iter().any(of)
    });
    let Some(candidate) = candidate else {
        return violation("saw a leader that does not exist");
    };
    let Some(token) = leader.token else {
        // This is a holder of the fenced lock, which has no payload.
        if leader.payload.is_some() {
            violation("saw a payload without a term");
        }
        return;
    };
    if leader.payload != Some(payload(candidate)) {
        violation("saw the payload of another candidate");
    }
    // If a server has lost the end of a term, or later terms, it shows the earlier term again when
    // that term's leader renews. If the server has lost the counter of tokens, a new counter starts
    // at the server's clock, which may have been set back.
    let returns = |kind: Kind| kind.loses_data() || kind == Kind::FailedOver;
    if token <= *greatest && !stage.any(returns) {
        violation("saw a term again, or one from before");
    }
    *greatest = token.max(*greatest);
    if !stage.terms.is_one_term(token, &leader.id) && !stage.any(Kind::repeats) {
        violation("saw a leader with the token of another");
    }
}

impl Taking<'_> {
    /// Checks that the token of a new term is not the token of another term.
    pub(super) fn check_term(&self, token: u64, id: &str) {
        if !self.stage.terms.is_one_term(token, id) && !self.stage.any(Kind::repeats) {
            self.violation("was given the token of another term");
        }
    }

    /// Returns whether the turn leads with `lead_until`.
    pub(super) fn leads_again_and_again(&self) -> bool {
        let is_whole = self.turn.dropped_at_poll.is_none() && self.turn.unpolled_percent == 0;
        let is_simple = matches!(self.turn.ask, Ask::Acquire) && self.turn.end == End::Release;
        is_whole && is_simple && self.turn.way.is_multiple_of(2)
    }

    /// Leads with `lead_until` for a while.
    pub(super) async fn lead(&self, election: &Election) {
        let _wanting = self.stage.enter();
        let until = Duration::from_millis(self.turn.stay_ms * 2 + 300);
        let election = election.clone().restart_delay(Duration::from_millis(5));
        let asked = Instant::now();
        let (stage, worker) = (Arc::clone(self.stage), self.worker.clone());
        let (place, number) = (self.place, self.number);
        let work = for_each_term(move |term| {
            let (stage, worker) = (Arc::clone(&stage), worker.clone());
            Box::pin(async move {
                let taking = Taking {
                    stage: &stage,
                    machine: &stage.machines[worker.machine],
                    number,
                    place,
                    worker: &worker,
                    who: &format!("worker {number}"),
                    turn: &worker.turns[usize::try_from(place).unwrap_or(0)],
                };
                taking.work(term).await;
            })
        });
        if let Err(error) = election.lead_until(sleep(until), work).await {
            self.check_error("acquire", &error);
        }
        // `lead_until` resigns before it returns.
        let limit = until + REPLY_LIMIT * 3 + ROUNDING;
        if asked.elapsed() > limit && !self.machine.life.has_paused() {
            self.violation("leads for longer than it was told");
        }
    }

    /// Works while this candidate leads.
    async fn work(&self, term: &Term) {
        let mut recorded = Recorded {
            taking: self,
            term,
            inside: self
                .record()
                .into_iter()
                .map(|asked| asked.acquired(term))
                .collect(),
            told: Told::listen(term, &self.machine.life),
        };
        self.check_new(term);
        self.check_term(term.token(), term.holder_id());
        for _ in 0..4 {
            self.check_belief(term).await;
            sleep(Duration::from_millis(self.turn.stay_ms / 4 + 1)).await;
            recorded.check();
        }
        recorded.ends();
    }
}

/// The work of one term.
type Work<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Makes the compiler accept a closure that borrows each term.
fn for_each_term<F: for<'a> FnMut(&'a Term) -> Work<'a>>(work: F) -> F {
    work
}

/// A term whose work is running. In the recorded history, the hold ends when this work ends or is
/// dropped.
struct Recorded<'a> {
    taking: &'a Taking<'a>,
    term: &'a Term,
    inside: Vec<leasehold::testing::history::Inside>,
    told: Told,
}

impl Recorded<'_> {
    /// Checks that the work does not continue after the loss of its term.
    fn check(&self) {
        let told = self.told.get();
        if let Some((at, _)) = told
            && at.elapsed() > ROUNDING
            && !self.taking.machine.life.has_paused()
        {
            self.taking.violation("works after its term was lost");
        }
    }

    fn ends(&mut self) {
        let inside = std::mem::take(&mut self.inside);
        inside
            .into_iter()
            .for_each(|inside| inside.releasing(self.term));
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        self.check();
        self.ends();
    }
}
