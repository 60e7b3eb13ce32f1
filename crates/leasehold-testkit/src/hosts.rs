//! Two hosts, and a cable between them that a test can pull: network namespaces of one machine.

use std::{
    fmt, io,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Two hosts with a network between them that nobody else has. Gone when this is dropped.
///
/// It takes the right to make network namespaces, which root has as a rule.
pub struct Hosts {
    names: [String; 2],
}

/// The addresses of the hosts. Nobody outside sees them, so all pairs of hosts have the same.
const ADDRESSES: [&str; 2] = ["10.211.0.1", "10.211.0.2"];
/// What each calls its end of the cable.
const CABLE: &str = "cable";

impl Hosts {
    /// Makes them.
    ///
    /// # Errors
    ///
    /// When this process may not, or `ip` is not there; the error says what `ip` has said.
    pub fn start() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("leasehold-{}-{number}-{host}", std::process::id());
        let hosts = Self {
            names: ["a", "b"].map(name),
        };
        for name in &hosts.names {
            ip(&["netns", "add", name])?;
        }
        let [a, b] = &hosts.names;
        let veth = ["link", "add", CABLE, "netns", a, "type", "veth"];
        ip(&[&veth[..], &["peer", "name", CABLE, "netns", b]].concat())?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&[
                "-n",
                name,
                "addr",
                "add",
                &format!("{address}/30"),
                "dev",
                CABLE,
            ])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", CABLE, "up"])?;
        }
        Ok(hosts)
    }

    /// The address of a host, of which the other one knows.
    #[must_use]
    pub fn address(&self, host: usize) -> &'static str {
        ADDRESSES[host]
    }

    /// What stands before a command that runs on this host.
    #[must_use]
    pub fn on(&self, host: usize) -> Vec<String> {
        let words = ["ip", "netns", "exec", &self.names[host]];
        words.map(str::to_owned).into()
    }

    /// Pulls the cable: whatever is on its way is lost, and nobody is told.
    ///
    /// # Panics
    ///
    /// When it can't be pulled.
    pub fn cut(&self) {
        self.set("down");
    }

    /// Puts the cable back.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn join(&self) {
        self.set("up");
    }

    fn set(&self, state: &str) {
        ip(&["-n", &self.names[0], "link", "set", CABLE, state]).expect("the cable is ours");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was never made can't be removed.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hosts").field(&self.names).finish()
    }
}

fn ip(words: &[&str]) -> io::Result<()> {
    let done = Command::new("ip")
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "ip {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        ))),
    }
}
