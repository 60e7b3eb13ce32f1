//! What can go wrong, named by what the caller can do about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::key::Key;
use crate::loss::LossReason;

/// The result of every call here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: what is known, about which name, and the next step.
///
/// It is one word wide and cheap to clone, because one loss may be reported to several waiters. The
/// underlying cause (an error of the driver or the system) is its [`source`](StdError::source).
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    key: Option<Key>,
    lost: Option<LossReason>,
    /// The cause in few words, for a message that lists several.
    brief: Option<String>,
    members: Vec<Error>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No server answered, the server can't serve now (loading, out of memory, read-only), or what the
    /// client needs to log in could not be had. Nothing is held. Try again later.
    Unavailable,
    /// A request was sent and no answer came, so it may have run. Anything that an acquire may have
    /// left behind is undone in the background while the client's runtime goes on, and ends with
    /// its lease at the latest. Permits go on being given back. Changes that have no owner (a count
    /// that was set or counted down, permits that were added, a forced unlock) are not undone: look
    /// before you ask again.
    OutcomeUnknown,
    /// The lock was held and is no longer held; see [`Error::loss`]. Stop the protected work.
    Lost,
    /// The key holds something other than this kind of lock. Nothing was changed.
    WrongKind,
    /// The server refuses the credentials or lacks a permission. Nothing is held.
    Denied,
    /// There is no semaphore of that name, and the handle says that there
    /// [`must`](crate::Semaphore::must_exist) be one. Nothing was changed.
    NotFound,
    /// The call itself is wrong: a bad name, a lease of zero, a client that was closed,
    /// whose runtime has ended, or that belongs to the process from which this one was forked.
    Misuse,
    /// The call would have waited for ever: for what its own [`Owner`](crate::Owner) holds, or for an
    /// owner that waits for this one. Give back what you hold, and acquire in the same order
    /// everywhere.
    Deadlock,
    /// This server or this build can't do it.
    Unsupported,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            key: None,
            lost: None,
            brief: None,
            members: Vec::new(),
            source: None,
        }))
    }

    pub(crate) fn lost(key: &Key, reason: LossReason) -> Self {
        Self(Arc::new(Inner {
            kind: ErrorKind::Lost,
            message: format!(
                "the lock `{key}` is lost: {reason}; stop the protected work and acquire again"
            ),
            key: Some(key.clone()),
            // Without the advice, which an error over several members would repeat for each of
            // them.
            brief: Some(format!("`{key}`: {reason}")),
            lost: Some(reason),
            members: Vec::new(),
            source: None,
        }))
    }

    /// The error of a lock over several members, some of which failed. `loss` is its loss, if the
    /// whole lock is lost by that. Its kind is that of the member which leaves the caller the least
    /// hope.
    pub(crate) fn of_members(
        key: &Key,
        what: &str,
        loss: Option<LossReason>,
        members: Vec<Error>,
    ) -> Self {
        let told: Vec<_> = members.iter().map(Error::brief).collect();
        let kind = match loss {
            // Whatever a member says: a holder who has lost the whole lock must stop its work, and
            // looks at the kind only.
            Some(_) => ErrorKind::Lost,
            None => worst(&members),
        };
        let mut error = match &loss {
            Some(reason) => format!("the lock `{key}` is lost: {reason}; "),
            None => String::new(),
        };
        error += &format!("{what} `{key}` failed: {}", told.join("; "));
        Self(Arc::new(Inner {
            kind,
            message: error,
            key: Some(key.clone()),
            brief: None,
            lost: loss,
            members,
            source: None,
        }))
    }

    pub(crate) fn with_brief(self, brief: String) -> Self {
        self.change(|inner| inner.brief = Some(brief))
    }

    /// The cause in few words.
    pub(crate) fn brief(&self) -> &str {
        self.0.brief.as_deref().unwrap_or(&self.0.message)
    }

    pub(crate) fn with_key(self, key: &Key) -> Self {
        self.change(|inner| inner.key = Some(key.clone()))
    }

    pub(crate) fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let source = source.into();
        self.change(|inner| inner.source = Some(source))
    }

    /// Changes only an error that nobody else has yet.
    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        // Not `make_mut`: the source can't be cloned. A shared error stays as the others know it.
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            change(inner);
        }
        self
    }

    /// What the caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later without any change: no server answered or it could
    /// not serve ([`Unavailable`](ErrorKind::Unavailable)), or its answer never came
    /// ([`OutcomeUnknown`](ErrorKind::OutcomeUnknown)).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
        )
    }

    /// The name that the error is about, if it is about one; without the prefix of the client.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_ref().map(Key::given)
    }

    /// The errors of those members of a [`MultiLock`](crate::MultiLock) or
    /// [`RedLock`](crate::RedLock) that failed; empty for other locks.
    #[must_use]
    pub fn members(&self) -> &[Error] {
        &self.0.members
    }

    /// Why the lock was lost, if [`kind`](Self::kind) is [`ErrorKind::Lost`].
    #[must_use]
    pub fn loss(&self) -> Option<&LossReason> {
        self.0.lost.as_ref()
    }
}

/// The kind that leaves the caller the least hope.
fn worst(errors: &[Error]) -> ErrorKind {
    // First those that the caller has to act on. If one that passes came before them,
    // `is_transient` would have the caller try again for ever. Of the two that pass, the unknown
    // outcome comes first, because something may be left behind.
    const ORDER: [ErrorKind; 9] = [
        ErrorKind::Lost,
        ErrorKind::Misuse,
        ErrorKind::Deadlock,
        ErrorKind::WrongKind,
        ErrorKind::Denied,
        ErrorKind::Unsupported,
        ErrorKind::NotFound,
        ErrorKind::OutcomeUnknown,
        ErrorKind::Unavailable,
    ];
    // A kind that is missing above has the rank `None`, before all others: it is shown, not hidden.
    let rank = |kind| ORDER.iter().position(|other| *other == kind);
    let kinds = errors.iter().map(Error::kind);
    kinds
        .min_by_key(|kind| rank(*kind))
        .unwrap_or(ErrorKind::Unavailable)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    /// Writes the message and the kind, because this is what a `main` that returns an error prints.
    /// With `{:#?}` it is a structure with the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{} ({:?})", self.0.message, self.0.kind);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            // No members: the message has each of them in few words.
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_form_is_the_message_as_main_prints_it() {
        let error = Error::new(ErrorKind::Unavailable, "no server answered at `h`");
        let error = error.with_source(fmt::Error);
        assert_eq!(
            format!("{error:?}"),
            "no server answered at `h` (Unavailable)"
        );
        assert!(format!("{error:#?}").contains("source: Some"), "{error:#?}");
    }

    #[test]
    fn error_is_one_word_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
