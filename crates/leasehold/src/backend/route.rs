//! The route of an operation: the connection that carries it, and who must confirm it.

#[cfg(any(feature = "redis", feature = "testing"))]
use std::sync::Arc;

#[cfg(any(feature = "redis", feature = "testing"))]
use super::failure::{Cause, Failure, Outcome, Unconfirmed};
#[cfg(any(feature = "redis", feature = "testing"))]
use super::step::Value;
use crate::acknowledgement::Acknowledgement;

/// The route of an operation. All operations of one hold take the same connection; otherwise they
/// would not run in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Route {
    /// The connection for ordinary calls.
    #[default]
    Plain,
    /// The connection for acknowledged calls. The operation itself needs no confirmation.
    SameConnection,
    /// The connection for acknowledged calls. The reply to the operation counts only after this
    /// confirmation.
    Confirmed(Acknowledgement),
}

impl Route {
    /// Returns the route of an operation that must be confirmed as `acknowledged` requires.
    pub(crate) fn of(acknowledged: Acknowledgement) -> Self {
        match acknowledged.is_needed() {
            true => Self::Confirmed(acknowledged),
            false => Self::Plain,
        }
    }

    /// Returns the route of operations that follow this one and need no confirmation.
    pub(crate) fn same_connection(self) -> Self {
        match self {
            Self::Plain => Self::Plain,
            Self::SameConnection | Self::Confirmed(_) => Self::SameConnection,
        }
    }
}

#[cfg(any(feature = "redis", feature = "testing"))]
impl Route {
    pub(crate) fn wanted(self) -> Option<Acknowledgement> {
        match self {
            Self::Confirmed(wanted) => Some(wanted),
            Self::Plain | Self::SameConnection => None,
        }
    }

    /// Turns the reply to an operation into an error if this route requires confirmations and the
    /// call got too few. `too_few` is the reason why they are not enough; `None` if they are.
    /// `address` returns the address of the server.
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
