//! `leasehold run --metrics-file`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::{done, leasehold_at, run_script, server};

/// The metrics of the page, as Prometheus has them, and their types.
fn documented() -> Vec<(String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = fs::read_to_string(page).expect("the page");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `leasehold."));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .map(|cells| (cells[2].trim_matches('`').to_owned(), cells[3].to_owned()))
        .collect()
}

#[test]
fn metrics_file_has_every_metric_of_the_page_under_the_locks_name() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.prom");
    let path = file.to_str().expect("text");
    // It is there before the command, and for others to read.
    let script = format!("test -r {path} && sleep 1");
    let options = ["--metrics-file", path, "--lease", "600ms"];
    done(&mut run_script(&server, &options, &script)).expect_code(0);
    let text = fs::read_to_string(&file).expect("the file");
    let documented = documented();
    assert_eq!(documented.len(), 14);
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
fn only_regular_files_are_replaced_by_metrics() {
    let server = server();
    let folder = tempfile::tempdir().expect("a folder");
    let (fifo, link, own) = (
        folder.path().join("fifo"),
        folder.path().join("link.prom"),
        folder.path().join("own.prom"),
    );
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo is there").success());
    // Devices are refused in the same way. A failure of this test would take /dev/null away.
    let leads_there = folder.path().join("leads-there");
    symlink(&fifo, &leads_there).expect("it can be made");
    for special in [&fifo, &leads_there] {
        let before = fs::symlink_metadata(special).expect("it is there");
        let path = special.to_str().expect("text");
        done(&mut run_script(
            &server,
            &["--metrics-file", path],
            "echo ran",
        ))
        .expect_code(1)
        .expect_on_stderr("it is no regular file");
        let after = fs::symlink_metadata(special).expect("it is still there");
        assert_eq!(after.file_type(), before.file_type(), "{path}");
    }
    symlink("own.prom", &link).expect("it can be made");
    let path = link.to_str().expect("text");
    // It leads nowhere at first, and to the file of the run before then.
    for _ in 0..2 {
        done(&mut run_script(&server, &["--metrics-file", path], "true")).expect_code(0);
        assert!(
            fs::symlink_metadata(&link)
                .expect("it is there")
                .is_symlink()
        );
        let text = fs::read_to_string(&own).expect("the file");
        assert!(text.contains("leasehold_acquires_total"), "{text}");
    }
}
