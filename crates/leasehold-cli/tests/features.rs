//! Builds that lack a feature report that. With all features, there is nothing to test here.
#![cfg(not(all(feature = "metrics", feature = "tls", feature = "top")))]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

use std::process::Command;

/// Asserts that the command is refused as wrong usage, with a message that names the feature.
#[track_caller]
fn assert_refused(words: &[&str], what: &str, feature: &str) {
    let mut leasehold = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    for name in ["LEASEHOLD_URL", "REDIS_URL"] {
        leasehold.env_remove(name);
    }
    let output = leasehold.args(words).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
    let message = format!("built without {what}; build leasehold-cli with --features {feature}");
    assert!(stderr.contains(&message), "{words:?}: {stderr}");
}

#[cfg(not(feature = "metrics"))]
#[test]
fn metrics_file_is_refused_before_the_lock() {
    // No server listens on port 1, so a command that asked for the lock would fail in another way.
    let server = ["--redis", "redis://127.0.0.1:1"];
    let run = ["run", "--metrics-file", "m.prom", "job", "--", "true"];
    assert_refused(&[&server[..], &run].concat(), "--metrics-file", "metrics");
}

#[cfg(not(feature = "tls"))]
#[test]
fn urls_and_options_of_tls_are_refused() {
    let what = "TLS, which a rediss:// URL needs";
    for url in [
        "rediss://h",
        "REDISS://h",
        "rediss-cluster://h",
        "rediss-sentinel://h/m",
    ] {
        assert_refused(&["--redis", url, "show", "job"], what, "tls");
    }
    let run = ["run", "--redlock", "redis://a", "--redlock", "rediss://b"];
    assert_refused(&[&run[..], &["job", "--", "true"]].concat(), what, "tls");
    for (options, first) in [
        (&["--cacert", "f"][..], "--cacert"),
        (&["--cert", "f", "--key", "f"], "--cert"),
        (&["--sni", "h"], "--sni"),
    ] {
        let show = ["--redis", "redis://127.0.0.1:1", "show", "job"];
        let what = format!("TLS, which {first} needs");
        assert_refused(&[&show, options].concat(), &what, "tls");
    }
}

#[cfg(not(feature = "top"))]
#[test]
fn top_is_refused() {
    assert_refused(&["top"], "the sub-command top", "top");
}
