//! A name is recognised by its keys, for every kind of lock and synchronizer.

use std::time::Duration;

use leasehold::inspect::{Found, Listed, NameInfo, Ttl, Wants};
use leasehold::{Client, ErrorKind};

use super::place;
use crate::support::{HOUR, eventually, fair_lock};

async fn at(client: &Client, name: &str) -> NameInfo {
    client.inspect(name).await.unwrap()
}

#[track_caller]
fn renewed(ttl: Ttl) {
    let Ttl::Left(left) = ttl else {
        panic!("{ttl:?}");
    };
    let lease = Duration::from_secs(30);
    assert!(left > lease / 2 && left <= lease, "{left:?}");
}

#[tokio::test]
async fn a_free_name_is_nothing() {
    let place = place();
    let client = place.client().await;
    let free = at(&client, "x").await;
    assert_eq!(free.found, Found::Nothing);
    assert_eq!(
        (free.ttl, free.waiting, free.more, free.last_token),
        (Ttl::Free, Vec::new(), 0, None)
    );
}

#[tokio::test]
async fn lock_shows_holder_and_last_token() {
    let place = place();
    let client = place.client().await;
    let guard = client.fenced_lock("x").acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Lock(hold) = seen.found else {
        panic!("{seen:?}");
    };
    assert!(hold.id.starts_with(client.id()), "{hold:?}");
    assert_eq!(hold.count, 1);
    renewed(hold.ttl);
    renewed(seen.ttl);
    assert_eq!(seen.last_token, Some(guard.token()));
    assert_eq!(seen.waiting, [], "no key says who waits");
    guard.release().await.unwrap();
    let seen = at(&client, "x").await;
    assert_eq!(seen.found, Found::Nothing);
    assert!(seen.last_token.is_some());
}

#[tokio::test]
async fn fair_waiters_are_shown_in_line_order() {
    let place = place();
    let (holder, client) = (place.client().await, place.client().await);
    let guard = holder.fair_lock("x").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for number in 1..=2 {
        let lock = client.fair_lock("x");
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        let line = client.fair_lock("x");
        eventually("it stands in line", async || {
            line.waiters().await.unwrap().len() == number
        })
        .await;
    }
    let seen = at(&client, "x").await;
    assert!(matches!(seen.found, Found::Lock(_)), "{seen:?}");
    let line = client.fair_lock("x").waiters().await.unwrap();
    let waiting = seen.waiting.iter();
    assert!(waiting.clone().all(|waiter| waiter.wants == Wants::Lock));
    let waiting: Vec<_> = waiting.map(|waiter| waiter.id.clone()).collect();
    assert_eq!(waiting, line);
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn readers_and_writer_are_shown_separately() {
    let place = place();
    // Readers of one client may share a hold.
    let (client, other) = (place.client().await, place.client().await);
    let (lock, elsewhere) = (client.rw_lock("x"), other.rw_lock("x"));
    let (first, second) = (lock.read().await.unwrap(), elsewhere.read().await.unwrap());
    let seen = at(&client, "x").await;
    let Found::ReadWrite { writer, readers } = seen.found else {
        panic!("{seen:?}");
    };
    assert_eq!(writer, None);
    assert_eq!(readers.len(), 2);
    readers.iter().for_each(|reader| renewed(reader.ttl));
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writing = lock.write().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::ReadWrite { writer, readers } = seen.found else {
        panic!("{seen:?}");
    };
    let writer = writer.expect("it writes");
    assert!(writer.id.ends_with(":write"), "{writer:?}");
    renewed(writer.ttl);
    assert_eq!(readers, []);
    writing.release().await.unwrap();
}

#[tokio::test]
async fn reader_without_its_key_is_unlisted() {
    let place = place();
    // Readers of one client may share a hold.
    let (client, other) = (place.client().await, place.client().await);
    let (lock, elsewhere) = (client.rw_lock("x"), other.rw_lock("x"));
    let (live, dead) = (lock.read().await.unwrap(), elsewhere.read().await.unwrap());
    let key = |hold: &str| format!("{{x}}:{hold}:rwlock_timeout:1");
    let Found::ReadWrite { readers, .. } = at(&client, "x").await.found else {
        panic!("it is read");
    };
    place.remove(&key(&readers[0].id));
    let Found::ReadWrite { readers: left, .. } = at(&client, "x").await.found else {
        panic!("it is read");
    };
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].id, readers[1].id);
    drop((live, dead));
}

#[tokio::test]
async fn a_group_has_its_values_with_their_holders() {
    let place = place();
    let client = place.client().await;
    let fixed = client.group_lock("x", ["a", "b"]).acquire().await.unwrap();
    let other = client.group_lock("x", ["c"]).acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Group(mut values) = seen.found else {
        panic!("{seen:?}");
    };
    assert_eq!(values.len(), 3);
    values.iter().for_each(|value| renewed(value.hold.ttl));
    // The values of one hold have one holder.
    values.sort_by(|a, b| a.hold.id.cmp(&b.hold.id));
    values.dedup_by(|a, b| a.hold.id == b.hold.id);
    assert_eq!(values.len(), 2);
    other.release().await.unwrap();
    fixed.release().await.unwrap();
    assert_eq!(at(&client, "x").await.found, Found::Nothing);
}

#[tokio::test]
async fn expired_group_value_is_unlisted() {
    let place = place();
    let client = place.client().await;
    let kept = client.group_lock("x", ["a"]).acquire().await.unwrap();
    let short = client
        .group_lock("x", ["b"])
        .fixed_lease(Duration::from_millis(50));
    std::mem::forget(short.acquire().await.unwrap());
    eventually("the lease is over", async || {
        let found = at(&client, "x").await.found;
        matches!(found, Found::Group(ref values) if values.len() == 1)
    })
    .await;
    kept.release().await.unwrap();
}

#[tokio::test]
async fn leased_permits_are_listed_with_expiry() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x");
    assert!(semaphore.try_set_permits(3).await.unwrap());
    // No permit is in use: a semaphore without leases and a latch look the same.
    assert_eq!(at(&client, "x").await.found, Found::Count(3));
    let permit = semaphore.acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Leases {
        free,
        held,
        permits,
    } = seen.found
    else {
        panic!("{seen:?}");
    };
    assert_eq!((free, held, permits.len()), (Some(2), 1, 1));
    assert_eq!(permits[0].id, permit.ids()[0].to_string());
    let Ttl::Left(left) = permits[0].ttl else {
        panic!("{permits:?}");
    };
    renewed(Ttl::Left(left));
    // An operator removes the key by hand. The permits are still in use.
    place.remove("x");
    let seen = at(&client, "x").await;
    assert!(
        matches!(
            seen.found,
            Found::Leases {
                free: None,
                held: 1,
                ..
            }
        ),
        "{seen:?}"
    );
    drop(permit);
}

#[tokio::test]
async fn a_permit_whose_lease_is_over_is_free() {
    let place = place();
    let client = place.client().await;
    let semaphore = client.expirable_semaphore("x");
    assert!(semaphore.try_set_permits(2).await.unwrap());
    let kept = semaphore.acquire().await.unwrap();
    let short = semaphore.clone().fixed_lease(Duration::from_millis(50));
    std::mem::forget(short.acquire().await.unwrap());
    eventually("the lease is over", async || {
        let found = at(&client, "x").await.found;
        matches!(found, Found::Leases { free: Some(1), held: 1, ref permits } if permits.len() == 1)
    })
    .await;
    drop(kept);
}

#[tokio::test]
async fn latches_and_semaphores_are_told_apart() {
    let place = place();
    let client = place.client().await;
    client.semaphore("x").try_set_permits(2).await.unwrap();
    assert_eq!(at(&client, "x").await.found, Found::Count(2));
    let latch = client.count_down_latch("y");
    assert_eq!(at(&client, "y").await.found, Found::Nothing);
    latch.try_set_count(2).await.unwrap();
    assert_eq!(at(&client, "y").await.found, Found::Latch { left: 2 });
    latch.count_down_by(2).await.unwrap();
    assert_eq!(at(&client, "y").await.found, Found::Latch { left: 0 });
}

#[tokio::test]
async fn waiting_writer_is_shown_by_its_mark() {
    let place = place();
    let (holder, client) = (place.client().await, place.client().await);
    let guard = holder.rw_lock("x").read().await.unwrap();
    let lock = client.rw_lock("x");
    let waiter = tokio::spawn(async move { lock.write().await });
    eventually("it waits", async || {
        let waiting = at(&holder, "x").await.waiting;
        matches!(&waiting[..], [one] if one.wants == Wants::ToWrite && one.id.starts_with(client.id()))
    })
    .await;
    guard.release().await.unwrap();
    let written = waiter.await.unwrap().unwrap();
    assert_eq!(at(&holder, "x").await.waiting, []);
    written.release().await.unwrap();
}

#[tokio::test]
async fn listening_waiters_of_a_plain_lock_are_counted() {
    let place = place();
    let (holder, client) = (place.client().await, place.client().await);
    let guard = holder.lock("x").acquire().await.unwrap();
    assert_eq!(at(&holder, "x").await.listening, Some(0));
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually("it listens", async || {
        // The clients of one embedded keyspace have one connection, and count as several.
        at(&holder, "x").await.listening > Some(0)
    })
    .await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn large_group_and_many_readers_are_recognised() {
    let place = place();
    let client = place.client().await;
    // There are three fields for each value, and more of them than are read at a time.
    let values: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    let held = client.group_lock("x", values).acquire().await.unwrap();
    let more = client.group_lock("x", ["a", "b"]).acquire().await.unwrap();
    let seen = at(&client, "x").await;
    let Found::Group(values) = seen.found else {
        panic!("{:?}", seen.found);
    };
    assert_eq!((values.len(), seen.more), (1000, 2));
    more.release().await.unwrap();
    held.release().await.unwrap();
    // With leases of their own, the readers have holds of their own.
    let lock = client.rw_lock("y").fixed_lease(Duration::from_secs(600));
    let mut guards = Vec::new();
    for _ in 0..1005 {
        guards.push(lock.read().await.unwrap());
    }
    let seen = at(&client, "y").await;
    let Found::ReadWrite { writer, readers } = seen.found else {
        panic!("{:?}", seen.found);
    };
    assert_eq!((writer, readers.len(), seen.more), (None, 1000, 5));
}

async fn listed(client: &Client, pattern: &str) -> Vec<Listed> {
    let (mut names, mut found) = (client.list(pattern), Vec::new());
    while let Some(listed) = names.next().await {
        found.push(listed.unwrap());
    }
    let (looked_at, total) = names.progress();
    assert_eq!(looked_at, total, "to the end");
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

#[tokio::test]
async fn every_kind_is_listed() {
    let place = place();
    let client = place.client().await;
    let guards = (
        client.lock("a-lock").acquire().await.unwrap(),
        client.fair_lock("a-fair{1}").acquire().await.unwrap(),
        client.fenced_lock("a-fenced").acquire().await.unwrap(),
        client.rw_lock("a-read").read().await.unwrap(),
        client.rw_lock("a-write").write().await.unwrap(),
        client.group_lock("a-group", ["v"]).acquire().await.unwrap(),
        client.lock("b-lock").acquire().await.unwrap(),
    );
    client
        .semaphore("a-semaphore")
        .try_set_permits(2)
        .await
        .unwrap();
    let leases = client.expirable_semaphore("a-leases");
    leases.try_set_permits(2).await.unwrap();
    let permit = leases.acquire().await.unwrap();
    let orphaned = client.expirable_semaphore("a-orphaned");
    orphaned.try_set_permits(1).await.unwrap();
    let orphan = orphaned.acquire().await.unwrap();
    place.remove("a-orphaned");
    client
        .count_down_latch("a-latch")
        .try_set_count(1)
        .await
        .unwrap();
    let opened = client.count_down_latch("a-opened");
    opened.try_set_count(1).await.unwrap();
    opened.count_down().await.unwrap();

    let names: Vec<_> = listed(&client, "a-*").await;
    let shown: Vec<_> = names
        .iter()
        .map(|one| (&*one.name, &one.info.found))
        .collect();
    let kinds = shown.iter().map(|(name, found)| {
        let kind = match found {
            Found::Lock(_) => "lock",
            Found::ReadWrite { .. } => "read-write",
            Found::Group(_) => "group",
            Found::Leases { .. } => "leases",
            Found::Count(_) => "count",
            Found::Latch { .. } => "latch",
            other => panic!("{name}: {other:?}"),
        };
        (*name, kind)
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            ("a-fair{1}", "lock"),
            ("a-fenced", "lock"),
            ("a-group", "group"),
            ("a-latch", "latch"),
            ("a-leases", "leases"),
            ("a-lock", "lock"),
            ("a-opened", "latch"),
            ("a-orphaned", "leases"),
            ("a-read", "read-write"),
            ("a-semaphore", "count"),
            ("a-write", "read-write"),
        ]
    );
    let one = listed(&client, "?-loc[k-l]").await;
    let names: Vec<_> = one.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["a-lock", "b-lock"]);
    assert_eq!(listed(&client, "nothing*").await, []);
    let refused = client.list("a[").next().await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Misuse, "{refused}");
    drop((guards, permit, orphan));
}

#[tokio::test]
async fn free_fair_lock_is_listed_while_somebody_waits() {
    let place = place();
    let (holder, client) = (place.client().await, place.client().await);
    let guard = holder.fair_lock("x").acquire().await.unwrap();
    let lock = client.fair_lock("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually("it stands in line", async || {
        !at(&holder, "x").await.waiting.is_empty()
    })
    .await;
    place.remove("x");
    // The waiter gets no message, and asks a second later.
    let names = listed(&holder, "*").await;
    let [one] = &names[..] else {
        panic!("{names:?}");
    };
    assert_eq!(one.name, "x");
    drop(guard);
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn one_hold_of_any_kind_is_ended_by_force() {
    let place = place();
    let (client, operator) = (place.client().await, place.client().await);
    let plain = client.lock("lock").acquire().await.unwrap();
    let fair = client.fair_lock("fair").acquire().await.unwrap();
    let writer = client.rw_lock("write").write().await.unwrap();
    let readers = client.rw_lock("read").fixed_lease(Duration::from_secs(600));
    let (reader, kept) = (readers.read().await.unwrap(), readers.read().await.unwrap());
    let group = client
        .group_lock("group", ["a", "b"])
        .acquire()
        .await
        .unwrap();
    let other = client.group_lock("group", ["c"]).acquire().await.unwrap();
    let permits = client.expirable_semaphore("leases");
    permits.try_set_permits(1).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    client.semaphore("count").try_set_permits(1).await.unwrap();

    let held = |guard: &leasehold::LockGuard| guard.holder_id().to_owned();
    let plain = ("lock", held(&plain), plain);
    let all = [
        plain,
        ("fair", held(&fair), fair),
        ("write", held(writer.as_ref()), writer.into()),
        ("read", held(reader.as_ref()), reader.into()),
        ("group", held(&group), group),
    ];
    for (name, id, guard) in all {
        let end = async |id: &str| operator.force_release(name, id).await.unwrap();
        assert!(
            !end("00000000-0000-0000-0000-000000000000:1").await,
            "{name}"
        );
        assert!(guard.is_held(), "{name}");
        assert!(end(&id).await, "{name}");
        assert!(!end(&id).await, "{name}: it is ended");
        let lost = guard.extend(Duration::from_secs(30)).await.unwrap_err();
        assert_eq!(
            lost.loss(),
            Some(&crate::support::forced()),
            "{name}: {lost}"
        );
    }
    for name in ["lock", "fair", "write"] {
        assert_eq!(at(&client, name).await.found, Found::Nothing, "{name}");
    }
    assert!(
        operator
            .force_release("leases", &permit.ids()[0].to_string())
            .await
            .unwrap()
    );
    assert_eq!(at(&client, "leases").await.found, Found::Count(1));
    let refused = operator.force_release("count", "c:1").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongKind, "{refused}");
    // Holds of other kinds under the same name remain.
    kept.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test]
async fn force_release_wakes_those_who_wait() {
    let place = place();
    let client = place.client().await;
    // The lease is long enough that no waiter asks because a lease has ended.
    let operator = place.client_with(|builder| builder.lease(HOUR)).await;
    let lock = client.lock("lock").poll_interval(HOUR);
    let fair = fair_lock(&client, "fair").poll_interval(HOUR);
    let held = (
        operator.lock("lock").acquire().await.unwrap(),
        operator.fair_lock("fair").acquire().await.unwrap(),
    );
    let waiters = [
        tokio::spawn(async move { lock.acquire().await }),
        tokio::spawn(async move { fair.acquire().await }),
    ];
    eventually("they listen", async || client.activity().channels == 2).await;
    eventually("one stands in line", async || {
        !at(&operator, "fair").await.waiting.is_empty()
    })
    .await;
    for (name, id) in [("lock", held.0.holder_id()), ("fair", held.1.holder_id())] {
        assert!(operator.force_release(name, id).await.unwrap(), "{name}");
    }
    for waiter in waiters {
        let woken = tokio::time::timeout(Duration::from_secs(60), waiter).await;
        let guard = woken.expect("the release calls it");
        guard.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn prefix_stands_before_every_key_of_every_kind() {
    let place = place();
    let client = place.client_with(|builder| builder.prefix("app:")).await;
    let plain = place.client().await;
    let guards = (
        client.lock("lock").acquire().await.unwrap(),
        client.fair_lock("fair").acquire().await.unwrap(),
        client.fenced_lock("fenced").acquire().await.unwrap(),
        client.rw_lock("rw").read().await.unwrap(),
        client.group_lock("group", ["v"]).acquire().await.unwrap(),
    );
    client
        .semaphore("semaphore")
        .try_set_permits(2)
        .await
        .unwrap();
    let leases = client.expirable_semaphore("leases");
    leases.try_set_permits(2).await.unwrap();
    let permit = leases.acquire().await.unwrap();
    client
        .count_down_latch("latch")
        .try_set_count(1)
        .await
        .unwrap();
    for key in place.keys() {
        assert!(key.starts_with("app:") || key.contains("{app:"), "{key}");
    }
    assert_eq!(
        (guards.0.name(), guards.3.name(), permit.name()),
        ("lock", "rw", "leases")
    );
    assert_eq!((leases.name(), client.lock("x").name()), ("leases", "x"));
    // The same lock by its whole name.
    assert!(
        plain
            .lock("app:lock")
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    assert!(matches!(at(&client, "lock").await.found, Found::Lock(_)));
    assert_eq!(at(&plain, "lock").await.found, Found::Nothing);
    let names = listed(&client, "l*").await;
    let names: Vec<_> = names.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["latch", "leases", "lock"]);
    assert_eq!(client.holds().len(), 6);
    assert!(
        client
            .holds()
            .iter()
            .all(|held| !held.name.starts_with("app:"))
    );
    let id = guards.0.holder_id().to_owned();
    assert!(client.force_release("lock", &id).await.unwrap());
    let write = client.rw_lock("down").write().await.unwrap();
    let read = write.downgrade().await.unwrap();
    assert_eq!(read.name(), "down");
    assert!(place.keys().contains(&"app:down".to_owned()));
}
