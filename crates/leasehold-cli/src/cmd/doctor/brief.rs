//! What the doctor would warn of, in one line, for commands that look at something else.

use leasehold::Client;

use super::findings::{self, Finding, Place, Severity};
use crate::output::Shown;

/// What endangers locks on the servers of this client, in one line. `None` when the doctor would
/// not warn, and when it can't look: whoever asks wants to know something else first.
pub(crate) async fn brief(client: &Client) -> Option<String> {
    let name = format!("leasehold-doctor:{:08x}", fastrand::u32(..));
    let servers = client.examine(&name).await.ok()?;
    let place = Place::of(client.address(), &servers);
    in_one_line(findings::of(place, &servers))
}

fn in_one_line(findings: Vec<Finding>) -> Option<String> {
    let warned = findings.into_iter();
    let mut warned = warned.filter(|finding| finding.severity >= Severity::Warning);
    let first = warned.next()?;
    // The worst; of equals the first.
    let (worst, others) = warned.fold((first, 0), |(worst, others), finding| {
        let worst = if finding.severity > worst.severity {
            finding
        } else {
            worst
        };
        (worst, others + 1)
    });
    let more = match others {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    // The command first: a narrow terminal cuts the end.
    Some(format!(
        "{}, see leasehold doctor: {} ({}){more}",
        worst.severity.in_words(),
        Shown(&worst.says),
        Shown(&worst.address)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, says: &str) -> Finding {
        Finding {
            severity,
            about: "test",
            address: "redis://h:6379".into(),
            says: says.into(),
            advice: String::new(),
            breaks: "",
        }
    }

    #[test]
    fn worst_is_named_and_the_others_are_counted() {
        let note = finding(Severity::Note, "n");
        assert_eq!(in_one_line(vec![note.clone()]), None);
        let warning = finding(Severity::Warning, "w");
        let said = in_one_line(vec![note.clone(), warning.clone()]);
        let alone = "warning, see leasehold doctor: w (redis://h:6379)";
        assert_eq!(said.as_deref(), Some(alone));
        let worst = finding(Severity::Unsafe, "u");
        let said = in_one_line(vec![warning.clone(), worst, note, warning]);
        let counted = "unsafe, see leasehold doctor: u (redis://h:6379) and 2 more";
        assert_eq!(said.as_deref(), Some(counted));
    }
}
