//! The server of a command, and the connection to it.

#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "server/no_tls.rs"]
mod tls;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use leasehold::settings::{Credentials, Peers};
use leasehold::{Client, ClientBuilder};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::spawn_blocking;

use crate::cli::Tls;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::mapping::{self, Mapping};
use crate::output::Shown;

/// The environment variable that passes the URL to child processes. Every user of the machine can
/// read a process's arguments, and a URL may contain a password.
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_URL";
const VARIABLES: [&str; 2] = ["$LEASEHOLD_URL", "$REDIS_URL"];
/// The environment variable that names a password file, which may change while a command runs.
const PASSWORD_FILE: &str = "LEASEHOLD_PASSWORD_FILE";
/// The environment variable with mappings of addresses, like `--map`.
const MAP: &str = "LEASEHOLD_MAP";
const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

/// A server's URL. It may contain a password, so the type has no `Debug` and no `Display`.
pub(crate) struct Server {
    url: String,
    /// The flag or the variable in which the URL was given.
    source: &'static str,
}

impl Server {
    /// Returns the server that the flag names, or else the one that the environment names, or else
    /// the default.
    pub(crate) fn find(flag: Option<OsString>) -> Result<Self, Failure> {
        let (source, url) = match flag {
            Some(url) => ("--redis", url),
            None => VARIABLES
                .into_iter()
                .filter_map(|name| Some((name, std::env::var_os(&name[1..])?)))
                .find(|(_, url)| !url.is_empty())
                .unwrap_or(("", DEFAULT_URL.into())),
        };
        Self::named(source, url)
    }

    /// Returns the server at `url`. `source` says where the URL was given: in a flag, or in a
    /// variable, which is written with its `$`.
    pub(crate) fn named(source: &'static str, url: OsString) -> Result<Self, Failure> {
        match url.into_string() {
            Ok(url) if !url.is_empty() => {
                tls::check_url(&url)?;
                Ok(Self { url, source })
            }
            Ok(_) => Err(Failure::usage(format!(
                "the URL of {source} is empty; write it as redis://HOST:PORT"
            ))),
            Err(_) => Err(Failure::usage(format!(
                "the URL of {source} is not UTF-8; write it as redis://HOST:PORT"
            ))),
        }
    }

    /// Returns the server if other processes can reach it. A lock in this process's own memory
    /// can't exclude other processes.
    pub(crate) fn shared(self) -> Result<Self, Failure> {
        if !self.is_embedded() {
            return Ok(self);
        }
        Err(Failure::usage(format!(
            "{} is memory://, which no other process sees, so a lock there keeps no other process out; \
             write the URL of a server: redis://HOST:PORT",
            self.source
        )))
    }

    /// Returns whether the URL names a keyspace in this process, which no other process can reach.
    pub(crate) fn is_embedded(&self) -> bool {
        self.url.trim() == "memory://"
    }

    /// Returns the URL, for the environment of a child process only.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Creates a client that connects in the background, and keeps trying. A wait tolerates a
    /// server that has never answered for as long as a server that has stopped answering.
    pub(crate) fn connect_in_background(&self, terms: Terms) -> Result<Client, Failure> {
        Ok(terms.builder()?.connect_in_background(&self.url)?)
    }

    /// Creates a client like [`Self::connect_in_background`], for a wait after which nothing is
    /// held.
    pub(crate) fn connect_for_waits(&self) -> Result<Client, Failure> {
        Ok(builder()?.connect_in_background(&self.url)?)
    }

    /// Connects. `lease` sets the lease of renewed holds.
    pub(crate) async fn connect(&self, lease: Option<Duration>) -> Result<Client, Failure> {
        let builder = lease.into_iter().fold(builder()?, ClientBuilder::lease);
        Ok(builder.connect(&self.url).await?)
    }
}

/// The terms on which a command holds its lock.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    pub(crate) failover_guard: Option<Duration>,
    /// Whether no Redisson client uses the lock.
    pub(crate) rust_only: bool,
}

impl Terms {
    fn builder(self) -> Result<ClientBuilder, Failure> {
        let mut builder = builder()?.lease(self.lease);
        // A failover guard is possible only if Redisson does not use the lock.
        if self.rust_only || self.failover_guard.is_some() {
            builder = builder.peers(Peers::RustOnly);
        }
        Ok(match self.failover_guard {
            Some(span) => builder.failover_guard(span),
            None => builder,
        })
    }
}

/// The settings of all connections of this command.
pub(crate) struct Access {
    pub(crate) label: Option<String>,
    /// The label that was given with `--label`. `label` may instead be the name of the command that
    /// runs.
    pub(crate) named_label: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) map: Vec<Mapping>,
    pub(crate) tls: Tls,
}

impl Access {
    /// Returns flags that give these settings to a child process. No flag contains a secret:
    /// passwords and keys are files, and the URL has a variable.
    fn flags(&self) -> Vec<OsString> {
        let text = |flag, text: &Option<String>| Some((flag, text.clone()?.into()));
        let file = |flag, file: &Option<PathBuf>| Some((flag, file.clone()?.into()));
        let map = self.map.iter().map(|map| ("--map", map.to_string().into()));
        let flags = [
            text("--label", &self.label),
            text("--prefix", &self.prefix),
            text("--sni", &self.tls.sni),
            file("--password-file", &self.password_file),
            file("--cacert", &self.tls.cacert),
            file("--cert", &self.tls.cert),
            file("--key", &self.tls.key),
        ];
        let flags: Vec<(&str, OsString)> = flags.into_iter().flatten().chain(map).collect();
        let flags = flags.into_iter().map(|(flag, value)| {
            // Put the flag and its value into one word, because a value may begin with a dash.
            let mut word = OsString::from(flag);
            word.push("=");
            word.push(value);
            word
        });
        flags.collect()
    }
}

static ACCESS: OnceLock<Access> = OnceLock::new();

/// Returns the flags with which a child process connects to a server in the same way as this
/// process.
pub(crate) fn access_flags() -> Vec<OsString> {
    ACCESS.get().map_or_else(Vec::new, Access::flags)
}

/// Returns the label that the user has chosen for this command, or for all commands on this
/// machine.
pub(crate) fn named_label() -> Option<String> {
    let named = ACCESS.get().and_then(|access| access.named_label.clone());
    let of_machine = || std::env::var("LEASEHOLD_LABEL").ok();
    named.or_else(of_machine).filter(|label| !label.is_empty())
}

/// Sets the access of all clients. Must be called before the first client is created.
pub(crate) fn set_access(access: Access) {
    // This function is called only once, so the cell is empty.
    let _ = ACCESS.set(access);
}

/// Returns a client builder with the settings of [`Access`].
fn builder() -> Result<ClientBuilder, Failure> {
    let mut builder = Client::builder();
    let Some(access) = ACCESS.get() else {
        return Ok(builder);
    };
    if let Some(label) = &access.label {
        builder = builder.label(label);
    }
    if let Some(prefix) = &access.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(path) = password_file(access) {
        builder = with_password_file(builder, path)?;
    }
    let map = mappings(access)?;
    if !map.is_empty() {
        builder =
            builder.map_address(move |host, port| map.iter().find_map(|map| map.lead(host, port)));
    }
    tls::with_tls(builder, &access.tls)
}

fn password_file(access: &Access) -> Option<PathBuf> {
    let told = std::env::var_os(PASSWORD_FILE).filter(|path| !path.is_empty());
    access
        .password_file
        .clone()
        .or_else(|| told.map(Into::into))
}

fn mappings(access: &Access) -> Result<Vec<Mapping>, Failure> {
    if !access.map.is_empty() {
        return Ok(access.map.clone());
    }
    let told = std::env::var_os(MAP).unwrap_or_default();
    mapping::parse_all(&told.to_string_lossy())
        .map_err(|what| Failure::usage(format!("${MAP} is not a list of mappings: {what}")))
}

/// The password that was read from a pipe, or from another path that is not a regular file. It can
/// be read only once, and this process may have several clients.
static READ_ONCE: Mutex<Option<String>> = Mutex::new(None);

/// Makes the client read the password file at each connect, and at intervals while it is connected.
fn with_password_file(builder: ClientBuilder, path: PathBuf) -> Result<ClientBuilder, Failure> {
    let unreadable = |what| Failure::new(Exit::Unreadable, what);
    if !path.is_file() {
        let mut kept = READ_ONCE.lock().unwrap_or_else(PoisonError::into_inner);
        let password = match kept.take() {
            Some(password) => password,
            None => read_password(&path).map_err(unreadable)?,
        };
        *kept = Some(password.clone());
        return Ok(builder
            .credentials(move || std::future::ready(Ok(Credentials::password(password.clone())))));
    }
    read_password(&path).map_err(unreadable)?;
    let reading = Arc::new(AsyncMutex::new(()));
    Ok(builder.credentials(move || {
        let (path, reading) = (path.clone(), Arc::clone(&reading));
        async move {
            // If the file system does not answer, at most one thread is blocked, and that thread
            // renews nothing.
            let reads = reading.lock_owned().await;
            let read = move || {
                let _reads = reads;
                read_password(&path)
            };
            Ok(Credentials::password(spawn_blocking(read).await??))
        }
    }))
}

fn read_password(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| unreadable("password file", path, &error))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        _ => error.to_string(),
    };
    let path = path.to_string_lossy();
    format!("cannot read the {what} `{}`: {why}", Shown(&path))
}
