//! Certificates for servers, which only the tests trust.

use std::{fmt, fs, io, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, Error, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// Number of client certificates: the first one, and its later replacements.
pub(crate) const CLIENTS: usize = 3;

/// The authority that signs the certificates of servers and clients.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    hosts: Vec<String>,
    /// Whether the servers' certificates have expired.
    are_expired: bool,
    /// Whether the servers present the authority's own certificate.
    is_shown: bool,
}

impl Authority {
    pub(crate) fn of(hosts: &[&str]) -> Self {
        Self {
            issuer: issuer(&[], false).expect("a key can be made"),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            are_expired: false,
            is_shown: false,
        }
    }

    /// Returns an authority whose own certificate is also the servers' certificate, for these
    /// hosts.
    pub(crate) fn self_signed(hosts: &[&str], is_expired: bool) -> Self {
        Self {
            issuer: issuer(hosts, is_expired).expect("a key can be made"),
            is_shown: true,
            ..Self::of(hosts)
        }
    }

    pub(crate) fn expired(hosts: &[&str]) -> Self {
        Self {
            are_expired: true,
            ..Self::of(hosts)
        }
    }

    /// Writes `ca.pem`, `leaf.pem` and `leaf.key` into `dir` and returns the PEM of the CA. Also
    /// writes `client0.pem` and `client0.key`, and so on.
    pub(crate) fn write_certificates(&self, dir: &Path) -> io::Result<String> {
        let ca = &self.issuer;
        fs::write(dir.join("ca.pem"), ca.pem())?;
        let mut leaf = CertificateParams::new(&*self.hosts).map_err(io::Error::other)?;
        if self.are_expired {
            leaf.not_after = date_time_ymd(2001, 1, 1);
        }
        if self.is_shown {
            fs::write(dir.join("leaf.pem"), ca.pem())?;
            fs::write(dir.join("leaf.key"), ca.key().serialize_pem())?;
        } else {
            write_leaf(dir, "leaf", leaf, ca)?;
        }
        for number in 0..CLIENTS {
            let client = CertificateParams::default();
            write_leaf(dir, &format!("client{number}"), client, ca)?;
        }
        Ok(ca.pem())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").field(&self.hosts).finish()
    }
}

fn issuer(hosts: &[&str], is_expired: bool) -> Result<CertifiedIssuer<'static, KeyPair>, Error> {
    let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut ca = CertificateParams::new(hosts)?;
    if is_expired {
        ca.not_after = date_time_ymd(2001, 1, 1);
    }
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    // Some verifiers consider a certificate self-signed if its issuer and subject have the same
    // name.
    ca.distinguished_name
        .push(DnType::CommonName, "leasehold test CA");
    CertifiedIssuer::self_signed(ca, KeyPair::generate()?)
}

fn write_leaf(
    dir: &Path,
    name: &str,
    mut leaf: CertificateParams,
    ca: &CertifiedIssuer<'static, KeyPair>,
) -> io::Result<()> {
    let mut make = || {
        leaf.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        Ok::<_, Error>((leaf.signed_by(&key, ca)?.pem(), key.serialize_pem()))
    };
    let (pem, key) = make().map_err(io::Error::other)?;
    fs::write(dir.join(format!("{name}.pem")), pem)?;
    fs::write(dir.join(format!("{name}.key")), key)
}
