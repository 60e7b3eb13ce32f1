//! Floors: limits that say how much better than another system a figure must be, or how large it
//! may be.
//!
//! Each floor is one line: a scenario, a figure of the system `leasehold`, `>=` or `<=`, a number,
//! and `x SYSTEM` if the number is a ratio to that system's figure. `#` starts a comment.

use std::fmt;

use crate::figure::{Figure, short};
use crate::results::Results;
use crate::scenario;
use crate::system::System;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floor {
    pub(crate) scenario: String,
    figure: Figure,
    at_least: bool,
    bound: f64,
    of: Option<System>,
}

/// The result of comparing a floor with the figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Met(f64),
    Missed(f64),
    /// At least one of the two figures was not measured.
    Unknown,
}

pub(crate) fn parse(text: &str) -> Result<Vec<Floor>, String> {
    let lines = text.lines().enumerate().map(|(number, line)| {
        let line = line.split('#').next().unwrap_or_default().trim();
        (number + 1, line)
    });
    let floors = lines.filter(|(_, line)| !line.is_empty());
    floors
        .map(|(number, line)| read(line).map_err(|error| format!("line {number}: {error}")))
        .collect()
}

fn read(line: &str) -> Result<Floor, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, figure, relation, bound, of) = match words[..] {
        [name, figure, relation, bound] => (name, figure, relation, bound, None),
        [name, figure, relation, bound, "x", of] => (name, figure, relation, bound, Some(of)),
        _ => {
            return Err(format!(
                "not `SCENARIO FIGURE >= NUMBER [x SYSTEM]`: {line}"
            ));
        }
    };
    let of: Option<System> = of.map(str::parse).transpose()?;
    let scenario = scenario::named(name)?;
    if let Some(of) = of.filter(|of| !scenario.systems.contains(of)) {
        return Err(format!("`{name}` does not measure {of}"));
    }
    Ok(Floor {
        scenario: name.to_owned(),
        figure: figure.parse()?,
        at_least: match relation {
            ">=" => true,
            "<=" => false,
            _ => return Err(format!("`>=` or `<=`, not `{relation}`")),
        },
        bound: bound.parse().map_err(|_| format!("no number: {bound}"))?,
        of,
    })
}

impl Floor {
    pub(crate) fn judge(&self, results: &Results) -> Verdict {
        let Some(measured) = self.measured(results) else {
            return Verdict::Unknown;
        };
        let met = match self.at_least {
            true => measured >= self.bound,
            false => measured <= self.bound,
        };
        if met {
            Verdict::Met(measured)
        } else {
            Verdict::Missed(measured)
        }
    }

    fn measured(&self, results: &Results) -> Option<f64> {
        let ours = results.row(&self.scenario, System::Leasehold.name())?;
        let spread = match self.of {
            None => ours.spread(self.figure)?,
            Some(of) => ours.ratio(results.row(&self.scenario, of.name())?, self.figure)?,
        };
        Some(spread.median)
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = if self.at_least { ">=" } else { "<=" };
        let (scenario, figure, bound) = (&self.scenario, self.figure, self.bound);
        write!(f, "{scenario} {figure} {relation} {bound}")?;
        match self.of {
            Some(of) => write!(f, " x {of}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Met(measured) => write!(f, "met: {}", short(*measured)),
            Self::Missed(measured) => write!(f, "missed: {}", short(*measured)),
            Self::Unknown => f.write_str("not measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::tests::row;

    fn results(ours: f64, theirs: f64) -> Results {
        Results {
            machine: Machine::default(),
            run_ms: 1,
            rows: vec![
                row("hot-64", "leasehold", Figure::Pairs, &[ours]),
                row("hot-64", "redisson-4.7.0", Figure::Pairs, &[theirs]),
            ],
            skipped: Vec::new(),
        }
    }

    fn floor(line: &str) -> Floor {
        let mut floors = parse(line).expect("a floor");
        assert_eq!(floors.len(), 1, "{floors:?}");
        floors.remove(0)
    }

    #[test]
    fn ratio_below_its_floor_is_missed() {
        let floor = floor("# a comment\n\nhot-64 pairs/s >= 80 x redisson-4.7.0 # why\n");
        assert_eq!(floor.judge(&results(800.0, 10.0)), Verdict::Met(80.0));
        assert_eq!(floor.judge(&results(799.0, 10.0)), Verdict::Missed(79.9));
        assert_eq!(floor.to_string(), "hot-64 pairs/s >= 80 x redisson-4.7.0");
    }

    #[test]
    fn figure_above_its_ceiling_is_missed() {
        let floor = floor("hot-64 pairs/s <= 5");
        assert_eq!(floor.judge(&results(5.0, 1.0)), Verdict::Met(5.0));
        assert_eq!(floor.judge(&results(5.1, 1.0)), Verdict::Missed(5.1));
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        assert_eq!(
            floor("hot-64 heap-bytes <= 5").judge(&results(1.0, 1.0)),
            Verdict::Unknown
        );
        assert_eq!(
            floor("hot-8 pairs/s >= 5").judge(&results(1.0, 1.0)),
            Verdict::Unknown
        );
    }

    #[test]
    fn misspelt_floors_are_refused() {
        for line in [
            "hot-65 pairs/s >= 1",
            "hot-64 pears/s >= 1",
            "hot-64 pairs/s > 1",
            "hot-64 pairs/s >= much",
            "hot-64 pairs/s >= 1 x jedis",
            "hot-64 pairs/s >= 1 x bare",
            "hot-64 pairs/s",
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.starts_with("line 1: "), "{error}");
        }
    }
}
