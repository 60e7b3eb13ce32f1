//! Every example runs to its end, in process and on a server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use leasehold_testkit::RedisServer;

fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 5);
    names
}

/// Returns the program of an example. Cargo builds the examples before it runs the tests, into a
/// folder beside the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples");
    program.join(name)
}

fn run(name: &str, arguments: &[String]) -> String {
    let output: Output = Command::new(program(name))
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}; build it with cargo build --examples"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {text}{errors}");
    assert!(!text.is_empty(), "{name} says nothing");
    text
}

#[test]
fn every_example_runs_in_process() {
    for name in names() {
        run(&name, &[]);
    }
}

#[test]
fn every_example_runs_on_a_server() {
    let server = RedisServer::start().unwrap();
    for name in names() {
        run(&name, &[server.url()]);
    }
}

#[test]
fn fencing_example_refuses_the_late_write() {
    let text = run("fenced_writes", &[]);
    assert!(text.contains("the late write was refused"), "{text}");
    assert!(text.contains("the store has: 9 left"), "{text}");
}

#[test]
fn semaphore_example_admits_three_callers() {
    let text = run("limit_concurrency", &[]);
    assert!(text.contains("never more than 3 at a time"), "{text}");
}

#[test]
fn job_of_the_example_runs_on_one_machine() {
    let text = run("run_once", &[]);
    assert_eq!(text.matches("runs the job").count(), 1, "{text}");
    assert_eq!(text.matches("has done it").count(), 3, "{text}");
}

#[test]
fn lock_of_the_example_passes_on_without_a_gap() {
    let text = run("hand_over", &[]);
    assert!(text.contains("gets in now: false"), "{text}");
    assert!(text.contains("is packed under"), "{text}");
}

#[test]
fn worker_of_the_example_that_hangs_is_replaced() {
    let text = run("stalled_worker", &[]);
    assert!(text.contains("the worker was ended"), "{text}");
    assert!(text.contains("all rows are imported"), "{text}");
}

#[test]
fn invoice_of_the_example_is_paid_once() {
    let text = run("locked_function", &[]);
    assert!(text.contains("invoice 7 was paid once: true"), "{text}");
}

#[test]
fn threads_of_the_example_are_interrupted() {
    let text = run("interrupt", &[]);
    assert_eq!(text.matches("no longer waits").count(), 3, "{text}");
}

#[test]
fn the_workers_begin_when_all_are_ready() {
    let text = run("start_together", &[]);
    assert!(text.contains("all 5 workers are done"), "{text}");
}
