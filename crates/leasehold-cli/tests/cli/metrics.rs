//! `leasehold run --metrics-file`.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use leasehold_testkit::eventually;

use crate::support::{LIMIT, done, leasehold_at, run_script, server, start};

/// Returns the metrics of the page, with their Prometheus names and types.
fn documented() -> Vec<(String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = fs::read_to_string(page).expect("the page");
    let cells = page.lines().map(|row| row.split('|').map(str::trim));
    let metrics = cells.filter_map(|cells| {
        let mut cells = cells.skip(1).map(|cell| cell.trim_matches('`'));
        let first = cells.next()?;
        let name = match first {
            // A metric of the library, which has a different name in Prometheus.
            _ if first.starts_with("leasehold.") => cells.next()?,
            _ if first.starts_with("leasehold_run_") => first,
            _ => return None,
        };
        Some((name.to_owned(), cells.next()?.to_owned()))
    });
    metrics.collect()
}

/// Returns the value of a series in the file.
fn value(file: &Path, series: &str) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let found = lines.find(|(key, _)| *key == series);
    found.map(|(_, value)| value.parse().expect("a number"))
}

const GRANTED: &str = r#"leasehold_acquires_total{name="job",kind="lock",result="granted"}"#;
const BUSY: &str = r#"leasehold_acquires_total{name="job",kind="lock",result="busy"}"#;
const EXIT_CODE: &str = r#"leasehold_run_last_exit_code{name="job"}"#;
const START: &str = r#"leasehold_run_last_start_timestamp_seconds{name="job"}"#;
const END: &str = r#"leasehold_run_last_end_timestamp_seconds{name="job"}"#;
const SUCCESS: &str = r#"leasehold_run_last_success_timestamp_seconds{name="job"}"#;

#[test]
fn metrics_file_has_every_metric_of_the_page_under_the_locks_name() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let path = file.to_str().expect("text");
    // The file exists before the command runs, and other users can read it.
    let script = format!("test -r {path} && sleep 1");
    let options = ["--metrics-file", path, "--lease", "600ms"];
    done(&mut run_script(&server, &options, &script)).expect_code(0);
    let text = fs::read_to_string(&file).expect("the file");
    let documented = documented();
    assert_eq!(documented.len(), 18);
    for (name, kind) in &documented {
        assert!(
            text.contains(&format!("# TYPE {name} {kind}\n")),
            "{name} {kind}\n{text}"
        );
    }
    assert_eq!(text.matches("# TYPE ").count(), documented.len(), "{text}");
    let granted = r#"leasehold_acquires_total{name="job",kind="lock",result="granted"} 1"#;
    assert!(text.contains(granted), "{text}");
    assert!(
        text.contains(r#"leasehold_held{name="job",kind="lock"} 0"#),
        "{text}"
    );
    assert!(
        text.contains(r#"leasehold_renewal_margin_bucket{name="job",kind="lock",le="1"}"#),
        "{text}"
    );
    let mode = fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn folder_that_is_locked_by_another_process_keeps_no_command() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let locked = File::open(folder.path()).expect("the folder");
    locked.lock().expect("nobody else has it");
    let path = folder.path().join("job.prom");
    let path = path.to_str().expect("text");
    let mut run = leasehold_at(&server);
    run.args(["run", "--metrics-file", path, "job", "--", "echo", "ran"]);
    let done = done(&mut run).expect_code(0);
    assert_eq!(done.stdout, "ran\n");
    let told = "the metrics were not written within 5s";
    assert_eq!(done.stderr.matches(told).count(), 2, "{done}");
}

#[test]
fn metrics_file_that_cannot_be_written_is_told_before_the_command_runs() {
    let server = server();
    let mut run = leasehold_at(&server);
    run.args([
        "run",
        "--metrics-file",
        "/nowhere/job.prom",
        "job",
        "--",
        "echo",
        "ran",
    ]);
    let done = done(&mut run).expect_code(1);
    assert_eq!(done.stdout, "");
    assert!(
        done.stderr
            .contains("can't write the metrics to /nowhere/job.prom"),
        "{done}"
    );
}

#[test]
fn counts_go_on_from_the_run_before() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let options = ["--metrics-file", file.to_str().expect("text")];
    for run in 1..=3 {
        done(&mut run_script(&server, &options, "true")).expect_code(0);
        assert_eq!(value(&file, GRANTED), Some(f64::from(run)));
        let waits = r#"leasehold_acquire_duration_seconds_count{name="job",kind="lock"}"#;
        assert_eq!(value(&file, waits), Some(f64::from(run)));
        let held = r#"leasehold_held{name="job",kind="lock"}"#;
        assert_eq!(value(&file, held), Some(0.0));
    }
}

#[test]
fn runs_that_overlap_count_in_one_file() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let options = ["--metrics-file", file.to_str().expect("text")];
    let mut holder = start(&mut run_script(
        &server,
        &options,
        "echo held; read _; true",
    ));
    holder.until("held");
    let without_wait = [&options[..], &["--no-wait"]].concat();
    done(&mut run_script(&server, &without_wait, "true")).expect_code(75);
    assert_eq!(value(&file, BUSY), Some(1.0));
    holder.done().expect_code(0);
    assert_eq!(value(&file, GRANTED), Some(1.0));
    assert_eq!(value(&file, BUSY), Some(1.0));
}

#[test]
fn metrics_of_the_run_before_stay_until_there_are_newer_ones() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let path = file.to_str().expect("text");
    let options = ["--metrics-file", path];
    done(&mut run_script(&server, &options, "true")).expect_code(0);
    let before = fs::read_to_string(&file).expect("the file");
    // The next run waits, and has written its first file.
    let mut holder = start(&mut run_script(&server, &[], "echo held; read _; true"));
    holder.until("held");
    let _waiter = start(&mut run_script(&server, &options, "true"));
    let inode = || fs::metadata(&file).expect("the file").ino();
    let first = inode();
    eventually("the waiter has written the file", LIMIT, || {
        inode() != first
    });
    let after = fs::read_to_string(&file).expect("the file");
    let names = |text: &str| text.matches("# TYPE ").count();
    assert_eq!(names(&after), names(&before), "{after}");
    assert_eq!(value(&file, GRANTED), Some(1.0));
}

#[test]
fn every_count_is_there_when_the_command_starts() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let path = file.to_str().expect("text");
    // The limit ends the command before the first periodic write, after 10 s.
    let options = ["--metrics-file", path, "--max-run", "9s"];
    let script = format!(
        "until grep -q 'losses_total.*deleted.* 0$' {path} && grep -q 'last_start' {path}; do sleep 0.05; done"
    );
    done(&mut run_script(&server, &options, &script)).expect_code(0);
}

#[test]
fn file_tells_when_the_last_command_ran_and_how_it_ended() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let options = ["--metrics-file", file.to_str().expect("text")];
    done(&mut run_script(&server, &options, "true")).expect_code(0);
    let success = value(&file, SUCCESS).expect("a time");
    assert_eq!(value(&file, EXIT_CODE), Some(0.0));
    assert!(value(&file, START).expect("a time") <= value(&file, END).expect("a time"));
    done(&mut run_script(&server, &options, "exit 3")).expect_code(3);
    assert_eq!(value(&file, EXIT_CODE), Some(3.0));
    assert_eq!(value(&file, SUCCESS), Some(success));
    let end = value(&file, END).expect("a time");
    assert!(end > success);
    // A run that does not get the lock leaves the values of the last command.
    let mut holder = start(&mut run_script(&server, &[], "echo held; read _; true"));
    holder.until("held");
    let without_wait = [&options[..], &["--no-wait"]].concat();
    done(&mut run_script(&server, &without_wait, "true")).expect_code(75);
    assert_eq!(value(&file, EXIT_CODE), Some(3.0));
    assert_eq!(value(&file, END), Some(end));
}

#[test]
fn metrics_file_that_is_a_pipe_or_a_link_stays_one() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    // The pipe is open for reading and writing, so that a write finds a reader.
    let mut reader = File::options()
        .read(true)
        .write(true)
        .open(&pipe)
        .expect("the pipe");
    let options = ["--metrics-file", pipe.to_str().expect("text")];
    done(&mut run_script(&server, &options, "true")).expect_code(0);
    let kind = fs::symlink_metadata(&pipe).expect("the pipe").file_type();
    assert!(kind.is_fifo(), "{kind:?}");
    let mut text = [0; 6];
    reader.read_exact(&mut text).expect("metrics");
    assert_eq!(&text, b"# HELP");

    let (file, link) = (folder.path().join("a.prom"), folder.path().join("b.prom"));
    symlink("a.prom", &link).expect("a link");
    let options = ["--metrics-file", link.to_str().expect("text")];
    // At first the link's target does not exist. Then it is the file of the previous run.
    for run in 1..=2 {
        done(&mut run_script(&server, &options, "true")).expect_code(0);
        let kind = fs::symlink_metadata(&link).expect("the link").file_type();
        assert!(kind.is_symlink(), "{kind:?}");
        assert_eq!(value(&file, GRANTED), Some(f64::from(run)));
    }
}
