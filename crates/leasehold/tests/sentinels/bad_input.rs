//! URLs, names and passwords that lead to no master: each error says what to do.

use leasehold::{Client, Error, ErrorKind};
use leasehold_testkit::{RedisServer, Sentinels};

use super::failovers::leads_to;
use crate::support::wire::allowed_at_sentinels;

async fn refused(url: &str) -> Error {
    Client::connect(url).await.expect_err(url)
}

#[tokio::test]
async fn sentinels_that_do_not_answer_are_named() {
    let error = refused("redis-sentinel://u:s3cret@127.0.0.1:1,127.0.0.1:2/m").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for part in ["0 of 2 sentinels answer", "redis://127.0.0.1:", "refused"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
}

#[tokio::test]
async fn name_that_no_sentinel_knows_is_an_error() {
    let sentinels = Sentinels::start(0);
    let error = refused(&sentinels.url().replace("mymaster", "other")).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let says = "do not know a master called `other`; correct the name";
    assert!(error.to_string().contains(says), "{error}");
}

#[tokio::test]
async fn url_has_to_say_what_is_a_sentinel() {
    let sentinels = Sentinels::start(0);
    let port = sentinels.sentinels()[0].port();
    let error = refused(&format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("use redis-sentinel://"),
        "{error}"
    );

    let server = RedisServer::start().unwrap();
    let error = refused(&format!("redis-sentinel://127.0.0.1:{}/m", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("it is not a sentinel"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_have_a_password_of_their_own() {
    let rules = allowed_at_sentinels();
    let (servers, watching) = (
        RedisServer::builder().user("app", "pw"),
        RedisServer::builder().user("looks", "s3cret").rules(&rules),
    );
    let sentinels = Sentinels::of(&servers, &watching, 1);
    let client = Client::connect(&sentinels.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let new = sentinels.fail_over();
    leads_to(&client, &sentinels.servers()[new]).await;
    guard.release().await.unwrap();

    let (without, _) = sentinels
        .url()
        .split_once('?')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    for query in [
        "",
        "?sentinel_pass=s3cret2",
        "?sentinel_user=looks&sentinel_pass=s3cret2",
    ] {
        let error = refused(&format!("{without}{query}")).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("`sentinel_pass`"), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret2"), "{error}");
    }
    let error = refused(&sentinels.url().replace("app:pw@", "app:wrong@")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let port = sentinels.master_server().port().to_string();
    assert!(
        error.to_string().contains(&port),
        "it is the master's: {error}"
    );
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_master_are_reached_by_tls() {
    let settings = RedisServer::builder().tls();
    let sentinels = Sentinels::of(&settings, &settings, 1);
    let builder = Client::builder().tls_authorities(sentinels.ca_pem());
    let client = builder.connect(&sentinels.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    let new = sentinels.fail_over();
    leads_to(&client, &sentinels.servers()[new]).await;
    guard.release().await.unwrap();

    let error = refused(&sentinels.url()).await;
    assert!(
        error.to_string().contains("authority"),
        "an unknown CA: {error}"
    );
}
