//! Passwords in files, and certificates.

use leasehold_testkit::{RedisServer, eventually};

use crate::support::{BINARY, LIMIT, done, leasehold, leasehold_at, server, start};

#[test]
fn password_is_read_from_a_file_that_changes() {
    let server = server();
    let set_user = |rules: &[&str]| {
        let command = [&["ACL", "SETUSER", "app", "on", "+@all", "~*", "&*"], rules].concat();
        server.command(&command).expect("the server runs");
    };
    set_user(&[">old"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "old\n").expect("it can be written");
    let url = format!("redis://app@127.0.0.1:{}", server.port());
    let mut hold = leasehold();
    hold.args(["hold", "job", "--redis", &url, "--password-file"])
        .arg(file.path());
    let mut hold = start(&mut hold);
    hold.until("held");
    let logins = || {
        let stats = server
            .command(&["INFO", "commandstats"])
            .expect("the server runs");
        let stats = stats.as_text().expect("text").to_owned();
        let calls = stats.split("cmdstat_auth:calls=").nth(1).unwrap_or("0");
        calls
            .split(',')
            .next()
            .and_then(|calls| calls.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let before = logins();
    set_user(&[">new"]);
    std::fs::write(file.path(), "new\n").expect("it can be written");
    eventually("it logs in again", LIMIT, || logins() > before);
    hold.done().expect_code(0);
    let mut show = leasehold();
    show.args([
        "--redis",
        &url,
        "--password-file",
        "/nowhere",
        "show",
        "job",
    ]);
    done(&mut show).expect_code(69).expect_on_stderr("/nowhere");
}

#[test]
fn certificates_are_read_from_files() {
    let server = RedisServer::builder()
        .tls_with_client_certificates()
        .start()
        .expect("redis-server starts");
    let [(certificate, key), ..] = &server.client_certificates()[..] else {
        panic!("there are some");
    };
    let mut show = leasehold();
    let url = format!("rediss://127.0.0.1:{}", server.port());
    show.args([
        "--redis",
        &url,
        "show",
        "job",
        "--sni",
        "localhost",
        "--cacert",
    ])
    .arg(server.ca_file())
    .arg("--cert")
    .arg(certificate)
    .arg("--key")
    .arg(key);
    done(&mut show).expect_code(0);
    for (words, code, says) in [
        (&["--cacert", "/nowhere"][..], 1, "can't read /nowhere"),
        (&["--cert", "/nowhere", "--key", "/nowhere"], 2, "/nowhere"),
        (&["--cert", "/nowhere"], 2, "--key"),
        (&["--sni", "not a name"], 2, "not a name"),
    ] {
        let mut show = leasehold_at(&server);
        show.args(["show", "job"]).args(words);
        done(&mut show).expect_code(code).expect_on_stderr(says);
    }
}

#[test]
fn prefix_stands_before_every_name() {
    let server = server();
    let held = |words: &[&str]| {
        let run = ["run", "--prefix", "app:", "job", "-c"];
        done(leasehold_at(&server).args(run).args(words))
            .expect_code(0)
            .stdout
    };
    let whole = held(&[&format!("{BINARY} ls --json")]);
    assert!(whole.contains(r#""name":"app:job""#), "{whole}");
    let short = held(&[&format!(
        "{BINARY} --prefix app: ls --json; echo $LEASEHOLD_NAME"
    )]);
    assert!(short.contains(r#""name":"job""#), "{short}");
    assert!(short.ends_with("job\n"), "{short}");
}
