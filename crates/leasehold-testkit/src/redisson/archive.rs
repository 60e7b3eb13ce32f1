//! An archive of the classes that the driver loads. With it, a JVM starts in half of the CPU time.
//! The tests with Redisson spend most of their CPU time on starting JVMs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, process};

use serde_json::{Map, Value, json};

use super::jvm::{Jvm, QUICK_TO_START};
use super::{Answer, fields};
use crate::RedisServer;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the flag that makes a JVM use the archive. A JVM ignores an archive that is missing or
/// that another version of Java has made.
pub(super) fn flag(target: &Path) -> String {
    format!("-XX:SharedArchiveFile={}", path(target).display())
}

/// Makes the archive for the driver in this folder, unless there is one. `build` removes an old one.
pub(super) fn make(target: &Path) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if path(target).exists() {
        return;
    }
    // Other processes may make it at the same time, so it gets its name when it is complete.
    let unfinished = target.join(format!("driver.jsa.{}", process::id()));
    if let Some(()) = write(target, &unfinished) {
        // If the JVM could not write it, the tests start more slowly.
        let _ = fs::rename(&unfinished, path(target));
    }
}

fn path(target: &Path) -> PathBuf {
    target.join("driver.jsa")
}

/// Lets a JVM do what most tests do, and write at its end which classes it has loaded.
fn write(target: &Path, archive: &Path) -> Option<()> {
    let server = RedisServer::start().ok()?;
    let flag = format!("-XX:ArchiveClassesAtExit={}", archive.display());
    // Java 11 can't write an archive.
    let own = ["-XX:+IgnoreUnrecognizedVMOptions", flag.as_str()];
    let flags: Vec<_> = QUICK_TO_START.into_iter().chain(own).collect();
    let jvm = Jvm::start(target, &server.url(), &flags);
    let call = |op: &str, request: Map<String, Value>| -> Answer<Value> {
        jvm.send(op, request).wait(LIMIT)
    };
    let plain = json!({ "client": "c", "thread": "t", "kind": "lock", "name": "x" });
    call("client", fields(json!({ "client": "c" }))).ok()?;
    call("lock", fields(plain.clone())).ok()?;
    call("unlock", fields(plain)).ok()?;
    // The JVM writes the archive before it ends, and does not answer.
    let _ = call("exit_hard", Map::new());
    jvm.kill();
    Some(())
}
