//! The metrics of a run, as a file that node_exporter reads.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::runtime::Runtime;

use crate::exit_code::Exit;
use crate::failure::Failure;

/// How often it is written while the command runs. Prometheus rarely asks more often.
const EVERY: Duration = Duration::from_secs(10);
/// As many symbolic links are followed. The system has the same limit.
const MOST_LINKS: usize = 40;
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
        let written = target(&self.path).and_then(|path| {
            let mut file = tempfile::NamedTempFile::new_in(folder_of(&path))?;
            file.write_all(text.as_bytes())?;
            // node_exporter is another user.
            file.as_file()
                .set_permissions(Permissions::from_mode(0o644))?;
            file.persist(&path)?;
            Ok(())
        });
        let what = || format!("can't write the metrics to {}", self.path.display());
        written.map_err(|error| Failure::io(what(), error))
    }
}

/// The file that is replaced: where symbolic links lead. An error if something else is there, a
/// device for example, which a file must not take the place of.
fn target(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(kind) = fs::symlink_metadata(&target).map(|found| found.file_type()) else {
            // It is new, or making it will say what is wrong.
            return Ok(target);
        };
        if kind.is_file() {
            return Ok(target);
        }
        if !kind.is_symlink() {
            let what = "it is no regular file, and a file would take its place; name another one";
            return Err(io::Error::other(what));
        }
        target = folder_of(&target).join(fs::read_link(&target)?);
    }
    Err(io::Error::other("it leads through too many symbolic links"))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
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
