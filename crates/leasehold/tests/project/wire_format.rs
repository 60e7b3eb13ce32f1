//! The keys and messages in Redis match `docs/wire-format.md`: each test does what one section
//! describes, and the section must name everything that was seen and nothing else.

use std::time::Duration;

use crate::support::eventually;
use crate::support::wire::{PAGE, Wire, Writer, allowed_commands, cells, fill, sections};
use leasehold::kind::{FieldNames, Kind, OneKey};
use leasehold::settings::{Backoff, Peers, WaitStrategy};
use leasehold::slot::{Begin, Turns};
use leasehold::{Client, ErrorKind, Lock, LockGuard, RedLock};
use leasehold_testkit::RedisServer;
use tokio::task::JoinHandle;

/// A name without a brace and one with a brace. Their keys are made in different ways.
const NAMES: [&str; 2] = ["orders", "a{b}c"];

const LOCK: &str = "Lock";
const SPIN: &str = "Spin lock";
const FAIR: &str = "Fair lock";
const SLOT: &str = "Turns: once per slot, once per id";
const TICKET: &str = "Tickets";
const FENCED: &str = "Fenced lock";
const RW: &str = "Read-write lock";
const GROUP: &str = "Group lock";
const SEVERAL: &str = "Multi-lock and RedLock";
const SEMAPHORE: &str = "Semaphore";
const EXPIRABLE: &str = "Semaphore whose permits have leases";
const LATCH: &str = "Count-down latch";
const ELECTION: &str = "Election";

struct Place {
    server: RedisServer,
    /// A client whose user has exactly the permissions that the page asks for.
    client: Client,
    other: Client,
    /// A client whose setting says that no Redisson uses its names.
    alone: Client,
}

impl Place {
    async fn new() -> Self {
        Self::with(&NAMES).await
    }

    async fn with(names: &[&str]) -> Self {
        let server = RedisServer::start().unwrap();
        let mut user = vec!["ACL", "SETUSER", "app", "on", ">pw", "resetchannels"];
        let rules = rules(names);
        let commands = allowed_commands();
        user.extend(commands.split(' '));
        user.extend(rules.iter().map(String::as_str));
        server.command(&user).unwrap();
        let url = format!("redis://app:pw@127.0.0.1:{}", server.port());
        let alone = Client::builder().peers(Peers::RustOnly);
        Self {
            client: Client::connect(&url).await.unwrap(),
            other: Client::connect(&server.url()).await.unwrap(),
            alone: alone.connect(&server.url()).await.unwrap(),
            server,
        }
    }

    fn wire(&self, section: &'static str, name: &str) -> Wire<'_> {
        Wire::new(&self.server, section, name, Writer::Rust)
    }

    /// Starts a waiter for the lock that a release would notify.
    async fn waits_to_be_called(&self, name: &str, client: &Client) -> JoinHandle<LockGuard> {
        let lock = client.lock(name);
        self.is_to_be_called(async move { lock.acquire().await.unwrap() })
            .await
    }

    /// Like [`waits_to_be_called`](Self::waits_to_be_called), for the future `waits`.
    async fn is_to_be_called<T: Send + 'static>(
        &self,
        waits: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let waiter = tokio::spawn(waits);
        eventually("it is in the list of those to call", async || {
            let keys = self.server.keys();
            keys.iter().any(|key| key.ends_with(":asking"))
        })
        .await;
        waiter
    }
}

/// Returns the keys and channels that the page says a user of these names needs.
fn rules(names: &[&str]) -> Vec<String> {
    let (_, rest) = PAGE
        .split_once("A Redis user with restricted keys")
        .unwrap();
    let said = rest.split("\n\n").next().unwrap().split('`');
    let rules: Vec<_> = said
        .filter(|rule| rule.starts_with(['~', '&']))
        .flat_map(|rule| names.iter().map(|name| fill(rule, name)))
        .collect();
    assert_eq!(rules.len(), 6 * names.len());
    rules
}

/// Does what all locks under one key can do: acquire, re-enter, let another client wait, renew,
/// release, force-unlock.
async fn hold_and_break<K: OneKey + Kind>(wire: &mut Wire<'_>, client: &Client, lock: Lock<K>) {
    let owner = leasehold::Owner::new();
    let owned = lock.clone().owned_by(&owner);
    let outer = owned.acquire().await.unwrap();
    wire.look();
    let inner = owned.acquire().await.unwrap();
    wire.look();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    // Readers don't wait for each other.
    eventually("it listens, or has it", async || {
        client.activity().channels > 0 || waiter.is_finished()
    })
    .await;
    let guard: &leasehold::LockGuard = outer.as_ref();
    guard.extend(Duration::from_secs(30)).await.unwrap();
    wire.look();
    inner.into().release().await.unwrap();
    wire.look();
    outer.into().release().await.unwrap();
    let next = waiter.await.unwrap();
    wire.look();
    assert!(lock.force_unlock().await.unwrap());
    wire.look();
    drop(next);
}

/// Keeps a lock with `keep_for`, and force-unlocks it.
async fn keep_and_break<K: OneKey + Kind>(wire: &mut Wire<'_>, lock: Lock<K>) {
    let guard: LockGuard = lock.acquire().await.unwrap().into();
    guard.keep_for(Duration::from_secs(30)).await.unwrap();
    wire.look();
    assert!(lock.force_unlock().await.unwrap());
    wire.look();
}

#[tokio::test]
async fn the_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(LOCK, name);
        hold_and_break(&mut wire, &place.client, place.client.lock(name)).await;
        keep_and_break(&mut wire, place.client.lock(name)).await;
        let guard = place.alone.lock(name).acquire().await.unwrap();
        let called = place.waits_to_be_called(name, &place.client).await;
        wire.look();
        guard.release().await.unwrap();
        // A holder that had to wait notifies the next waiter.
        let guard = called.await.unwrap();
        let next = place.waits_to_be_called(name, &place.other).await;
        guard.release().await.unwrap();
        next.await.unwrap().release().await.unwrap();
        wire.finish();
    }
}

#[tokio::test]
async fn the_spin_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(SPIN, name);
        let back_off = WaitStrategy::Backoff(Backoff::exponential());
        let lock = place.client.lock(name).wait_strategy(back_off);
        let guard = lock.acquire().await.unwrap();
        wire.look();
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await.unwrap() }
        });
        guard.release().await.unwrap();
        let next = waiter.await.unwrap();
        wire.look();
        assert!(lock.force_unlock().await.unwrap());
        drop(next);
        keep_and_break(&mut wire, lock).await;
        wire.finish();
    }
}

#[tokio::test]
async fn the_fair_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(FAIR, name);
        for client in [&place.client, &place.alone] {
            let lock = client.fair_lock(name);
            let guard = lock.acquire().await.unwrap();
            wire.look();
            let line = [(); 2].map(|()| {
                let lock = place.other.fair_lock(name);
                let lock = if client.id() == place.alone.id() {
                    client.fair_lock(name)
                } else {
                    lock
                };
                tokio::spawn(async move { lock.acquire().await.unwrap() })
            });
            eventually("two wait", async || {
                lock.waiters().await.unwrap().len() == 2
            })
            .await;
            wire.look();
            guard.release().await.unwrap();
            for waiter in line {
                let guard = waiter.await.unwrap();
                wire.look();
                guard.release().await.unwrap();
            }
            wire.look();
        }
        let lock = place.client.fair_lock(name);
        hold_and_break(&mut wire, &place.client, lock.clone()).await;
        keep_and_break(&mut wire, lock).await;
        wire.finish();
    }
}

#[tokio::test]
async fn the_fenced_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(FENCED, name).with(place.wire(LOCK, name));
        hold_and_break(&mut wire, &place.client, place.client.fenced_lock(name)).await;
        let alone = place.alone.fenced_lock(name).acquire().await.unwrap();
        wire.look();
        alone.release().await.unwrap();
        wire.finish();
    }
}

#[tokio::test]
async fn the_turns_of_a_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(SLOT, name).with(place.wire(LOCK, name));
        let lock = place.client.lock(name);
        let begun = async |turns: &Turns| match turns.try_begin().await.unwrap() {
            Begin::Run(turn) => turn,
            other => panic!("{other:?}"),
        };
        // Longer than the test, so that one slot is enough.
        let day = Duration::from_secs(24 * 3600);
        let turns = lock.once_per(day).by("worker").retry_failed(true);
        begun(&turns).await.failed().await.unwrap();
        wire.look();
        let turn = begun(&turns).await;
        wire.look();
        turn.exited(0).await.unwrap();
        wire.look();
        let newest = format!("leasehold:{}:slot", fill("<tag>", name));
        place.server.command(&["DEL", &newest]).unwrap();
        let turns = lock.once_for(name).by("worker").retry_failed(true);
        let turn = begun(&turns).await;
        // The newest turn has an id too, which only one of the rows describes.
        place.server.command(&["HSET", &newest, "id", ""]).unwrap();
        wire.look();
        turn.exited(3).await.unwrap();
        wire.look();
        begun(&turns).await.done().await.unwrap();
        place.server.command(&["HSET", &newest, "id", ""]).unwrap();
        wire.finish();
    }
}

#[tokio::test]
async fn the_tickets_of_a_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(TICKET, name).with(place.wire(LOCK, name));
        let guard = place.client.lock(name).acquire().await.unwrap();
        // Longer than the lease of the one that resumes it, so that the step wakes the waiters.
        let ticket = guard.into_ticket(Duration::from_secs(60)).await.unwrap();
        let guard = place.client.resume(&ticket).await.unwrap();
        wire.look();
        guard.release().await.unwrap();
        wire.finish();
    }
}

#[tokio::test]
async fn the_read_write_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(RW, name);
        let lock = place.client.rw_lock(name);
        hold_and_break(&mut wire, &place.client, lock.read_lock()).await;
        hold_and_break(&mut wire, &place.client, lock.write_lock()).await;
        keep_and_break(&mut wire, lock.write_lock()).await;

        // A writer waits for two readers, and gives up.
        let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
        let writer = place.other.rw_lock(name);
        let waiter = tokio::spawn(async move { writer.write().await.unwrap() });
        let marked = |side: &str| {
            let keys = place.server.keys().into_iter();
            keys.filter(|key| key.ends_with(side)).count() == 1
        };
        eventually("the writer leaves its mark", async || marked(":writers")).await;
        wire.look();
        waiter.abort();
        eventually("the mark is taken back", async || !marked(":writers")).await;
        for reader in readers {
            reader.release().await.unwrap();
            wire.look();
        }

        // A writer is notified.
        let writing = lock.write().await.unwrap();
        let writer = place.other.rw_lock(name);
        let waits = async move { writer.write().await.unwrap() };
        let called = place.is_to_be_called(waits).await;
        wire.look();
        writing.release().await.unwrap();
        called.await.unwrap().release().await.unwrap();

        // A reader waits long enough to set a reservation, and gives up.
        let writing = lock.write().await.unwrap();
        let reader = place.other.rw_lock(name);
        let waiter = tokio::spawn(async move { reader.read().await.unwrap() });
        eventually("the reader leaves its mark", async || marked(":readers")).await;
        wire.look();
        waiter.abort();
        eventually("the mark is taken back", async || !marked(":readers")).await;

        // The owner changes from one side to the other, and then holds both.
        let reading = writing.downgrade().await.unwrap();
        wire.look();
        let writing = reading.try_upgrade().await.unwrap();
        wire.look();
        writing.release().await.unwrap();
        wire.finish();
    }
}

#[tokio::test]
async fn the_group_lock() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(GROUP, name);
        let lock = place.client.group_lock(name, ["a", "order:42"]);
        hold_and_break(&mut wire, &place.client, lock).await;
        wire.finish();
    }
}

#[tokio::test]
async fn the_lock_of_a_majority() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(SEVERAL, name);
        let lock = RedLock::new([place.client.lock(name)]).unwrap();
        let lock = lock.member_timeout(Duration::from_secs(10));
        // The server has just been started. This section only needs the note of the longest lease.
        for minutes in [1, 2] {
            let longest = Duration::from_secs(minutes * 60);
            let lock = lock.clone().longest_lease(longest);
            let error = lock.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            wire.look();
        }
        wire.finish();
    }
}

#[tokio::test]
async fn the_semaphore() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(SEMAPHORE, name);
        let semaphore = place.client.semaphore(name);
        let day = Duration::from_secs(24 * 3600);
        assert!(semaphore.try_set_permits_for(2, day).await.unwrap());
        wire.look();
        assert!(semaphore.delete().await.unwrap());
        assert!(semaphore.try_set_permits(2).await.unwrap());
        wire.look();
        let permit = semaphore.acquire_many(2).await.unwrap();
        wire.look();
        let waiter = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.unwrap() }
        });
        eventually("it listens", async || place.client.activity().channels > 0).await;
        permit.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        wire.look();
        semaphore.add_permits(-3).await.unwrap();
        wire.look();
        semaphore.add_permits(4).await.unwrap();
        // The acquire is dropped once its request has been sent, and the undo follows it.
        let undone = || {
            let keys = place.server.keys().into_iter();
            let of = |key: String| place.server.command(&["GET", &key]).unwrap();
            keys.filter(|key| key.contains(":did:"))
                .any(|key| of(key).as_text() == Some("undone"))
        };
        eventually("an acquire is undone", async || {
            let _ = tokio::time::timeout(Duration::ZERO, semaphore.acquire()).await;
            undone()
        })
        .await;
        wire.look();
        semaphore.drain().await.unwrap();
        let other = place.other.semaphore(name);
        let waits = async move { other.acquire().await.unwrap() };
        let called = place.is_to_be_called(waits).await;
        wire.look();
        semaphore.add_permits(1).await.unwrap();
        called.await.unwrap().release().await.unwrap();
        wire.finish();
    }
}

#[tokio::test]
async fn the_semaphore_with_leases() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(EXPIRABLE, name);
        let semaphore = place.client.expirable_semaphore(name);
        assert!(semaphore.try_set_permits(2).await.unwrap());
        let permits = semaphore.acquire_many(2).await.unwrap();
        wire.look();
        let waiter = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.unwrap() }
        });
        eventually("it listens", async || place.client.activity().channels > 0).await;
        permits.extend(Duration::from_secs(60)).await.unwrap();
        permits.release().await.unwrap();
        let permit = waiter.await.unwrap();
        wire.look();
        let minute = Duration::from_secs(60);
        assert!(semaphore.update_lease(permit.id(), minute).await.unwrap());
        semaphore.set_permits(5).await.unwrap();
        semaphore.add_permits(-1).await.unwrap();
        wire.look();
        permit.release().await.unwrap();
        wire.look();
        let all = semaphore.acquire_many(4).await.unwrap();
        let id = all.id().to_string();
        assert!(place.other.force_release(name, &id).await.unwrap());
        wire.look();
        drop(all);
        let all = semaphore.acquire_many(4).await.unwrap();
        let other = place.other.expirable_semaphore(name);
        let waits = async move { other.acquire().await.unwrap() };
        let called = place.is_to_be_called(waits).await;
        wire.look();
        all.release().await.unwrap();
        called.await.unwrap().release().await.unwrap();
        assert!(semaphore.delete().await.unwrap());
        wire.finish();
    }
}

#[tokio::test]
async fn the_latch() {
    for name in NAMES {
        let place = Place::new().await;
        let mut wire = place.wire(LATCH, name);
        let latch = place.client.count_down_latch(name);
        assert!(latch.try_set_count(2).await.unwrap());
        wire.look();
        let waiter = tokio::spawn({
            let latch = latch.clone();
            async move { latch.wait().await.unwrap() }
        });
        eventually("it listens", async || place.client.activity().channels > 0).await;
        latch.count_down().await.unwrap();
        wire.look();
        latch.count_down().await.unwrap();
        waiter.await.unwrap();
        wire.look();
        assert!(latch.try_set_count(2).await.unwrap());
        assert!(latch.delete().await.unwrap());
        wire.finish();
    }
}

#[tokio::test]
async fn the_election() {
    for name in NAMES {
        let place = Place::new().await;
        let with = place.wire(FENCED, name).with(place.wire(LOCK, name));
        let mut wire = place.wire(ELECTION, name).with(with);
        let candidate = |client: &Client| client.election(name).payload("here");
        let term = candidate(&place.client).stand().await.unwrap();
        wire.look();
        term.extend(Duration::from_secs(30)).await.unwrap();
        wire.look();
        let other = candidate(&place.other);
        let waiter = tokio::spawn(async move { other.stand().await.unwrap() });
        let observer = candidate(&place.client);
        let mut terms = observer.observe();
        assert!(terms.next().await.unwrap().unwrap().is_some());
        eventually("it listens", async || place.other.activity().channels > 0).await;
        wire.look();
        term.resign().await.unwrap();
        let term = waiter.await.unwrap();
        wire.look();
        term.resign().await.unwrap();
        wire.finish();
    }
}

#[test]
fn every_section_with_a_table_has_a_test() {
    let tested = [
        LOCK, SPIN, FAIR, SLOT, TICKET, FENCED, RW, GROUP, SEVERAL, SEMAPHORE, EXPIRABLE, LATCH,
        ELECTION,
    ];
    assert_eq!(sections(), tested);
}

/// Redisson may handle the second message before the first.
#[tokio::test]
async fn two_wake_ups_are_kept_behind_one_for_all() {
    let place = Place::with(&["x", "y"]).await;
    let mut heard = place.server.listen();
    let writing = place.client.rw_lock("x").write().await.unwrap();
    writing.release().await.unwrap();
    let group = place.client.group_lock("y", ["a", "b"]);
    group.acquire().await.unwrap().release().await.unwrap();
    let messages = heard.messages();
    for channel in ["redisson_rwlock:{x}", "redisson_lock__channel:{y}"] {
        let on_it = messages.iter().filter(|(there, _)| there == channel);
        let texts: Vec<_> = on_it.map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["1", "0", "0"], "{channel}");
    }
}

#[tokio::test]
async fn keys_and_channels_match_the_name_table() {
    let (_, rest) = PAGE.split_once("| name | lock's channel |").unwrap();
    let rows = rest.lines().skip(2).map_while(|line| {
        let cells: Result<[&str; 5], _> = cells(line).try_into();
        cells.ok()
    });
    let mut compared = 0;
    for [name, channel, leases, latch, one_slot] in rows {
        let place = Place::with(&[name]).await;
        let mut heard = place.server.listen();
        let guard = place.client.lock(name).acquire().await.unwrap();
        guard.release().await.unwrap();
        let leased = place.client.expirable_semaphore(name);
        assert!(leased.try_set_permits(1).await.unwrap());
        drop(leased.acquire().await.unwrap());
        let touched = heard.keys();
        assert!(touched.contains(&leases.to_owned()), "{name}: {touched:?}");
        assert!(leased.delete().await.unwrap());
        let latched = place.client.count_down_latch(name);
        assert!(latched.try_set_count(1).await.unwrap());
        let messages = heard.messages();
        for channel in [channel, latch] {
            let there = messages.iter().any(|(there, _)| there == channel);
            assert!(there, "{name}: {channel} is not among {messages:?}");
        }
        let parts = [name, channel, leases];
        let slots = parts.map(hash_tag);
        let is_one = slots.iter().all(|slot| *slot == slots[0]);
        assert_eq!(is_one, one_slot == "yes", "{name}: {slots:?}");
        compared += 1;
    }
    assert_eq!(compared, 6);
}

/// Returns the part of a key that a cluster takes its slot from.
fn hash_tag(key: &str) -> &str {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    match tag {
        Some((tag, _)) if !tag.is_empty() => tag,
        _ => key,
    }
}

#[tokio::test]
async fn values_have_the_field_names_of_the_table() {
    let (_, rest) = PAGE.split_once("| value | with `StringCodec` |").unwrap();
    for line in rest.lines().skip(2).take(2) {
        let [value, text, kryo] = cells(line)[..] else {
            panic!("not three cells: {line}");
        };
        for (names, field) in [(FieldNames::Text, text), (FieldNames::Kryo5, kryo)] {
            let place = Place::new().await;
            let lock = place.client.group_lock("orders", [value]);
            let guard = lock.field_names(names).acquire().await.unwrap();
            let holder = place.server.command(&["HGET", "orders", field]).unwrap();
            assert_eq!(holder.as_text(), Some(guard.holder_id()), "{value}");
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
#[should_panic(expected = "Lock: no row for `leasehold:{orders}:new`")]
async fn undocumented_key_is_found() {
    let place = Place::new().await;
    let mut wire = place.wire(LOCK, "orders");
    let new = ["SET", "leasehold:{orders}:new", "1"];
    place.server.command(&new).unwrap();
    wire.look();
}

#[tokio::test]
#[should_panic(expected = "Lock: no row for `orders`")]
async fn undocumented_field_is_found() {
    let place = Place::new().await;
    let mut wire = place.wire(LOCK, "orders");
    let _guard = place.client.lock("orders").acquire().await.unwrap();
    place
        .server
        .command(&["HSET", "orders", "since", "today"])
        .unwrap();
    wire.look();
}

#[tokio::test]
#[should_panic(expected = "Lock: no row for `1` on `redisson_lock__channel:{orders}`")]
async fn undocumented_message_is_found() {
    let place = Place::new().await;
    let mut wire = place.wire(LOCK, "orders");
    let message = ["PUBLISH", "redisson_lock__channel:{orders}", "1"];
    place.server.command(&message).unwrap();
    wire.look();
}

#[tokio::test]
#[should_panic(expected = "Lock: nothing was there for")]
async fn a_row_that_nothing_produces_is_found() {
    let place = Place::new().await;
    let wire = place.wire(LOCK, "orders");
    let guard = place.client.lock("orders").acquire().await.unwrap();
    guard.release().await.unwrap();
    wire.finish();
}
