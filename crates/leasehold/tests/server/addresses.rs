//! Mistakes in addresses: each of them is reported at once, and without the password.

use std::time::Duration;

use leasehold::{Client, Error, ErrorKind, MultiLock};
use leasehold_testkit::fake::Action;
use leasehold_testkit::{FakeServer, RedisServer};

use super::warnings::Warnings;

async fn refused(url: &str) -> Error {
    Client::connect(url).await.expect_err("can't connect")
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let server = RedisServer::builder().password("right").start().unwrap();
    Client::connect(&server.url()).await.unwrap();
    for credentials in ["", ":s3cret@", "nobody:s3cret@"] {
        let url = format!("redis://{credentials}127.0.0.1:{}", server.port());
        let error = match Client::connect(&url).await {
            Err(error) => error,
            // Without a user and a password, the first call is refused.
            Ok(client) => client.lock("orders:42").acquire().await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.contains("127.0.0.1"), "{text}");
    }
}

#[tokio::test]
async fn an_address_where_nothing_answers_is_unavailable() {
    let port = {
        let server = RedisServer::start().unwrap();
        server.port()
    };
    for url in [
        format!("redis://u:s3cret@127.0.0.1:{port}"),
        "redis://u:s3cret@no-such-host.invalid".into(),
        "redis+unix:///no/such/socket?pass=s3cret".into(),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.contains("check the address"), "{text}");
    }
}

#[tokio::test]
async fn malformed_url_error_shows_url_scheme() {
    for url in [
        "",
        "localhost:6379",
        "127.0.0.1",
        "http://127.0.0.1",
        "redis://",
        "redis://h/x",
    ] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::Misuse, "{url}: {error}");
        assert!(error.to_string().contains("redis://"), "{error}");
    }
}

#[tokio::test]
async fn server_that_hangs_up_may_be_a_proxy_that_lacks_commands() {
    let proxy = FakeServer::with(|request| {
        let is_unknown = request.command() == "CLIENT";
        is_unknown.then(|| Action::SendAndClose(Vec::new()))
    });
    let error = refused(&proxy.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let advice = "a proxy must pass on CLIENT, TIME,";
    assert!(error.to_string().contains(advice), "{error}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_mismatch_error_names_other_scheme() {
    let plain = RedisServer::start().unwrap();
    let error = refused(&format!("rediss://127.0.0.1:{}", plain.port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("use redis://"), "{error}");

    let tls = RedisServer::builder().tls().start().unwrap();
    let error = refused(&format!("redis://127.0.0.1:{}", tls.port())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("use rediss://"), "{error}");

    let error = refused(&tls.url()).await;
    assert!(
        error.to_string().contains("authority"),
        "an unknown CA: {error}"
    );
}

#[tokio::test]
async fn connect_gives_up_on_silent_server() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", silent.local_addr().unwrap().port());
    let builder = Client::builder().connect_timeout(Duration::from_millis(200));
    let error = builder.connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("200ms"), "{error}");
}

/// Tokio's paused clock jumps ahead when all tasks sleep.
#[tokio::test]
async fn time_out_of_a_paused_clock_is_explained() {
    let hint = "tokio's clock is paused";
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", silent.local_addr().unwrap().port());
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    server.pause().unwrap();

    let builder = Client::builder().connect_timeout(Duration::from_millis(200));
    let error = builder.connect(&url).await.unwrap_err();
    assert!(!error.to_string().contains(hint), "{error}");

    tokio::time::pause();
    let error = Client::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(hint), "{error}");
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains(hint), "{error}");
    server.resume().unwrap();
}

#[tokio::test]
async fn a_database_number_is_used() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&format!("{}/3", server.url()))
        .await
        .unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    assert!(server.keys().is_empty(), "database 0 is empty");
    let elsewhere = Client::connect(&server.url()).await.unwrap();
    assert!(elsewhere.lock("x").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();
    let by_parameter = Client::connect(&format!("{}?db=3", server.url())).await;
    let guard = by_parameter.unwrap().lock("x").acquire().await.unwrap();
    assert!(client.lock("x").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn user_without_a_password_is_logged_in() {
    let server = RedisServer::start().unwrap();
    let set = ["ACL", "SETUSER", "app", "on", "nopass", "+@all", "~*", "&*"];
    server.command(&set).unwrap();
    let url = |user: &str| format!("redis://{user}@127.0.0.1:{}", server.port());
    let client = Client::connect(&url("app")).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let clients = server.command(&["CLIENT", "LIST"]).unwrap();
    let ours = clients.as_text().unwrap().matches("user=app").count();
    assert!(ours > 0, "{clients:?}");
    guard.release().await.unwrap();
    let error = refused(&url("nobody")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

/// A server that does not know a command repeats the command's arguments in the error.
#[tokio::test]
async fn password_that_a_server_repeats_is_not_shown() {
    let server = FakeServer::with(|request| {
        let command = request.command();
        let is_login = command == "AUTH" || command == "HELLO";
        let said = format!("-ERR unknown command '{command}', with args beginning with: ");
        let given: Vec<_> = (1..request.parts.len()).map(|n| request.text(n)).collect();
        let said = format!("{said}'{}' \r\n", given.join("' '"));
        is_login.then(|| Action::Send(said.into_bytes()))
    });
    for protocol in ["resp2", "resp3"] {
        let url = format!("{}?user=u&pass=s3cret&protocol={protocol}", server.url());
        let error = refused(&url).await;
        let text = format!("{error} {error:?} {error:#?}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

/// Makes a password of letters and digits that no message contains, and of the characters that have
/// a meaning in a URL.
fn password() -> String {
    const LETTERS: &[u8] = b"qxzQXZ048";
    const SIGNS: &[u8] = b"/?#@:%&=+,[];\"\\ !";
    let letters = (0..12).map(|n| {
        // The password has no two such characters in a row, because messages contain `://`.
        let alphabet = if n % 3 == 1 { SIGNS } else { LETTERS };
        char::from(alphabet[fastrand::usize(..alphabet.len())])
    });
    letters.collect()
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn no_error_and_no_log_shows_a_part_of_a_password() {
    let warnings = Warnings::listen();
    let server = RedisServer::builder().password("right").start().unwrap();
    // The server's port could have the digits of the password.
    let here = server.url().rsplit(':').next().unwrap().to_owned();
    let shows = |said: &str, secret: &str| {
        let letters: Vec<_> = secret.chars().collect();
        let mut pieces = letters
            .windows(4)
            .map(|piece| piece.iter().collect::<String>());
        pieces.any(|piece| said.contains(&piece) || warnings.count(&piece) > 0)
    };
    for round in 0..1000 {
        let secret = password();
        let whole = encoded(&secret);
        let written = if round % 2 == 0 { &whole } else { &secret };
        // No server listens on port 1.
        let urls = [
            format!("redis://u:{written}@127.0.0.1:1"),
            format!("redis-cluster://u:{written}@127.0.0.1:1,127.0.0.1:1"),
            format!("redis-sentinel://u:{written}@127.0.0.1:1/m"),
            format!("redis-sentinel://127.0.0.1:1/m?sentinel_pass={written}"),
            format!("redis+unix:///no/such/socket?user=u&pass={written}"),
            format!("redis://u:{written}@127.0.0.1:{here}"),
            format!("redis://:{written}@127.0.0.1:{here}"),
        ];
        for place in [round / 2, round / 2 + 3] {
            let error = refused(&urls[place % urls.len()]).await;
            let mut source = std::error::Error::source(&error);
            let mut said = format!("{error} {error:?} {error:#?}");
            while let Some(error) = source {
                said += &format!(" {error} {error:?}");
                source = error.source();
            }
            let said = said.replace(&here, "PORT");
            assert!(!shows(&said, &secret), "{secret} is in {said}");
            assert!(!shows(&said, &whole), "{secret} is in {said}");
        }
    }
    let url = format!("redis://u:{}@127.0.0.1:1", encoded("q0x4z8Q!"));
    let client = Client::builder().connect_in_background(&url).unwrap();
    let said = client.lock("x").try_acquire().await.unwrap_err();
    let said = format!("{said} {client:?}");
    assert!(!shows(&said, "q0x4z8Q!"), "{said}");
    assert!(warnings.count("no connection") > 0);
}

#[tokio::test]
async fn wait_without_any_connection_has_sent_nothing() {
    // This listener accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let short = Duration::from_millis(50);
    for scheme in ["redis", "redis-cluster"] {
        let url = format!("{scheme}://127.0.0.1:{port}");
        let client = Client::builder().connect_in_background(&url).unwrap();
        let (one, other) = (client.lock("x"), client.lock("y"));
        let both = MultiLock::new([one.clone(), other]).unwrap();
        for error in [
            one.try_acquire_for(short).await.unwrap_err(),
            both.try_acquire_for(short).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("nothing was changed"), "{error}");
        }
    }
}
