//! A holder learns which client has ended its hold by force.

use std::time::Duration;

use leasehold::{AnyLock, Client, LockGuard, LossReason};

use super::place;

const KINDS: [&str; 6] = ["plain", "fenced", "fair", "read", "write", "group"];
const LEASE: Duration = Duration::from_secs(30);

/// Acquires a lock of this kind, whose name is the kind.
async fn hold(client: &Client, kind: &str) -> LockGuard {
    let rw = client.rw_lock(kind);
    let lock: AnyLock = match kind {
        "plain" => client.lock(kind).into(),
        "fenced" => client.fenced_lock(kind).into(),
        "fair" => client.fair_lock(kind).into(),
        "read" => rw.read_lock().into(),
        "write" => rw.write_lock().into(),
        _ => client.group_lock(kind, ["a", "b"]).into(),
    };
    lock.acquire().await.unwrap()
}

async fn unlock_by_force(client: &Client, kind: &str) {
    let rw = client.rw_lock(kind);
    let ended = match kind {
        "plain" => client.lock(kind).force_unlock().await,
        "fenced" => client.fenced_lock(kind).force_unlock().await,
        "fair" => client.fair_lock(kind).force_unlock().await,
        "read" => rw.read_lock().force_unlock().await,
        "write" => rw.write_lock().force_unlock().await,
        _ => client.group_lock(kind, ["b"]).force_unlock().await,
    };
    assert!(ended.unwrap(), "{kind}");
}

/// Returns the label that the holder learns.
async fn label(guard: &LockGuard) -> Option<String> {
    let error = guard.extend(LEASE).await.unwrap_err();
    let Some(LossReason::Forced { by }) = error.loss().cloned() else {
        panic!("{error}");
    };
    assert_eq!(guard.loss(), Some(LossReason::Forced { by: by.clone() }));
    by
}

#[tokio::test]
async fn holder_of_any_kind_learns_who_ended_its_hold() {
    let place = place();
    let client = place.client().await;
    let operator = place
        .client_with(|builder| builder.label(" on\ncall "))
        .await;
    for kind in KINDS {
        let guard = hold(&client, kind).await;
        unlock_by_force(&operator, kind).await;
        assert_eq!(label(&guard).await.as_deref(), Some("on call"), "{kind}");
        let guard = hold(&client, kind).await;
        let ended = operator.force_release(kind, guard.holder_id()).await;
        assert!(ended.unwrap(), "{kind}");
        assert_eq!(label(&guard).await.as_deref(), Some("on call"), "{kind}");
    }
    let ticket = client.lock("x").acquire().await.unwrap();
    let ticket = ticket.into_ticket(LEASE).await.unwrap();
    unlock_by_id(&operator, "x", ticket.holder_id()).await;
    let refused = client.resume(&ticket).await.unwrap_err();
    let by = Some("on call".to_owned());
    assert_eq!(refused.loss(), Some(&LossReason::Forced { by }));
}

#[tokio::test]
async fn holder_of_permits_learns_who_took_them_back() {
    let place = place();
    let client = place.client().await;
    let operator = place.client_with(|builder| builder.label("on call")).await;
    let semaphore = client.expirable_semaphore("x");
    semaphore.try_set_permits(4).await.unwrap();
    let guard = semaphore.acquire_many(3).await.unwrap();
    let other = semaphore.acquire().await.unwrap();
    unlock_by_id(&operator, "x", guard.ids()[1].to_string()).await;
    let by = Some("on call".to_owned());
    let expected = LossReason::Forced { by };
    let error = guard.extend(LEASE).await.unwrap_err();
    assert_eq!(error.loss(), Some(&expected));
    assert_eq!(guard.lost().await, expected);
    // No note is about a permit that its holder, or a client of Java, gave back by its id.
    assert!(semaphore.release(other.id()).await.unwrap());
    let error = other.extend(LEASE).await.unwrap_err();
    assert_eq!(error.loss(), Some(&LossReason::Deleted));
}

async fn unlock_by_id(client: &Client, name: &str, id: impl AsRef<str>) {
    assert!(client.force_release(name, id.as_ref()).await.unwrap());
}

/// Checks the notes of earlier versions, and of programs that write anything.
#[tokio::test]
async fn note_of_another_program_is_made_safe() {
    let place = place();
    let (client, operator) = (place.client().await, place.client().await);
    for kind in KINDS {
        for (note, expected) in [("1", None), ("", None), ("x\u{1b}[2J", Some("x [2J"))] {
            let guard = hold(&client, kind).await;
            unlock_by_force(&operator, kind).await;
            let marker = place.key(&format!("leasehold:{{{kind}}}:forced"));
            let Some(server) = place.server_of(&marker) else {
                // Tests can't write to the embedded keyspace.
                return;
            };
            let written = server.command(&["HSET", &marker, guard.holder_id(), note]);
            let added = written.unwrap().as_int();
            assert_eq!(added, Some(0), "{kind}: it is the holder's note");
            assert_eq!(label(&guard).await.as_deref(), expected, "{kind}");
        }
    }
}
