//! The machine on which the measurements ran, and the versions of the programs on it.

use std::process::Command;
use std::{fs, thread};

use leasehold_testkit::RedisServer;
use serde::{Deserialize, Serialize};

use crate::{Result, server};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    /// Number of processes that were ready to run when the measurements began, averaged over a
    /// minute.
    pub(crate) load: String,
    pub(crate) server: String,
    pub(crate) java: String,
    pub(crate) leasehold: String,
    pub(crate) redis_crate: String,
    pub(crate) rslock: String,
    pub(crate) debug: bool,
}

impl Machine {
    pub(crate) fn here(server: &RedisServer) -> Result<Self> {
        Ok(Self {
            date: today(),
            cpu: cpu(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            system: system(),
            load: load(),
            server: server::version(server)?,
            java: java(),
            leasehold: env!("CARGO_PKG_VERSION").to_owned(),
            redis_crate: locked("redis"),
            rslock: locked("rslock"),
            debug: cfg!(debug_assertions),
        })
    }
}

fn today() -> String {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    model.unwrap_or_else(|| "unknown".to_owned())
}

fn system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or("unknown", |name| name.trim_matches('"'))
        .to_owned();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{name}, Linux {}", kernel.trim())
}

/// Returns how many processes are ready to run, averaged over a minute.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}

fn java() -> String {
    let said = Command::new("java").arg("-version").output();
    let said = said.map_or(Vec::new(), |output| output.stderr);
    let said = String::from_utf8_lossy(&said);
    let version = said.lines().next().and_then(|line| line.split('"').nth(1));
    version.unwrap_or("none").to_owned()
}

/// Returns the version of a crate that is built into this program.
fn locked(name: &str) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let entry = format!("name = \"{name}\"\nversion = \"");
    lock.split(&entry)
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .unwrap_or("unknown")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        assert!(locked("redis").starts_with("1."), "{}", locked("redis"));
        assert!(locked("rslock").starts_with("0.10."));
        assert_eq!(locked("no-such-crate"), "unknown");
    }

    #[test]
    fn dates_are_days() {
        assert_eq!(today().len(), "2026-11-23".len(), "{}", today());
    }
}
