//! SQL databases, which tests use through the databases' command-line clients.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a database may take to start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The user that runs PostgreSQL if this process is root, because PostgreSQL refuses to run as
/// root.
const NOBODY: u32 = 65534;

/// The kind of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "for tests of this repository only")]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// SQLite. It has no server.
    Sqlite,
}

/// A database in its own folder, which listens on a Unix socket. Dropping it kills the server.
#[derive(Debug)]
pub struct Database {
    kind: Kind,
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Database {
    /// Starts an empty database. Returns `None` if its programs are not installed.
    ///
    /// # Errors
    ///
    /// Returns an error if the database can't be created or does not start.
    pub fn start(kind: Kind) -> io::Result<Option<Self>> {
        let Some(programs) = Programs::find(kind) else {
            return Ok(None);
        };
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir()?;
        let mut database = Self {
            kind,
            dir,
            server: None,
        };
        database.server = match kind {
            Kind::Postgres => Some(start_postgres(&programs, database.dir.path())?),
            Kind::MariaDb => Some(start_mariadb(&programs, database.dir.path())?),
            Kind::Sqlite => None,
        };
        database.wait_until_ready()?;
        if kind == Kind::MariaDb {
            let mut create = database.client("");
            run(create.arg("--execute=CREATE DATABASE test"))?;
        }
        Ok(Some(database))
    }

    /// Starts a session, which is one connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the client can't be started.
    pub fn session(&self) -> io::Result<Session> {
        let mut client = self.client("test");
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = client.spawn()?;
        let missing = || io::Error::other("no pipe");
        Ok(Session {
            input: child.stdin.take().ok_or_else(missing)?,
            output: BufReader::new(child.stdout.take().ok_or_else(missing)?),
            child,
            kind: self.kind,
            marks: 0,
        })
    }

    fn client(&self, database: &str) -> Command {
        let dir = self.dir.path();
        let mut client = match self.kind {
            Kind::Postgres => {
                let mut client = Command::new("psql");
                client.args(["-X", "-t", "-A", "-U", "test", "-d", "postgres", "-h"]);
                client.arg(dir);
                client
            }
            Kind::MariaDb => {
                let mut client = Command::new("mariadb");
                client.args(["--no-defaults", "--batch", "--skip-column-names"]);
                client.args(["--unbuffered", "--force", "--user=root"]);
                client.arg(format!("--socket={}", dir.join("socket").display()));
                client.args(Some(database).filter(|name| !name.is_empty()));
                client
            }
            Kind::Sqlite => {
                let mut client = Command::new("sqlite3");
                client.args(["-batch", "-cmd", ".timeout 60000"]);
                client.arg(dir.join("data"));
                client
            }
        };
        client.stderr(Stdio::inherit());
        client
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        let log = self.dir.path().join("log");
        let failed = || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            io::Error::other(format!("the database does not start:\n{log}"))
        };
        loop {
            let mut client = self.client("");
            client.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut client = client.stderr(Stdio::null()).spawn()?;
            if let Some(mut input) = client.stdin.take() {
                // If the client could not connect, it has closed its input, and this write fails.
                let _ = input.write_all(b"SELECT 1;\n");
            }
            if client.wait()?.success() {
                return Ok(());
            }
            let has_ended = match &mut self.server {
                Some(server) => server.try_wait()?.is_some(),
                None => true,
            };
            if has_ended || Instant::now() > deadline {
                return Err(failed());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // The folder is removed, so nothing needs to be saved.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A connection to a database. Statements run one after the other.
#[derive(Debug)]
pub struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    kind: Kind,
    marks: usize,
}

impl Session {
    /// Runs statements, and returns the lines that the client printed for them. `psql` also prints
    /// the result of each statement, such as `INSERT 0 1`.
    ///
    /// # Panics
    ///
    /// Panics if the client has ended.
    pub fn run(&mut self, statements: &str) -> Vec<String> {
        self.send(statements);
        self.finish()
    }

    /// Sends statements without waiting for them.
    ///
    /// # Panics
    ///
    /// Panics if the client has ended.
    pub fn send(&mut self, statements: &str) {
        self.marks += 1;
        let mark = match self.kind {
            Kind::Sqlite => format!(".print mark{}\n", self.marks),
            Kind::Postgres => format!("\\echo mark{}\n", self.marks),
            Kind::MariaDb => format!("SELECT 'mark{}';\n", self.marks),
        };
        let text = format!("{statements}\n{mark}");
        self.input
            .write_all(text.as_bytes())
            .and_then(|()| self.input.flush())
            .expect("the client of the database runs");
    }

    /// Waits for the statements that [`send`](Self::send) sent, and returns the printed lines.
    ///
    /// # Panics
    ///
    /// Panics if the client has ended.
    pub fn finish(&mut self) -> Vec<String> {
        let mark = format!("mark{}", self.marks);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("it is text");
            assert!(read > 0, "the client of the database has ended: {lines:?}");
            let line = line.trim_end();
            if line == mark {
                return lines;
            }
            lines.push(line.to_owned());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The programs that create and start a database.
struct Programs {
    create: PathBuf,
    server: PathBuf,
}

impl Programs {
    fn find(kind: Kind) -> Option<Self> {
        let found = match kind {
            Kind::Sqlite => Self {
                create: find("sqlite3")?,
                server: PathBuf::new(),
            },
            Kind::MariaDb => Self {
                create: find("mariadb-install-db")?,
                server: find("mariadbd")?,
            },
            Kind::Postgres => {
                find("psql")?;
                // Debian keeps the programs of the server out of `PATH`.
                let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
                let folders = versions.flatten().map(|entry| entry.path().join("bin"));
                let folder = folders
                    .filter(|folder| folder.join("initdb").exists())
                    .max()?;
                Self {
                    create: folder.join("initdb"),
                    server: folder.join("postgres"),
                }
            }
        };
        Some(found)
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut programs = folders.map(|folder| folder.join(program));
    programs.find(|program| program.exists())
}

fn is_root() -> io::Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

fn start_postgres(programs: &Programs, dir: &Path) -> io::Result<Child> {
    let data = dir.join("data");
    let is_root = is_root()?;
    if is_root {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        chown(dir, Some(NOBODY), Some(NOBODY))?;
    }
    let command = |program: &Path| {
        let mut command = Command::new(program);
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        // That user may not be allowed to read this process's working folder.
        command.current_dir(dir).arg("-D").arg(&data);
        command
    };
    let mut create = command(&programs.create);
    run(create.args(["-U", "test", "-A", "trust", "-E", "UTF8", "--no-sync"]))?;
    let log = fs::File::create(dir.join("log"))?;
    command(&programs.server)
        .arg("-k")
        .arg(dir)
        .args(["-c", "listen_addresses=", "-c", "fsync=off"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

fn start_mariadb(programs: &Programs, dir: &Path) -> io::Result<Child> {
    let data = format!("--datadir={}", dir.join("data").display());
    // MariaDB runs as root only if this is requested.
    let user = is_root()?.then_some("--user=root");
    // Two databases that are created at the same time would delete each other's temporary files.
    let temporary = format!("--tmpdir={}", dir.display());
    let mut create = Command::new(&programs.create);
    let create = create.args(["--no-defaults", "--skip-test-db", &data, &temporary]);
    run(create
        .arg("--auth-root-authentication-method=normal")
        .args(user))?;
    let log = fs::File::create(dir.join("log"))?;
    Command::new(&programs.server)
        .args(["--no-defaults", "--skip-networking", &data, &temporary])
        .arg("--innodb-flush-log-at-trx-commit=0")
        .arg(format!("--socket={}", dir.join("socket").display()))
        .arg(format!("--pid-file={}", dir.join("pid").display()))
        .args(user)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Runs a command, and waits until it has ended.
fn run(command: &mut Command) -> io::Result<()> {
    let done = command.stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("{command:?}: {said}")))
}
