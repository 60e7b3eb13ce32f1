//! Finds the Redisson driver and builds it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use super::RedissonVersion;

/// Returns whether this machine can run the driver: it has Java, and either a built driver or the
/// Maven to build one.
pub fn java_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let is_built = RedissonVersion::ALL
            .iter()
            .all(|version| target(*version).join("built").exists());
        runs("java", "-version") && (is_built || runs("mvn", "-version"))
    })
}

/// Builds the driver unless it is newer than its sources. If several processes build it at the same
/// time, they wait for each other inside the script.
pub(super) fn build() {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    if let Err(message) = BUILT.get_or_init(run_script) {
        panic!("the Redisson driver cannot be built: {message}");
    }
}

/// Returns the folder with the driver for a version.
pub(super) fn target(version: RedissonVersion) -> PathBuf {
    home().join(format!("target-{version}"))
}

fn run_script() -> Result<(), String> {
    let output = Command::new(home().join("build"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/redisson")
}

fn runs(program: &str, arg: &str) -> bool {
    Command::new(program)
        .arg(arg)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
