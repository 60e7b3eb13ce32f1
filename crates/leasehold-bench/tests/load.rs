//! Runs small forms of the loads, which are judged in the same way.

use std::process::Command;

/// Runs a load, which must keep every promise.
///
/// # Panics
///
/// Panics if the load broke a promise. The message says which.
fn load(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_load"))
        .args(args)
        .output()
        .expect("the load can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{said}");
}

#[test]
fn local_waiters_are_served_once_in_order() {
    load(&["waiters", "--tasks", "300", "--rounds", "3"]);
}

#[test]
fn competing_processes_all_get_exclusive_holds() {
    load(&["processes", "--processes", "12", "--rounds", "10"]);
}

#[test]
fn thousands_of_holds_outlast_half_a_lease() {
    load(&["holds", "--locks", "3000", "--lease", "6s", "--for", "5s"]);
}

#[test]
fn churned_lock_names_leave_nothing_behind() {
    load(&[
        "churn", "--names", "10000", "--waited", "500", "--wait", "1s",
    ]);
}

#[test]
fn load_that_cannot_be_run_fails() {
    let output = Command::new(env!("CARGO_BIN_EXE_load"))
        .arg("waiters")
        .env("LEASEHOLD_REDIS_SERVER", "/nowhere/redis-server")
        .output()
        .expect("the load can be started");
    assert_eq!(output.status.code(), Some(1));
}
