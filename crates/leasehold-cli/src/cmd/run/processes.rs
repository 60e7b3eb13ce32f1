//! The processes of this machine, as `/proc` shows them.

use nix::unistd::Pid;

/// A process, as it was when it was read.
pub(super) struct Process {
    /// The name that `ps` shows, of at most 15 bytes.
    pub(super) name: String,
    parent: Pid,
    group: Pid,
    /// Whether the process has ended, but its parent has not reaped it yet.
    pub(super) has_ended: bool,
    /// The time at which the process began, in ticks since the machine was started. If two
    /// processes had the same number, one of them began later.
    pub(super) began: u64,
}

impl Process {
    /// Reads the state of a process. `None` if it does not exist, or if the system does not show
    /// processes.
    pub(super) fn look_at(id: Pid) -> Option<Self> {
        is_ours().then(|| Self::found(id)).flatten()
    }

    fn found(id: Pid) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name may contain anything, including brackets.
        let (name, rest) = stat.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        Some(Self {
            name: name.split_once('(')?.1.to_owned(),
            has_ended: words.next()? == "Z",
            parent: Pid::from_raw(words.next()?.parse().ok()?),
            group: Pid::from_raw(words.next()?.parse().ok()?),
            began: words.nth(16)?.parse().ok()?,
        })
    }
}

/// Returns whether `/proc` shows the processes that this process sees. `/proc` may be missing, or
/// may belong to another namespace, where the numbers mean other processes.
fn is_ours() -> bool {
    let shown = std::fs::read_link("/proc/self").ok();
    shown.is_some_and(|shown| shown.to_str() == Some(&Pid::this().to_string()))
}

/// Returns all processes. `None` if the system does not show processes.
fn all() -> Option<impl Iterator<Item = (Pid, Process)>> {
    if !is_ours() {
        return None;
    }
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Some(ids.filter_map(|id| {
        let id = Pid::from_raw(id);
        Some((id, Process::found(id)?))
    }))
}

/// Returns the children of this process that have ended.
pub(super) fn ended_children() -> impl Iterator<Item = Pid> {
    let children = all().into_iter().flatten();
    let ended = children.filter(|(_, child)| child.has_ended && child.parent == Pid::this());
    ended.map(|(id, _)| id)
}

/// Returns whether a process of this group is alive. `None` if the system does not show this.
pub(super) fn is_alive(group: Pid) -> Option<bool> {
    all().map(|mut all| all.any(|(_, one)| one.group == group && !one.has_ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_may_hold_anything() {
        let stat = "42 (a) Z (b) R 7 40 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8128 2000 200";
        let process = Process::read(stat).expect("it is complete");
        assert_eq!(process.name, "a) Z (b");
        assert_eq!(process.parent, Pid::from_raw(7));
        assert_eq!(process.group, Pid::from_raw(40));
        assert!(!process.has_ended);
        assert_eq!(process.began, 8128);
    }

    #[test]
    fn this_process_is_shown() {
        let process = Process::look_at(Pid::this()).expect("it runs");
        assert!(!process.has_ended);
        assert_eq!(is_alive(process.group), Some(true));
    }
}
