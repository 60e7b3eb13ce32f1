//! A master with replicas, without sentinels.

use std::{iter, thread, time::Duration};

use crate::{
    reply::Reply,
    server::{Builder, RedisServer},
    wait::eventually,
};

const IN_STEP_WITHIN: Duration = Duration::from_secs(60);

/// A master and its replicas. Every process is killed when this value is dropped.
#[derive(Debug)]
pub struct Replicas {
    master: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Replicas {
    /// Starts a plain master with this number of replicas, and waits until they are in step with
    /// the master.
    ///
    /// # Panics
    ///
    /// Panics if the program is missing, or a replica is not in step within a minute.
    pub fn start(replicas: usize) -> Self {
        Self::of(&RedisServer::builder(), replicas)
    }

    /// Starts a master and replicas with these settings.
    ///
    /// # Panics
    ///
    /// Like [`Replicas::start`].
    pub fn of(settings: &Builder, replicas: usize) -> Self {
        let settings = settings.clone().arg("repl-diskless-sync-delay", "0");
        let master = settings.clone().start();
        let master = master.expect("redis-server starts; install it");
        let follows = settings.arg("replicaof", &format!("127.0.0.1 {}", master.port()));
        let started = thread::scope(|scope| {
            let starting: Vec<_> = iter::repeat_n(&follows, replicas)
                .map(|follows| scope.spawn(|| follows.clone().start()))
                .collect();
            let started = starting
                .into_iter()
                .map(|one| one.join().expect("no panic"));
            started.collect::<std::io::Result<Vec<_>>>()
        });
        let all = Self {
            master,
            replicas: started.expect("redis-server starts; install it"),
        };
        for number in 0..replicas {
            all.wait_until_in_step(number);
        }
        all
    }

    /// Returns the master.
    pub fn master(&self) -> &RedisServer {
        &self.master
    }

    /// Returns the replicas, including those that do not follow the master.
    pub fn replicas(&self) -> &[RedisServer] {
        &self.replicas
    }

    /// Disconnects a replica from its master. The replica keeps its data, but receives no further
    /// writes.
    ///
    /// # Panics
    ///
    /// Panics if the replica does not answer, or the master still sends it writes after a minute.
    pub fn cut(&self, number: usize) {
        let fed = fed(&self.master);
        // Suspending the process is not enough: the kernel would still accept the data that the
        // master sends.
        self.run(number, &["REPLICAOF", "127.0.0.1", "1"]);
        eventually("the replica is cut off", IN_STEP_WITHIN, || {
            self::fed(&self.master) < fed
        });
    }

    /// Makes the replica follow the master again, and waits until it is in step.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn mend(&self, number: usize) {
        let port = self.master.port().to_string();
        self.run(number, &["REPLICAOF", "127.0.0.1", &port]);
        self.wait_until_in_step(number);
    }

    fn run(&self, number: usize, command: &[&str]) {
        let said = self.replicas[number].command(command);
        assert_eq!(said.expect("it answers"), Reply::Text("OK".into()));
    }

    /// Waits until this replica has confirmed to the master everything that the master has written
    /// so far.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn wait_until_in_step(&self, number: usize) {
        let written = number_behind(&replication(&self.master), "master_repl_offset:");
        let port = format!("port={},", self.replicas[number].port());
        eventually("the replica is in step", IN_STEP_WITHIN, || {
            let info = replication(&self.master);
            let line = info.lines().find(|line| line.contains(&port));
            let has = line.and_then(|line| number_behind(line, ",offset="));
            // The offset is 0 until the replica has reported its position.
            has > Some(0) && has >= written && line.is_some_and(|it| it.contains("state=online"))
        });
    }
}

fn number_behind(text: &str, label: &str) -> Option<u64> {
    let digits = text.split_once(label)?.1;
    let end = digits.find(|digit: char| !digit.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().ok()
}

/// Returns to how many replicas the master sends its writes.
fn fed(master: &RedisServer) -> usize {
    let info = replication(master);
    let fed = info.lines().filter(|line| line.contains("state=online"));
    fed.count()
}

fn replication(server: &RedisServer) -> String {
    let info = server
        .command(&["INFO", "replication"])
        .expect("it answers");
    info.as_text().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_that_is_cut_off_keeps_its_data_and_catches_up() {
        let servers = Replicas::start(2);
        let set = |name| {
            let set = servers.master().command(&["SET", name, "1"]);
            assert_eq!(set.expect("it runs").as_text(), Some("OK"));
            let wait = servers.master().command(&["WAIT", "2", "200"]);
            wait.expect("it runs")
        };
        // SET and WAIT are sent on different connections. Only version 7.0 waits in this case, so
        // the reply to WAIT does not prove anything.
        let _ = set("x");
        eventually("both have it", IN_STEP_WITHIN, || {
            servers.replicas().iter().all(|one| one.keys() == ["x"])
        });
        servers.cut(0);
        let _ = set("y");
        assert_eq!(servers.replicas()[0].keys(), ["x"]);
        servers.mend(0);
        eventually("it catches up", IN_STEP_WITHIN, || {
            servers.replicas()[0].keys() == ["x", "y"]
        });
    }
}
