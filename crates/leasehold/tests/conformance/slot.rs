//! Turns of a lock: once per slot, and once per id.

use std::sync::LazyLock;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use leasehold::slot::{Begin, Turn, TurnState, Turns};
use leasehold::{Client, ErrorKind, Owner};

use super::{LEASE, place};
use crate::support::{Place, eventually};

const HOUR: Duration = Duration::from_secs(3600);
const RECORD: &str = "leasehold:{x}:slot";

/// Returns turns whose slot began a minute before the first test, so that no slot begins during the
/// tests, and each request is for the slot that has begun last.
async fn hourly(place: &Place, client: &Client) -> Turns {
    static STARTED: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);
    let started = match place {
        // Its clock starts at this time.
        Place::Embedded(..) => SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
        _ => *STARTED,
    };
    let since = started.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let offset = Duration::from_secs((since.as_secs() - 60) % HOUR.as_secs());
    let turns = client.lock("x").lease(LEASE).once_per(HOUR).offset(offset);
    assert_eq!(turns.name(), "x");
    turns
}

#[track_caller]
fn run(begin: Begin) -> Turn {
    match begin {
        Begin::Run(turn) => turn,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn slot_runs_once_and_others_are_told() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let turn = run(hourly(&place, &ours)
        .await
        .by("us")
        .try_begin()
        .await
        .unwrap());
    assert_eq!((turn.missed(), turn.is_held()), (0, true));
    let Begin::Elsewhere(info) = hourly(&place, &theirs).await.try_begin().await.unwrap() else {
        panic!("it runs");
    };
    assert_eq!((info.state, &*info.by), (TurnState::Running, "us"));
    assert_eq!((info.slot, &*info.hold), (turn.slot(), turn.holder_id()));
    turn.exited(0).await.unwrap();
    let Begin::Done(info) = hourly(&place, &theirs).await.try_begin().await.unwrap() else {
        panic!("it is done");
    };
    assert_eq!((info.state, info.exit_code), (TurnState::Done, Some(0)));
    assert!(info.ended >= info.began);
    let last = theirs.lock("x").last_turn().await.unwrap().unwrap();
    assert_eq!((last.state, last.period), (TurnState::Done, Some(HOUR)));
    place.is_clean_but_for(&[RECORD], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn failed_turn_is_repeated_only_on_request() {
    let place = place();
    let client = place.client().await;
    let turns = hourly(&place, &client).await;
    drop(run(turns.try_begin().await.unwrap()));
    let Begin::Done(info) = turns.begin().await.unwrap() else {
        panic!("it has failed");
    };
    assert_eq!(info.state, TurnState::Failed);
    let turn = run(turns.clone().retry_failed(true).begin().await.unwrap());
    turn.exited(3).await.unwrap();
    let Begin::Done(info) = turns.begin().await.unwrap() else {
        panic!("it has failed again");
    };
    assert_eq!((info.state, info.exit_code), (TurnState::Failed, Some(3)));
    place.is_clean_but_for(&[RECORD], &[&client]).await;
}

#[tokio::test]
async fn turn_runs_again_on_request_and_never_beside_another() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let turns = hourly(&place, &ours).await;
    let again = turns.clone().again(true);
    let turn = run(turns.try_begin().await.unwrap());
    let began = turn.began();
    let other = hourly(&place, &theirs)
        .await
        .again(true)
        .try_begin()
        .await
        .unwrap();
    assert!(matches!(other, Begin::Elsewhere(_)), "{other:?}");
    turn.done().await.unwrap();
    let turn = run(again.begin().await.unwrap());
    assert!(turn.began() >= began);
    turn.done().await.unwrap();
    let begun = hourly(&place, &theirs).await.try_begin().await.unwrap();
    assert!(matches!(begun, Begin::Done(_)), "{begun:?}");
    place.is_clean_but_for(&[RECORD], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn plan_of_a_name_changes_only_on_request() {
    let place = place();
    let client = place.client().await;
    run(hourly(&place, &client).await.begin().await.unwrap())
        .done()
        .await
        .unwrap();
    let daily = client.lock("x").lease(LEASE).once_per(24 * HOUR);
    let id = client.lock("x").lease(LEASE).once_for("a");
    for (turns, before) in [
        (&daily, &hourly(&place, &client).await),
        (&id, &daily),
        (&daily, &id),
    ] {
        let error = turns.try_begin().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
        let turn = run(turns.clone().again(true).try_begin().await.unwrap());
        assert_eq!(turn.missed(), 0);
        turn.done().await.unwrap();
        // Its nearest slot may not have begun yet.
        if let Begin::Run(turn) = turns.try_begin().await.unwrap() {
            turn.done().await.unwrap();
        }
        let error = before.try_begin().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    }
    let records = [RECORD, "leasehold:{x}:once:a"];
    place.is_clean_but_for(&records, &[&client]).await;
}

#[tokio::test]
async fn turn_that_died_is_reported_by_the_next() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    for (before, next) in [
        (hourly(&place, &ours).await, hourly(&place, &theirs).await),
        (
            ours.lock("y").once_for("a").by("us"),
            theirs.lock("y").once_for("b"),
        ),
    ] {
        let turn = run(before.by("us").try_begin().await.unwrap());
        assert!(turn.died().is_none());
        // Its end is not noted, as if its client had died.
        place.remove(next.name());
        let turn_after = run(next.try_begin().await.unwrap());
        let died = turn_after.died().unwrap();
        assert_eq!((died.state, &*died.by), (TurnState::Died, "us"));
        assert_eq!((died.slot, died.began), (turn.slot(), Some(turn.began())));
        turn_after.done().await.unwrap();
        let again = run(next.again(true).try_begin().await.unwrap());
        assert!(again.died().is_none());
        again.done().await.unwrap();
    }
    let once = ["a", "b"].map(|id| format!("leasehold:{{y}}:once:{id}"));
    let records = [RECORD, "leasehold:{y}:slot", &once[0], &once[1]];
    place.is_clean_but_for(&records, &[&ours, &theirs]).await;
}

#[tokio::test]
async fn turn_that_is_declined_is_open_for_others() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let once = hourly(&place, &ours).await.at_most_once(true);
    run(once.try_begin().await.unwrap())
        .decline()
        .await
        .unwrap();
    let last = ours.lock("x").last_turn().await.unwrap().unwrap();
    assert_eq!(last.state, TurnState::Open);
    let waiter = hourly(&place, &theirs).await.at_most_once(true);
    let turn = run(once.try_begin().await.unwrap());
    let waiter = tokio::spawn(async move { waiter.begin().await });
    turn.decline().await.unwrap();
    run(waiter.await.unwrap().unwrap()).done().await.unwrap();
    place.is_clean_but_for(&[RECORD], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn repetition_that_is_declined_leaves_the_turn_done() {
    let place = place();
    let client = place.client().await;
    let turns = hourly(&place, &client).await;
    run(turns.try_begin().await.unwrap()).done().await.unwrap();
    let done = client.lock("x").last_turn().await.unwrap();
    let again = turns.clone().again(true);
    run(again.try_begin().await.unwrap())
        .decline()
        .await
        .unwrap();
    assert_eq!(client.lock("x").last_turn().await.unwrap(), done);
    let begun = turns.try_begin().await.unwrap();
    assert!(matches!(begun, Begin::Done(_)), "{begun:?}");
    place.is_clean_but_for(&[RECORD], &[&client]).await;
}

#[tokio::test]
async fn turn_that_is_dropped_before_the_job_begins_is_open() {
    let place = place();
    let client = place.client().await;
    for (begun, state) in [(false, TurnState::Open), (true, TurnState::Failed)] {
        let turn = run(hourly(&place, &client).await.try_begin().await.unwrap());
        turn.set_begun(false);
        turn.set_begun(begun);
        drop(turn);
        eventually("the turn is given back", async || {
            !client.lock("x").is_locked().await.unwrap()
        })
        .await;
        let last = client.lock("x").last_turn().await.unwrap().unwrap();
        assert_eq!(last.state, state);
    }
    place.is_clean_but_for(&[RECORD], &[&client]).await;
}

/// The slot of the job that runs has its number in the plan of that job.
#[tokio::test]
async fn change_of_the_plan_names_the_slot_that_runs() {
    let place = place();
    let client = place.client().await;
    let daily = client.lock("x").lease(LEASE).once_per(24 * HOUR);
    let hourly = hourly(&place, &client).await;
    for (runs, other) in [(&hourly, &daily), (&daily, &hourly)] {
        let turn = run(runs.clone().again(true).try_begin().await.unwrap());
        let other = other.clone().again(true);
        let Begin::Elsewhere(info) = other.try_begin().await.unwrap() else {
            panic!("the job runs");
        };
        assert_eq!((info.slot, info.is_ahead), (turn.slot(), false));
        turn.done().await.unwrap();
    }
}

#[tokio::test]
async fn wait_ends_when_the_holder_is_done() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let turn = run(hourly(&place, &ours).await.try_begin().await.unwrap());
    let waiters = [
        hourly(&place, &theirs).await,
        hourly(&place, &theirs).await,
        hourly(&place, &ours).await,
    ];
    let waiters = waiters.map(|turns| tokio::spawn(async move { turns.begin().await }));
    let short = hourly(&place, &theirs).await;
    match short.begin_for(Duration::from_millis(50)).await {
        Ok(begun) => assert!(matches!(begun, Begin::Elsewhere(_)), "{begun:?}"),
        // On a busy machine, no answer arrives in that time.
        Err(error) => assert!(error.is_transient(), "{error}"),
    }
    turn.done().await.unwrap();
    for waiter in waiters {
        let begun = waiter.await.unwrap().unwrap();
        assert!(matches!(begun, Begin::Done(_)), "{begun:?}");
    }
    place.is_clean_but_for(&[RECORD], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn turn_of_a_dead_holder_is_repeated_unless_at_most_once() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let turn = run(hourly(&place, &ours).await.try_begin().await.unwrap());
    // As if its process had been killed: the lock is free, and the record says nothing of an end.
    theirs.lock("x").force_unlock().await.unwrap();
    let once = hourly(&place, &theirs).await.at_most_once(true);
    let Begin::Done(info) = once.try_begin().await.unwrap() else {
        panic!("at most once");
    };
    assert_eq!(info.state, TurnState::Died);
    let second = run(hourly(&place, &theirs).await.begin().await.unwrap());
    // The end of the first turn, which was lost, changes nothing of the second.
    assert_eq!(turn.done().await.unwrap_err().kind(), ErrorKind::Lost);
    let last = theirs.lock("x").last_turn().await.unwrap().unwrap();
    assert_eq!(
        (last.state, &*last.hold),
        (TurnState::Running, second.holder_id())
    );
    second.done().await.unwrap();
    place.remove("leasehold:{x}:forced");
    place.is_clean_but_for(&[RECORD], &[&ours, &theirs]).await;
}

#[tokio::test]
async fn lost_turn_counts_as_failed() {
    let place = place();
    let client = place.client().await;
    let turn = run(hourly(&place, &client).await.try_begin().await.unwrap());
    client.lock("x").force_unlock().await.unwrap();
    assert_eq!(turn.done().await.unwrap_err().kind(), ErrorKind::Lost);
    let last = client.lock("x").last_turn().await.unwrap().unwrap();
    assert_eq!(last.state, TurnState::Failed);
}

#[tokio::test]
async fn id_runs_once_and_another_id_is_another_turn() {
    let place = place();
    let client = place.client().await;
    let turns = |id: &str| client.lock("x").lease(LEASE).once_for(id);
    for id in ["monday", "tuesday"] {
        let turn = run(turns(id).try_begin().await.unwrap());
        assert_eq!((turn.slot(), turn.missed()), (None, 0));
        turn.done().await.unwrap();
    }
    let Begin::Done(info) = turns("monday").try_begin().await.unwrap() else {
        panic!("it is done");
    };
    assert_eq!((info.id.as_deref(), info.slot), (Some("monday"), None));
    let last = client.lock("x").last_turn().await.unwrap().unwrap();
    assert_eq!(last.id.as_deref(), Some("tuesday"));
    let kept = [
        RECORD,
        "leasehold:{x}:once:monday",
        "leasehold:{x}:once:tuesday",
    ];
    place.is_clean_but_for(&kept, &[&client]).await;
}

/// The records have expired when the job ends.
#[tokio::test]
async fn job_that_takes_longer_than_its_id_is_kept_is_recorded_again() {
    let place = place();
    let client = place.client().await;
    let turns = client.lock("x").lease(LEASE).once_for("monday");
    let turns = turns.by("us").keep(Duration::from_secs(5));
    let turn = run(turns.try_begin().await.unwrap());
    let began = turn.began();
    eventually("the records have expired", async || {
        client.lock("x").last_turn().await.unwrap().is_none()
    })
    .await;
    turn.done().await.unwrap();
    let Begin::Done(info) = turns.try_begin().await.unwrap() else {
        panic!("it is done");
    };
    assert_eq!((&*info.by, info.began), ("us", Some(began)));
    let last = client.lock("x").last_turn().await.unwrap();
    assert_eq!(last, Some(info));
    let error = hourly(&place, &client).await.try_begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
}

#[tokio::test]
async fn one_name_has_one_plan() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x");
    run(lock.once_per(HOUR).begin().await.unwrap())
        .done()
        .await
        .unwrap();
    let others = [
        lock.once_per(HOUR * 2),
        lock.once_per(HOUR).offset(HOUR / 2),
        lock.once_for("monday"),
    ];
    for other in others {
        let error = other.begin().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind);
        assert!(error.to_string().contains("slots of 3600000 ms"), "{error}");
    }
}

#[tokio::test]
async fn bad_settings_of_turns_are_refused() {
    let place = place();
    let client = place.client().await;
    let lock = client.lock("x");
    let bad = [
        lock.once_per(Duration::from_millis(9)),
        lock.once_per(Duration::from_micros(10_500)),
        lock.once_per(HOUR).offset(HOUR),
        lock.once_for(""),
        lock.once_for("x".repeat(257)),
        lock.once_for("x").keep(Duration::ZERO),
        lock.clone().owned_by(&Owner::new()).once_per(HOUR),
    ];
    for turns in bad {
        let error = turns.try_begin().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    }
    place.is_clean(&[&client]).await;
}

#[tokio::test]
async fn no_hand_over_of_the_process_skips_the_look() {
    let place = place();
    let client = place.client().await;
    let plain = client.lock("x").lease(LEASE);
    run(hourly(&place, &client).await.begin().await.unwrap())
        .done()
        .await
        .unwrap();
    let held = plain.acquire().await.unwrap();
    // The turn is over, so no caller waits for the plain holder.
    let begun = hourly(&place, &client).await.begin().await.unwrap();
    assert!(matches!(begun, Begin::Done(_)), "{begun:?}");
    held.release().await.unwrap();
    place.remove(RECORD);
    let held = plain.acquire().await.unwrap();
    let turns = hourly(&place, &client).await;
    let waiter = tokio::spawn(async move { turns.begin().await });
    let plain_waiter = {
        let plain = plain.clone();
        tokio::spawn(async move { plain.acquire().await })
    };
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    // In any order, each gets a hold of its own from the server.
    let (turn, guard) = tokio::join!(
        async { run(waiter.await.unwrap().unwrap()).done().await },
        async { plain_waiter.await.unwrap().unwrap().release().await }
    );
    turn.unwrap();
    guard.unwrap();
    let begun = hourly(&place, &client).await.begin().await.unwrap();
    assert!(matches!(begun, Begin::Done(_)), "{begun:?}");
    place.is_clean_but_for(&[RECORD], &[&client]).await;
}

#[tokio::test]
async fn dropped_begin_leaves_the_turn_open() {
    let place = place();
    let client = place.client().await;
    for polls in 0..40 {
        let turns = hourly(&place, &client).await.at_most_once(true);
        let mut begin = Box::pin(async move { turns.begin().await });
        for _ in 0..polls {
            let polled = std::future::poll_fn(|cx| Poll::Ready(begin.as_mut().poll(cx)));
            if let Poll::Ready(begun) = polled.await {
                run(begun.unwrap()).done().await.unwrap();
                place.remove(RECORD);
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(begin);
    }
    // Whatever the server had granted to a dropped future, the turn was not begun.
    let turn = run(hourly(&place, &client)
        .await
        .at_most_once(true)
        .begin()
        .await
        .unwrap());
    turn.done().await.unwrap();
    place.is_clean_but_for(&[RECORD], &[&client]).await;
}

/// The turn of one id keeps the turns of other ids out. They learn which turn it is.
#[tokio::test]
async fn turn_of_another_id_is_named_while_it_runs() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let turn = run(ours
        .lock("x")
        .lease(LEASE)
        .once_for("a")
        .by("us")
        .begin()
        .await
        .unwrap());
    let other = theirs.lock("x").lease(LEASE).once_for("b");
    let Begin::Elsewhere(info) = other.try_begin().await.unwrap() else {
        panic!("the other turn runs");
    };
    assert_eq!((info.id.as_deref(), &*info.by), (Some("a"), "us"));
    assert_eq!(
        (info.state, &*info.hold),
        (TurnState::Running, turn.holder_id())
    );
    turn.done().await.unwrap();
    run(other.try_begin().await.unwrap()).done().await.unwrap();
    let records = [RECORD, "leasehold:{x}:once:a", "leasehold:{x}:once:b"];
    place.is_clean_but_for(&records, &[&ours, &theirs]).await;
}

/// Another task of the process waits first, so this wait sends no request of its own.
#[tokio::test]
async fn short_wait_for_an_id_reports_the_holder() {
    let place = place();
    let (ours, theirs) = (place.client().await, place.client().await);
    let guard = theirs.lock("x").lease(LEASE).acquire().await.unwrap();
    let first = ours.lock("x").lease(LEASE);
    let waiter = tokio::spawn(async move { first.acquire().await.unwrap().release().await });
    tokio::task::yield_now().await;
    let id = ours.lock("x").lease(LEASE).once_for("a");
    // Long enough for an answer of a busy server.
    let begun = id.begin_for(Duration::from_secs(2)).await;
    let Ok(Begin::Elsewhere(info)) = begun else {
        panic!("{begun:?}");
    };
    assert_eq!(info.hold, guard.holder_id());
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap();
    place.is_clean(&[&ours, &theirs]).await;
}
