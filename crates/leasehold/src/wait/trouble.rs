//! What has kept the waits for a name from ending well.

use std::time::Duration;

use crate::backend::step::Failure;
use crate::clock::Moment;

/// It belongs to the line: those who stand behind need not find out again, one after the
/// other.
#[derive(Default)]
pub(crate) struct Trouble {
    has_answered: bool,
    down: Option<Down>,
    without_expiry: Option<Moment>,
}

/// No server answers.
#[derive(Clone)]
pub(super) struct Down {
    /// When the first request left that was not answered.
    pub(super) since: Moment,
    /// The last failure.
    pub(super) failure: Failure,
}

impl Trouble {
    /// The server has said at `now` that it is held, for `ttl` more.
    pub(super) fn held(&mut self, now: Moment, ttl: Option<Duration>) {
        self.has_answered = true;
        self.down = None;
        self.without_expiry = match ttl {
            Some(_) => None,
            None => self.without_expiry.or(Some(now)),
        };
    }

    /// The server has granted something: whoever is next in line knows that it answers.
    pub(super) fn over(&mut self) {
        *self = Self {
            has_answered: true,
            ..Self::default()
        };
    }

    /// A request that left at `sent` was not answered. `true` for the first in a row.
    pub(super) fn unanswered(&mut self, sent: Moment, failure: &Failure) -> bool {
        let is_first = self.down.is_none();
        let since = self.down.as_ref().map_or(sent, |down| down.since);
        self.down = Some(Down {
            since,
            failure: failure.clone(),
        });
        is_first
    }

    /// The server has answered somebody of this line.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    pub(super) fn down(&self) -> Option<&Down> {
        self.down.as_ref()
    }

    /// Since when it is held without an end.
    pub(super) fn without_expiry(&self) -> Option<Moment> {
        self.without_expiry
    }
}
