//! The results of a run, in memory and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::delays::Delays;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::system::System;

/// The results of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    /// The duration of each round, in milliseconds.
    pub(crate) run_ms: u64,
    pub(crate) rows: Vec<Row>,
    /// The measurements that were not possible, and the reasons.
    pub(crate) skipped: Vec<Skipped>,
}

/// The results of one system in one scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    pub(crate) system: String,
    pub(crate) rounds: Vec<BTreeMap<Figure, f64>>,
    /// The delays in all rounds, as a list of pairs: a percentage, and the delay that this share of
    /// the acquires and releases did not exceed.
    pub(crate) delays_us: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Skipped {
    /// The scenario, or `None` for every scenario.
    pub(crate) scenario: Option<String>,
    pub(crate) system: String,
    pub(crate) why: String,
}

/// The spread of a figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Results {
    pub(crate) fn row(&self, scenario: &str, system: &str) -> Option<&Row> {
        let is_it = |row: &&Row| row.scenario == scenario && row.system == system;
        self.rows.iter().find(is_it)
    }

    /// Adds the rows of a scenario. They replace the rows of an earlier measurement.
    pub(crate) fn put(&mut self, rows: Vec<Row>) {
        for row in rows {
            let same = |old: &&mut Row| old.scenario == row.scenario && old.system == row.system;
            match self.rows.iter_mut().find(same) {
                Some(old) => *old = row,
                None => self.rows.push(row),
            }
        }
    }
}

impl Skipped {
    /// Returns whether the system was not measured in any scenario.
    pub(crate) fn is_all_of(&self, system: System) -> bool {
        self.scenario.is_none() && self.system == system.name()
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scenario = self.scenario.as_deref().unwrap_or("every scenario");
        write!(f, "skipped {} in {scenario}: {}", self.system, self.why)
    }
}

impl Row {
    pub(crate) fn new(scenario: &str, system: &str) -> Self {
        Self {
            scenario: scenario.to_owned(),
            system: system.to_owned(),
            rounds: Vec::new(),
            delays_us: Vec::new(),
        }
    }

    pub(crate) fn keep(&mut self, delays: &Delays) {
        const PERCENTS: [f64; 14] = [
            0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9, 100.0,
        ];
        if !delays.is_empty() {
            let at = |percent| (percent, delays.us(percent));
            self.delays_us = PERCENTS.map(at).to_vec();
        }
    }

    pub(crate) fn spread(&self, figure: Figure) -> Option<Spread> {
        let values = self.rounds.iter().map(|round| round.get(&figure).copied());
        spread(values.collect::<Option<Vec<f64>>>()?)
    }

    /// Divides the figure in each round by the other row's figure in the same round. If the machine
    /// becomes slow, both figures in that round are affected.
    pub(crate) fn ratio(&self, to: &Self, figure: Figure) -> Option<Spread> {
        let both = self.rounds.iter().zip(&to.rounds);
        let ratios = both.map(|(ours, theirs)| Some(ours.get(&figure)? / theirs.get(&figure)?));
        spread(ratios.collect::<Option<Vec<f64>>>()?)
    }
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    values.sort_by(f64::total_cmp);
    Some(Spread {
        least: *values.first()?,
        median: values[values.len() / 2],
        most: *values.last()?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a row in which each round has one figure.
    pub(crate) fn row(scenario: &str, system: &str, figure: Figure, rounds: &[f64]) -> Row {
        Row {
            rounds: rounds
                .iter()
                .map(|value| BTreeMap::from([(figure, *value)]))
                .collect(),
            ..Row::new(scenario, system)
        }
    }

    #[test]
    fn median_and_ratio_are_of_the_rounds() {
        let ours = row("s", "ours", Figure::Pairs, &[10.0, 40.0, 30.0]);
        let theirs = row("s", "theirs", Figure::Pairs, &[5.0, 10.0, 10.0]);
        let spread = ours.spread(Figure::Pairs).expect("three rounds");
        assert_eq!(
            (spread.least, spread.median, spread.most),
            (10.0, 30.0, 40.0)
        );
        let ratio = ours.ratio(&theirs, Figure::Pairs).expect("three rounds");
        assert_eq!((ratio.least, ratio.median, ratio.most), (2.0, 3.0, 4.0));
        assert!(ours.spread(Figure::Heap).is_none());
    }

    #[test]
    fn rows_measured_again_take_the_place_of_the_old() {
        let mut results = Results {
            machine: Machine::default(),
            run_ms: 1,
            rows: vec![row("s", "ours", Figure::Pairs, &[1.0])],
            skipped: Vec::new(),
        };
        results.put(vec![
            row("s", "ours", Figure::Pairs, &[2.0]),
            row("t", "ours", Figure::Pairs, &[3.0]),
        ]);
        assert_eq!(results.rows.len(), 2);
        let again = results.row("s", "ours").expect("it is there");
        assert_eq!(again.rounds[0][&Figure::Pairs], 2.0);
    }
}
