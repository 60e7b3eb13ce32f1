//! The settings that a client needs for TLS, in addition to a server's address.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The reason why there is no certificate.
pub(crate) type NoIdentity = Box<dyn StdError + Send + Sync>;

type ReadIdentity = dyn Fn() -> Result<Identity, NoIdentity> + Send + Sync;

/// A client's certificate and its private key, for the function that you set with
/// [`ClientBuilder::tls_identity`]. The debug form shows neither.
///
/// [`ClientBuilder::tls_identity`]: crate::ClientBuilder::tls_identity
#[derive(Clone)]
pub struct Identity {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Identity {
    /// Returns an identity from the client's certificate and its private key, both as PEM.
    /// `certificates` also contains the intermediate certificates up to the authority.
    #[must_use]
    pub fn from_pem(certificates: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self {
            certificates: certificates.into(),
            key: key.into(),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: a derived form would show the key.
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// The callback that returns the client's certificate for each new connection.
#[derive(Clone)]
pub(crate) struct IdentitySource(Arc<ReadIdentity>);

impl IdentitySource {
    pub(crate) fn new(
        read: impl Fn() -> Result<Identity, NoIdentity> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Result<Identity, NoIdentity> {
        // A callback that panics must not end the connection's task.
        let read = catch_unwind(AssertUnwindSafe(|| (self.0)()));
        read.unwrap_or_else(|_| Err("the callback panicked".into()))
    }
}

impl fmt::Debug for IdentitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentitySource")
    }
}

/// All TLS settings of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsSettings {
    pub(crate) authorities: Vec<Vec<u8>>,
    pub(crate) identity: Option<IdentitySource>,
    /// The name for which the server's certificate must be valid, if it is not the host of the URL.
    pub(crate) server_name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_that_panics_gives_no_identity() {
        let source = IdentitySource::new(|| panic!("on purpose"));
        let read = source.read().unwrap_err();
        assert_eq!(read.to_string(), "the callback panicked");
    }
}
