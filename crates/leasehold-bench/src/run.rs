//! Runs a scenario: measures all its systems on the same servers, one after the other, several
//! times.

mod measure;
mod moved;
mod site;
mod stage;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Result;
use crate::delays::Delays;
use crate::results::{Row, Skipped};
use crate::scenario::{Kind, Scenario};
use crate::system::{System, Systems};
pub(crate) use site::Site;
use stage::Stage;

/// Settings that decide how thorough a measurement is.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rounds: usize,
    pub(crate) run: Duration,
    /// Whether everything is as small and short as possible.
    pub(crate) tiny: bool,
    /// The systems to measure in each scenario; all of them if `None`.
    pub(crate) systems: Option<BTreeSet<System>>,
}

/// A server or a cluster, and the systems that use it.
pub(crate) struct Bench<'a> {
    pub(crate) site: &'a Site,
    pub(crate) systems: &'a Systems,
    pub(crate) settings: &'a Settings,
}

impl Bench<'_> {
    /// Measures the systems. Returns their rows, and the systems that could not be measured.
    pub(crate) async fn scenario(
        &self,
        scenario: &Scenario,
        systems: &[System],
    ) -> (Vec<Row>, Vec<Skipped>) {
        let (mut lanes, mut skipped) = (Vec::new(), Vec::new());
        let wanted = |system: &System| {
            let only = self.settings.systems.as_ref();
            only.is_none_or(|only| only.contains(system))
        };
        for &system in systems.iter().filter(|system| wanted(system)) {
            match Lane::open(self, scenario, system).await {
                Ok(lane) => lanes.push(lane),
                Err(error) => skipped.push(skip(scenario, system, &*error)),
            }
        }
        for _ in 0..self.rounds(scenario.kind) {
            let mut left = Vec::new();
            for mut lane in lanes {
                match lane.round(self.run_time(scenario.kind)).await {
                    Ok(()) => left.push(lane),
                    Err(error) => skipped.push(skip(scenario, lane.system, &*error)),
                }
            }
            lanes = left;
        }
        (lanes.into_iter().map(Lane::row).collect(), skipped)
    }

    /// Returns the number of rounds. Scenarios that only hold locks have few rounds, because each
    /// of their rounds lasts for two renewals, which takes a long time.
    fn rounds(&self, kind: Kind) -> usize {
        match kind {
            Kind::Held { .. } => self.settings.rounds.min(2),
            // In these scenarios, a single round repeats the move or the failover.
            Kind::Moved { .. } | Kind::FailedOver { .. } => 1,
            _ => self.settings.rounds,
        }
    }

    fn warm_up_time(&self, system: System) -> Duration {
        /// The time that the JVM needs to compile the code that runs often.
        const JVM: Duration = Duration::from_secs(3);
        let run = self.settings.run;
        match system.redisson() {
            Some(_) if !self.settings.tiny => run.max(JVM),
            _ => run / 2,
        }
    }

    fn run_time(&self, kind: Kind) -> Duration {
        const TWO_RENEWALS: Duration = Duration::from_secs(21);
        let run = self.settings.run;
        match kind {
            Kind::Held { .. } if !self.settings.tiny => run.max(TWO_RENEWALS),
            _ => run,
        }
    }
}

fn skip(scenario: &Scenario, system: System, why: &dyn std::error::Error) -> Skipped {
    Skipped {
        scenario: Some(scenario.name.to_owned()),
        system: system.to_string(),
        why: why.to_string(),
    }
}

/// One system in one scenario, with all its rounds.
struct Lane<'a> {
    system: System,
    stage: Stage<'a>,
    row: Row,
    delays: Delays,
}

impl<'a> Lane<'a> {
    async fn open(bench: &Bench<'a>, scenario: &Scenario, system: System) -> Result<Self> {
        let kind = match bench.settings.tiny {
            true => scenario.kind.tiny(),
            false => scenario.kind,
        };
        let name = format!("bench:{}:{system}", scenario.name);
        let mut stage = Stage::open(bench, kind, system, name).await?;
        // Because of the warm-up, the figures do not include connecting, loading scripts and
        // running cold code.
        stage.warm_up(bench.warm_up_time(system)).await?;
        Ok(Self {
            system,
            stage,
            row: Row::new(scenario.name, system.name()),
            delays: Delays::default(),
        })
    }

    async fn round(&mut self, run: Duration) -> Result<()> {
        let (figures, delays) = self.stage.round(run).await?;
        self.row.rounds.push(figures);
        self.delays.add_all(&delays);
        Ok(())
    }

    fn row(mut self) -> Row {
        self.row.keep(&self.delays);
        self.row
    }
}
