//! Two hosts, and a cable between them that a test can pull. The hosts are network namespaces of
//! one machine.

use std::{
    fmt, io,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Two hosts with a private network between them. They are removed when this value is dropped.
///
/// The process needs the permission to create network namespaces, which root usually has.
pub struct Hosts {
    names: [String; 2],
}

/// The addresses of the hosts. They are not visible outside the namespaces, so all values of
/// [`Hosts`] use the same addresses.
const ADDRESSES: [&str; 2] = ["10.211.0.1", "10.211.0.2"];
/// The name of the network interface at each end of the cable.
const CABLE: &str = "cable";

impl Hosts {
    /// Creates the two hosts.
    ///
    /// # Errors
    ///
    /// Fails if this process lacks the permission, or if the program `ip` is missing. The error
    /// contains the output of `ip`.
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

    /// Returns the address of a host, which the other host can reach.
    #[must_use]
    pub fn address(&self, host: usize) -> &'static str {
        ADDRESSES[host]
    }

    /// Returns the program and arguments to put in front of a command in order to run it on this
    /// host.
    #[must_use]
    pub fn on(&self, host: usize) -> Vec<String> {
        let words = ["ip", "netns", "exec", &self.names[host]];
        words.map(str::to_owned).into()
    }

    /// Pulls the cable. All packets in flight are lost, and neither side notices.
    ///
    /// # Panics
    ///
    /// Panics if the cable can't be pulled.
    pub fn cut(&self) {
        self.set("down");
    }

    /// Puts the cable back.
    ///
    /// # Panics
    ///
    /// Panics if that fails.
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
            // If the namespace was never created, it can't be removed.
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
