//! The doctor's warnings in one line, for other sub-commands.

use leasehold::Client;

use super::findings::{self, Finding, Place, Severity};
use crate::output::Shown;

/// Returns the warnings about the servers of this client, in one line. `None` if there are no
/// warnings. Also `None` if the servers can't be examined: the caller's own command matters more.
pub(crate) async fn brief(client: &Client) -> Option<String> {
    let name = format!("leasehold-doctor:{:08x}", fastrand::u32(..));
    let servers = client.examine(&name).await.ok()?;
    let place = Place::of(client.address(), &servers);
    in_one_line(findings::of(place, &servers), client.address())
}

/// Returns the worst finding in one line. `known` is an address that the caller already shows.
fn in_one_line(findings: Vec<Finding>, known: &str) -> Option<String> {
    let warned = findings.into_iter();
    let mut warned = warned.filter(|finding| finding.severity >= Severity::Warning);
    let first = warned.next()?;
    // Find the worst finding. Of several equally bad findings, take the first one.
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
    let at = match &worst.addresses[..] {
        [address] if address == known => String::new(),
        addresses => format!(" ({})", findings::list_of(addresses)),
    };
    // Name the command first, because a narrow terminal cuts off the end of the line.
    Some(format!(
        "{}, see leasehold doctor: {}{at}{more}",
        worst.severity.in_words(),
        Shown(&worst.says),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, says: &str) -> Finding {
        Finding {
            severity,
            about: "test",
            addresses: vec!["redis://h:6379".into()],
            says: says.into(),
            advice: String::new(),
            breaks: None,
        }
    }

    #[test]
    fn worst_is_named_and_the_others_are_counted() {
        let note = finding(Severity::Note, "n");
        let in_one_line = |findings| in_one_line(findings, "redis://cluster:7000");
        assert_eq!(in_one_line(vec![note.clone()]), None);
        let warning = finding(Severity::Warning, "w");
        let said = in_one_line(vec![note.clone(), warning.clone()]);
        let alone = "warning, see leasehold doctor: w (redis://h:6379)";
        assert_eq!(said.as_deref(), Some(alone));
        let worst = finding(Severity::Unsafe, "u");
        let said = in_one_line(vec![warning.clone(), worst, note, warning]);
        let counted = "unsafe, see leasehold doctor: u (redis://h:6379) and 2 more";
        assert_eq!(said.as_deref(), Some(counted));
        // A known address is not repeated.
        let said = super::in_one_line(vec![finding(Severity::Warning, "w")], "redis://h:6379");
        assert_eq!(said.as_deref(), Some("warning, see leasehold doctor: w"));
    }
}
