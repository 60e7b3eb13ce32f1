//! `leasehold run` with several locks, and with several servers.

use leasehold_testkit::{RedisServer, eventually};

use crate::support::{LIMIT, Running, done, leasehold, run_script, server, start};

fn holder(server: &RedisServer, options: &[&str]) -> Running {
    let mut holder = start(&mut run_script(server, options, "echo held; read end"));
    holder.until("held");
    holder
}

fn end(mut holder: Running) {
    holder.close_stdin();
    holder.done().expect_code(1);
}

#[test]
fn command_holds_all_the_locks_or_none() {
    let server = server();
    let other = holder(&server, &["--also", "ann"]);
    let mut run = run_script(
        &server,
        &["--also", "bob", "--also", "ann", "--no-wait"],
        "true",
    );
    done(&mut run)
        .expect_code(75)
        .expect_on_stderr("is held by ");
    assert!(!server.keys().contains(&"bob".to_owned()));
    end(other);
    let both = ["--also", "bob", "--also", "ann", "--wait", "20s"];
    let keys = format!(
        "redis-cli -u {} keys '*' | grep -v ^leasehold:client | sort | tr '\\n' ' '",
        server.url()
    );
    let held = done(&mut run_script(&server, &both, &keys)).expect_code(0);
    assert_eq!(held.stdout, "ann bob job ");
    assert!(server.keys().is_empty());
}

#[test]
fn redlock_run_needs_a_majority() {
    let servers = [server(), server(), server()];
    let urls = servers.each_ref().map(RedisServer::url);
    let run = |options: &[&str], script: &str| {
        let mut run = leasehold();
        run.arg("run");
        for url in &urls {
            run.args(["--redlock", url]);
        }
        run.args(options).args(["job", "--", "sh", "-c", script]);
        run
    };
    // A server that has just started may have lost grants. It does not count until the longest
    // lease of any client has ended.
    let lease = ["--lease", "10s"];
    let wait = [&lease[..], &["--wait", "90s", "--outage-timeout", "90s"]].concat();
    servers[1].kill().expect("it runs");
    let mut holder = start(&mut run(&wait, "echo held; read end"));
    holder.until("held");
    let now = [&lease[..], &["--no-wait"]].concat();
    let mut told = String::new();
    eventually("the servers count again", LIMIT, || {
        told = done(&mut run(&now, "true")).to_string();
        told.contains("is held by ")
    });
    assert!(told.contains("75"), "{told}");
    end(holder);
    let fenced = [&wait[..], &["--fenced"]].concat();
    let tokens = [(); 2].map(|()| {
        let done = done(&mut run(&fenced, "echo $LEASEHOLD_TOKEN")).expect_code(0);
        let token = done.stdout.trim().parse::<u64>();
        token.unwrap_or_else(|_| panic!("{done}"))
    });
    assert!(tokens[1] > tokens[0], "{tokens:?}");
    // Without a majority, the lock can't be held, and the message names the servers.
    servers[2].kill().expect("it runs");
    let outage = [&lease[..], &["--outage-timeout", "500ms"]].concat();
    let failed = done(&mut run(&outage, "true")).expect_code(69);
    for url in &urls[1..] {
        let address = url.trim_start_matches("redis://");
        assert!(failed.stderr.contains(address), "{failed}");
    }
}
