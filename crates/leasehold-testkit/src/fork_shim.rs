//! Forks for a test in safe Rust.

use std::{io, path::PathBuf};

use tempfile::TempDir;

use crate::shim::{LIBRARY, compile};

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
        let dir = compile("leasehold-fork-", include_str!("fork_shim.c"))?;
        Ok(Self { dir })
    }

    /// What a process that forks needs in its environment.
    #[must_use]
    pub fn environment(&self) -> (&'static str, PathBuf) {
        ("LD_PRELOAD", self.dir.path().join(LIBRARY))
    }
}

/// Forks this process, which the library is preloaded into. Says whether it returns in the child.
#[must_use]
pub fn fork() -> bool {
    std::os::unix::process::parent_id() == 0
}
