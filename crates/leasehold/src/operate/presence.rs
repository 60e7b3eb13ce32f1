//! Presence: each client announces itself in its own key, which expires by itself. The content of
//! the key only affects what is shown to operators, because any program may have written it.

#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "clients of an embedded keyspace say nothing")
)]

mod client_cache;
pub(crate) mod steps;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::failure::Cause;
use crate::clock::{Moment, Timers};
use crate::context::Context;
use crate::observe::log;
use crate::text::Shown;
pub(crate) use client_cache::ClientCache;
pub use client_cache::ClientInfo;
use steps::{Announcement, LONGEST_LIST};

/// Time between two announcements.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(20);
/// Time for which an announcement is valid.
const ANNOUNCEMENT_EXPIRY_MS: u64 = 60_000;
/// Time before the first announcement, unless a hold is announced earlier. A program that ends
/// before that needs no announcement.
const FIRST_ANNOUNCEMENT_AFTER: Duration = Duration::from_secs(1);
/// Time that the first hold must last before it is announced. The delay keeps the announcement from
/// slowing the acquire down, and a program that holds a lock only for a moment needs no
/// announcement.
const SHORTEST_HOLD: Duration = Duration::from_millis(10);
/// Shortest time between two announcements, if an announced wait has ended.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// Age from which a wait is announced. Most shorter waits end before an operator would read of
/// them.
const ANNOUNCE_WAIT_AFTER: Duration = Duration::from_millis(500);
/// The most waits that fit into the list, each with the shortest line.
const MOST_WAITS: usize = LONGEST_LIST / "500 x\n".len();

/// Returns the label of a client whose user has given it none: `$LEASEHOLD_LABEL`, or else the
/// program's name.
pub(crate) fn default_label() -> String {
    let configured = std::env::var("LEASEHOLD_LABEL").ok();
    let program = || {
        let path = std::env::current_exe().ok()?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    };
    let label = configured
        .filter(|label| !label.is_empty())
        .or_else(program);
    label.unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the announcement of the client that has the hold with this id.
pub(crate) async fn client_of(context: &Context, id: &str) -> Option<ClientInfo> {
    let known = ClientCache::default().client_of(context, id).await?;
    Some(known.info.clone())
}

/// Announces the client until it is dropped or closed.
pub(crate) fn start(context: &Arc<Context>, label: String) {
    let presence = Presence {
        context: Arc::downgrade(context),
        label,
        host: host(),
        begun: context.clock.now(),
        timers: context.timers.clone(),
        reported_wait_over: Arc::clone(&context.locals.reported_wait_over),
    };
    context.cleanup.spawn_detached(presence.run());
}

struct Presence {
    /// A weak reference, because the task must not keep the connection of a dropped client.
    context: Weak<Context>,
    label: String,
    host: String,
    begun: Moment,
    timers: Timers,
    /// Notified when an announced wait has ended.
    reported_wait_over: Arc<Notify>,
}

impl Presence {
    async fn run(self) {
        self.timers
            .timeout(FIRST_ANNOUNCEMENT_AFTER, self.first_hold())
            .await;
        while let Some(replies) = self.announce() {
            for reply in replies {
                match reply.await {
                    Ok(_) => {}
                    Err(failure) if matches!(failure.cause, Cause::Denied(_)) => {
                        // Each further announcement would cost a second attempt for the operations
                        // in the same call.
                        log(
                            || tracing::debug!(cause = %failure.cause, "the client is not announced"),
                        );
                        return;
                    }
                    // Don't retry, because the next announcement follows soon.
                    Err(_) => {}
                }
            }
            self.until_next().await;
        }
    }

    /// Resolves when the client has had a hold for `SHORTEST_HOLD`. The client then announces
    /// itself early, so that another client that finds a lock busy can read which client holds it.
    async fn first_hold(&self) {
        loop {
            let any = match self.context.upgrade() {
                Some(context) => context.live_holds.wait_for_any(),
                None => return,
            };
            if any.await.is_err() {
                // The client was dropped.
                return;
            }
            self.timers.sleep(SHORTEST_HOLD).await;
            let context = self.context.upgrade();
            if context.is_none_or(|context| context.live_holds.count_valid() > 0) {
                return;
            }
        }
    }

    /// Waits until it is time for the next announcement. If an announced wait has ended, the next
    /// announcement is due soon, so that operators do not see this wait for much longer.
    async fn until_next(&self) {
        let (now, usual) = (self.timers.now(), self.begun + FIRST_ANNOUNCEMENT_AFTER);
        if now < usual {
            // The first hold was announced at once. Holds that follow shortly after it share one
            // announcement.
            return self.timers.sleep_until(usual).await;
        }
        let next = now + ANNOUNCE_EVERY;
        self.timers.sleep(SHORTEST_INTERVAL).await;
        tokio::select! {
            () = self.timers.sleep_until(next) => {}
            () = self.reported_wait_over.notified() => {}
        }
    }

    /// Sends an announcement; `None` when the client was dropped or closed.
    fn announce(&self) -> Option<[crate::backend::Reply; 2]> {
        let context = self.context.upgrade()?;
        let (holds, waits) = (self.holds(&context), waits(&context));
        let announcement = Announcement {
            id: &context.client_id,
            label: &self.label,
            host: &self.host,
            address: &context.backend.client_address().unwrap_or_default(),
            age: context.clock.now().saturating_sub(self.begun),
            holds: &holds,
            waits: &waits,
        };
        let id = &context.client_id;
        let goodbye = vec![steps::withdraw(id), steps::enrol(id, 0)];
        context.announce(goodbye, |backend| {
            [
                backend.submit(steps::announce(&announcement, ANNOUNCEMENT_EXPIRY_MS)),
                backend.submit(steps::enrol(id, ANNOUNCEMENT_EXPIRY_MS)),
            ]
        })
    }

    /// Lists the holds, the oldest first, because the list has a limit.
    fn holds(&self, context: &Context) -> String {
        let mut holds: Vec<_> = context.live_holds.all();
        holds.retain(|hold| hold.loss().is_none());
        // Read each start only once, because a hand-over can change it while the sort runs.
        holds.sort_by_cached_key(|hold| hold.since());
        let (now, own) = (context.clock.now(), format!("{}:", context.client_id));
        let mut list = String::new();
        for hold in holds {
            let id = hold.steps.wire_id();
            let id = id.strip_prefix(&own).unwrap_or(id);
            let ms = now.saturating_sub(hold.since()).as_millis();
            if list.len() + id.len() + 40 > LONGEST_LIST {
                break;
            }
            // Writing to a string can't fail.
            let _ = match hold.counts().1 {
                0 | 1 => write!(list, "{id}:{ms} "),
                guards => write!(list, "{id}:{ms}*{guards} "),
            };
        }
        list
    }
}

/// Lists the waits, the oldest first, because the list has a limit.
fn waits(context: &Context) -> String {
    let now = context.clock.now();
    // Waits for different values of one group have the same name.
    let (mut list, mut listed) = (String::new(), HashSet::new());
    let waits = context
        .locals
        .report_waits(now - ANNOUNCE_WAIT_AFTER, MOST_WAITS);
    for (name, since) in &waits {
        let ms = now.saturating_sub(*since).as_millis();
        let fits = !name.contains('\n') && list.len() + name.len() + 25 <= LONGEST_LIST;
        if fits && listed.insert(name) {
            // Writing to a string can't fail.
            let _ = writeln!(list, "{ms} {name}");
        }
    }
    list
}

fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    // Windows sets this variable for each process, to the machine's name in capitals.
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    Shown(&name).to_string()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has tasks of its own")]
mod tests {
    use super::*;
    use crate::operate::name::{Found, NameInfo, Wants};
    use crate::{Client, Embedded, Lock, LockGuard};

    /// Creates a client that announces itself, on a clock that can be paused.
    fn client_of(server: &Embedded) -> Client {
        let client = server.client();
        client.announced("it");
        client
    }

    async fn after(secs: u64) {
        tokio::time::sleep(Duration::from_secs(secs)).await;
    }

    fn waits(lock: &Lock) -> tokio::task::JoinHandle<LockGuard> {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.expect("it is granted") })
    }

    /// Returns the waiters, and for how many seconds they have waited.
    async fn waiting(client: &Client, name: &str) -> Vec<(String, u64)> {
        let seen = client.inspect(name).await.expect("the keyspace answers");
        let waiting = seen.waiting.into_iter();
        let told = waiting.map(|one| {
            assert_eq!(one.wants, Wants::Any);
            let waited = one.waited_for.expect("its client says so");
            (one.id, waited.as_secs())
        });
        told.collect()
    }

    async fn held_for(client: &Client, name: &str) -> Option<u64> {
        let seen: NameInfo = client.inspect(name).await.expect("the keyspace answers");
        match seen.found {
            Found::Lock(hold) => hold.held_for.map(|span| span.as_secs()),
            _ => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ages_of_holds_and_waits_are_true_for_minutes() {
        let server = Embedded::new();
        let (holder, waiter) = (client_of(&server), client_of(&server));
        let operator = server.client();
        let guard = holder.lock("x").acquire().await.expect("it is free");
        after(100).await;
        let waits = waits(&waiter.lock("x"));
        // The next announcement includes the wait.
        after(25).await;
        for minutes in 0..10 {
            let waiting = waiting(&operator, "x").await;
            let [(id, waited)] = &waiting[..] else {
                panic!("{waiting:?}");
            };
            assert_eq!(id, waiter.id());
            // Fractions of a second are cut off.
            assert_eq!(*waited, 25 + 60 * minutes);
            assert_eq!(held_for(&operator, "x").await, Some(125 + 60 * minutes));
            after(60).await;
        }
        guard.release().await.expect("it is held");
        waits
            .await
            .expect("it goes on")
            .release()
            .await
            .expect("it is held");
    }

    #[tokio::test(start_paused = true)]
    async fn wait_that_has_ended_is_taken_back_within_seconds() {
        let server = Embedded::new();
        let (holder, client) = (client_of(&server), client_of(&server));
        let operator = server.client();
        let guard = holder.lock("x").acquire().await.expect("it is free");
        let lock = client.lock("x");
        for limit in [30, 90, 150] {
            let limit = Duration::from_secs(limit);
            let (told, waited) = tokio::join!(
                async {
                    after(25).await;
                    waiting(&operator, "x").await.len()
                },
                lock.try_acquire_for(limit)
            );
            assert_eq!(told, 1, "{limit:?}");
            assert!(waited.expect("the keyspace answers").is_none());
            after(2).await;
            assert_eq!(waiting(&operator, "x").await, [], "{limit:?}");
        }
        guard.release().await.expect("it is held");
    }

    /// Checks that many short waits do not look like one long wait.
    #[tokio::test(start_paused = true)]
    async fn short_waits_one_after_the_other_are_no_long_wait() {
        let server = Embedded::new();
        let operator = server.client();
        // The first client holds the lock for three seconds, the second for a moment.
        let rounds = [(3000, 50), (10, 10)].map(|(held_ms, pause_ms)| {
            let client = client_of(&server);
            tokio::spawn(async move {
                loop {
                    let guard = client.lock("x").acquire().await.expect("it is granted");
                    tokio::time::sleep(Duration::from_millis(held_ms)).await;
                    guard.release().await.expect("it is held");
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                }
            })
        });
        let mut told = 0;
        for _ in 0..300 {
            after(1).await;
            for (_, waited) in waiting(&operator, "x").await {
                // The wait still counts during the second before its announcement is withdrawn.
                assert!(waited <= 4, "{waited} s");
                told += 1;
            }
        }
        assert!(told > 10, "{told}");
        for round in rounds {
            round.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn age_is_that_of_the_oldest_wait_that_still_lasts() {
        let server = Embedded::new();
        let (holder, client) = (client_of(&server), client_of(&server));
        let operator = server.client();
        let guard = holder.lock("x").acquire().await.expect("it is free");
        let oldest = waits(&client.lock("x"));
        after(100).await;
        let younger = waits(&client.lock("x"));
        after(50).await;
        assert_eq!(
            waiting(&operator, "x").await,
            [(client.id().to_owned(), 150)]
        );
        oldest.abort();
        after(2).await;
        assert_eq!(
            waiting(&operator, "x").await,
            [(client.id().to_owned(), 52)]
        );
        younger.abort();
        guard.release().await.expect("it is held");
    }

    #[tokio::test(start_paused = true)]
    async fn holder_is_no_waiter_for_what_it_has_got() {
        let server = Embedded::new();
        let (holder, client) = (client_of(&server), client_of(&server));
        let operator = server.client();
        let guard = holder.lock("x").acquire().await.expect("it is free");
        let next = waits(&client.lock("x"));
        // Wait until just after an announcement: the next one follows a second later at the
        // earliest.
        tokio::time::sleep(
            ANNOUNCE_EVERY + FIRST_ANNOUNCEMENT_AFTER + FIRST_ANNOUNCEMENT_AFTER / 5,
        )
        .await;
        assert_eq!(waiting(&operator, "x").await.len(), 1);
        guard.release().await.expect("it is held");
        let next = next.await.expect("it goes on");
        // Check at once, while the client's announcement still says that it waits.
        assert_eq!(waiting(&operator, "x").await, []);
        // Another task of the client may still wait.
        let other = waits(&client.lock("x"));
        after(25).await;
        assert_eq!(
            waiting(&operator, "x").await,
            [(client.id().to_owned(), 25)]
        );
        next.release().await.expect("it is held");
        other
            .await
            .expect("it goes on")
            .release()
            .await
            .expect("it is held");
    }

    /// Checks that a client that finds the lock busy a moment later can read which client holds it.
    #[tokio::test(start_paused = true)]
    async fn client_is_announced_with_its_first_hold() {
        let server = Embedded::new();
        let client = client_of(&server);
        let operator = server.client();
        let moment = Duration::from_millis(2);
        // Holds that last only a moment are not announced.
        for _ in 0..3 {
            let guard = client.lock("x").acquire().await.expect("it is free");
            tokio::time::sleep(moment).await;
            guard.release().await.expect("it is held");
            tokio::time::sleep(3 * SHORTEST_HOLD).await;
            assert_eq!(server.keys(), [""; 0]);
        }
        let guard = client.lock("x").acquire().await.expect("it is free");
        tokio::time::sleep(SHORTEST_HOLD + moment).await;
        let seen = operator.inspect("x").await.expect("the keyspace answers");
        let Found::Lock(hold) = seen.found else {
            panic!("{seen:?}");
        };
        assert_eq!(hold.client.expect("it says who it is").label, "it");
        assert_eq!(hold.held_for, Some(SHORTEST_HOLD + moment));
        guard.release().await.expect("it is held");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_share_a_hold_are_counted() {
        let server = Embedded::new();
        // Use a network: if requests cost nothing, each reader sends its own request.
        let over_network = server.client_over_network(&Client::builder());
        let (client, _network) = over_network.expect("the settings are good");
        client.announced("it");
        let operator = server.client();
        let lock = client.rw_lock("x");
        let (one, two, three) = tokio::join!(lock.read(), lock.read(), lock.read());
        let (one, two) = (one.expect("it is free"), two.expect("they share it"));
        after(2).await;
        let guards = async || {
            let seen = operator.inspect("x").await.expect("the keyspace answers");
            let Found::ReadWrite { readers, .. } = seen.found else {
                panic!("{seen:?}");
            };
            readers.iter().map(|hold| hold.guards).collect::<Vec<_>>()
        };
        assert_eq!(guards().await, [Some(3)]);
        drop((two, three));
        after(25).await;
        assert_eq!(guards().await, [Some(1)]);
        one.release().await.expect("it is held");
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_ends_is_not_there_any_more() {
        let server = Embedded::new();
        for closes in [true, false] {
            let client = client_of(&server);
            after(65).await;
            assert!(!server.keys().is_empty());
            if closes {
                client.close().await;
            }
            drop(client);
            assert_eq!(server.keys(), [""; 0], "closed: {closes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hold_is_as_old_as_it_is_and_not_as_its_client() {
        let server = Embedded::new();
        let (client, operator) = (client_of(&server), server.client());
        after(100).await;
        let guard = client.lock("x").acquire().await.expect("it is free");
        // The next announcement includes the hold.
        after(25).await;
        assert_eq!(held_for(&operator, "x").await, Some(25));
        let seen = operator.inspect("x").await.expect("the keyspace answers");
        let Found::Lock(hold) = seen.found else {
            panic!("{seen:?}");
        };
        let age = hold.client.expect("it says who it is").age;
        assert!((124..=125).contains(&age.as_secs()), "{age:?}");
        guard.release().await.expect("it is held");
    }

    /// Checks a client that waits for two values under one name.
    #[tokio::test(start_paused = true)]
    async fn name_that_is_waited_for_twice_is_told_once() {
        let server = Embedded::new();
        let (holder, client) = (client_of(&server), client_of(&server));
        let operator = server.client();
        let all = holder.group_lock("g", ["a", "b"]);
        let guard = all.acquire().await.expect("it is free");
        let waits = ["a", "b"].map(|value| {
            let lock = client.group_lock("g", [value]);
            tokio::spawn(async move { lock.acquire().await })
        });
        after(25).await;
        let seen = operator.inspect("g").await.expect("the keyspace answers");
        let [waiter] = &seen.waiting[..] else {
            panic!("{seen:?}");
        };
        let known = waiter.client.as_ref().expect("it says who it is");
        assert_eq!(known.waits_for, ["g"]);
        waits.into_iter().for_each(|wait| wait.abort());
        guard.release().await.expect("it is held");
    }

    /// Checks that the client announces only the wait of its first waiter.
    #[tokio::test(start_paused = true)]
    async fn age_of_a_wait_in_a_line_is_that_of_the_first_of_its_client() {
        let server = Embedded::new();
        let (holder, client) = (client_of(&server), client_of(&server));
        let operator = server.client();
        let guard = holder.fair_lock("x").acquire().await.expect("it is free");
        let waits = [0, 50].map(|later| {
            let lock = client.fair_lock("x");
            tokio::spawn(async move {
                after(later).await;
                lock.acquire().await
            })
        });
        after(100).await;
        let seen = operator.inspect("x").await.expect("the keyspace answers");
        let waited = seen.waiting.iter().map(|one| one.waited_for);
        let waited: Vec<_> = waited.map(|span| span.map(|span| span.as_secs())).collect();
        assert_eq!(waited, [Some(100), None]);
        waits.into_iter().for_each(|wait| wait.abort());
        guard.release().await.expect("it is held");
    }
}
