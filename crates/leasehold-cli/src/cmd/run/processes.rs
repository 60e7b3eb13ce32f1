//! The processes of this machine, as `/proc` shows them.

use nix::unistd::Pid;

/// A snapshot of a process.
pub(super) struct Process {
    parent: Pid,
    /// Whether the process has ended, and its parent has not reaped it yet.
    pub(super) has_ended: bool,
    /// The start time, in ticks since the machine was started. A process that has the number of an
    /// ended process began later.
    pub(super) began: u64,
}

impl Process {
    /// Looks at a process. `None` if it does not exist, or if the system shows no processes.
    pub(super) fn look_at(id: Pid) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // After the name, which may contain any characters: the state, then the parent.
        let mut words = stat.rsplit_once(')')?.1.split_whitespace();
        let has_ended = words.next()? == "Z";
        let parent = Pid::from_raw(words.next()?.parse().ok()?);
        let began = words.nth(17)?.parse().ok()?;
        Some(Self {
            parent,
            has_ended,
            began,
        })
    }
}

/// Returns the children of a process, if the system shows them.
pub(super) fn children_of(parent: Pid) -> impl Iterator<Item = (Pid, Process)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let processes = ids.filter_map(|id| {
        let id = Pid::from_raw(id);
        Some((id, Process::look_at(id)?))
    });
    processes.filter(move |(_, process)| process.parent == parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_may_hold_anything() {
        let stat = "42 (a) Z (b) R 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8128 2000 200";
        let process = Process::read(stat).expect("it is complete");
        assert_eq!(process.parent, Pid::from_raw(7));
        assert!(!process.has_ended);
        assert_eq!(process.began, 8128);
    }
}
