//! A client's user and password, which may change while the client lives.

use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;

/// A user and a password, for the function that you set with
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials). The debug form does not show
/// the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// Returns credentials with this password, for the user in the URL, or for the default user if
    /// the URL names none.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: password.into(),
        }
    }

    /// Returns credentials with this user and password.
    #[must_use]
    pub fn user(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: a derived form would show the password.
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The reason why there are no credentials.
pub(crate) type NoCredentials = Box<dyn StdError + Send + Sync>;

type CredentialsFuture = Pin<Box<dyn Future<Output = Result<Credentials, NoCredentials>> + Send>>;

/// The callback that returns the credentials for each new connection.
#[derive(Clone)]
pub(crate) struct CredentialsSource(Arc<dyn Fn() -> CredentialsFuture + Send + Sync>);

impl CredentialsSource {
    pub(crate) fn new<F, C>(ask: F) -> Self
    where
        F: Fn() -> C + Send + Sync + 'static,
        C: Future<Output = Result<Credentials, NoCredentials>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(ask())))
    }

    #[cfg_attr(not(feature = "redis"), expect(dead_code))]
    pub(crate) async fn ask(&self) -> Result<Credentials, NoCredentials> {
        // A callback that panics must not end the connection's task. The call itself is inside the
        // block, too: a callback can panic before it returns a future.
        let asked = AssertUnwindSafe(async { (self.0)().await }).catch_unwind();
        let panicked = |_| Err("the callback panicked".into());
        asked.await.unwrap_or_else(panicked)
    }
}

impl fmt::Debug for CredentialsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_that_panics_gives_no_credentials() {
        let source = CredentialsSource::new(|| async { panic!("on purpose") });
        let asked = source.ask().now_or_never().expect("at once");
        assert_eq!(asked.unwrap_err().to_string(), "the callback panicked");
    }

    #[test]
    fn no_password_is_shown() {
        let shown = format!("{:?}", Credentials::user("app", "s3cret"));
        assert!(
            shown.contains("app") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
}
