//! The settings of TLS, from files that options name.

use std::path::Path;

use leasehold::ClientBuilder;
use leasehold::settings::Identity;

use super::unreadable;
use crate::cli::Tls;
use crate::exit_code::Exit;
use crate::failure::Failure;

const CERTIFICATE: &str = "certificate";
const KEY: &str = "private key";

/// Accepts every URL. The library reports errors in the URL.
pub(super) fn check_url(_: &str) -> Result<(), Failure> {
    Ok(())
}

pub(super) fn with_tls(mut builder: ClientBuilder, tls: &Tls) -> Result<ClientBuilder, Failure> {
    let needed =
        |what, file: &Path| read(what, file).map_err(|what| Failure::new(Exit::Unreadable, what));
    if let Some(file) = &tls.cacert {
        builder = builder.tls_authorities(needed("certificate authorities", file)?);
    }
    if let (Some(certificate), Some(key)) = (tls.cert.clone(), tls.key.clone()) {
        needed(CERTIFICATE, &certificate)?;
        needed(KEY, &key)?;
        builder = builder.tls_identity(move || {
            let certificate = read(CERTIFICATE, &certificate)?;
            Ok(Identity::from_pem(certificate, read(KEY, &key)?))
        });
    }
    if let Some(name) = &tls.sni {
        builder = builder.tls_server_name(name);
    }
    Ok(builder)
}

/// Reads a file of this machine.
fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| unreadable(what, path, &error))
}
