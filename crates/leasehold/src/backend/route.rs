//! By which connection an operation goes, and who has to confirm it.

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

    #[cfg(feature = "redis")]
    pub(crate) fn wanted(self) -> Option<Acknowledgement> {
        match self {
            Self::Confirmed(wanted) => Some(wanted),
            Self::Plain | Self::Behind => None,
        }
    }
}
