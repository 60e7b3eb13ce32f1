//! The errors of this library, sorted by what the caller can do.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::key::Key;
use crate::loss::LossReason;

/// The result of every call in this library that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. Its message has the facts, the name of the lock, and what to do next.
///
/// The type is one word wide and cheap to clone, because the same loss may be reported to several
/// waiters. The underlying cause (an error of the driver or the system) is its
/// [`source`](StdError::source).
#[derive(Clone)]
pub struct Error(Arc<ErrorInner>);

struct ErrorInner {
    kind: ErrorKind,
    message: String,
    key: Option<Key>,
    lost: Option<LossReason>,
    /// A short form of the cause, for a message that lists several errors.
    brief: Option<String>,
    members: Vec<Error>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`], which says what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No server answered, the server can't serve requests now (it is loading its data, out of
    /// memory or read-only), or the client could not obtain its credentials. An acquire that fails
    /// with this kind holds nothing. Try again later.
    Unavailable,
    /// A request was sent and no reply arrived, so the server may or may not have carried it out.
    /// If it was an acquire, the client releases in the background what may have been granted,
    /// while its runtime is running. If the release fails too, the grant ends with its lease. If it
    /// was the release of a guard, the client sends it again in the background. Other changes are
    /// neither undone nor repeated: a count that was set or counted down, permits that were added,
    /// a forced unlock. Check the state before you call again.
    OutcomeUnknown,
    /// The lock was held and is no longer held; see [`Error::loss`]. Stop the protected work.
    Lost,
    /// The name is in use for something other than this kind of lock, or its key has no expiry
    /// although it must have one. Nothing was changed.
    WrongKind,
    /// The server refuses the credentials, or the client's user lacks a permission. Nothing was
    /// acquired.
    Denied,
    /// No semaphore of that name exists, and the handle requires it to exist
    /// ([`must_exist`](crate::Semaphore::must_exist)). Nothing was changed.
    NotFound,
    /// The call itself is wrong: a bad name, a lease of zero, a client that was closed, a client
    /// whose runtime has ended, or a client that belongs to the process from which this process was
    /// forked.
    Misuse,
    /// The call would have waited forever, either for something that its own
    /// [`Owner`](crate::Owner) holds, or for another owner that itself waits for this one. Release
    /// what you hold, and acquire locks in the same order everywhere.
    Deadlock,
    /// Another thread ended the wait with an [`Interrupt`](crate::blocking::Interrupt). Nothing is
    /// held. Only calls of the [`blocking`](crate::blocking) module fail with this kind.
    Interrupted,
    /// This server or this build does not support the call.
    Unsupported,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(ErrorInner {
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
        let message = format!(
            "the lock `{key}` is lost: {reason}; stop the protected work and acquire again"
        );
        // The short form has no advice: an error for several members would repeat it for each
        // member.
        let brief = format!("`{key}`: {reason}");
        Self::of_loss(key, reason, message, Some(brief))
    }

    /// Returns the error for a ticket whose hold no longer exists.
    pub(crate) fn used_up(key: &Key, reason: LossReason) -> Self {
        let what = match reason {
            // The server does not know which of the two happened.
            LossReason::Expired => "its lease ran out, or it was released".to_owned(),
            ref other => other.to_string(),
        };
        let message = format!(
            "the hold of this ticket for `{key}` no longer exists: {what}; the ticket is of no more use, \
             acquire again"
        );
        Self::of_loss(key, reason, message, None)
    }

    fn of_loss(key: &Key, reason: LossReason, message: String, brief: Option<String>) -> Self {
        Self(Arc::new(ErrorInner {
            kind: ErrorKind::Lost,
            message,
            key: Some(key.clone()),
            brief,
            lost: Some(reason),
            members: Vec::new(),
            source: None,
        }))
    }

    /// Returns the error for a lock over several members, some of which failed. `loss` is the
    /// reason if the failures mean that the whole lock is lost. Otherwise the error has the most
    /// serious kind of the members' errors.
    pub(crate) fn of_members(
        key: &Key,
        what: &str,
        loss: Option<LossReason>,
        members: Vec<Error>,
    ) -> Self {
        let briefs: Vec<_> = members.iter().map(Error::brief).collect();
        let kind = match loss {
            // The members' kinds do not matter here: a holder that has lost the whole lock must
            // stop its work, and may check only the kind.
            Some(_) => ErrorKind::Lost,
            None => worst(&members),
        };
        let mut error = match &loss {
            Some(reason) => format!("the lock `{key}` is lost: {reason}; "),
            None => String::new(),
        };
        error += &format!("{what} `{key}` failed: {}", briefs.join("; "));
        Self(Arc::new(ErrorInner {
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

    /// Returns a short form of the cause.
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

    /// Changes the error only if it has not been shared yet.
    fn change(mut self, change: impl FnOnce(&mut ErrorInner)) -> Self {
        // `make_mut` is not possible, because the source can't be cloned. A shared error stays as
        // it is.
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            change(inner);
        }
        self
    }

    /// Returns the kind, which says what the caller can do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the same call may succeed later without any change. This is true if the kind
    /// is [`Unavailable`](ErrorKind::Unavailable) or [`OutcomeUnknown`](ErrorKind::OutcomeUnknown).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
        )
    }

    /// Returns the name of the lock or synchronizer that the error is about, without the client's
    /// [prefix](crate::ClientBuilder::prefix). `None` if the error is not about one name.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.key.as_ref().map(Key::given)
    }

    /// Returns the errors of the members that failed, if the lock is a
    /// [`MultiLock`](crate::MultiLock) or a [`RedLock`](crate::RedLock). Empty for other locks.
    #[must_use]
    pub fn members(&self) -> &[Error] {
        &self.0.members
    }

    /// Returns why the lock was lost, if [`kind`](Self::kind) is [`ErrorKind::Lost`].
    #[must_use]
    pub fn loss(&self) -> Option<&LossReason> {
        self.0.lost.as_ref()
    }
}

/// Returns the most serious kind of these errors.
fn worst(errors: &[Error]) -> ErrorKind {
    // The kinds that require action by the caller are first: if a transient kind had precedence,
    // `is_transient` would make the caller try again forever. Of the two transient kinds, the
    // unknown outcome is first, because a grant may be left on the server.
    const ORDER: [ErrorKind; 10] = [
        ErrorKind::Lost,
        ErrorKind::Misuse,
        ErrorKind::Deadlock,
        ErrorKind::Interrupted,
        ErrorKind::WrongKind,
        ErrorKind::Denied,
        ErrorKind::Unsupported,
        ErrorKind::NotFound,
        ErrorKind::OutcomeUnknown,
        ErrorKind::Unavailable,
    ];
    // A kind that is missing in `ORDER` has the rank `None`, which sorts before all others: so it
    // is shown, not hidden.
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
    /// Writes the message and the kind, because a `main` that returns an error prints this form.
    /// `{:#?}` writes a structure with the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{} ({:?})", self.0.message, self.0.kind);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            // The members are left out, because the message mentions each of them briefly.
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
