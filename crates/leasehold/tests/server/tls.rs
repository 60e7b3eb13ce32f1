//! TLS on one server, on a cluster and behind sentinels. Each certificate that is not accepted
//! causes an error with the address, the cause and the next step.

use leasehold::settings::Identity;
use leasehold::{Client, ClientBuilder, Error, ErrorKind};
use leasehold_testkit::{Cluster, RedisServer, Sentinels, server::Builder};

#[allow(clippy::large_enum_variant, reason = "there is one per test")]
enum Site {
    Single(RedisServer),
    Cluster(Cluster),
    Sentinels(Sentinels),
}

impl Site {
    fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
        }
    }

    /// Returns the server that a client connects to first.
    fn first(&self) -> &RedisServer {
        match self {
            Self::Single(server) => server,
            Self::Cluster(cluster) => &cluster.nodes()[0],
            Self::Sentinels(sentinels) => &sentinels.sentinels()[0],
        }
    }
}

/// Returns the settings for servers that demand client certificates.
fn wanting() -> Builder {
    RedisServer::builder().tls_with_client_certificates()
}

fn identity_of(server: &RedisServer) -> Identity {
    let (certificate, key) = server.client_certificates().remove(0);
    Identity::from_pem(
        std::fs::read(certificate).unwrap(),
        std::fs::read(key).unwrap(),
    )
}

fn with(builder: ClientBuilder, identity: Identity) -> ClientBuilder {
    builder.tls_identity(move || Ok(identity.clone()))
}

async fn refused(builder: ClientBuilder, url: &str) -> Error {
    builder.connect(url).await.expect_err(url)
}

/// Asserts that the client can't connect, and that the error contains all of these words.
async fn says(builder: ClientBuilder, url: &str, words: &[&str]) {
    let error = refused(builder, url).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = format!("{error} {error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "no {word}: {error}");
    }
    assert!(!text.contains("s3cret"), "{text}");
}

async fn certificates_are_wanted(site: Site) {
    let (url, first) = (site.url(), site.first());
    let trusting = || Client::builder().tls_authorities(first.ca_pem());
    let known = with(trusting(), identity_of(first));
    let client = known.clone().connect(&url).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    guard.release().await.unwrap();

    let stranger = RedisServer::builder().tls().start().unwrap();
    // The client may connect to any of several addresses first.
    let wants = ["rediss://", "fatal alert", "tls_identity"];
    says(trusting(), &url, &wants).await;
    says(with(trusting(), identity_of(&stranger)), &url, &wants).await;

    let advice = ["rediss://", "certificate", "tls_authorities", "--cacert"];
    says(Client::builder(), &url, &advice).await;
    let other = Client::builder().tls_authorities(stranger.ca_pem());
    says(with(other, identity_of(first)), &url, &advice).await;

    let name = ["rediss://", "example.org", "tls_server_name", "--sni"];
    says(known.tls_server_name("example.org"), &url, &name).await;

    let plain = url.replacen("rediss", "redis", 1);
    let plain = plain.replace("localhost", "127.0.0.1");
    let scheme = url.split("://").next().unwrap();
    let uses = format!("{scheme}://");
    says(Client::builder(), &plain, &["redis://", &uses]).await;
}

#[tokio::test]
async fn single_server_has_to_know_the_clients_certificate() {
    certificates_are_wanted(Site::Single(wanting().start().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_has_to_know_the_clients_certificate() {
    certificates_are_wanted(Site::Cluster(Cluster::of(&wanting(), 2, 0))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_have_to_know_the_clients_certificate() {
    certificates_are_wanted(Site::Sentinels(Sentinels::of(&wanting(), &wanting(), 1))).await;
}

/// Returns a URL of the server for each topology. The client does not trust the server, and does
/// not send it anything.
fn urls(server: &RedisServer) -> [String; 3] {
    let port = server.port();
    let login = "u:s3cret@127.0.0.1";
    [
        format!("rediss://{login}:{port}"),
        format!("rediss-cluster://{login}:{port}"),
        format!("rediss-sentinel://{login}:{port}/m"),
    ]
}

#[tokio::test]
async fn certificate_for_another_host_is_named_with_the_host() {
    let elsewhere = RedisServer::builder().tls_for(&["elsewhere.example"]);
    let server = elsewhere.start().unwrap();
    let port = server.port().to_string();
    let builder = || Client::builder().tls_authorities(server.ca_pem());
    for url in urls(&server) {
        let words = [&*port, "elsewhere.example", "tls_server_name", "--sni"];
        says(builder(), &url, &words).await;
    }
    let url = &urls(&server)[0].replace("u:s3cret@", "");
    let named = builder().tls_server_name("elsewhere.example");
    named.connect(url).await.unwrap();
}

#[tokio::test]
async fn address_that_sentinels_tell_is_not_advised_as_that_of_the_url() {
    // The URL names the sentinels by host name, but they report the master's IP address.
    let named = RedisServer::builder().tls_for(&["localhost"]);
    let sentinels = Sentinels::of(&named, &named, 0);
    let url = sentinels.url().replace("127.0.0.1", "localhost");
    let builder = Client::builder().tls_authorities(sentinels.ca_pem());
    let words = ["replica-announce-ip", "announce-hostnames", "--sni"];
    says(builder, &url, &words).await;
}

#[tokio::test]
async fn expired_certificate_is_an_error_that_says_when() {
    let server = RedisServer::builder().tls_expired().start().unwrap();
    let port = server.port().to_string();
    for url in urls(&server) {
        let builder = Client::builder().tls_authorities(server.ca_pem());
        says(builder, &url, &[&port, "expired", "renew", "clock"]).await;
    }
}

#[tokio::test]
async fn tls_to_a_plain_server_names_the_plain_scheme() {
    let server = RedisServer::start().unwrap();
    let port = server.port().to_string();
    for url in urls(&server) {
        says(Client::builder(), &url, &[&port, "use redis://"]).await;
    }
}

/// The certificate is like one that `openssl req -x509` makes: an authority's certificate, which
/// webpki accepts for no server.
#[tokio::test]
async fn server_that_shows_a_given_certificate_is_trusted() {
    for hosts in [&["localhost", "127.0.0.1"][..], &[]] {
        let settings = RedisServer::builder().tls_self_signed(hosts);
        let server = settings.start().unwrap();
        let url = format!("rediss://127.0.0.1:{}", server.port());
        let builder = Client::builder().tls_authorities(server.ca_pem());
        let client = builder.connect(&url).await.unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        guard.release().await.unwrap();

        let other = RedisServer::builder()
            .tls_self_signed(hosts)
            .start()
            .unwrap();
        for pem in [
            other.ca_pem(),
            RedisServer::builder().tls().start().unwrap().ca_pem(),
        ] {
            let builder = Client::builder().tls_authorities(pem);
            says(builder, &url, &["tls_authorities", "--cacert", "exactly"]).await;
        }
    }
}

/// The certificate is from an authority that the client does not know.
#[tokio::test]
async fn certificate_alone_is_enough_without_its_authority() {
    let server = RedisServer::builder().tls().start().unwrap();
    let own = std::fs::read(server.ca_file().with_file_name("leaf.pem")).unwrap();
    let builder = Client::builder().tls_authorities(own);
    let client = builder.connect(&server.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn given_certificate_has_to_be_for_the_host_and_of_today() {
    let server = RedisServer::builder().tls_self_signed(&["elsewhere.example"]);
    let server = server.start().unwrap();
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let builder = || Client::builder().tls_authorities(server.ca_pem());
    says(builder(), &url, &["elsewhere.example", "tls_server_name"]).await;
    let named = builder().tls_server_name("elsewhere.example");
    named.connect(&url).await.unwrap();

    for hosts in [&["127.0.0.1"][..], &[]] {
        let server = RedisServer::builder().tls_self_signed_and_expired(hosts);
        let server = server.start().unwrap();
        let url = format!("rediss://127.0.0.1:{}", server.port());
        let builder = Client::builder().tls_authorities(server.ca_pem());
        says(builder, &url, &["expired", "renew"]).await;
    }
}
