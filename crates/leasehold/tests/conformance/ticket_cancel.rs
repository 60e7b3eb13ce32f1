//! The futures of tickets, dropped at each of their await points.

use super::cancel::{at_each_point, drop_after};
use super::place;
use super::ticket::{KINDS, MINUTE, acquired};

#[tokio::test]
async fn dropped_futures_leave_nothing_behind() {
    let place = place();
    let client = place.client().await;
    let mut points = 0;
    for kind in KINDS {
        points += at_each_point(&place, &client, async |n| {
            let guard = acquired(&client, kind).await;
            let ticket = drop_after(n, guard.into_ticket(MINUTE)).await?.unwrap();
            client.release_ticket(&ticket).await.unwrap();
            Some(())
        })
        .await;
        points += at_each_point(&place, &client, async |n| {
            let guard = acquired(&client, kind).await;
            let ticket = guard.into_ticket(MINUTE).await.unwrap();
            let resumed = drop_after(n, client.resume(&ticket)).await;
            if resumed.is_none() {
                // Either the request was not sent, or the hold is given back.
                let _ = client.release_ticket(&ticket).await;
            }
            resumed.map(Result::unwrap)
        })
        .await;
        points += at_each_point(&place, &client, async |n| {
            let guard = acquired(&client, kind).await;
            let ticket = guard.into_ticket(MINUTE).await.unwrap();
            let released = drop_after(n, client.release_ticket(&ticket)).await;
            if released.is_none() {
                let _ = client.release_ticket(&ticket).await;
            }
            released.map(Result::unwrap)
        })
        .await;
    }
    assert!(points >= 3 * KINDS.len(), "{points}");
}
