//! Passwords, certificates and addresses: in files, in URLs, in the environment.

use std::thread;

use leasehold_testkit::{Cluster, RedisServer, eventually};

use crate::support::{BINARY, LIMIT, done, leasehold, leasehold_at, server, set_password, start};

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
}

#[test]
fn local_file_that_cannot_be_read_is_named() {
    // No server listens on port 1, so this fails before it connects: the file is read first.
    let url = "rediss://app@127.0.0.1:1";
    let of = |words: &[&str]| {
        let mut show = leasehold();
        done(show.args(["--redis", url, "show", "job"]).args(words)).expect_code(78)
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("UTF-8");
    for (option, what) in [
        ("--password-file", "password file"),
        ("--cacert", "certificate authorities"),
    ] {
        of(&[option, "nopw"])
            .expect_on_stderr(&format!("cannot read the {what} `nopw`: no such file"));
        of(&[option, folder]).expect_on_stderr(": it is a folder");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let file = file.path().to_str().expect("UTF-8");
    of(&["--cert", "nocert", "--key", file])
        .expect_on_stderr("cannot read the certificate `nocert`: no such file");
    of(&["--cert", file, "--key", "nokey"])
        .expect_on_stderr("cannot read the private key `nokey`: no such file");
    let run = ["run", "--password-file", "nopw", "job", "--", "true"];
    done(leasehold().args(["--redis", url]).args(run)).expect_code(78);
}

/// A pipe can be read only once, so the first password must be kept.
#[test]
fn password_file_may_be_a_pipe() {
    let server = RedisServer::builder()
        .password("s3cret")
        .start()
        .expect("it starts");
    let script = format!("{BINARY} show job --password-file <(echo s3cret)");
    let mut bash = std::process::Command::new("bash");
    let url = format!("redis://127.0.0.1:{}", server.port());
    bash.args(["-c", &script]).env("LEASEHOLD_URL", url);
    done(&mut bash).expect_code(0);
}

#[test]
fn password_from_a_pipe_is_kept_for_later_connections() {
    let server = RedisServer::builder()
        .password("s3cret")
        .start()
        .expect("it starts");
    let script = format!(
        "exec {BINARY} run job --lease 5s --password-file <(echo s3cret) -- \
         sh -c 'echo held; read end; exit 3'"
    );
    let mut bash = std::process::Command::new("bash");
    let url = format!("redis://127.0.0.1:{}", server.port());
    bash.args(["-c", &script]).env("LEASEHOLD_URL", url);
    let mut run = start(&mut bash);
    run.until("held");
    let command = |words: &[&str]| server.command(words).expect("the server runs");
    command(&["CLIENT", "KILL", "TYPE", "normal"]);
    // The command logs in again on its new connection.
    let left = || command(&["PTTL", "job"]).as_int().expect("a number");
    let before = left();
    eventually("it is renewed", LIMIT, || left() > before);
    run.done().expect_code(3);
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
        (&["--cert", "/nowhere"][..], 2, "--key"),
        (&["--cacert", "/dev/null"], 2, "no certificate"),
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
fn mapped_address_is_where_a_node_is_reached() {
    let cluster = Cluster::start(2, 0);
    let name = (0..).map(|n| format!("job{n}"));
    let mut name = name.filter(|name| cluster.owner(cluster.slot_of(name)) == 1);
    let name = name.next().expect("there are some");
    let reached = cluster.nodes()[1].port();
    // No server listens on port 1.
    cluster.announce(1, 1);
    let url = cluster.nodes()[0].url().replace("redis:", "redis-cluster:");
    let show = || {
        let mut show = leasehold();
        show.args(["--redis", &url, "show", &name]);
        show
    };
    done(&mut show()).expect_code(69).expect_on_stderr("--map");
    let map = format!("127.0.0.1:1=localhost:{reached}");
    let others = "10.0.0.7:1=localhost:1";
    let mapped = ["--map", others, "--map", &map];
    done(show().args(mapped)).expect_code(0);
    done(show().env("LEASEHOLD_MAP", format!("{others}, {map}"))).expect_code(0);
    done(show().args(["--map", "nothing"]))
        .expect_code(2)
        .expect_on_stderr("HOST:PORT=HOST:PORT");
    done(show().env("LEASEHOLD_MAP", "nothing"))
        .expect_code(2)
        .expect_on_stderr("$LEASEHOLD_MAP");
}

#[test]
fn url_that_is_not_understood_says_what_to_write() {
    for (url, says) in [
        ("redis://h?database=3", "`database`"),
        ("redis://h/2?db=3", "two databases"),
        ("redis+unix://tmp/x.sock", "three slashes"),
        ("redis://h#three", "`#`"),
        ("localhost:6379", "no scheme; write it as redis://HOST:PORT"),
        ("'redis://h'", "without quotes"),
        ("redis://a:1,b:2", "redis-cluster://"),
        ("redis://u:12/s3cret@h", "percent-encoded"),
    ] {
        let done = done(leasehold().env("LEASEHOLD_URL", url).args(["show", "job"]));
        assert!(!done.stderr.contains("s3cret"), "{done}");
        done.expect_code(2).expect_on_stderr(says);
    }
}

/// Returns a password of letters that no message contains, and of all characters that have a
/// meaning in a URL.
fn password() -> String {
    const LETTERS: &[u8] = b"qxzQXZ048";
    const SIGNS: &[u8] = b"/?#@:%&=+,[];\"\\ !";
    let letters = (0..12).map(|n| {
        // No two signs follow each other, because messages contain `://`.
        let alphabet = if n % 3 == 1 { SIGNS } else { LETTERS };
        char::from(alphabet[fastrand::usize(..alphabet.len())])
    });
    letters.collect()
}

fn shows_no_part_of(secret: &str, url: &str, how: usize) {
    let mut command = leasehold();
    match how % 4 {
        0 => command.env("LEASEHOLD_URL", url).args(["show", "job"]),
        1 => command.args(["-vv", "--redis", url, "run", "-n", "job", "--", "true"]),
        2 => command.args(["run", "-n", "--redlock", url, "job", "--", "true"]),
        // The URL is in the wrong place.
        _ => command.args(["show", "job", url]),
    };
    let done = done(&mut command);
    assert_ne!(done.code(), 0, "{done}");
    let letters: Vec<_> = secret.chars().collect();
    for piece in letters.windows(4) {
        let piece: String = piece.iter().collect();
        let said = [&done.stdout, &done.stderr];
        assert!(
            !said.iter().any(|said| said.contains(&piece)),
            "`{piece}` of {secret}: {done}"
        );
    }
}

#[test]
fn no_output_shows_a_part_of_a_password() {
    const EACH: usize = 50;
    thread::scope(|scope| {
        for part in 0..4 {
            scope.spawn(move || {
                for n in 0..EACH {
                    let secret = password();
                    let whole: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
                    let written = if n % 3 == 0 { &whole } else { &secret };
                    let url = match (n + part) % 6 {
                        0 => format!("redis://u:{written}@127.0.0.1:1"),
                        1 => format!("rediss://:{written}@127.0.0.1:1/2"),
                        2 => format!("redis-cluster://u:{written}@127.0.0.1:1,127.0.0.1:1"),
                        3 => format!("redis-sentinel://127.0.0.1:1/m?sentinel_pass={written}"),
                        4 => format!("redis+unix:///no/such?pass={written}"),
                        _ => format!("u:{written}@127.0.0.1:1"),
                    };
                    shows_no_part_of(&secret, &url, part);
                    shows_no_part_of(written, &url, part);
                }
            });
        }
    });
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
    let set_password = |password| set_password(&server, password);
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
