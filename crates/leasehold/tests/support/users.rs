//! Users on servers. Clients log in as one user after another.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::ClientBuilder;
use leasehold::settings::Credentials;
use leasehold_testkit::RedisServer;

use super::eventually;

/// The users on these servers. The clients have the credentials of the latest user.
pub(crate) struct Users<'a> {
    servers: &'a [RedisServer],
    latest: Arc<Mutex<Option<&'static str>>>,
    /// The number of requests for credentials that are not answered.
    unanswered: Arc<AtomicUsize>,
}

impl<'a> Users<'a> {
    /// Admits the first user on each server.
    pub(crate) fn of(servers: &'a [RedisServer], first: &'static str) -> Self {
        let users = Self {
            servers,
            latest: Arc::default(),
            unanswered: Arc::default(),
        };
        users.change_to(first);
        users
    }

    /// Returns the builder of clients that query the credentials often.
    pub(crate) fn log_in(&self, builder: ClientBuilder) -> ClientBuilder {
        let (latest, unanswered) = (Arc::clone(&self.latest), Arc::clone(&self.unanswered));
        let builder = builder.credentials_every(Duration::from_millis(50));
        builder.credentials(move || {
            let (user, unanswered) = (*latest.lock().unwrap(), Arc::clone(&unanswered));
            async move {
                let Some(user) = user else {
                    unanswered.fetch_add(1, Ordering::SeqCst);
                    return pending().await;
                };
                Ok(Credentials::user(user, "pw"))
            }
        })
    }

    /// Admits another user. From now on, the clients get that user's credentials.
    pub(crate) fn change_to(&self, user: &'static str) {
        self.tell_all(&["ACL", "SETUSER", user, "on", ">pw", "+@all", "~*", "&*"]);
        *self.latest.lock().unwrap() = Some(user);
    }

    /// Leaves all further requests for credentials unanswered.
    pub(crate) fn answer_nothing(&self) {
        *self.latest.lock().unwrap() = None;
    }

    /// Counts the requests for credentials that were not answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }

    /// Deletes the user. The servers close the connections of this user.
    pub(crate) fn delete(&self, user: &str) {
        self.tell_all(&["ACL", "DELUSER", user]);
    }

    /// Counts the connections of this user on all servers, except for connections for messages.
    pub(crate) fn logged_in(&self, user: &str) -> usize {
        let many = |server| logged_in(server, user);
        self.servers.iter().map(many).sum()
    }

    /// Waits until all connections of one user belong to another user, except for connections for
    /// messages. A client may have connected again in the meantime, so the number of connections
    /// can change.
    pub(crate) async fn have_moved(&self, from: &str, to: &str) {
        eventually("all have logged in again", async || {
            self.logged_in(from) == 0 && self.logged_in(to) > 0
        })
        .await;
    }

    fn tell_all(&self, command: &[&str]) {
        for server in self.servers {
            server.command(command).unwrap();
        }
    }
}

/// Counts the connections of this user, except for connections for messages.
pub(crate) fn logged_in(server: &RedisServer, user: &str) -> usize {
    let list = server.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]);
    let list = list.unwrap().as_text().unwrap().to_owned();
    list.matches(&format!("user={user} ")).count()
}
