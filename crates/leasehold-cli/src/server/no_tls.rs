//! The replacement for the settings of TLS in a build without the feature `tls`.

use leasehold::ClientBuilder;

use crate::cli::Tls;
use crate::failure::Failure;

/// Refuses a URL that asks for TLS.
pub(super) fn check_url(url: &str) -> Result<(), Failure> {
    let scheme = url.trim_start().split(':').next().unwrap_or_default();
    match scheme.to_ascii_lowercase().starts_with("rediss") {
        true => Err(Failure::not_built(
            "TLS, which a rediss:// URL needs",
            "tls",
        )),
        false => Ok(()),
    }
}

pub(super) fn with_tls(builder: ClientBuilder, tls: &Tls) -> Result<ClientBuilder, Failure> {
    let options = [
        ("--cacert", tls.cacert.is_some()),
        ("--cert", tls.cert.is_some()),
        ("--key", tls.key.is_some()),
        ("--sni", tls.sni.is_some()),
    ];
    match options.iter().find(|(_, is_set)| *is_set) {
        Some((option, _)) => Err(Failure::not_built(
            &format!("TLS, which {option} needs"),
            "tls",
        )),
        None => Ok(builder),
    }
}
