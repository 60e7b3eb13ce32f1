//! TLS: rustls with the system's authorities and the user's own, and the client's certificate.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::socket::Own;
use crate::error::{Error, ErrorKind, Result};
use crate::tls::{Identity, IdentitySource, TlsSettings};

/// Encrypts streams to servers whose certificates it can check.
#[derive(Clone)]
pub(crate) struct Connector {
    roots: Arc<RootCertStore>,
    /// Asked at each connection, because a certificate is renewed while the client lives.
    identity: Option<IdentitySource>,
    server_name: Option<String>,
}

impl Connector {
    pub(crate) fn new(settings: &TlsSettings) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        // Certificates of the system's store that can't be read are left out: the handshake
        // fails if one of them was needed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for pem in &settings.authorities {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| bad_authority(&error))?;
                roots
                    .add(certificate)
                    .map_err(|error| bad_authority(&error))?;
            }
        }
        if let Some(name) = &settings.server_name
            && let Err(error) = ServerName::try_from(name.clone())
        {
            let what = format!(
                "`{}` is no name of a server: {error}",
                crate::text::Shown(name)
            );
            return Err(Error::new(ErrorKind::Misuse, what));
        }
        let connector = Self {
            roots: Arc::new(roots),
            identity: settings.identity.clone(),
            server_name: settings.server_name.clone(),
        };
        // Tried out: what is wrong with a certificate is told before the first connection.
        let config = connector.config();
        config.map_err(|error| Error::new(ErrorKind::Misuse, error.to_string()))?;
        Ok(connector)
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: Own<TcpStream>,
    ) -> io::Result<TlsStream<Own<TcpStream>>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        connector.connect(name, stream).await
    }

    fn config(&self) -> io::Result<ClientConfig> {
        // Named here, so that it makes no difference whether the process has chosen a provider,
        // and which.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(Arc::clone(&self.roots));
        let Some(identity) = &self.identity else {
            return Ok(config.with_no_client_auth());
        };
        let bad = |what: &dyn std::fmt::Display| {
            io::Error::other(format!("the client's certificate can't be used: {what}"))
        };
        let Identity { certificates, key } = identity.read().map_err(|error| bad(&error))?;
        let chain = CertificateDer::pem_slice_iter(&certificates).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| bad(&error))?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| bad(&error))?;
        config
            .with_client_auth_cert(chain, key)
            .map_err(|error| bad(&error))
    }
}

/// What to do about a handshake that failed. `is_told`: a node of the cluster has told the address.
pub(crate) fn advice(error: &io::Error, is_told: bool) -> &'static str {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let error = error.get_ref();
    match error.and_then(|error| error.downcast_ref::<rustls::Error>()) {
        // Another authority of the same name has another signature.
        Some(InvalidCertificate(UnknownIssuer | BadSignature)) => {
            "if the certificate is of your own authority add that to the client (tls_authorities, \
             --cacert)"
        }
        Some(InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            match is_told {
                true => {
                    "let the nodes announce the name that their certificates are for \
                 (cluster-announce-hostname, cluster-preferred-endpoint-type hostname)"
                }
                false => {
                    "use a name that the certificate is for in the URL, or say it (tls_server_name, --sni)"
                }
            }
        }
        Some(InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
        )) => "renew the server's certificate, or set this machine's clock right",
        Some(AlertReceived(_)) => WANTS_A_CERTIFICATE,
        Some(InvalidMessage(_)) => "if the port is a plain one use redis://",
        _ => {
            "if the port is a plain one use redis://, if the certificate is of your own authority \
             add that to the client (tls_authorities, --cacert)"
        }
    }
}

/// In TLS 1.3 the server says so behind the client's handshake, when the first answer is read.
pub(crate) const WANTS_A_CERTIFICATE: &str = "if the server wants a certificate of the client \
     give one of an authority that it trusts (tls_identity, --cert and --key)";

fn bad_authority(what: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Misuse,
        format!("the certificate authority can't be used: {what}; give it as PEM"),
    )
}
