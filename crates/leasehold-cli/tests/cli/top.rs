//! `leasehold top`, on a terminal that Python's `pty` module simulates.

use crate::support::{BINARY, done, is_free, leasehold_at, run_script, server, start};
use crate::terminal::on_terminal;

#[test]
fn picture_shows_who_holds_and_releases_what_is_selected() {
    let server = server();
    let options = ["--label", "nightly billing", "--lease", "2s"];
    let mut holder = start(&mut run_script(&server, &options, "echo held; sleep 60"));
    holder.until("held");
    let line = format!("stty rows 24 cols 120; exec {BINARY} top --every 50ms");
    // The keys are: down, details, back, release, yes, quit. The picture sends only changes, so the
    // test waits for single words.
    let steps = [("HELD", "j\r"), ("count", "\rr"), ("y/n", "yq")];
    let command = ["sh", "-c", &line];
    let (shown, code) = on_terminal(&server, &command, &steps);
    assert_eq!(code, 0, "{shown}");
    holder.done().expect_code(70);
    assert!(is_free(&server));
}

#[test]
fn picture_needs_a_terminal() {
    let server = server();
    done(leasehold_at(&server).arg("top"))
        .expect_code(2)
        .expect_on_stderr("leasehold ls --json");
}
