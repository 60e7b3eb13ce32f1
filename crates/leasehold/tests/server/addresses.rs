//! Addresses: what can be wrong with one, told at once and without the password.

use std::time::Duration;

use leasehold::{Client, Error, ErrorKind};
use leasehold_testkit::RedisServer;

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
            // Without any, the first call is refused.
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

/// tokio's clock runs ahead when it is paused and all tasks sleep.
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
}
