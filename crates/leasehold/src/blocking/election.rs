//! [`Election`] and its terms, which forward to the async ones.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::forward::{limited, reads, setters, waits};
use super::runtime::Runtime;
use crate::acknowledgement::Acknowledgement;
use crate::error::Result;
use crate::loss::LossReason;
use crate::recipes::election;
use crate::recipes::election::Leader;

/// An election for threads; see [`leasehold::Election`](crate::Election).
#[derive(Clone)]
pub struct Election {
    inner: election::Election,
    runtime: Runtime,
}

impl super::Client {
    /// Returns the election called `name`; see [`Client::election`](crate::Client::election).
    #[must_use = "a handle does nothing until it is used"]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election {
            inner: self.as_async().election(name),
            runtime: self.runtime().clone(),
        }
    }
}

impl Election {
    fn with(mut self, change: impl FnOnce(election::Election) -> election::Election) -> Self {
        self.inner = change(self.inner);
        self
    }

    fn twin(&self) -> &election::Election {
        &self.inner
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn term(&self, term: Result<election::Term>) -> Result<Term> {
        term.map(|term| Term::new(term, self.runtime.clone()))
    }

    fn term_if_any(&self, term: Result<Option<election::Term>>) -> Result<Option<Term>> {
        Ok(term?.map(|term| Term::new(term, self.runtime.clone())))
    }

    waits! { Election:
        "Waits until this candidate leads" stand() -> Term => term;
        "Leads if there is no leader now" try_stand() -> Option<Term> => term_if_any;
        "Asks the server for the current leader" leader() -> Option<Leader>;
    }

    /// Returns the current leader and then each change; see
    /// [`Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Terms {
        Terms {
            inner: self.inner.observe(),
            runtime: self.runtime.clone(),
        }
    }

    setters! { Election:
        "Sets a string that observers receive with the leader" payload(text: impl Into<Arc<str>>);
        "Sets the lease of a term" lease(lease: Duration);
        "Sets the time between two renewals of a term" renew_every(period: Duration);
        "Sets the time in which the work of the leader must report progress" progress_within(within: Duration);
        "Sets which servers must confirm a term" acknowledged_by(acknowledgement: Acknowledgement);
        "Sets how often candidates and observers ask the server while no message wakes them" poll_interval(interval: Duration);
        "Sets how long a wait continues while no server answers" outage_timeout(timeout: Duration);
    }
    reads! { Election:
        "Returns the name as it was given" name() -> &str;
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A term for threads; see [`leasehold::Term`](crate::Term).
///
/// ```
/// # fn main() -> leasehold::Result<()> {
/// let client = leasehold::blocking::Client::embedded();
/// let election = client.election("scheduler").payload("10.0.0.7");
/// let term = election.stand()?;
/// let leader = election.leader()?.expect("it leads");
/// assert_eq!(leader.token, Some(term.token()));
/// term.resign()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the term ends as soon as it is dropped"]
#[clippy::has_significant_drop]
pub struct Term {
    /// `None` only while the term is being dropped.
    inner: Option<election::Term>,
    runtime: Runtime,
}

impl Term {
    fn new(term: election::Term, runtime: Runtime) -> Self {
        Self {
            inner: Some(term),
            runtime,
        }
    }

    /// Returns the async term, for its other methods.
    pub fn as_async(&self) -> &election::Term {
        self.inner.as_ref().expect("only a drop takes it")
    }

    reads! { Term by as_async:
        "Returns the fencing token of this term" token() -> u64;
    }

    reads! { LockGuard by as_async:
        "Returns whether this candidate still leads" is_held() -> bool;
        "Returns why the term was lost" loss() -> Option<LossReason>;
    }

    /// Returns the instant until which this candidate certainly leads; see
    /// [`LockGuard::valid_until`](crate::LockGuard::valid_until).
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.as_async().valid_until().into_std()
    }

    limited! { LockGuard through as_async:
        "Returns the reason when the term is lost" lost_within(wait: Duration) -> Option<LossReason> by lost;
    }

    /// Ends the term; see [`Term::resign`](crate::Term::resign).
    ///
    /// # Errors
    ///
    /// Returns the same errors as the async method.
    pub fn resign(mut self) -> Result<()> {
        match self.inner.take() {
            Some(term) => self.runtime.finish("Term::resign", term.resign()),
            None => Ok(()),
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        if let Some(term) = self.inner.take() {
            self.runtime.release_dropped(term, election::Term::resign);
        }
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// An iterator over the terms of an election; see [`leasehold::Terms`](crate::Terms). Its `next`
/// waits for a change.
#[derive(Debug)]
#[must_use = "no request is sent until the terms are read"]
pub struct Terms {
    inner: election::Terms,
    runtime: Runtime,
}

impl Iterator for Terms {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        // An `Interrupt` ends this wait, and the next call continues at the same place.
        let next = async { self.inner.next().await.transpose() };
        self.runtime.wait_on("Terms::next", next).transpose()
    }
}
