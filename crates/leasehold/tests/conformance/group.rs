//! The group lock: several values of one group, all or none.

use std::time::Duration;

use leasehold::inspect::Ttl;
use leasehold::kind::FieldNames;
use leasehold::testing::history::Recorder;
use leasehold::{ErrorKind, LossReason};

use super::{LEASE, place};
use crate::support::{HOUR, eventually};

#[tokio::test]
async fn overlapping_groups_exclude_each_other() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = ours.group_lock("g", ["a", "b"]).acquire().await.unwrap();
    for busy in [vec!["b"], vec!["b", "c"], vec!["a", "b"]] {
        let lock = theirs.group_lock("g", busy);
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert!(lock.is_locked().await.unwrap());
    }
    let rest = theirs.group_lock("g", ["c", "d"]);
    let other = rest.try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    let lock = theirs.group_lock("g", ["a", "b"]);
    assert!(!lock.is_locked().await.unwrap());
    let info = rest.inspect().await.unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].id, other.holder_id());
    assert!(matches!(info.ttl, Ttl::Left(_)));
    other.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn waiters_for_different_values_are_all_woken() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for freed in ["a", "b"] {
        let (a, b) = (ours.group_lock("g", ["a"]), ours.group_lock("g", ["b"]));
        let (a, b) = (a.acquire().await.unwrap(), b.acquire().await.unwrap());
        let waits = ["a", "b"].map(|value| {
            let lock = theirs.group_lock("g", [value]).poll_interval(HOUR);
            tokio::spawn(async move { lock.acquire().await.unwrap() })
        });
        eventually("both stand in lines of their own", async || {
            theirs.activity().lines == 2 && theirs.activity().channels == 1
        })
        .await;
        let [wait_a, wait_b] = waits;
        let (first, second, wait_first, wait_second) = match freed {
            "a" => (a, b, wait_a, wait_b),
            _ => (b, a, wait_b, wait_a),
        };
        first.release().await.unwrap();
        let got = tokio::time::timeout(HOUR / 2, wait_first).await.unwrap();
        assert!(!wait_second.is_finished());
        second.release().await.unwrap();
        wait_second.await.unwrap().release().await.unwrap();
        got.unwrap().release().await.unwrap();
    }
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn overlapping_groups_never_overlap_in_time() {
    let place = place();
    let clients = [place.client().await, place.client().await];
    let recorder = Recorder::new();
    let sets = [
        vec!["a", "b"],
        vec!["b", "c"],
        vec!["c", "a"],
        vec!["a", "b", "c"],
    ];
    let worker = async |n: usize| {
        let set = &sets[n % 4];
        let lock = clients[n % 2].group_lock("g", set.clone());
        for _ in 0..10 {
            let asked: Vec<_> = set
                .iter()
                .map(|value| recorder.ask(value, &n.to_string()))
                .collect();
            let guard = lock.acquire().await.unwrap();
            let inside: Vec<_> = asked.into_iter().map(|one| one.acquired(&guard)).collect();
            tokio::task::yield_now().await;
            inside.into_iter().for_each(|one| one.releasing(&guard));
            guard.release().await.unwrap();
        }
    };
    futures_util::future::join_all((0..8).map(worker)).await;
    recorder.report().judge().unwrap();
    place.is_clean(&[&clients[0], &clients[1]]).await;
}

#[tokio::test]
async fn dead_holders_values_expire_in_live_groups() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    // Another hold keeps the group itself alive.
    let other = ours.group_lock("g", ["z"]).acquire().await.unwrap();
    let dead = ours.group_lock("g", ["a", "b"]).fixed_lease(LEASE / 4);
    dead.acquire().await.unwrap().forget();
    let lock = theirs.group_lock("g", ["b"]).poll_interval(HOUR);
    let guard = lock.acquire().await.unwrap();
    guard.release().await.unwrap();
    let lock = theirs.group_lock("g", ["a"]);
    lock.acquire().await.unwrap().release().await.unwrap();
    other.release().await.unwrap();
    // The hash is deleted with its last field, so nothing of the dead holder is left in it.
    assert!(
        !place.keys().contains(&"g".to_owned()),
        "{:?}",
        place.keys()
    );
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn busy_group_sweeps_dead_holders_values() {
    let place = place();
    let client = place.client().await;
    let busy = client.group_lock("g", ["busy"]).acquire().await.unwrap();
    for n in 0..40 {
        let value = format!("dead {n}");
        let dead = client.group_lock("g", [value]).fixed_lease(LEASE / 6);
        dead.acquire().await.unwrap().forget();
    }
    let last = client.group_lock("g", ["dead 39"]);
    eventually("they are over", async || !last.is_locked().await.unwrap()).await;
    let mut rounds = 0;
    let next = client.group_lock("g", ["next"]);
    eventually("they are swept", async || {
        next.acquire().await.unwrap().release().await.unwrap();
        rounds += 1;
        // Three fields remain: a value with its end and its count, of the living holder.
        fields(&place, "g") == 3
    })
    .await;
    assert!(rounds < 2000);
    busy.release().await.unwrap();
    next.force_unlock().await.unwrap();
    place.remove("g");
    place.is_clean(&[&client]).await;
}

/// Returns the number of fields of a hash; the embedded keyspace removes all dead ones at once.
fn fields(place: &crate::support::Place, key: &str) -> i64 {
    let Some(server) = place.server_of(key) else {
        return 3;
    };
    let length = server.command(&["HLEN", &place.key(key)]).unwrap();
    length.as_int().unwrap()
}

#[tokio::test]
async fn short_group_lease_cuts_no_other() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let long = client
        .group_lock("g", ["l"])
        .fixed_lease(HOUR)
        .acquire()
        .await
        .unwrap();
    let guard = client.group_lock("g", ["a", "b"]).acquire().await.unwrap();
    assert!(tokio::time::timeout(LEASE * 4, guard.lost()).await.is_err());
    guard.release().await.unwrap();
    let short = client.group_lock("g", ["a"]).fixed_lease(LEASE / 6);
    short.acquire().await.unwrap().forget();
    let Ttl::Left(left) = client.group_lock("g", ["l"]).remaining_ttl().await.unwrap() else {
        panic!("not held");
    };
    assert!(left > HOUR / 2);
    assert!(long.is_held());
    // The fields of the short hold remain while the group is in use, or until their value is taken
    // again.
    let again = client.group_lock("g", ["a"]).acquire().await.unwrap();
    again.release().await.unwrap();
    long.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn losing_one_value_loses_the_whole_group() {
    let place = place();
    let client = place.client_with(|builder| builder.lease(LEASE)).await;
    let operator = place.client().await;
    let both = client.group_lock("g", ["a", "b"]);
    let guard = both.acquire().await.unwrap();
    // Redisson force-unlocks one value alone, like this.
    assert!(
        operator
            .group_lock("g", ["b"])
            .force_unlock()
            .await
            .unwrap()
    );
    assert_eq!(guard.lost().await, crate::support::forced());
    assert!(guard.release().await.is_err());
    let lock = operator.group_lock("g", ["a", "b"]);
    eventually("the rest is given back", async || {
        !lock.is_locked().await.unwrap()
    })
    .await;

    let guard = client
        .group_lock("h", ["a", "b"])
        .fixed_lease(HOUR)
        .acquire()
        .await
        .unwrap();
    place.remove("h");
    let taken = operator.group_lock("h", ["b"]).acquire().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let by = taken.holder_id().to_owned();
    assert_eq!(
        error.loss(),
        Some(&LossReason::Member {
            member: "the value `b`".into(),
            reason: Box::new(LossReason::Taken { by })
        })
    );
    taken
        .release()
        .await
        .expect("nobody else's release touched it");
    place.remove("leasehold:{g}:forced");
    place.is_clean(&[&client, &operator]).await;
}

#[tokio::test]
async fn group_release_names_the_lost_value() {
    let place = place();
    let client = place.client().await;
    let guard = client.group_lock("g", ["a", "b"]).acquire().await.unwrap();
    client.group_lock("g", ["a"]).force_unlock().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("the value `a`"), "{error}");
    assert!(!client.group_lock("g", ["b"]).is_locked().await.unwrap());
    place.remove("leasehold:{g}:forced");
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn an_owner_enters_again() {
    let place = place();
    let client = place.client().await;
    let owner = leasehold::Owner::new();
    let lock = client.group_lock("g", ["a", "b"]).owned_by(&owner);
    let outer = lock.acquire().await.unwrap();
    // The order of the values does not matter.
    let same = client.group_lock("g", ["b", "a", "b"]).owned_by(&owner);
    let inner = same.try_acquire().await.unwrap().unwrap();
    assert_eq!(inner.hold_count(), 2);
    assert!(lock.is_held_by(&owner).await.unwrap());
    outer.release().await.unwrap();
    assert!(lock.is_locked().await.unwrap());
    inner.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn other_names_of_the_fields_are_other_values() {
    let place = place();
    let client = place.client().await;
    let guard = client.group_lock("g", ["a"]).acquire().await.unwrap();
    let kryo = client.group_lock("g", ["a"]).field_names(FieldNames::Kryo5);
    let other = kryo.try_acquire().await.unwrap().unwrap();
    let text = kryo.field_names(FieldNames::Text);
    assert!(text.try_acquire().await.unwrap().is_none());
    other.release().await.unwrap();
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn group_and_plain_locks_reject_each_other() {
    let place = place();
    let client = place.client().await;
    let plain = client.lock("x").acquire().await.unwrap();
    let group = client.group_lock("x", ["a"]);
    for error in [
        group.try_acquire().await.unwrap_err(),
        group.inspect().await.unwrap_err(),
        group.force_unlock().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    }
    plain.release().await.unwrap();
    let guard = group.acquire().await.unwrap();
    let error = client.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn no_lock_name_passes_for_group_values() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let owner = leasehold::Owner::new();
    let group = ours.group_lock("g", ["a"]).owned_by(&owner);
    let held = theirs.group_lock("g", ["a"]).acquire().await.unwrap();
    // The field of the value `a`. Each name below is the group's name, a possible separator, and
    // this field.
    let field = "qwvAS12pR0CgRitaypEjUw";
    for between in ["", "\0", " ", ":", "\0\0", "\u{1}"] {
        let name = format!("g{between}{field}");
        let lock = ours.lock(&name).owned_by(&owner);
        let guard = lock.acquire().await.unwrap();
        assert!(!group.is_held_by(&owner).await.unwrap(), "{name:?}");
        assert!(group.try_acquire().await.unwrap().is_none(), "{name:?}");
        guard.release().await.unwrap();
    }
    held.release().await.unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}

#[tokio::test]
async fn no_values_and_too_many_are_misuse() {
    let place = place();
    let client = place.client().await;
    let none = client.group_lock("g", Vec::<String>::new());
    let error = none.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    let many = client.group_lock("g", (0..1001).map(|n| n.to_string()));
    assert_eq!(many.acquire().await.unwrap_err().kind(), ErrorKind::Misuse);
    let most = client.group_lock("g", (0..1000).map(|n| n.to_string()));
    let guard = most.acquire().await.unwrap();
    guard.extend(Duration::from_secs(100)).await.unwrap();
    guard.release().await.unwrap();
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn release_trims_the_groups_expiry() {
    let place = place();
    let client = place.client().await;
    let long = client.group_lock("g", ["a"]).fixed_lease(HOUR);
    let long = long.acquire().await.unwrap();
    // The lease of the group is the longest lease of its holders.
    let dead = client.group_lock("g", ["b"]).fixed_lease(LEASE);
    dead.acquire().await.unwrap().forget();
    long.release().await.unwrap();
    place.is_clean(&[&client]).await;
}
