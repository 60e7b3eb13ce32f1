//! Certificates for a server that only tests trust.

use std::{fs, io, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

/// Writes `ca.pem`, `leaf.pem` and `leaf.key` into `dir` and returns the PEM of the CA. The leaf
/// is for `localhost` and `127.0.0.1`.
pub(crate) fn write_certificates(dir: &Path) -> io::Result<String> {
    let (ca, leaf, key) = certificates().map_err(io::Error::other)?;
    fs::write(dir.join("ca.pem"), &ca)?;
    fs::write(dir.join("leaf.pem"), leaf)?;
    fs::write(dir.join("leaf.key"), key)?;
    Ok(ca)
}

fn certificates() -> Result<(String, String, String), rcgen::Error> {
    let mut ca = CertificateParams::new([])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    // A chain whose issuer and subject have the same name looks self-signed to some verifiers.
    ca.distinguished_name
        .push(DnType::CommonName, "leasehold test CA");
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

    let mut leaf = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    leaf.distinguished_name
        .push(DnType::CommonName, "localhost");
    let key = KeyPair::generate()?;
    let leaf = leaf.signed_by(&key, &ca)?;
    Ok((ca.pem(), leaf.pem(), key.serialize_pem()))
}
