//! Forks for a test in safe Rust.

use std::{io, path::PathBuf};

use tempfile::TempDir;

use crate::shim::{LIBRARY, compile};

/// Lets a process fork with [`fork`]. This is a small library, which is compiled with `cc` when it
/// is needed, and preloaded into that process.
#[derive(Debug)]
pub struct ForkShim {
    dir: TempDir,
}

impl ForkShim {
    /// Compiles the library.
    ///
    /// # Errors
    ///
    /// Fails if there is no C compiler, or no folder to write to.
    pub fn new() -> io::Result<Self> {
        let dir = compile("leasehold-fork-", include_str!("fork_shim.c"))?;
        Ok(Self { dir })
    }

    /// Returns the environment variable that makes a process load the library, so that it can fork.
    #[must_use]
    pub fn environment(&self) -> (&'static str, PathBuf) {
        ("LD_PRELOAD", self.dir.path().join(LIBRARY))
    }
}

/// Forks this process, into which the library must be preloaded. Returns `true` in the child.
#[must_use]
pub fn fork() -> bool {
    std::os::unix::process::parent_id() == 0
}
