//! Another client of this library, beside two versions of Redisson that don't hear each other.

use std::time::Duration;

use leasehold::Client;
use leasehold::inspect::Activity;
use leasehold_testkit::RedissonVersion;
use tokio::task::JoinHandle;

use crate::support::eventually;
use crate::topology::Site;

/// Time for which the client leaves the lock to the others after it has held it.
const PAUSE: Duration = Duration::from_millis(50);
/// The default poll interval of this library's clients, which applies when nothing wakes them.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// A client of this library that repeatedly acquires and releases what the others wait for. It
/// hears each of them, and each of them hears it.
pub(crate) struct Between {
    client: Client,
    work: JoinHandle<()>,
}

impl Between {
    /// Connects such a client, if the others need one.
    pub(crate) async fn client(site: &Site, cast: &[RedissonVersion]) -> Option<Client> {
        match site.separates(cast) {
            true => Some(Client::connect(&site.url()).await.unwrap()),
            false => None,
        }
    }

    /// Starts a task that runs `turn` in a loop.
    pub(crate) fn start<F>(client: &Client, turn: impl Fn(Client) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send,
    {
        let client = client.clone();
        let turns = client.clone();
        let work = tokio::spawn(async move {
            loop {
                turn(turns.clone()).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { client, work }
    }

    /// Ends the task. Returns when nothing of it remains.
    pub(crate) async fn leaves(self) {
        self.work.abort();
        let ended = self.work.await;
        assert!(ended.unwrap_err().is_cancelled(), "it works until then");
        eventually("it has left", async || {
            self.client.activity() == Activity::default()
        })
        .await;
    }
}
