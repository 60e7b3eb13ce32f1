//! The metrics that a recorder has received.

use std::collections::BTreeMap;

use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The metrics that a recorder has received so far.
pub(crate) struct Told {
    snapshotter: Snapshotter,
    /// The values by name and labels. Each `look` adds what was counted since the previous `look`.
    pub(crate) numbers: BTreeMap<String, f64>,
    times: BTreeMap<String, Vec<f64>>,
    pub(crate) kinds: BTreeMap<String, MetricKind>,
}

impl Told {
    pub(crate) fn new(recorder: &DebuggingRecorder) -> Self {
        Self {
            snapshotter: recorder.snapshotter(),
            numbers: BTreeMap::new(),
            times: BTreeMap::new(),
            kinds: BTreeMap::new(),
        }
    }

    pub(crate) fn look(&mut self) {
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let name = key.key().name().to_owned();
            let labels: Vec<_> = key.key().labels().collect();
            let labels: String = labels
                .iter()
                .filter(|label| label.key() != "server.address")
                .map(|label| format!(" {}={}", label.key(), label.value()))
                .collect();
            self.kinds.insert(name.clone(), key.kind());
            let series = format!("{name}{labels}");
            match value {
                DebugValue::Counter(count) => {
                    *self.numbers.entry(series).or_default() += count as f64;
                }
                DebugValue::Gauge(value) => {
                    *self.numbers.entry(series).or_default() += value.into_inner();
                }
                DebugValue::Histogram(values) => {
                    let values = values.into_iter().map(|value| value.into_inner());
                    self.times.entry(series).or_default().extend(values);
                }
            }
        }
    }

    pub(crate) fn number(&mut self, series: &str) -> f64 {
        self.look();
        self.numbers.get(series).copied().unwrap_or_default()
    }

    pub(crate) fn times(&mut self, series: &str) -> &[f64] {
        self.look();
        self.times.get(series).map_or(&[], Vec::as_slice)
    }
}

pub(crate) fn is(number: f64, wanted: f64) -> bool {
    (number - wanted).abs() < 1e-9
}
