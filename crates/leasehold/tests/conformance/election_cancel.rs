//! Cancellation of the futures of an election.

use leasehold::Term;

use super::cancel::{at_each_point, drop_after, once_it_waits, when_dropped};
use super::election::{election, next};
use super::place;

#[tokio::test]
async fn futures_of_an_election_are_cancel_safe() {
    let place = place();
    let (client, other) = (place.client().await, place.client().await);
    let fresh = || election(&client, "mine");
    when_dropped(&place, &client, || async { fresh().stand().await }).await;
    when_dropped(&place, &client, || async { fresh().try_stand().await }).await;
    at_each_point(&place, &client, async |n| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut stop = Some(stop);
        let candidate = fresh();
        let lead = candidate.lead_until(stopped, async |_: &Term| {
            tokio::task::yield_now().await;
            drop(stop.take());
            std::future::pending::<()>().await;
        });
        drop_after(n, lead).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let term = fresh().stand().await.unwrap();
        drop_after(n, term.resign()).await
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let term = election(&other, "other").stand().await.unwrap();
        let resigns = once_it_waits(&client, async move { term.resign().await.unwrap() });
        let dropped = drop_after(n, fresh().stand()).await;
        resigns.await.unwrap();
        dropped
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let mut terms = fresh().observe();
        let seen = drop_after(n, terms.next()).await;
        // A dropped call loses nothing.
        assert!(seen.is_some() || next(&mut terms).await.is_none());
        seen
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let term = election(&other, "other").stand().await.unwrap();
        let mut terms = fresh().observe();
        assert!(next(&mut terms).await.is_some());
        let resigns = once_it_waits(&client, async move { term.resign().await.unwrap() });
        // Dropped while it waits for the change, which the next call returns.
        let seen = drop_after(n, terms.next()).await;
        resigns.await.unwrap();
        assert!(seen.is_some() || next(&mut terms).await.is_none());
        seen
    })
    .await;
    at_each_point(&place, &client, async |n| {
        let term = election(&other, "other").stand().await.unwrap();
        let seen = drop_after(n, fresh().leader()).await;
        assert!(term.is_held());
        term.resign().await.unwrap();
        seen
    })
    .await;
    at_each_point(&place, &client, async |n| {
        // Dropped also in the pause between two terms.
        let candidate = fresh().restart_delay(std::time::Duration::from_millis(1));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (mut stop, mut terms) = (Some(stop), 0);
        let lead = candidate.lead_until(stopped, async |_: &Term| {
            terms += 1;
            if terms == 2 {
                drop(stop.take());
                std::future::pending::<()>().await;
            }
        });
        drop_after(n, lead).await
    })
    .await;
}
