//! A Redis server for one test.

use std::{
    env, fmt, fs,
    io::{self, BufReader},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    clock_shim::ClockShim,
    heard::Heard,
    hosts::Hosts,
    port::Port,
    process,
    reply::{Reply, call, call_all},
    tls,
};

/// A `redis-server` process on the loopback interface, with its own temporary folder.
///
/// The program is `redis-server` from the `PATH`, or the program in `LEASEHOLD_REDIS_SERVER` or
/// [`Builder::program`], which can be Redis or Valkey; `scripts/servers` installs both. The process
/// is killed when this value is dropped.
pub struct RedisServer {
    settings: Builder,
    dir: TempDir,
    port: Option<Port>,
    ca_pem: String,
    child: Mutex<Child>,
}

impl RedisServer {
    /// Starts a plain, empty server, without a password or TLS.
    ///
    /// # Errors
    ///
    /// Fails if the program is missing or ends at once. The error contains its log.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// Returns the settings for a server, which can be changed before it starts.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns whether a server program is installed.
    pub fn available() -> bool {
        Command::new(program())
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Returns the URL for clients, with user and password if there are any.
    pub fn url(&self) -> String {
        let Builder { user, password, .. } = &self.settings;
        if self.settings.unix_socket {
            let query = match (user, password) {
                (Some((user, password)), _) => format!("?user={user}&pass={password}"),
                (None, Some(password)) => format!("?pass={password}"),
                (None, None) => String::new(),
            };
            return format!("redis+unix://{}{query}", self.socket().display());
        }
        let credentials = match (user, password) {
            (Some((user, password)), _) => format!("{user}:{password}@"),
            (None, Some(password)) => format!(":{password}@"),
            (None, None) => String::new(),
        };
        let port = self.port();
        if self.settings.tls.is_some() {
            format!("rediss://{credentials}localhost:{port}")
        } else {
            format!("redis://{credentials}{}:{port}", self.host())
        }
    }

    /// Returns the address on which the server listens. If the server runs on one of two [`Hosts`],
    /// this is the address of that host.
    pub fn host(&self) -> &'static str {
        self.settings.address()
    }

    /// Returns the TCP port, or 0 if the server listens on a socket only.
    pub fn port(&self) -> u16 {
        self.port.as_ref().map_or(0, Port::number)
    }

    /// Returns the process id, which changes at [`RedisServer::restart`].
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Returns the certificate that signed the server's certificate, or an empty string without
    /// TLS.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// For a server with TLS, returns the files of certificates and keys for clients. The CA has
    /// signed the certificates. There are three pairs of files, and all are equally valid.
    #[must_use]
    pub fn client_certificates(&self) -> Vec<(PathBuf, PathBuf)> {
        let file = |name: String| self.dir.path().join(name);
        let numbers = 0..tls::CLIENTS;
        numbers
            .map(|n| {
                (
                    file(format!("client{n}.pem")),
                    file(format!("client{n}.key")),
                )
            })
            .collect()
    }

    /// Returns the path of the file that contains [`ca_pem`](Self::ca_pem).
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Runs one command on a new connection, which uses neither the TCP port nor TLS.
    ///
    /// # Errors
    ///
    /// Fails if the server does not run, or does not answer within 10 s. A refusal by the server is
    /// a [`Reply::Error`].
    pub fn command(&self, command: &[&str]) -> io::Result<Reply> {
        call(&mut self.connect()?, command)
    }

    /// Runs several commands on one new connection. That takes much less time than a connection for
    /// each of them.
    ///
    /// # Errors
    ///
    /// Like [`command`](Self::command).
    pub fn commands(&self, commands: &[&[&str]]) -> io::Result<Vec<Reply>> {
        call_all(&mut self.connect()?, commands)
    }

    /// Like [`commands`](Self::commands), for keys in a slot that is being moved to this cluster
    /// node.
    ///
    /// # Errors
    ///
    /// Like [`command`](Self::command).
    pub fn asking(&self, commands: &[&[&str]]) -> io::Result<Vec<Reply>> {
        let asking: &[&str] = &["ASKING"];
        let all: Vec<_> = commands.iter().flat_map(|one| [asking, one]).collect();
        let replies = self.commands(&all)?;
        Ok(replies.into_iter().skip(1).step_by(2).collect())
    }

    /// Returns how often the server has run a command such as `hset`, including calls from scripts.
    /// Refused calls are not counted.
    ///
    /// # Panics
    ///
    /// Panics if the server does not answer.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]).expect("it runs");
        let stats = stats.as_text().expect("a text");
        let prefix = format!("cmdstat_{command}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        let calls = calls.and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Returns how many scripts the server has run.
    ///
    /// # Panics
    ///
    /// Like [`calls`](Self::calls).
    pub fn scripts(&self) -> u64 {
        self.calls("eval") + self.calls("evalsha")
    }

    /// Starts to listen to every channel, and to changes to every key.
    ///
    /// # Panics
    ///
    /// Panics if the server does not answer.
    pub fn listen(&self) -> Heard {
        let set = self.command(&["CONFIG", "SET", "notify-keyspace-events", "KA"]);
        assert_eq!(set.expect("it runs"), Reply::Text("OK".to_owned()));
        Heard::new(self.connect().expect("it runs"))
    }

    fn connect(&self) -> io::Result<BufStream> {
        let stream = UnixStream::connect(self.socket())?;
        // A suspended server accepts connections, but never answers.
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut stream = BufStream(BufReader::new(stream));
        if let Some(password) = self.settings.admin_password() {
            call(&mut stream, &["AUTH", password])?;
        }
        Ok(stream)
    }

    /// Returns all keys, sorted, except those in which clients announce themselves.
    ///
    /// # Panics
    ///
    /// Panics if the server does not answer.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = self.texts(&["KEYS", "*"]);
        keys.retain(|key| !key.starts_with("leasehold:client"));
        keys
    }

    /// Returns all channels that have subscribers, sorted.
    ///
    /// # Panics
    ///
    /// Panics if the server does not answer.
    pub fn channels(&self) -> Vec<String> {
        self.texts(&["PUBSUB", "CHANNELS"])
    }

    /// Kills the process, which has no chance to clean up. Does nothing if the process has already
    /// ended.
    ///
    /// # Errors
    ///
    /// Fails if the signal cannot be sent.
    pub fn kill(&self) -> io::Result<()> {
        kill(&mut self.child())
    }

    /// Kills the server, which has no chance to clean up, and starts it again on the same port. The
    /// server is then empty, or has the data in its append-only file if it was set to write one.
    ///
    /// # Errors
    ///
    /// Like [`RedisServer::start`].
    pub fn restart(&self) -> io::Result<()> {
        let mut child = self.child();
        kill(&mut child)?;
        *child = self.settings.spawn(self.dir.path())?;
        self.wait_until_ready(&mut child)
    }

    /// Returns the length of the append-only file.
    ///
    /// # Errors
    ///
    /// Fails if the server was not set to write such a file (`appendonly`).
    pub fn log_length(&self) -> io::Result<u64> {
        Ok(fs::metadata(self.appended()?)?.len())
    }

    /// Cuts the append-only file to this length, as if the power had failed before the rest was
    /// written to disk. The server must not be running.
    ///
    /// # Errors
    ///
    /// Like [`log_length`](Self::log_length).
    pub fn cut_log(&self, length: u64) -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(self.appended()?)?;
        file.set_len(length)
    }

    fn appended(&self) -> io::Result<PathBuf> {
        let dir = self.dir.path();
        // Servers before 7.0 write a single file and no folder.
        let parts = match fs::read_dir(dir.join("appendonlydir")) {
            Ok(parts) => parts,
            Err(_) => fs::read_dir(dir)?,
        };
        let mut paths = parts.filter_map(|part| Some(part.ok()?.path()));
        let is_appended = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name == "appendonly.aof" || name.ends_with(".incr.aof")
        };
        let found = paths.find(is_appended);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns whether the process is running: whether it is neither killed nor suspended.
    pub fn is_running(&self) -> bool {
        let ended = self.child().try_wait();
        ended.is_ok_and(|ended| ended.is_none()) && !process::is_paused(self.pid())
    }

    /// Suspends the process. Its connections are not closed, but requests are not answered.
    ///
    /// # Errors
    ///
    /// Fails if the signal cannot be sent.
    pub fn pause(&self) -> io::Result<()> {
        process::pause(self.pid())
    }

    /// Resumes a suspended server.
    ///
    /// # Errors
    ///
    /// Fails if the signal cannot be sent.
    pub fn resume(&self) -> io::Result<()> {
        process::resume(self.pid())
    }

    fn texts(&self, command: &[&str]) -> Vec<String> {
        let reply = match self.command(command) {
            Ok(Reply::Array(elements)) => elements,
            other => panic!("{command:?} was answered with {other:?}"),
        };
        let mut texts: Vec<String> = reply
            .into_iter()
            .map(|element| match element {
                Reply::Text(text) => text,
                other => format!("{other:?}"),
            })
            .collect();
        texts.sort();
        texts
    }

    fn socket(&self) -> PathBuf {
        socket(self.dir.path())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        // If a test panicked while it held the lock, the server must still be killed.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the server answers on its socket. Then the ports are open, too, because the
    /// server opens all of them before it answers on any, and exits if it can't open one.
    fn wait_until_ready(&self, child: &mut Child) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
                let text = format!("redis-server ended with {status}:\n{log}");
                return Err(io::Error::other(text));
            }
            if matches!(self.command(&["PING"]), Ok(Reply::Text(_))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // A failure can't be reported from a drop.
        let _ = kill(&mut self.child());
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServer")
            .field("url", &self.url())
            .field("pid", &self.pid())
            .finish()
    }
}

/// Settings of a [`RedisServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before `start`"]
pub struct Builder {
    program: Option<PathBuf>,
    password: Option<String>,
    user: Option<(String, String)>,
    rules: Option<String>,
    tls: Option<Arc<tls::Authority>>,
    wants_certificates: bool,
    unix_socket: bool,
    args: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    is_sentinel: bool,
    /// The address of the host, and the program and arguments that run a command there.
    host: Option<(&'static str, Vec<String>)>,
}

impl Builder {
    /// Sets the default user's password. By default there is none.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user with all permissions. [`RedisServer::url`] has this user's name. Unless a
    /// password is set for the default user, that user is disabled, so that a client that forgets
    /// to log in fails.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// Restricts the [`user`](Self::user) to these rules, in the server's notation, such as `"~* &*
    /// +get"`.
    pub fn rules(mut self, rules: &str) -> Self {
        self.rules = Some(rules.to_owned());
        self
    }

    /// Sets the program to start, which takes precedence over the environment.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Listens with TLS only. Clients must trust [`RedisServer::ca_pem`]. The certificate is valid
    /// for `localhost` and `127.0.0.1`.
    ///
    /// # Panics
    ///
    /// Panics if a key can't be created.
    pub fn tls(self) -> Self {
        self.tls_for(&["localhost", "127.0.0.1"])
    }

    /// Like [`tls`](Self::tls), with a certificate for these hosts.
    ///
    /// # Panics
    ///
    /// Like [`tls`](Self::tls).
    pub fn tls_for(mut self, hosts: &[&str]) -> Self {
        self.tls = Some(Arc::new(tls::Authority::of(hosts)));
        self
    }

    /// Like [`tls`](Self::tls), with a certificate that has expired. Servers that check each
    /// other's certificates can't be used with it.
    ///
    /// # Panics
    ///
    /// Like [`tls`](Self::tls).
    pub fn tls_expired(mut self) -> Self {
        let authority = tls::Authority::expired(&["localhost", "127.0.0.1"]);
        self.tls = Some(Arc::new(authority));
        self
    }

    /// Like [`tls_for`](Self::tls_for), with a self-signed certificate that is also an authority,
    /// like the ones that `openssl req -x509` creates. [`RedisServer::ca_pem`] returns this
    /// certificate.
    ///
    /// # Panics
    ///
    /// Like [`tls`](Self::tls).
    pub fn tls_self_signed(mut self, hosts: &[&str]) -> Self {
        self.tls = Some(Arc::new(tls::Authority::self_signed(hosts, false)));
        self
    }

    /// Like [`tls_self_signed`](Self::tls_self_signed), with a certificate that has expired.
    ///
    /// # Panics
    ///
    /// Like [`tls`](Self::tls).
    pub fn tls_self_signed_and_expired(mut self, hosts: &[&str]) -> Self {
        self.tls = Some(Arc::new(tls::Authority::self_signed(hosts, true)));
        self
    }

    /// Like [`tls`](Self::tls), but a client must present a certificate: see
    /// [`RedisServer::client_certificates`].
    pub fn tls_with_client_certificates(mut self) -> Self {
        self.wants_certificates = true;
        self.tls()
    }

    /// Listens on a Unix socket only.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Sets an option of the server, in the form of its command line, such as `("--maxmemory",
    /// "1mb")`.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        let name = name.trim_start_matches('-');
        self.args.push(format!("{name} {value}"));
        self
    }

    /// Runs as a sentinel.
    pub(crate) fn sentinel(mut self) -> Self {
        self.is_sentinel = true;
        self
    }

    /// If both servers use TLS, signs this server's certificates with the other server's authority,
    /// so that clients need only one authority.
    pub(crate) fn certificates_as(mut self, other: &Self) -> Self {
        if self.tls.is_some() && other.tls.is_some() {
            self.tls.clone_from(&other.tls);
        }
        self
    }

    /// Runs the server on one of these hosts, which must not be dropped before the server. Only the
    /// two hosts can reach the server over the network. This process can reach it only with
    /// [`RedisServer::command`].
    pub fn on(mut self, hosts: &Hosts, host: usize) -> Self {
        self.host = Some((hosts.address(host), hosts.on(host)));
        self
    }

    fn address(&self) -> &'static str {
        self.host
            .as_ref()
            .map_or("127.0.0.1", |(address, _)| address)
    }

    /// Gives the server this wall clock, which must not be dropped before the server.
    pub fn clock(mut self, clock: &ClockShim) -> Self {
        self.environment = clock.environment().into();
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// Like [`RedisServer::start`].
    pub fn start(self) -> io::Result<RedisServer> {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir()?;
        let port = match self.unix_socket {
            true => None,
            false => Some(Port::take()?),
        };
        let number = port.as_ref().map_or(0, Port::number);
        let ca_pem = match &self.tls {
            Some(authority) => authority.write_certificates(dir.path())?,
            None => String::new(),
        };
        fs::write(dir.path().join(CONFIG), self.config(dir.path(), number))?;
        let server = RedisServer {
            child: Mutex::new(self.spawn(dir.path())?),
            settings: self,
            dir,
            port,
            ca_pem,
        };
        server.wait_until_ready(&mut server.child())?;
        Ok(server)
    }

    /// Returns the content of a configuration file. A file is better than arguments, because
    /// passwords may contain unusual characters and do not appear in the process list.
    fn config(&self, dir: &Path, port: u16) -> String {
        let path = |name: &str| format!("\"{}\"", dir.join(name).display());
        let mut lines = vec![
            "save \"\"".to_owned(),
            "appendonly no".to_owned(),
            "daemonize no".to_owned(),
            format!("bind {}", self.address()),
            format!("dir \"{}\"", dir.display()),
            // Every server listens on this socket, because `command` needs a connection that tests
            // do not disturb.
            format!("unixsocket \"{}\"", socket(dir).display()),
        ];
        if self.tls.is_some() {
            lines.push("port 0".to_owned());
            lines.push(format!("tls-port {port}"));
            // This setting is for connections between cluster nodes. Other servers ignore it.
            lines.push("tls-cluster yes".to_owned());
            let wants = if self.wants_certificates { "yes" } else { "no" };
            lines.push(format!("tls-auth-clients {wants}"));
            lines.push(format!("tls-ca-cert-file {}", path("ca.pem")));
            lines.push(format!("tls-cert-file {}", path("leaf.pem")));
            lines.push(format!("tls-key-file {}", path("leaf.key")));
            lines.push("tls-replication yes".to_owned());
        } else {
            lines.push(format!("port {port}"));
        }
        if self.host.is_some() {
            // In protected mode, a server without a password refuses clients on other hosts.
            lines.push("protected-mode no".to_owned());
        }
        if let Some(password) = self.admin_password() {
            lines.push(format!("requirepass \"{password}\""));
        }
        if let Some((user, password)) = &self.user {
            let rules = self.rules.as_deref().unwrap_or("~* &* +@all");
            lines.push(format!("user {user} on \">{password}\" {rules}"));
        }
        lines.extend_from_slice(&self.args);
        lines.push(String::new());
        lines.join("\n")
    }

    fn spawn(&self, dir: &Path) -> io::Result<Child> {
        // The log is emptied. Otherwise the last process's log would be taken for this process's.
        let log = fs::File::create(dir.join(LOG))?;
        let there = self.host.iter().flat_map(|(_, there)| there);
        let mut words = there.map(|word| PathBuf::from(word).into_os_string());
        let program = self.program.clone().unwrap_or_else(program);
        let mut command = match words.next() {
            Some(first) => Command::new(first),
            None => Command::new(&program),
        };
        if self.host.is_some() {
            command.args(words).arg(&program);
        }
        command
            .arg(dir.join(CONFIG))
            .args(self.is_sentinel.then_some("--sentinel"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    /// Returns the user and the password in [`RedisServer::url`].
    pub(crate) fn credentials(&self) -> (Option<&str>, Option<&str>) {
        match &self.user {
            Some((user, password)) => (Some(user), Some(password)),
            None => (None, self.password.as_deref()),
        }
    }

    /// Returns the default user's password.
    pub(crate) fn admin_password(&self) -> Option<&str> {
        let shut = self.user.as_ref().map(|_| "known to the testkit only");
        self.password.as_deref().or(shut)
    }
}

/// A socket with a buffer for reading.
pub(crate) struct BufStream(BufReader<UnixStream>);

impl io::Read for BufStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl io::BufRead for BufStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

impl io::Write for BufStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

fn program() -> PathBuf {
    env::var_os("LEASEHOLD_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from)
}

fn kill(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

const CONFIG: &str = "redis.conf";
const LOG: &str = "redis.log";

/// The time limit for a server's start. Tests start many servers at once, on busy machines.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for a command's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn server_answers_every_kind_of_reply() {
        let server = RedisServer::start().expect("redis-server is installed");
        let run = |command: &[&str]| server.command(command).expect("the server runs");

        assert_eq!(run(&["SET", "b", "1"]), Reply::Text("OK".to_owned()));
        assert_eq!(run(&["INCR", "b"]), Reply::Int(2));
        assert_eq!(run(&["GET", "none"]), Reply::Nil);
        assert_eq!(
            run(&["MGET", "b", "none"]),
            Reply::Array(vec![Reply::Text("2".to_owned()), Reply::Nil])
        );
        assert!(matches!(run(&["NOPE"]), Reply::Error(text) if text.starts_with("ERR")));
        run(&["SETBIT", "a", "0", "1"]);
        assert_eq!(run(&["GET", "a"]), Reply::Bytes(vec![0x80]));
        assert_eq!(server.keys(), ["a", "b"]);
        assert!(server.channels().is_empty());
        assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    }

    #[test]
    fn restarted_server_is_empty_on_same_port() {
        let server = RedisServer::start().expect("redis-server is installed");
        let before = (server.port(), server.pid());
        server.command(&["SET", "x", "1"]).expect("the server runs");

        server.kill().expect("the process is ours");
        assert!(server.command(&["PING"]).is_err());
        assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
        server.restart().expect("redis-server is installed");

        assert!(server.keys().is_empty());
        assert_eq!(server.port(), before.0);
        assert_ne!(server.pid(), before.1);
        assert!(TcpStream::connect(("127.0.0.1", server.port())).is_ok());
    }

    #[test]
    fn paused_server_answers_when_it_is_resumed() {
        let server = RedisServer::start().expect("redis-server is installed");
        server.pause().expect("the process is ours");
        thread::scope(|scope| {
            let answer = scope.spawn(|| server.command(&["PING"]));
            thread::sleep(Duration::from_millis(50));
            assert!(!answer.is_finished());
            server.resume().expect("the process is ours");
            let answer = answer.join().expect("the command does not panic");
            assert_eq!(
                answer.expect("the server runs"),
                Reply::Text("PONG".to_owned())
            );
        });
    }

    #[test]
    fn passwords_are_asked_for_and_in_the_url() {
        let server = RedisServer::builder()
            .password("se cret")
            .start()
            .expect("redis-server is installed");
        assert!(server.url().starts_with("redis://:se cret@127.0.0.1:"));
        assert!(server.keys().is_empty());

        let server = RedisServer::builder()
            .user("ann", "pw")
            .start()
            .expect("redis-server is installed");
        assert!(server.url().starts_with("redis://ann:pw@127.0.0.1:"));
        assert_eq!(
            server
                .command(&["AUTH", "ann", "pw"])
                .expect("the server runs"),
            Reply::Text("OK".to_owned())
        );
        assert!(matches!(
            server
                .command(&["AUTH", "ann", "no"])
                .expect("the server runs"),
            Reply::Error(_)
        ));
    }

    #[test]
    fn socket_server_has_no_port() {
        let server = RedisServer::builder()
            .unix_socket()
            .start()
            .expect("redis-server is installed");
        assert_eq!(server.port(), 0);
        assert!(server.url().starts_with("redis+unix:///"));
        assert!(server.keys().is_empty());
    }

    #[test]
    fn tls_server_presents_a_leaf_of_its_ca() {
        let server = RedisServer::builder()
            .tls()
            .start()
            .expect("redis-server is installed with TLS");
        assert!(server.ca_pem().starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(
            server.url(),
            format!("rediss://localhost:{}", server.port())
        );

        let verified = Command::new("redis-cli")
            .args(["--tls", "-h", "localhost", "-p", &server.port().to_string()])
            .arg("--cacert")
            .arg(server.dir.path().join("ca.pem"))
            .arg("PING")
            .output()
            .expect("redis-cli comes with redis-server");
        assert_eq!(String::from_utf8_lossy(&verified.stdout).trim(), "PONG");
    }

    #[test]
    fn settings_reach_the_server() {
        let server = RedisServer::builder()
            .arg("--maxmemory", "1mb")
            .start()
            .expect("redis-server is installed");
        let reply = server
            .command(&["CONFIG", "GET", "maxmemory"])
            .expect("the server runs");
        let value = reply.as_array().and_then(|pair| pair[1].as_text());
        assert_eq!(value, Some("1048576"));
    }

    #[test]
    fn server_that_cannot_start_says_why() {
        let error = RedisServer::builder()
            .arg("--no-such-setting", "1")
            .start()
            .expect_err("the setting does not exist");
        assert!(error.to_string().contains("no-such-setting"), "{error}");
    }

    #[test]
    fn another_program_is_started() {
        let error = RedisServer::builder()
            .program("/nowhere/valkey-server")
            .start()
            .expect_err("there is no such program");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_user_with_rules_may_do_nothing_else() {
        let server = RedisServer::builder()
            .user("ann", "pw")
            .rules("~x +get")
            .start()
            .expect("redis-server is installed");
        let mut stream = server.connect().expect("the server runs");
        let mut run = |command: &[&str]| call(&mut stream, command).expect("the server runs");
        run(&["AUTH", "ann", "pw"]);
        assert_eq!(run(&["GET", "x"]), Reply::Nil);
        assert!(matches!(run(&["GET", "y"]), Reply::Error(_)));
        assert!(matches!(run(&["DEL", "x"]), Reply::Error(_)));
    }

    #[test]
    fn dropped_server_is_gone() {
        let server = RedisServer::start().expect("redis-server is installed");
        let (pid, dir) = (server.pid(), server.dir.path().to_owned());
        drop(server);
        // Another test may have the server's port by now.
        let asked = Command::new("kill").args(["-0", &pid.to_string()]).output();
        assert!(!asked.expect("kill is installed").status.success());
        assert!(!dir.exists());
    }
}
