//! By which connection an operation goes, and who has to confirm it.

#[cfg(any(feature = "redis", feature = "testing"))]
use std::sync::Arc;

#[cfg(any(feature = "redis", feature = "testing"))]
use super::failure::{Cause, Failure, Outcome, Unconfirmed};
#[cfg(any(feature = "redis", feature = "testing"))]
use super::step::Value;
use crate::acknowledgement::Acknowledgement;

/// The way of an operation. Those of one hold go the same way, or they would not run in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Route {
    /// With all others.
    #[default]
    Plain,
    /// Behind those that are acknowledged; nobody has to confirm this one.
    Behind,
    /// It counts when these have confirmed it.
    Confirmed(Acknowledgement),
}

impl Route {
    /// The way of what has to be confirmed so.
    pub(crate) fn of(acknowledged: Acknowledgement) -> Self {
        match acknowledged.is_needed() {
            true => Self::Confirmed(acknowledged),
            false => Self::Plain,
        }
    }

    /// The way of what follows it, and needs no confirmation.
    pub(crate) fn behind(self) -> Self {
        match self {
            Self::Plain => Self::Plain,
            Self::Behind | Self::Confirmed(_) => Self::Behind,
        }
    }
}

#[cfg(any(feature = "redis", feature = "testing"))]
impl Route {
    pub(crate) fn wanted(self) -> Option<Acknowledgement> {
        match self {
            Self::Confirmed(wanted) => Some(wanted),
            Self::Plain | Self::Behind => None,
        }
    }

    /// The reply to an operation that went this way, judged by the confirmations of its call.
    /// `too_few`: why these are not enough. A server that says so is at `address`.
    pub(crate) fn confirmed(
        self,
        reply: Result<Value, Failure>,
        too_few: Option<&str>,
        address: impl FnOnce() -> Arc<str>,
    ) -> Result<Value, Failure> {
        match (reply, too_few) {
            (Ok(reply), Some(why)) if self.wanted().is_some() => {
                let why = why.to_owned();
                let cause = Cause::Unconfirmed(Box::new(Unconfirmed { reply, why }));
                Err(Failure::new(Outcome::MayHaveRun, cause, address()))
            }
            (reply, _) => reply,
        }
    }
}
