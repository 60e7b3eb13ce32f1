//! Passwords that are wrong or that change, and users that are deleted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::settings::{Credentials, Identity};
use leasehold::{Acknowledgement, Client, ClientBuilder, ErrorKind, LockGuard, LossReason};
use leasehold_testkit::{Proxy, RedisServer};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{HOUR, acquire_and_release, eventually};

/// Returns a server with a user, a proxy that counts connections, and a client through the proxy.
async fn logged_in() -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start().unwrap();
    set_user(&server, &["on", ">old", "+@all", "~*", "&*"]);
    let proxy = Proxy::to(server.port());
    let url = format!("redis://app:old@127.0.0.1:{}", proxy.port());
    let builder = Client::builder().lease(Duration::from_secs(2));
    let client = builder.connect(&url).await.unwrap();
    (server, proxy, client)
}

fn set_user(server: &RedisServer, rules: &[&str]) {
    let command = [&["ACL", "SETUSER", "app"][..], rules].concat();
    server.command(&command).unwrap();
}

/// Runs tasks that send requests as often as they can for a while. Asserts that every task gets an
/// error, and that few connections are opened.
async fn denied_without_a_storm(client: &Client, proxy: &Proxy) {
    eventually("it is told", async || {
        let result = client.lock("y").try_acquire().await;
        result.is_err_and(|error| error.kind() == ErrorKind::Denied)
    })
    .await;
    let (before, started) = (proxy.connections(), Instant::now());
    let mut told = 0;
    while started.elapsed() < Duration::from_millis(2500) {
        let error = client.lock("y").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("`y`") && !text.contains("old"), "{text}");
        told += 1;
        tokio::task::yield_now().await;
    }
    let attempts = proxy.connections() - before;
    let most = 2 + 2 * started.elapsed().as_secs_f64().ceil() as usize;
    assert!(told > 100, "at once, not when the next attempt has failed");
    assert!((1..=most).contains(&attempts), "{attempts} of {most}");
}

#[tokio::test]
async fn rotated_password_is_reported_and_client_recovers() {
    let (server, proxy, client) = logged_in().await;
    set_user(&server, &["resetpass", ">new"]);
    // Connections that are already open are not closed.
    let guard = client.lock("x").acquire().await.unwrap();
    proxy.cut();
    denied_without_a_storm(&client, &proxy).await;
    let reason = guard.lost().await;
    assert!(
        matches!(&reason, LossReason::RenewalFailed { cause, .. } if cause.contains("password")),
        "{reason:?}"
    );
    set_user(&server, &[">old"]);
    eventually("it connects again", async || {
        let guard = client.lock("y").try_acquire().await;
        matches!(guard, Ok(Some(_)))
    })
    .await;
}

#[tokio::test]
async fn hold_outlives_password_rotation_with_credentials_callback() {
    let server = RedisServer::start().unwrap();
    set_user(&server, &["on", ">old", "+@all", "~*", "&*"]);
    let proxy = Proxy::to(server.port());
    let vault = Arc::new(Mutex::new(Some("old")));
    let asked = Arc::clone(&vault);
    let lease = Duration::from_secs(8);
    let builder = Client::builder().lease(lease).credentials(move || {
        let password = *asked.lock().unwrap();
        async move {
            tokio::task::yield_now().await;
            let password = password.ok_or("the vault is shut")?;
            Ok(Credentials::user("app", password))
        }
    });
    // The callback's credentials apply, and not the credentials in the URL.
    let url = format!("redis://nobody:wrong@127.0.0.1:{}", proxy.port());
    let client = builder.connect(&url).await.unwrap();
    let held = client.lock("x").renew_every(lease / 16);
    let guard = held.acquire().await.unwrap();
    let refused = async |kind| {
        eventually("it is told", async || {
            let result = client.lock("y").try_acquire().await;
            result.is_err_and(|error| error.kind() == kind)
        })
        .await;
    };

    set_user(&server, &["resetpass", ">new"]);
    proxy.cut();
    refused(ErrorKind::Denied).await;
    *vault.lock().unwrap() = None;
    refused(ErrorKind::Unavailable).await;
    let error = client.lock("y").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("the vault is shut"), "{error}");
    *vault.lock().unwrap() = Some("new");
    let beyond = guard.valid_until() + lease / 8;
    eventually("it is renewed", async || {
        assert_eq!(guard.loss(), None);
        guard.valid_until() > beyond
    })
    .await;

    // The connection for messages queries the credentials, too.
    let other = Client::connect(&server.url()).await.unwrap();
    let theirs = other.lock("y").acquire().await.unwrap();
    let waits = client.lock("y").poll_interval(HOUR);
    let waiter = tokio::spawn(async move { waits.acquire().await.unwrap() });
    eventually("it listens", async || !server.channels().is_empty()).await;
    theirs.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn deleted_user_gets_denied_at_once() {
    let (server, proxy, client) = logged_in().await;
    let held = Client::connect(&server.url()).await.unwrap();
    let _held = held.lock("y").acquire().await.unwrap();
    let lock = client.lock("y");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap_err() });
    eventually("it waits", async || !server.channels().is_empty()).await;
    // The server closes the user's connections when the user is deleted.
    server.command(&["ACL", "DELUSER", "app"]).unwrap();
    let error = waiter.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    denied_without_a_storm(&client, &proxy).await;
}

#[tokio::test]
async fn revoked_permission_fails_waiter_at_next_ask() {
    let (server, _proxy, client) = logged_in().await;
    let holder = Client::connect(&server.url()).await.unwrap();
    let guard = holder.lock("x").acquire().await.unwrap();
    let lock = client.lock("x").poll_interval(Duration::from_millis(20));
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap_err() });
    eventually("it waits", async || !server.channels().is_empty()).await;
    set_user(&server, &["resetkeys"]);
    let error = waiter.await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("`x`"), "{error}");
    guard.release().await.unwrap();
}

/// Many holds of a client, and a task that uses the client all the time.
struct Held {
    guards: Vec<LockGuard>,
    pairs: Arc<AtomicUsize>,
    load: JoinHandle<()>,
}

impl Held {
    async fn of(client: &Client) -> Self {
        let mut guards = Vec::new();
        for number in 0..1000 {
            let lock = client.lock(format!("held:{number}"));
            guards.push(lock.acquire().await.unwrap());
        }
        let (client, pairs) = (client.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&pairs);
        let load = tokio::spawn(async move {
            loop {
                let guard = client.lock("busy").acquire().await.unwrap();
                guard.release().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            guards,
            pairs,
            load,
        }
    }

    /// Waits until the task has made progress.
    async fn goes_on(&self) {
        let before = self.pairs.load(Ordering::Relaxed);
        eventually("the load goes on", async || {
            assert!(!self.load.is_finished(), "an acquire or a release failed");
            self.pairs.load(Ordering::Relaxed) > before
        })
        .await;
    }

    /// Asserts that no hold was lost, and that no call has failed.
    async fn end(self) {
        self.goes_on().await;
        self.load.abort();
        for guard in self.guards {
            assert_eq!(guard.loss(), None);
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn ten_rotations_cost_no_hold_and_no_connection() {
    let server = RedisServer::start().unwrap();
    let user = |number: usize| format!("app{number}");
    let admit = |number: usize| {
        let user = user(number);
        let rule = ["ACL", "SETUSER", &user, "on", ">pw", "+@all", "~*", "&*"];
        server.command(&rule).unwrap();
    };
    admit(0);
    let proxy = Proxy::to(server.port());
    let present = Arc::new(Mutex::new(user(0)));
    let asked = Arc::clone(&present);
    let builder = Client::builder()
        .lease(Duration::from_secs(30))
        .credentials_every(Duration::from_millis(50))
        .credentials(move || {
            let user = asked.lock().unwrap().clone();
            async move { Ok(Credentials::user(user, "pw")) }
        });
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let client = builder.connect(&url).await.unwrap();
    let held = Held::of(&client).await;
    let connections = proxy.connections();
    for number in 1..=10 {
        admit(number);
        *present.lock().unwrap() = user(number);
        eventually("it has logged in as the next one", async || {
            let list = server
                .command(&["CLIENT", "LIST", "TYPE", "NORMAL"])
                .unwrap();
            list.as_text()
                .unwrap()
                .contains(&format!("user={} ", user(number)))
        })
        .await;
        // The server closes the connections of the deleted user.
        server
            .command(&["ACL", "DELUSER", &user(number - 1)])
            .unwrap();
    }
    acquire_and_release(&client.lock("at last")).await;
    assert_eq!(
        proxy.connections(),
        connections,
        "the one connection has stayed"
    );
    held.end().await;
}

/// Returns the builder of a client that often queries the credentials. They contain the current
/// `word`.
fn logs_in_with(
    word: &Arc<Mutex<&'static str>>,
    made: fn(&'static str) -> Credentials,
) -> ClientBuilder {
    let asked = Arc::clone(word);
    let builder = Client::builder().credentials_every(Duration::from_millis(50));
    builder.credentials(move || {
        let credentials = made(*asked.lock().unwrap());
        async move { Ok(credentials) }
    })
}

/// Waits until the server has refused a login.
async fn until_refused(server: &RedisServer) {
    eventually("it is refused", async || {
        let log = server.command(&["ACL", "LOG"]).unwrap();
        !log.as_array().unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn refused_new_credentials_leave_the_old_ones_in_use() {
    let (server, _proxy, _) = logged_in().await;
    let password = Arc::new(Mutex::new("old"));
    let builder = logs_in_with(&password, |password| Credentials::user("app", password));
    let client = builder.connect(&server.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    *password.lock().unwrap() = "wrong";
    until_refused(&server).await;
    guard.extend(Duration::from_secs(60)).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn ten_renewed_client_certificates_cost_no_hold() {
    let server = RedisServer::builder()
        .tls_with_client_certificates()
        .start()
        .unwrap();
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let builder = || {
        let builder = Client::builder().lease(Duration::from_secs(30));
        builder.tls_authorities(server.ca_pem())
    };
    let nobody = builder().connect(&url).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Unavailable, "{nobody}");

    let certificates = server.client_certificates();
    let many = certificates.len();
    assert!(many > 1);
    let (present, reads) = (Arc::new(Mutex::new(Some(0))), Arc::new(Mutex::new(0)));
    let (asked, counted) = (Arc::clone(&present), Arc::clone(&reads));
    let identity = move || {
        *counted.lock().unwrap() += 1;
        let present = *asked.lock().unwrap();
        let (certificate, key) = &certificates[present.ok_or("it is being written")?];
        Ok(Identity::from_pem(
            std::fs::read(certificate)?,
            std::fs::read(key)?,
        ))
    };
    let with = builder().tls_identity(identity);
    // The server's certificate is neither for this name nor for the name that is set below.
    let other = with.clone().tls_server_name("example.org");
    assert_eq!(
        other.connect(&url).await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let client = with
        .tls_server_name("localhost")
        .connect(&url)
        .await
        .unwrap();
    let held = Held::of(&client).await;
    let connects_again = async |next| {
        *present.lock().unwrap() = next;
        let before = *reads.lock().unwrap();
        let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
        server.command(&kill).unwrap();
        eventually("the next connection asks", async || {
            *reads.lock().unwrap() > before
        })
        .await;
    };
    for number in 1..=10 {
        // If the callback's certificate does not exist yet when a connection needs it, the callback
        // runs again.
        connects_again(None).await;
        connects_again(Some(number % many)).await;
        held.goes_on().await;
    }
    held.end().await;
    let odd = builder().tls_identity(|| Ok(Identity::from_pem("no certificate", "no key")));
    let error = odd.connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(
        error.to_string().contains("the client's certificate"),
        "{error}"
    );
}

/// The runtime has one thread, which must not block on a file system that does not answer.
#[tokio::test]
async fn certificate_that_is_read_slowly_stops_no_other_task() {
    let server = RedisServer::builder()
        .tls_with_client_certificates()
        .start()
        .unwrap();
    let (certificate, key) = server.client_certificates().swap_remove(0);
    // A read blocks until the test answers, or for at most `SOON`.
    const SOON: Duration = Duration::from_secs(10);
    let (answer, answered) = std::sync::mpsc::channel::<()>();
    let (answered, is_slow) = (Mutex::new(answered), Arc::new(AtomicBool::new(false)));
    let (begun, slow) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&is_slow));
    let counted = Arc::clone(&begun);
    let identity = move || {
        if slow.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = answered.lock().unwrap().recv_timeout(SOON);
        }
        Ok(Identity::from_pem(
            std::fs::read(&certificate)?,
            std::fs::read(&key)?,
        ))
    };
    let builder = Client::builder().tls_authorities(server.ca_pem());
    let builder = builder.connect_timeout(Duration::from_secs(1));
    let url = format!("rediss://localhost:{}", server.port());
    let client = builder.tls_identity(identity).connect(&url).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();

    is_slow.store(true, Ordering::Relaxed);
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    server.command(&kill).unwrap();
    let before = Instant::now();
    eventually("a certificate is read", async || {
        begun.load(Ordering::Relaxed) > 0
    })
    .await;
    // After some attempts, one thread is still blocked by the first read.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(before.elapsed() < SOON, "the runtime's thread waited");
    assert_eq!(begun.load(Ordering::Relaxed), 1);
    is_slow.store(false, Ordering::Relaxed);
    answer.send(()).unwrap();
    eventually("it is connected again", async || {
        client.lock("y").try_acquire().await.is_ok()
    })
    .await;
    guard.release().await.unwrap();
}

/// A user's callback must not end the task that maintains the connection.
#[tokio::test]
async fn certificate_callback_that_panics_is_asked_again() {
    let server = RedisServer::builder()
        .tls_with_client_certificates()
        .start()
        .unwrap();
    let (certificate, key) = server.client_certificates().swap_remove(0);
    let (panics, reads) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let (asked, counted) = (Arc::clone(&panics), Arc::<AtomicUsize>::clone(&reads));
    let identity = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        assert!(!asked.load(Ordering::Relaxed), "on purpose");
        Ok(Identity::from_pem(
            std::fs::read(&certificate)?,
            std::fs::read(&key)?,
        ))
    };
    let builder = Client::builder()
        .tls_authorities(server.ca_pem())
        .tls_identity(identity);
    let url = format!("rediss://localhost:{}", server.port());
    let client = builder.connect(&url).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();

    panics.store(true, Ordering::Relaxed);
    let before = reads.load(Ordering::Relaxed);
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    server.command(&kill).unwrap();
    eventually("it has panicked twice", async || {
        reads.load(Ordering::Relaxed) > before + 1
    })
    .await;
    let error = client.lock("y").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = "the callback panicked";
    assert!(error.to_string().contains(said), "{error}");
    let error = builder.connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(error.to_string().contains(said), "{error}");

    panics.store(false, Ordering::Relaxed);
    eventually("it is connected again", async || {
        client.lock("y").try_acquire().await.is_ok()
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn server_that_wants_a_password_denies_every_operation() {
    let server = RedisServer::builder().password("pw").start().unwrap();
    let says_so = |error: leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let said = "wants a password, and none is given";
        assert!(error.to_string().contains(said), "{error}");
    };
    for query in ["", "?protocol=resp3"] {
        let url = format!("redis://127.0.0.1:{}{query}", server.port());
        says_so(Client::connect(&url).await.unwrap_err());
        let client = Client::builder().connect_in_background(&url).unwrap();
        says_so(client.lock("x").try_acquire().await.unwrap_err());
        says_so(client.lock("x").acquire().await.unwrap_err());
        says_so(client.fair_lock("x").acquire().await.unwrap_err());
        let latch = client.count_down_latch("x");
        says_so(latch.count_down().await.unwrap_err());
        says_so(latch.wait().await.unwrap_err());
        says_so(client.semaphore("x").try_set_permits(1).await.unwrap_err());
        says_so(client.inspect("x").await.unwrap_err());
    }
}

/// Two connections for calls are opened at the same time, and the credentials change in between.
#[tokio::test]
async fn each_connection_knows_with_what_it_has_logged_in() {
    let server = RedisServer::start().unwrap();
    for user in ["app0", "app1", "app2"] {
        let rule = ["ACL", "SETUSER", user, "on", ">pw", "+@all", "~*", "&*"];
        server.command(&rule).unwrap();
    }
    let logged_in_as = |user: &str| {
        let list = server.command(&["CLIENT", "LIST"]).unwrap();
        let list = list.as_text().unwrap().to_owned();
        list.matches(&format!("user={user} ")).count()
    };
    let (asked, both) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let rotates = Arc::new(AtomicBool::new(false));
    let (counted, met, rotated) = (Arc::clone(&asked), Arc::clone(&both), Arc::clone(&rotates));
    let builder = Client::builder()
        .credentials_every(Duration::from_millis(300))
        .credentials(move || {
            let number = match rotated.load(Ordering::Relaxed) {
                true => counted.fetch_add(1, Ordering::Relaxed) + 1,
                false => 0,
            };
            let met = Arc::clone(&met);
            async move {
                match number {
                    // The first call of the callback returns after the second call has begun, and
                    // just before the second call returns.
                    1 => met.notified().await,
                    2 => met.notify_one(),
                    _ => {}
                }
                if number == 2 {
                    tokio::task::yield_now().await;
                }
                Ok(Credentials::user(format!("app{}", number.min(2)), "pw"))
            }
        });
    let client = builder.connect(&server.url()).await.unwrap();
    let confirmed = Acknowledgement::replicas(1).within(Duration::from_millis(10));
    let lock = client.lock("x").acknowledged_by(confirmed);
    lock.try_acquire().await.unwrap_err();
    assert_eq!(
        logged_in_as("app0"),
        2,
        "there is no replica, but a connection"
    );

    rotates.store(true, Ordering::Relaxed);
    server.command(&["CLIENT", "KILL", "USER", "app0"]).unwrap();
    eventually("both have logged in as the last one", async || {
        logged_in_as("app2") == 2 && logged_in_as("app1") == 0
    })
    .await;
}

/// The client does not even call the server.
#[tokio::test]
async fn credentials_that_fail_are_named_and_not_the_server() {
    let server = RedisServer::start().unwrap();
    let builder = Client::builder().credentials(|| async { Err("no secret today".into()) });
    let error = builder.connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    for word in [
        "can't log in",
        "`credentials` failed: no secret today",
        "127.0.0.1",
    ] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    assert!(!text.contains("no server answered"), "{text}");
}

/// Credentials that are refused now may be accepted later. The client tries them again on the open
/// connection.
#[tokio::test]
async fn refused_credentials_are_used_as_soon_as_the_server_takes_them() {
    let (server, proxy, _) = logged_in().await;
    let user = Arc::new(Mutex::new("app"));
    let builder = logs_in_with(&user, |user| Credentials::user(user, "old"));
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let client = builder.connect(&url).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    *user.lock().unwrap() = "next";
    until_refused(&server).await;
    let connections = proxy.connections();
    let next = ["ACL", "SETUSER", "next", "on", ">old", "+@all", "~*", "&*"];
    server.command(&next).unwrap();
    eventually("it has logged in", async || {
        let list = server.command(&["CLIENT", "LIST"]).unwrap();
        list.as_text().unwrap().contains("user=next ")
    })
    .await;
    assert_eq!(
        proxy.connections(),
        connections,
        "the connection has stayed"
    );
    guard.release().await.unwrap();
}

/// If only the password changes, the user in the URL still applies.
#[tokio::test]
async fn new_password_is_that_of_the_urls_user() {
    let (server, proxy, _) = logged_in().await;
    let password = Arc::new(Mutex::new("old"));
    let builder = logs_in_with(&password, Credentials::password);
    let url = format!("redis://app@127.0.0.1:{}", proxy.port());
    let client = builder.connect(&url).await.unwrap();
    let logins = server.calls("auth");
    set_user(&server, &[">new"]);
    *password.lock().unwrap() = "new";
    eventually("it has logged in again", async || {
        server.calls("auth") > logins
    })
    .await;
    acquire_and_release(&client.lock("x")).await;
    let list = server.command(&["CLIENT", "LIST"]).unwrap();
    let mut ours = list.as_text().unwrap().lines();
    let is_app = |line: &str| !line.contains("name=leasehold") || line.contains("user=app ");
    assert!(ours.all(is_app), "{list:?}");
}
