//! Tests of the driver with both Redisson versions, against one server.

use std::time::{Duration, Instant};

use leasehold_testkit::{
    LockKind, Proxy, RedisServer, Redisson, RedissonVersion, Reply, eventually, monotonic_ns,
    redisson::{RedissonError, RedissonThread, first_overlap},
};

const LIMIT: Duration = Duration::from_secs(20);

/// The client `c` and its thread `t1`.
struct Setup {
    redisson: Redisson,
    client_id: String,
    thread: RedissonThread,
}

fn setup(version: RedissonVersion, server: &RedisServer) -> Setup {
    let redisson = Redisson::start(version, &server.url());
    let client_id = redisson.client("c", None).expect("the server runs");
    let thread = redisson.thread("c", "t1");
    Setup {
        redisson,
        client_id,
        thread,
    }
}

fn server() -> RedisServer {
    RedisServer::start().expect("redis-server is installed")
}

#[test]
fn lock_of_one_version_excludes_the_other() {
    let server = server();
    let [old, new] = RedissonVersion::ALL.map(|version| setup(version, &server));
    for (holder, other) in [(&old, &new), (&new, &old)] {
        for kind in [
            LockKind::Plain,
            LockKind::Spin,
            LockKind::Fair,
            LockKind::Write,
        ] {
            let (holder, other) = (holder.thread.kind(kind), other.thread.kind(kind));
            holder.lock("x").expect("nobody holds it");
            assert!(!other.try_lock("x").expect("the server runs").value);
            let waiter = other.start_lock("x");
            std::thread::sleep(Duration::from_millis(100));
            assert!(!waiter.is_done());
            let released = holder.unlock("x").expect("it is held");
            let acquired = waiter.wait(LIMIT).expect("it is free");
            assert!(acquired.until_ns > released.from_ns);
            other.unlock("x").expect("it is held");
        }
    }
}

#[test]
fn holder_is_client_and_thread() {
    for version in RedissonVersion::ALL {
        let server = server();
        let setup = setup(version, &server);
        let holder = &setup.thread;
        holder.lock("x").expect("nobody holds it");
        holder.lock("x").expect("a lock is re-entrant");

        let field = format!(
            "{}:{}",
            setup.client_id,
            holder.thread_id().expect("the client exists").value
        );
        assert_eq!(server.keys(), ["x"]);
        assert_eq!(
            server.command(&["HGETALL", "x"]).expect("the server runs"),
            Reply::Array(vec![Reply::Text(field), Reply::Text("2".to_owned())])
        );
        assert_eq!(holder.hold_count("x").expect("the server runs").value, 2);
        assert!(
            holder
                .is_held_by_current_thread("x")
                .expect("the server runs")
                .value
        );

        let other = setup.redisson.thread("c", "t2");
        assert!(
            !other
                .is_held_by_current_thread("x")
                .expect("the server runs")
                .value
        );
        assert!(other.is_locked("x").expect("the server runs").value);
        let refused = other.unlock("x").expect_err("another thread holds it");
        assert_eq!(refused.class, "IllegalMonitorStateException");
        assert!(other.force_unlock("x").expect("the server runs").value);
        assert_eq!(other.ttl("x").expect("the server runs").value, -2);
    }
}

#[test]
fn waiting_and_leases_have_limits() {
    for version in RedissonVersion::ALL {
        let server = server();
        let setup = setup(version, &server);
        let other = setup.redisson.thread("c", "t2");
        setup
            .thread
            .lock_lease("x", Duration::from_secs(5))
            .expect("nobody holds it");
        let ttl = setup.thread.ttl("x").expect("the server runs").value;
        assert!((1..=5000).contains(&ttl), "{ttl}");

        let refused = other
            .try_lock_wait("x", Duration::from_millis(200), None)
            .expect("the server runs");
        assert!(!refused.value);
        assert!(refused.until_ns - refused.from_ns >= 200_000_000);

        setup.thread.unlock("x").expect("it is held");
        let lease = Some(Duration::from_secs(3));
        let granted = other.try_lock_wait("x", LIMIT, lease).expect("it is free");
        assert!(granted.value);
        assert!(other.ttl("x").expect("the server runs").value <= 3000);
    }
}

#[test]
fn hammered_counter_is_exact_across_versions() {
    let server = server();
    let setups = RedissonVersion::ALL.map(|version| setup(version, &server));
    let before = monotonic_ns();
    let runs = setups.each_ref().map(|setup| {
        setup
            .thread
            .hammer("x", "counter", 3, Duration::from_secs(1))
    });
    let reports = runs.map(|run| run.wait(LIMIT).expect("the hammer runs").value);
    let after = monotonic_ns();

    for report in &reports {
        assert!(report.increments > 0);
        let on_our_clock = |ns: u64| (before..after).contains(&ns);
        assert!(
            report
                .intervals
                .iter()
                .all(|hold| on_our_clock(hold.acquired_ns))
        );
    }
    let increments: u64 = reports.iter().map(|report| report.increments).sum();
    assert_eq!(
        server
            .command(&["GET", "counter"])
            .expect("the server runs"),
        Reply::Text(increments.to_string())
    );
    let holds = reports.iter().flat_map(|report| report.intervals.clone());
    assert_eq!(first_overlap(holds), None);
}

#[test]
fn killed_jvm_leaves_its_lock_to_expire() {
    for version in RedissonVersion::ALL {
        let server = server();
        let setup = setup(version, &server);
        let watchdog = Duration::from_secs(3);
        setup
            .redisson
            .client("short", Some(watchdog))
            .expect("the server runs");
        let thread = setup.redisson.thread("short", "t1");
        thread.lock("x").expect("nobody holds it");
        let waiting = setup.thread.start_lock("x");

        setup.redisson.kill();
        let error = waiting.wait(LIMIT).expect_err("the JVM is gone");
        assert_eq!(error.class, RedissonError::GONE);
        assert_eq!(
            thread.try_lock("x").expect_err("the JVM is gone").class,
            RedissonError::GONE
        );
        assert_eq!(server.keys(), ["x"]);
        eventually("lease over", LIMIT, || server.keys().is_empty());
    }
}

#[test]
fn jvm_can_exit_on_its_own() {
    let server = server();
    let setup = setup(RedissonVersion::V4_7_0, &server);
    setup.redisson.exit_hard();
    assert!(setup.thread.thread_id().is_err());
}

#[test]
fn paused_jvm_does_not_renew() {
    let server = server();
    let redisson = Redisson::start(RedissonVersion::V3_16_8, &server.url());
    redisson
        .client("c", Some(Duration::from_secs(2)))
        .expect("the server runs");
    let thread = redisson.thread("c", "t1");
    thread.lock("x").expect("nobody holds it");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(server.keys(), ["x"], "the watchdog has renewed it");
    redisson.pause();
    eventually("lease over", LIMIT, || server.keys().is_empty());
    redisson.resume();
    assert!(
        !thread
            .is_held_by_current_thread("x")
            .expect("it runs again")
            .value
    );
}

#[test]
fn redisson_client_connects_through_proxy_with_password() {
    for version in RedissonVersion::ALL {
        let server = RedisServer::builder()
            .password("secret")
            .start()
            .expect("redis-server is installed");
        let proxy = Proxy::to(server.port());
        let setup = setup(version, &server);
        let url = proxy.url().replace("//", "//:secret@");
        setup
            .redisson
            .client_at("p", &url, None)
            .expect("the proxy forwards");
        assert!(proxy.connections() > 0);
        setup
            .redisson
            .thread("p", "t1")
            .lock("x")
            .expect("nobody holds it");
        assert!(!setup.thread.try_lock("x").expect("the server runs").value);
        setup.redisson.close_client("p").expect("it is open");
        assert!(setup.redisson.close_client("p").is_err());
    }
}

#[test]
fn answer_that_does_not_come_is_an_error() {
    let server = server();
    let setup = setup(RedissonVersion::V4_7_0, &server);
    let started = Instant::now();
    server.pause().expect("the process is ours");
    let pending = setup.thread.start_is_locked("x");
    let late = pending
        .wait(Duration::from_millis(50))
        .expect_err("the server is paused");
    assert_eq!(late.class, RedissonError::NO_ANSWER);
    assert!(late.message.contains("is_locked"), "{late}");
    server.resume().expect("the process is ours");
    assert!(!pending.wait(LIMIT).expect("the server runs").value);
    assert!(started.elapsed() < LIMIT);
}
