//! A process's wall clock, which a test can move.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Mutex,
    time::Duration,
};

use tempfile::TempDir;

use crate::shim::{LIBRARY, compile};

/// The wall clock for servers that are started with it
/// ([`Builder::clock`](crate::server::Builder::clock)), and for other processes that are started in
/// its [environment](Self::environment). The clock is right at first, and a test can move it while
/// the servers run. The monotonic clock of the servers does not change.
///
/// The clock is a small library, which is compiled with `cc` when it is needed, and preloaded into
/// the process. (`libfaketime` hangs in Redis's allocator.)
#[derive(Debug)]
pub struct ClockShim {
    dir: TempDir,
    setting: File,
    offset_us: Mutex<i64>,
}

impl ClockShim {
    /// Returns a clock that shows the right time.
    ///
    /// # Errors
    ///
    /// Fails if there is no C compiler, or no folder to write to.
    pub fn new() -> io::Result<Self> {
        Self::running_fast(0)
    }

    /// Returns a clock that runs fast by this number of parts per million (10 000 are one percent)
    /// from the start of the server on. If the number is negative, the clock runs slow.
    ///
    /// # Errors
    ///
    /// Like [`ClockShim::new`].
    pub fn running_fast(parts_per_million: i64) -> io::Result<Self> {
        let dir = compile("leasehold-clock-", include_str!("clock_shim.c"))?;
        let setting = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(dir.path().join(SETTING))?;
        setting.write_all_at(&0i64.to_ne_bytes(), 0)?;
        setting.write_all_at(&parts_per_million.to_ne_bytes(), 8)?;
        Ok(Self {
            dir,
            setting,
            offset_us: Mutex::new(0),
        })
    }

    /// Moves the clock forwards.
    ///
    /// # Panics
    ///
    /// Panics if the setting cannot be written.
    pub fn step_ahead(&self, by: Duration) {
        self.step(i64::try_from(by.as_micros()).expect("a step of less than 290 000 years"));
    }

    /// Moves the clock backwards.
    ///
    /// # Panics
    ///
    /// Panics if the setting cannot be written.
    pub fn step_back(&self, by: Duration) {
        self.step(-i64::try_from(by.as_micros()).expect("a step of less than 290 000 years"));
    }

    fn step(&self, by_us: i64) {
        let mut offset_us = self.offset_us.lock().expect("no step panics half-way");
        *offset_us += by_us;
        // The running server has mapped this file into its memory.
        self.setting
            .write_all_at(&offset_us.to_ne_bytes(), 0)
            .expect("the temporary folder is ours");
    }

    /// Returns the environment variables that make a process use this clock. The clock must not be
    /// dropped before the process has started.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.dir.path().join(LIBRARY)),
            ("LEASEHOLD_CLOCK", self.dir.path().join(SETTING)),
        ]
    }
}

const SETTING: &str = "setting";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RedisServer, eventually};

    /// Returns by how many seconds the server's clock is ahead of ours.
    fn ahead(server: &RedisServer) -> f64 {
        let reply = server.command(&["TIME"]).expect("the server runs");
        let parts = reply.as_array().expect("two numbers");
        let part = |index: usize| -> f64 {
            let text = parts[index].as_text().expect("a number");
            text.parse().expect("a number")
        };
        let ours = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        part(0) + part(1) / 1e6 - ours.as_secs_f64()
    }

    #[test]
    fn steps_move_the_clock_of_a_running_server() {
        let clock = ClockShim::new().expect("a C compiler is installed");
        let server = RedisServer::builder()
            .clock(&clock)
            .start()
            .expect("redis-server is installed");
        assert!(ahead(&server).abs() < 60.0);
        clock.step_ahead(Duration::from_secs(3600));
        assert!((ahead(&server) - 3600.0).abs() < 60.0);
        clock.step_back(Duration::from_secs(7200));
        assert!((ahead(&server) + 3600.0).abs() < 60.0);
        // The offset is kept when the server restarts.
        server.restart().expect("redis-server is installed");
        assert!((ahead(&server) + 3600.0).abs() < 60.0);
    }

    #[test]
    fn keys_expire_by_the_clock() {
        let clock = ClockShim::new().expect("a C compiler is installed");
        let server = RedisServer::builder()
            .clock(&clock)
            .start()
            .expect("redis-server is installed");
        let set = ["SET", "x", "1", "EX", "1000"];
        server.command(&set).expect("the server runs");
        clock.step_ahead(Duration::from_secs(2000));
        assert!(server.keys().is_empty());
    }

    #[test]
    fn a_fast_clock_gains() {
        // The clock runs a hundred times as fast, so that the test soon sees a difference.
        let clock = ClockShim::running_fast(99_000_000).expect("a C compiler is installed");
        let server = RedisServer::builder()
            .clock(&clock)
            .start()
            .expect("redis-server is installed");
        eventually("it is a minute ahead", Duration::from_secs(20), || {
            ahead(&server) > 60.0
        });
    }
}
