//! The metrics of a run, as a file that node_exporter reads.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::runtime::Runtime;

use crate::exit_code::Exit;
use crate::failure::Failure;

/// How often it is written while the command runs. Prometheus rarely asks more often.
const EVERY: Duration = Duration::from_secs(10);
/// Upper ends, in seconds: from a free lock to a job of a night.
const TIMES: [f64; 10] = [
    0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0,
];
/// Upper ends of a part of the lease. A renewal in good time finds two thirds.
const PARTS: [f64; 6] = [0.1, 0.2, 0.33, 0.5, 0.6, 1.0];
/// Upper ends of the operations in a call.
const SIZES: [f64; 5] = [1.0, 4.0, 16.0, 64.0, 256.0];

#[derive(Clone)]
pub(super) struct MetricsFile {
    path: PathBuf,
    handle: PrometheusHandle,
}

impl MetricsFile {
    /// Collects metrics from now on. Each is labelled with the name of the lock: node_exporter
    /// refuses two files with the same series.
    pub(super) fn start(runtime: &Runtime, path: &Path, name: &str) -> Result<Self, Failure> {
        let handle = record(name).map_err(|error| {
            Failure::new(Exit::Failed, format!("can't collect metrics: {error}"))
        })?;
        let file = Self {
            path: path.to_owned(),
            handle,
        };
        // Before the lock is asked for: a file that can't be written is told at once.
        file.write()?;
        let often = file.clone();
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                // Told at the end, if it can't be written then.
                let _ = often.write();
            }
        });
        Ok(file)
    }

    /// Puts a new file in the place of the old one: whoever reads it finds a whole one.
    pub(super) fn write(&self) -> Result<(), Failure> {
        let text = self.handle.render();
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // node_exporter is another user.
            file.as_file()
                .set_permissions(Permissions::from_mode(0o644))?;
            file.persist(&self.path)?;
            Ok(())
        });
        let what = || format!("can't write the metrics to {}", self.path.display());
        written.map_err(|error| Failure::io(what(), error))
    }
}

fn record(name: &str) -> Result<PrometheusHandle, Box<dyn std::error::Error>> {
    let recorder = PrometheusBuilder::new()
        .with_recommended_naming(true)
        .add_global_label("name", name)
        .set_buckets_for_metric(Matcher::Suffix("duration".into()), &TIMES)?
        .set_buckets_for_metric(Matcher::Suffix("margin".into()), &PARTS)?
        .set_buckets_for_metric(Matcher::Suffix("operations".into()), &SIZES)?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    Ok(handle)
}
