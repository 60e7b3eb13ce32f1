//! C libraries that are preloaded into a program. They do things that safe Rust can't do.

use std::fs;
use std::io;
use std::process::Command;

use tempfile::TempDir;

/// The file name of each compiled library in its folder.
pub(crate) const LIBRARY: &str = "shim.so";

/// Compiles `code` into [`LIBRARY`] in a new folder.
pub(crate) fn compile(prefix: &str, code: &str) -> io::Result<TempDir> {
    let dir = tempfile::Builder::new().prefix(prefix).tempdir()?;
    let source = dir.path().join("shim.c");
    fs::write(&source, code)?;
    let output = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(dir.path().join(LIBRARY))
        .arg(&source)
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(said));
    }
    Ok(dir)
}
