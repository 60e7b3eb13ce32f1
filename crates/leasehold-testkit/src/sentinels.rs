//! A master with replicas, and three sentinels that watch it.

use std::{
    fmt, io, iter, thread,
    time::{Duration, Instant},
};

use crate::{
    reply::Reply,
    server::{Builder, RedisServer},
    wait::eventually,
};

/// The time limit for the sentinels to agree on something.
const AGREED_WITHIN: Duration = Duration::from_secs(60);

/// The name that the sentinels use for the master.
pub const MASTER: &str = "mymaster";

/// A master, its replicas, and three sentinels. Every process is killed when this value is dropped.
pub struct Sentinels {
    /// The servers, the initial master first. A failover changes which server is the master, but
    /// not the order.
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    scheme: &'static str,
    /// The user and password for the master, as they appear in a URL.
    login: String,
    /// The user and password for the sentinels, as they appear in a URL.
    query: String,
}

impl Sentinels {
    /// Starts a plain, empty master with this number of replicas, without passwords or TLS.
    ///
    /// # Panics
    ///
    /// Panics if the program is missing, or the server can't be a sentinel.
    pub fn start(replicas: usize) -> Self {
        Self::of(&RedisServer::builder(), &RedisServer::builder(), replicas)
    }

    /// Starts servers with the settings in `servers`, and sentinels with the settings in
    /// `sentinels`.
    ///
    /// # Panics
    ///
    /// Like [`Sentinels::start`].
    pub fn of(servers: &Builder, sentinels: &Builder, replicas: usize) -> Self {
        let password = servers.admin_password().map(quoted);
        let servers = servers.clone().arg("repl-diskless-sync-delay", "0");
        // Any server may become a replica of another one, so it needs the password.
        let servers = match password {
            Some(password) => servers.arg("masterauth", &password),
            None => servers,
        };
        let master = (servers.clone().start()).expect("redis-server starts; install it");
        let port = master.port();
        let replica = servers
            .clone()
            .arg("replicaof", &format!("127.0.0.1 {port}"));
        let watching =
            watching(sentinels, port, servers.admin_password()).certificates_as(&servers);
        let together = iter::repeat_n(&replica, replicas).chain(iter::repeat_n(&watching, 3));
        let mut started = start_all(together);
        let login = match servers.credentials() {
            (Some(user), Some(password)) => format!("{user}:{password}@"),
            (None, Some(password)) => format!(":{password}@"),
            _ => String::new(),
        };
        let query = match sentinels.credentials() {
            (Some(user), Some(password)) => {
                format!("?sentinel_user={user}&sentinel_pass={password}")
            }
            (None, Some(password)) => format!("?sentinel_pass={password}"),
            _ => String::new(),
        };
        let sentinels = started.split_off(replicas);
        let all = Self {
            scheme: match master.url().starts_with("rediss") {
                true => "rediss-sentinel",
                false => "redis-sentinel",
            },
            servers: iter::once(master).chain(started).collect(),
            sentinels,
            login,
            query,
        };
        all.hurry();
        all.wait_until_whole();
        all
    }

    /// Makes the sentinels check more often. Also keeps them out of TILT mode, in which they do
    /// nothing for half a minute, if the machine stalls for a short time. Older servers do not
    /// accept these settings, so their failovers take longer.
    fn hurry(&self) {
        for sentinel in &self.sentinels {
            let settings = ["publish-period", "300", "info-period", "300"];
            let tilt = ["tilt-trigger", "60000"];
            let command = ["SENTINEL", "DEBUG"]
                .into_iter()
                .chain(settings)
                .chain(tilt);
            run(sentinel, &command.collect::<Vec<_>>());
        }
    }

    /// Waits until every running server is the master or in step with the master, and all running
    /// sentinels know this and agree.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn wait_until_whole(&self) {
        eventually("the sentinels know all", AGREED_WITHIN, || {
            let running: Vec<_> = self.servers.iter().filter(|one| answers(one)).collect();
            let masters = running.iter().filter(|one| is_master(one)).count();
            let in_step = running.iter().filter(|one| is_in_step(one)).count();
            let fed: usize = running.iter().map(|one| fed_by(one)).sum();
            let watching: Vec<_> = self.sentinels.iter().filter(|one| answers(one)).collect();
            masters == 1
                && in_step == running.len() - 1
                && fed == in_step
                && watching.iter().all(|sentinel| {
                    let said = self.said_by(sentinel);
                    let says = |field: &str| said(field).parse::<usize>().unwrap_or(0);
                    self.named_by(sentinel) == Some(self.master())
                        && said("flags") == "master"
                        && says("num-slaves") >= in_step
                        && says("num-other-sentinels") == self.sentinels.len() - 1
                })
        });
    }

    /// Returns the URL for clients, which names all sentinels.
    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(|one| self.host(one.port()));
        self.url_of(hosts)
    }

    /// Like [`url`](Self::url), but with these ports, which may be ports of proxies.
    pub fn url_by(&self, ports: impl IntoIterator<Item = u16>) -> String {
        self.url_of(ports.into_iter().map(|port| self.host(port)))
    }

    fn host(&self, port: u16) -> String {
        format!("127.0.0.1:{port}")
    }

    fn url_of(&self, hosts: impl Iterator<Item = String>) -> String {
        let Self {
            scheme,
            login,
            query,
            ..
        } = self;
        let hosts = hosts.collect::<Vec<_>>().join(",");
        format!("{scheme}://{login}{hosts}/{MASTER}{query}")
    }

    /// Returns all servers, the initial master first.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the three sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns the certificate that signed all certificates, or an empty string without TLS.
    pub fn ca_pem(&self) -> &str {
        self.servers[0].ca_pem()
    }

    /// Returns the number of the master, according to the running sentinels.
    ///
    /// # Panics
    ///
    /// Panics if no sentinel runs.
    pub fn master(&self) -> usize {
        let running = self.sentinels.iter().filter(|one| answers(one));
        let newest = running.max_by_key(|sentinel| {
            let epoch = self.said_by(sentinel)("config-epoch");
            epoch.parse::<u64>().unwrap_or(0)
        });
        let named = self.named_by(newest.expect("a sentinel runs"));
        named.expect("it is one of ours")
    }

    /// Returns the server that is the master, according to the sentinels.
    ///
    /// # Panics
    ///
    /// Panics if no sentinel runs.
    pub fn master_server(&self) -> &RedisServer {
        &self.servers[self.master()]
    }

    /// Orders a failover, and returns before the failover has begun.
    ///
    /// # Panics
    ///
    /// Panics if the sentinels refuse for a minute.
    pub fn order_failover(&self) {
        let sentinel = self.sentinels.iter().find(|one| answers(one));
        let sentinel = sentinel.expect("a sentinel runs");
        // Sentinels refuse the command while no replica is in step, and while another failover is
        // in progress.
        eventually("a failover begins", AGREED_WITHIN, || {
            run(sentinel, &["SENTINEL", "FAILOVER", MASTER]).as_text() == Some("OK")
        });
    }

    /// Waits until all running sentinels report a master other than `old`, and this master accepts
    /// writes. Returns its number.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn wait_until_replaced(&self, old: usize) -> usize {
        eventually("another server is the master", AGREED_WITHIN, || {
            self.is_replaced(old)
        });
        self.master()
    }

    /// Kills the master and orders the sentinels to promote a replica, without waiting until they
    /// notice that the master is dead. Then starts the old master again, as a replica of the new
    /// one. Returns the number of the new master.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn kill_and_replace(&self) -> usize {
        let old = self.master();
        self.servers[old].kill().expect("it is ours");
        self.order_failover();
        let new = self.wait_until_replaced(old);
        self.servers[old].restart().expect("it starts again");
        // The sentinels would also do this, but only after ten seconds.
        let port = self.servers[new].port().to_string();
        run(&self.servers[old], &["REPLICAOF", "127.0.0.1", &port]);
        new
    }

    /// Returns whether all running sentinels report a master other than `old`, and this master
    /// accepts writes.
    fn is_replaced(&self, old: usize) -> bool {
        let mut running = self.sentinels.iter().filter(|one| answers(one));
        running.all(|sentinel| {
            let named = self.named_by(sentinel);
            named.is_some_and(|named| named != old && is_master(&self.servers[named]))
        })
    }

    /// Makes another server the master, and waits until all servers and sentinels agree again.
    /// Returns the number of the new master.
    ///
    /// # Panics
    ///
    /// Panics if this takes more than a minute.
    pub fn fail_over(&self) -> usize {
        // If a sentinel has not heard from any replica recently, it abandons a failover and does
        // not notify its clients. This happens on a machine that has stalled.
        const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
        let old = self.master();
        let mut next_order = Instant::now();
        eventually("another server is the master", AGREED_WITHIN, || {
            if self.is_replaced(old) {
                return true;
            }
            let mut running = self.sentinels.iter().filter(|one| answers(one));
            let is_due = Instant::now() >= next_order;
            if is_due && running.all(|sentinel| self.named_by(sentinel) == Some(old)) {
                self.order_failover();
                next_order = Instant::now() + GIVEN_UP_AFTER;
            }
            false
        });
        self.wait_until_whole();
        self.master()
    }

    /// Returns the number of the server that this sentinel reports as the master.
    fn named_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let named = run(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
        let port = named.as_array()?.get(1)?.as_text()?.parse::<u16>().ok()?;
        self.servers.iter().position(|server| server.port() == port)
    }

    /// Returns a function that looks up a field, by its name, in a sentinel's report about the
    /// master.
    fn said_by(&self, sentinel: &RedisServer) -> impl Fn(&str) -> String + use<> {
        let said = run(sentinel, &["SENTINEL", "MASTER", MASTER]);
        let words = said.as_array().unwrap_or_default().iter();
        let words: Vec<_> = words
            .map(|word| word.as_text().unwrap_or("").to_owned())
            .collect();
        move |field| {
            let mut pairs = words.chunks(2);
            let found = pairs.find(|pair| pair[0] == field);
            found.map_or(String::new(), |pair| pair[1].clone())
        }
    }

    /// Returns all keys of the master, sorted.
    pub fn keys(&self) -> Vec<String> {
        self.master_server().keys()
    }

    /// Returns all channels of the master that have subscribers, sorted, except the sentinels'
    /// channel.
    pub fn channels(&self) -> Vec<String> {
        let mut channels = self.master_server().channels();
        channels.retain(|channel| channel != "__sentinel__:hello");
        channels
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("servers", &self.servers)
            .field("sentinels", &self.sentinels)
            .finish()
    }
}

/// Returns the settings of a sentinel that watches the master at `port`.
fn watching(settings: &Builder, port: u16, password: Option<&str>) -> Builder {
    let about = |setting: &str, value: &str| format!("{setting} {MASTER} {value}");
    let watching = settings
        .clone()
        .sentinel()
        .arg(
            "sentinel",
            &about("monitor", &format!("127.0.0.1 {port} 2")),
        )
        // A failover takes half a minute by default, which is too long for a test. With this
        // setting, if the machine stalls for 3 s, the sentinels replace a master that is alive.
        .arg("sentinel", &about("down-after-milliseconds", "3000"))
        .arg("sentinel", &about("failover-timeout", "5000"));
    match password {
        Some(password) => watching.arg("sentinel", &about("auth-pass", &quoted(password))),
        None => watching,
    }
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn start_all<'a>(settings: impl Iterator<Item = &'a Builder>) -> Vec<RedisServer> {
    let started = thread::scope(|scope| {
        let starting: Vec<_> = settings
            .map(|settings| scope.spawn(|| settings.clone().start()))
            .collect();
        let started = starting
            .into_iter()
            .map(|server| server.join().expect("no panic"));
        started.collect::<io::Result<Vec<_>>>()
    });
    started.expect("redis-server starts; install it")
}

fn answers(server: &RedisServer) -> bool {
    // A suspended process is not queried, because waiting for its answer would take the whole time
    // limit.
    server.is_running() && server.command(&["PING"]).is_ok()
}

fn replication(server: &RedisServer) -> String {
    let info = run(server, &["INFO", "replication"]);
    info.as_text().unwrap_or_default().to_owned()
}

fn is_master(server: &RedisServer) -> bool {
    server.is_running() && replication(server).contains("role:master")
}

fn is_in_step(server: &RedisServer) -> bool {
    replication(server).contains("master_link_status:up")
}

/// Returns to how many replicas the server sends its writes. It does so as soon as a replica has
/// reported its position, not as soon as the replica has connected.
fn fed_by(server: &RedisServer) -> usize {
    let info = replication(server);
    let fed = info.lines().filter(|line| {
        line.starts_with("slave") && line.contains("state=online") && !line.contains("offset=0,")
    });
    fed.count()
}

/// Runs a command. Returns `Nil` if the server has just been killed.
fn run(server: &RedisServer, command: &[&str]) -> Reply {
    server.command(command).unwrap_or(Reply::Nil)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_takes_over_from_its_master() {
        let sentinels = Sentinels::start(1);
        assert_eq!(sentinels.master(), 0);
        let set = sentinels.servers[0].command(&["SET", "x", "1"]);
        assert_eq!(set.expect("it runs").as_text(), Some("OK"));
        assert_eq!(sentinels.fail_over(), 1);
        assert_eq!(sentinels.keys(), ["x"]);
    }

    #[test]
    fn dead_master_is_replaced_and_comes_back_as_a_replica() {
        let servers = RedisServer::builder().user("ann", "pw");
        let watching = RedisServer::builder().password("watch");
        let sentinels = Sentinels::of(&servers, &watching, 1);
        let url = sentinels.url();
        assert!(
            url.starts_with("redis-sentinel://ann:pw@127.0.0.1:"),
            "{url}"
        );
        assert!(url.ends_with("/mymaster?sentinel_pass=watch"), "{url}");
        sentinels.servers[0].kill().expect("it is ours");
        assert_eq!(sentinels.wait_until_replaced(0), 1);
        sentinels.servers[0].restart().expect("it starts again");
        // The test does not check which server is the master at the end, because if the machine
        // stalls, the sentinels may replace the new master too.
        eventually("the old master is a replica", AGREED_WITHIN, || {
            is_in_step(&sentinels.servers[0])
        });
        sentinels.wait_until_whole();
    }
}
