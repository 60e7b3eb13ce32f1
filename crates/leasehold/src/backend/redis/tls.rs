//! TLS: rustls with the system's authorities and the user's own.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{Error, ErrorKind, Result};

/// Encrypts streams to servers whose certificates it can check.
pub(crate) struct Connector(TlsConnector);

impl Connector {
    pub(crate) fn new(own_authorities: &[Vec<u8>]) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        // Certificates of the system's store that can't be read are left out: the handshake
        // fails if one of them was needed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for pem in own_authorities {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| bad_authority(error.to_string()))?;
                roots
                    .add(certificate)
                    .map_err(|error| bad_authority(error.to_string()))?;
            }
        }
        // Named here, so that it makes no difference whether the process has chosen a provider,
        // and which.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad_authority(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, stream).await
    }
}

fn bad_authority(what: String) -> Error {
    Error::new(
        ErrorKind::Misuse,
        format!("the certificate authority can't be used: {what}; give it as PEM"),
    )
}
