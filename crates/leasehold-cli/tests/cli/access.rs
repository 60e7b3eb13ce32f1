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

#[test]
fn prefix_is_no_pattern() {
    let server = server();
    let prefix = ["--prefix", "a*[b]?:"];
    let mut other = leasehold_at(&server);
    let mut other = start(other.args(["hold", "axb1:job"]));
    other.until("held");
    let mut own = leasehold_at(&server);
    let mut own = start(own.args(prefix).args(["hold", "job"]));
    own.until("held");
    assert!(server.keys().contains(&"a*[b]?:job".to_owned()));
    let listed = done(leasehold_at(&server).args(prefix).args(["ls", "--json"])).expect_code(0);
    assert_eq!(listed.stdout.lines().count(), 1, "{listed}");
    assert!(listed.stdout.contains(r#""name":"job""#), "{listed}");
    other.done().expect_code(0);
    own.done().expect_code(0);
}

#[test]
fn user_of_the_url_logs_in() {
    let server = server();
    let user = ["ACL", "SETUSER", "app", "on", ">p:w", "+@all", "~*", "&*"];
    server.command(&user).expect("the server runs");
    let script = "echo held; read end; exit 3";
    let run_as = |login: &str| {
        let mut run = leasehold();
        let url = format!("redis://{login}@127.0.0.1:{}", server.port());
        run.env("LEASEHOLD_URL", url)
            .args(["run", "job", "--", "sh", "-c", script]);
        start(&mut run)
    };
    let mut run = run_as("app:p%3Aw");
    run.until("held");
    let clients = server.command(&["CLIENT", "LIST"]).expect("it runs");
    let clients = clients.as_text().expect("a text").to_owned();
    assert!(clients.contains("user=app"), "{clients}");
    run.done().expect_code(3);
    run_as("app:wrong").done().expect_code(77);
}

#[test]
fn refused_credentials_that_become_valid_keep_the_lock() {
    let server = server();
    let set_password = |password: &str| {
        let rule = format!(">{password}");
        let user = [
            "ACL",
            "SETUSER",
            "app",
            "on",
            "resetpass",
            &rule,
            "+@all",
            "~*",
            "&*",
        ];
        server.command(&user).expect("the server runs");
    };
    set_password("right");
    let url = format!("redis://app:right@127.0.0.1:{}", server.port());
    let mut run = leasehold();
    run.env("LEASEHOLD_URL", url)
        .args(["run", "--lease", "20s", "job", "--"])
        .args(["sh", "-c", "echo held; read end; exit 3"]);
    let mut run = start(&mut run);
    run.until("held");
    let left = || {
        let left = server.command(&["PTTL", "job"]).expect("the server runs");
        left.as_int().expect("a number")
    };
    set_password("another");
    let cut = ["CLIENT", "KILL", "USER", "app"];
    server.command(&cut).expect("the server runs");
    eventually("a renewal was due", LIMIT, || left() < 12_000);
    assert!(run.has_told("leasehold: WARN"));
    set_password("right");
    eventually("it is renewed again", LIMIT, || left() > 18_000);
    run.done().expect_code(3);
}
