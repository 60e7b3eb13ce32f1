//! Metrics as text for Prometheus: parses, adds and formats them.

use std::collections::BTreeMap;
use std::fmt;

/// The metrics in Prometheus's text format, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Exposition(BTreeMap<String, Family>);

/// A metric with its series.
#[derive(Clone, Debug, Default, PartialEq)]
struct Family {
    help: String,
    kind: String,
    /// The value of each series. Its key is the text before the value.
    series: Vec<(String, f64)>,
}

impl Exposition {
    /// Parses a file that this command has written. Skips lines of a form that this command does
    /// not write.
    pub(super) fn read(text: &str) -> Self {
        let mut families = BTreeMap::<String, Family>::new();
        let mut current = None;
        for line in text.lines() {
            if let Some((name, help)) = comment(line, "# HELP ") {
                help.clone_into(&mut families.entry(name.to_owned()).or_default().help);
            } else if let Some((name, kind)) = comment(line, "# TYPE ") {
                kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
                current = Some(name);
            } else if let Some(family) = current.and_then(|name| families.get_mut(name))
                && let Some((key, value)) = line.rsplit_once(' ')
                && let Ok(value) = value.parse()
            {
                family.series.push((key.to_owned(), value));
            }
        }
        Self(families)
    }

    /// Adds the changes between `before` and `now`. A count grows by the difference. Any other
    /// value is replaced.
    pub(super) fn add(&mut self, before: &Self, now: &Self) {
        for (name, family) in &now.0 {
            let earlier = before.0.get(name);
            let sum = self.0.entry(name.clone()).or_default();
            if sum.kind != family.kind {
                // A file of another version may have another type under this name.
                sum.series.clear();
            }
            sum.help.clone_from(&family.help);
            sum.kind.clone_from(&family.kind);
            for (key, value) in &family.series {
                let value = match family.is_count() {
                    true => {
                        value
                            - earlier
                                .and_then(|earlier| earlier.value(key))
                                .unwrap_or(0.0)
                    }
                    false => *value,
                };
                match sum.series.iter_mut().find(|(other, _)| other == key) {
                    Some((_, old)) if family.is_count() => *old += value,
                    Some((_, old)) => *old = value,
                    None => sum.series.push((key.clone(), value)),
                }
            }
        }
    }

    /// Sets each gauge whose name satisfies `fits` to 0.
    pub(super) fn clear_gauges(&mut self, fits: impl Fn(&str) -> bool) {
        let gauges = self.0.iter_mut();
        for (_, family) in gauges.filter(|(name, family)| family.kind == "gauge" && fits(name)) {
            for (_, value) in &mut family.series {
                *value = 0.0;
            }
        }
    }
}

impl Family {
    /// Returns whether the values of this metric only grow.
    fn is_count(&self) -> bool {
        self.kind == "counter" || self.kind == "histogram"
    }

    fn value(&self, key: &str) -> Option<f64> {
        let series = self.series.iter().find(|(other, _)| other == key);
        series.map(|(_, value)| *value)
    }
}

impl fmt::Display for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, family) in &self.0 {
            if !family.help.is_empty() {
                writeln!(f, "# HELP {name} {}", family.help)?;
            }
            writeln!(f, "# TYPE {name} {}", family.kind)?;
            for (key, value) in &family.series {
                writeln!(f, "{key} {value}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Splits a line like `# HELP name text`.
fn comment<'a>(line: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    let rest = line.strip_prefix(start)?;
    Some(rest.split_once(' ').unwrap_or((rest, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "\
# HELP a_total Ends
# TYPE a_total counter
a_total{name=\"x y\",result=\"granted\"} 3
a_total{name=\"x y\",result=\"busy\"} 1

# TYPE held gauge
held 1

# TYPE wait_seconds histogram
wait_seconds_bucket{le=\"0.1\"} 2
wait_seconds_bucket{le=\"+Inf\"} 3
wait_seconds_sum 0.75
wait_seconds_count 3

";

    #[test]
    fn text_is_read_and_written_unchanged() {
        assert_eq!(Exposition::read(EARLIER).to_string(), EARLIER);
    }

    #[test]
    fn counts_grow_by_what_is_new_and_gauges_are_replaced() {
        let mut sum = Exposition::read(EARLIER);
        let before = Exposition::read(
            "# TYPE a_total counter\na_total{name=\"x y\",result=\"granted\"} 1\n",
        );
        let now = "# TYPE a_total counter\na_total{name=\"x y\",result=\"granted\"} 2\na_total{name=\"x y\",result=\"lost\"} 0\n\
            # TYPE held gauge\nheld 0\n# TYPE wait_seconds histogram\nwait_seconds_sum 0.5\nwait_seconds_count 1\n";
        sum.add(&before, &Exposition::read(now));
        let text = sum.to_string();
        for line in [
            "a_total{name=\"x y\",result=\"granted\"} 4",
            "a_total{name=\"x y\",result=\"busy\"} 1",
            "a_total{name=\"x y\",result=\"lost\"} 0",
            "held 0",
            "wait_seconds_bucket{le=\"+Inf\"} 3",
            "wait_seconds_sum 1.25",
            "wait_seconds_count 4",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn metric_of_another_type_is_replaced() {
        let mut sum = Exposition::read("# TYPE wait summary\nwait{quantile=\"0.5\"} 2\n");
        let now = Exposition::read("# TYPE wait histogram\nwait_count 1\n");
        sum.add(&Exposition::default(), &now);
        assert_eq!(sum, now);
    }

    #[test]
    fn gauges_of_an_earlier_run_are_cleared() {
        let mut earlier =
            Exposition::read("# TYPE held gauge\nheld 1\n# TYPE run_end gauge\nrun_end 7\n");
        earlier.clear_gauges(|name| name != "run_end");
        assert!(earlier.to_string().contains("held 0\n"));
        assert!(earlier.to_string().contains("run_end 7\n"));
    }
}
