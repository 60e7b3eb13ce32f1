//! Forks for a test in safe Rust.

use std::{fs, io, path::PathBuf, process::Command};

use tempfile::TempDir;

/// Lets a process fork with [`fork`]: a small library that is compiled with `cc` when it is needed,
/// and preloaded into that process.
#[derive(Debug)]
pub struct ForkShim {
    dir: TempDir,
}

impl ForkShim {
    /// Compiles it.
    ///
    /// # Errors
    ///
    /// When there is no C compiler, or nowhere to write.
    pub fn new() -> io::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("leasehold-fork-")
            .tempdir()?;
        let source = dir.path().join("shim.c");
        fs::write(&source, include_str!("fork_shim.c"))?;
        let output = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(dir.path().join(LIBRARY))
            .arg(&source)
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(io::Error::other(said));
        }
        Ok(Self { dir })
    }

    /// What a process that forks needs in its environment.
    #[must_use]
    pub fn environment(&self) -> (&'static str, PathBuf) {
        ("LD_PRELOAD", self.dir.path().join(LIBRARY))
    }
}

const LIBRARY: &str = "shim.so";

/// Forks this process, which the library is preloaded into. Says whether it returns in the child.
#[must_use]
pub fn fork() -> bool {
    std::os::unix::process::parent_id() == 0
}
