//! TLS: rustls with the system's authorities, the user's own authorities, and the client's
//! certificate.

use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::socket::ProcessBound;
use crate::error::{Error, ErrorKind, Result};
use crate::tls::{Identity, IdentitySource, TlsSettings};

/// The TLS settings of a client, for streams to servers whose certificates it can check.
#[derive(Clone)]
pub(crate) struct TlsClient {
    verifier: Arc<Verifier>,
    /// The source of the client's certificate. It is read for each connection, because a
    /// certificate is renewed while the client lives.
    identity: Option<IdentitySource>,
    /// Locked while a thread reads the certificate, so that a file system that does not answer
    /// blocks at most one thread.
    certificate_lock: Arc<tokio::sync::Mutex<()>>,
    server_name: Option<String>,
}

impl TlsClient {
    pub(crate) fn new(settings: &TlsSettings) -> Result<Self> {
        let (mut roots, mut given) = (RootCertStore::empty(), Vec::new());
        // Unreadable certificates in the system's store are skipped: the handshake fails if one of
        // them was needed.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for pem in &settings.authorities {
            let before = given.len();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| bad_authority(&error))?;
                roots
                    .add(certificate.clone())
                    .map_err(|error| bad_authority(&error))?;
                given.push(certificate);
            }
            if given.len() == before {
                return Err(bad_authority(&"it has no certificate"));
            }
        }
        if let Some(name) = &settings.server_name
            && let Err(error) = ServerName::try_from(name.clone())
        {
            let what = format!(
                "`{}` is not a valid server name: {error}",
                crate::text::Shown(name)
            );
            return Err(Error::new(ErrorKind::Misuse, what));
        }
        let connector = Self {
            verifier: Arc::new(Verifier::new(roots, given)?),
            identity: settings.identity.clone(),
            certificate_lock: Arc::default(),
            server_name: settings.server_name.clone(),
        };
        // The settings are built here once, so that an error in a certificate is reported before
        // the first connection.
        let config = connector.config();
        config.map_err(|error| Error::new(ErrorKind::Misuse, error.to_string()))?;
        Ok(connector)
    }

    /// Returns the settings of one connection. The certificate is read on a thread that may block,
    /// because its callback reads files.
    pub(crate) async fn fresh_config(&self) -> io::Result<ClientConfig> {
        if self.identity.is_none() {
            return self.config();
        }
        let guard = Arc::clone(&self.certificate_lock).lock_owned().await;
        let connector = self.clone();
        let ask = move || {
            let _guard = guard;
            connector.config()
        };
        let asked = tokio::task::spawn_blocking(ask).await;
        asked.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    pub(crate) async fn connect(
        &self,
        config: ClientConfig,
        host: &str,
        stream: ProcessBound<TcpStream>,
    ) -> io::Result<TlsStream<ProcessBound<TcpStream>>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await
    }

    /// Returns the settings of one connection. Fails only if the client's own certificate can't be
    /// used.
    pub(crate) fn config(&self) -> io::Result<ClientConfig> {
        let verifier: Arc<dyn ServerCertVerifier> = self.verifier.clone();
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
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

/// Returns the provider of cryptography. It is fixed here, so the process's default provider makes
/// no difference.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A verifier of a server's certificate. It accepts a certificate whose chain, dates and name are
/// valid. It also accepts a certificate that the user has given.
#[derive(Debug)]
struct Verifier {
    webpki: Arc<WebPkiServerVerifier>,
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(roots: RootCertStore, given: Vec<CertificateDer<'static>>) -> Result<Self> {
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let webpki = webpki.build().map_err(|error| {
            let what = format!(
                "no certificate authority is known ({error}); install the CA certificates of the \
                 system, or add your own (tls_authorities, --cacert)"
            );
            Error::new(ErrorKind::Misuse, what)
        })?;
        Ok(Self { webpki, given })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let webpki = &self.webpki;
        match webpki.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(error))
                if self.given.contains(certificate) && is_about_its_issuer_or_name(&error) =>
            {
                check_name(certificate, name)
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        (self.webpki).verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        (self.webpki).verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Returns whether an error is about the certificate's issuer or name. The dates are checked before
/// these, so an expired certificate has another error.
fn is_about_its_issuer_or_name(error: &CertificateError) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext, UnknownIssuer};
    match error {
        UnknownIssuer | NotValidForName | NotValidForNameContext { .. } => true,
        error => is_webpki(error, CA_AS_SERVER),
    }
}

/// Checks the name in a certificate that the user has given. The user trusts exactly this
/// certificate, so it need not name a host. If it names hosts, it is valid only for them.
fn check_name(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
) -> std::result::Result<ServerCertVerified, rustls::Error> {
    let named = verify_server_name(&ParsedCertificate::try_from(certificate)?, name);
    match named {
        Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            presented,
            ..
        })) if presented.is_empty() => {}
        named => named?,
    }
    Ok(ServerCertVerified::assertion())
}

/// The error for a certificate that belongs to an authority, as self-signed certificates do by
/// default.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";
const VERSION_1: &str = "UnsupportedCertVersion";

/// Returns whether this is the webpki error `name`, for which rustls has no variant.
fn is_webpki(error: &CertificateError, name: &str) -> bool {
    matches!(error, CertificateError::Other(error) if error.to_string() == name)
}

/// Returns the advice for a handshake that failed. `is_announced` says whether another server
/// announced the address.
pub(crate) fn advice(error: &io::Error, is_announced: bool) -> &'static str {
    use rustls::CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let error = error.get_ref();
    match error.and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(InvalidCertificate(error)) if is_webpki(error, CA_AS_SERVER) => {
            "the server shows the certificate of an authority (CA) as its own: add exactly this \
             certificate to the client (tls_authorities, --cacert)"
        }
        Some(InvalidCertificate(error)) if is_webpki(error, VERSION_1) => {
            "the server's certificate is of version 1, which TLS libraries refuse: make one of \
             version 3 that names its host (openssl req -x509 -addext subjectAltName=DNS:HOST)"
        }
        // The error is `BadSignature` if another authority has the same name.
        Some(InvalidCertificate(UnknownIssuer | BadSignature)) => {
            "if the certificate is self-signed or from your own certificate authority, add the \
             certificate or the authority to the client (tls_authorities, --cacert)"
        }
        Some(InvalidCertificate(NotValidForNameContext { presented, .. }))
            if presented.is_empty() =>
        {
            "the server's certificate names no host: make one with subjectAltName, or add exactly \
             this one to the client (tls_authorities, --cacert)"
        }
        Some(InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            match is_announced {
                true => {
                    "let the servers announce the name that their certificates are for (in a \
                     cluster cluster-announce-hostname and cluster-preferred-endpoint-type \
                     hostname; behind sentinels replica-announce-ip, with resolve-hostnames and \
                     announce-hostnames of the sentinels), or tell the client this name \
                     (tls_server_name, --sni)"
                }
                false => {
                    "write a name that the certificate is for into the URL, or tell the client this name (tls_server_name, --sni)"
                }
            }
        }
        Some(InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
        )) => "renew the server's certificate, or set this machine's clock right",
        Some(AlertReceived(_)) => WANTS_A_CERTIFICATE,
        Some(InvalidMessage(_)) => "if the port has no TLS, use redis://",
        _ => {
            "if the port has no TLS, use redis://; if the certificate is from your own certificate \
             authority, add that authority to the client (tls_authorities, --cacert)"
        }
    }
}

/// The advice if the server requires a certificate. In TLS 1.3 the server says so after the
/// client's handshake, when the first answer is read.
pub(crate) const WANTS_A_CERTIFICATE: &str = "if the server wants a client certificate, \
     give one from an authority that it trusts (tls_identity, --cert and --key)";

fn bad_authority(what: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Misuse,
        format!("the certificate authority can't be used: {what}; give it as PEM"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate as `openssl x509 -req` makes it without extensions, valid for a hundred years.
    const OF_VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBJDCBywIUZGKyDU8+Vtu/KkKD9rahsjEWh3cwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNTE2MjUxOFoYDzIxMjYxMTAxMTYyNTE4
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAQdgdRjPHO0YeRnvKoTzdkqVc4x0BuuABMCzcil8ErxVqeA33zAK9MsSwyi4dlb
GlncgmjTIsdz8aYMaqc5TrIVMAoGCCqGSM49BAMCA0gAMEUCIBzIAlxPkiRrbpBw
eXEkjY+pQ5TK2druQnfb2oZkr8xWAiEA34shhGAouyLUNPs9JKAkscaoRKzEVZX9
zSGXYhecs58=
-----END CERTIFICATE-----
";

    fn connector(pem: &str) -> Result<TlsClient> {
        TlsClient::new(&TlsSettings {
            authorities: vec![pem.into()],
            ..TlsSettings::default()
        })
    }

    #[test]
    fn certificate_of_version_1_is_explained() {
        let verifier = connector(OF_VERSION_1).expect("it can be read").verifier;
        let certificate = CertificateDer::from_pem_slice(OF_VERSION_1.as_bytes());
        let (certificate, name) = (certificate.unwrap(), "localhost".try_into().unwrap());
        let refused = verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now());
        let refused = io::Error::new(io::ErrorKind::InvalidData, refused.unwrap_err());
        let advice = advice(&refused, false);
        assert!(
            advice.contains("version 3") && advice.contains("subjectAltName"),
            "{advice}"
        );
    }

    #[test]
    fn authorities_without_a_certificate_are_refused() {
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        for pem in ["", "nothing", key] {
            let refused = connector(pem).map(drop).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
            assert!(refused.to_string().contains("no certificate"), "{refused}");
        }
    }
}
