//! The dashboard and the alerts query the metrics of `docs/metrics.md`, and no others.

use std::collections::BTreeSet;
use std::fs;

use crate::support::metrics::{documented, root};

/// Returns the metrics that a text names, in Prometheus's spelling.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let names = words.filter(|word| word.starts_with("leasehold_"));
    names.map(str::to_owned).collect()
}

/// Returns the metrics that the command adds in its file.
fn of_the_command() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split('`').next());
    let names = names.filter(|name| name.starts_with("leasehold_run_"));
    names.map(str::to_owned).collect()
}

/// Reports whether a name is a metric, or one of the series of a histogram.
fn is_known(name: &str) -> bool {
    of_the_command().iter().any(|metric| metric == name)
        || documented().iter().any(|metric| {
            let is_histogram = metric.kind == "histogram";
            let series = ["_bucket", "_count", "_sum"];
            let of_histogram = |end| format!("{}{end}", metric.prometheus) == name;
            match is_histogram {
                true => series.into_iter().any(of_histogram),
                false => metric.prometheus == name,
            }
        })
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_are_there() {
    for (file, least) in [("ops/dashboard.json", 14), ("ops/leasehold.rules.yml", 6)] {
        let names = named(&fs::read_to_string(root().join(file)).unwrap());
        assert!(names.len() >= least, "{file}: {names:?}");
        let unknown: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}");
    }
}

#[test]
fn dashboard_shows_every_metric() {
    let names = named(&fs::read_to_string(root().join("ops/dashboard.json")).unwrap());
    let library = documented().into_iter().map(|metric| metric.prometheus);
    for metric in library.chain(of_the_command()) {
        let is_shown = names.iter().any(|name| name.starts_with(&metric));
        assert!(is_shown, "{metric}");
    }
}

#[test]
fn page_says_what_each_alert_means() {
    let rules = fs::read_to_string(root().join("ops/leasehold.rules.yml")).unwrap();
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let alerts: Vec<_> = rules.split("- alert: ").skip(1).collect();
    assert_eq!(alerts.len(), 6);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}
