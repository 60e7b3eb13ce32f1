//! The attribute `#[locked]` at run time.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Busy, Client, Embedded, ErrorKind, Lock, LossReason, Owner, locked};
use tokio::sync::Notify;

/// The error of the functions here.
#[derive(Debug)]
enum Failure {
    Lock(leasehold::Error),
    Busy(Busy),
    Work(String),
}

impl From<leasehold::Error> for Failure {
    fn from(error: leasehold::Error) -> Self {
        Self::Lock(error)
    }
}

impl From<Busy> for Failure {
    fn from(busy: Busy) -> Self {
        Self::Busy(busy)
    }
}

impl From<fmt::Error> for Failure {
    fn from(_: fmt::Error) -> Self {
        Self::Work("format".to_owned())
    }
}

impl Failure {
    fn is_lost(&self) -> bool {
        matches!(self, Self::Lock(error) if error.kind() == ErrorKind::Lost)
    }
}

/// Resolves when the lock is free.
async fn is_freed(lock: &Lock) {
    let guard = lock.acquire().await.unwrap();
    guard.release().await.unwrap();
}

struct Service {
    locks: Client,
    started: Notify,
    runs: AtomicU32,
}

impl Service {
    fn new() -> Self {
        Self::of(Client::embedded())
    }

    fn of(locks: Client) -> Self {
        Self {
            locks,
            started: Notify::new(),
            runs: AtomicU32::new(0),
        }
    }

    #[locked("invoice:{id}", client = self.locks)]
    async fn holder_of(&self, id: u64) -> Result<String, Failure> {
        let info = self.locks.lock(format!("invoice:{id}")).inspect().await?;
        assert_eq!(info.holders[0].id, lock_guard.holder_id());
        Ok(lock_guard.name().to_owned())
    }

    #[locked("job", client = self.locks, wait = "0s")]
    async fn try_job(&self) -> Result<(), Failure> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    #[locked("job", client = self.locks, wait = "50ms", busy = return Ok(None))]
    async fn job_or_none(&self) -> Result<Option<u32>, Failure> {
        Ok(Some(self.runs.fetch_add(1, Ordering::Relaxed)))
    }

    #[locked("job", client = self.locks)]
    async fn endless_job(&self) -> Result<(), Failure> {
        self.started.notify_one();
        pending().await
    }

    #[locked("job", client = self.locks, protect = false)]
    async fn unprotected(&self) -> Result<(), Failure> {
        self.locks.lock("job").force_unlock().await?;
        let loss = lock_guard.extend(Duration::from_secs(60)).await;
        assert_eq!(loss.unwrap_err().kind(), ErrorKind::Lost);
        tokio::task::yield_now().await;
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    #[locked("job", client = self.locks)]
    async fn forced_at_its_end(&self, error: Option<&str>) -> Result<u32, Failure> {
        self.locks.lock("job").force_unlock().await?;
        match error {
            Some(error) => Err(Failure::Work(error.to_owned())),
            None => Ok(7),
        }
    }

    #[locked("job", client = self.locks)]
    async fn leaves_early(&self, how: u8) -> Result<u8, Failure> {
        if how == 0 {
            return Ok(0);
        }
        if how == 1 {
            Err(fmt::Error)?;
        }
        assert!(how < 3, "stop");
        Ok(how)
    }

    #[locked("job", client = self.locks, owner = owner, kind = "fair", lease = "1m30s")]
    async fn nested(&self, owner: &Owner, depth: usize) -> Result<usize, Failure> {
        match depth {
            0 => Ok(lock_guard.hold_count()),
            depth => Box::pin(self.nested(owner, depth - 1)).await,
        }
    }

    #[locked("job", client = self.locks, max_hold = Duration::from_millis(200))]
    async fn too_long(&self) -> Result<(), Failure> {
        pending().await
    }

    #[locked("job", client = self.locks, lease = "300ms", progress_within = "200ms")]
    async fn stalled(&self) -> Result<(), Failure> {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            lock_guard.progress();
        }
        self.runs.fetch_add(1, Ordering::Relaxed);
        pending().await
    }

    #[locked("job", client = self.locks, fixed_lease = "300ms")]
    async fn on_a_fixed_lease(&self) -> Result<(), Failure> {
        pending().await
    }

    #[locked("job", client = self.locks, kind = "fenced")]
    async fn token(&self) -> Result<u64, Failure> {
        Ok(lock_guard.token())
    }

    #[locked("job", client = self.locks, kind = "read")]
    async fn readers(&self) -> Result<usize, Failure> {
        Ok(self
            .locks
            .rw_lock("job")
            .read_lock()
            .inspect()
            .await?
            .holders
            .len())
    }

    #[locked("job", client = self.locks, kind = "write")]
    async fn reader_beside_a_writer(&self) -> Result<bool, Failure> {
        Ok(self.locks.rw_lock("job").try_read().await?.is_some())
    }
}

#[tokio::test]
async fn function_holds_the_lock_of_its_arguments() {
    let service = Service::new();
    assert_eq!(service.holder_of(7).await.unwrap(), "invoice:7");
    // Released before the function returns, not in the background.
    assert!(!service.locks.lock("invoice:7").is_locked().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn busy_lock_is_an_error_or_the_value_of_the_attribute() {
    let service = Service::new();
    let guard = service.locks.lock("job").acquire().await.unwrap();
    let Err(Failure::Busy(busy)) = service.try_job().await else {
        panic!("the lock is held");
    };
    assert_eq!(busy.to_string(), "the lock `job` is held; try again later");
    assert_eq!(service.job_or_none().await.unwrap(), None);
    assert_eq!(service.runs.load(Ordering::Relaxed), 0);
    guard.release().await.unwrap();
    service.try_job().await.unwrap();
    assert_eq!(service.job_or_none().await.unwrap(), Some(1));
}

#[tokio::test]
async fn dropped_future_drops_the_body_and_releases() {
    let service = Service::new();
    tokio::select! {
        result = service.endless_job() => panic!("{result:?}"),
        () = service.started.notified() => {}
    }
    is_freed(&service.locks.lock("job")).await;
    // Also a future that still waits for the lock.
    let guard = service.locks.lock("job").acquire().await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(20), service.endless_job());
    waiting.await.unwrap_err();
    guard.release().await.unwrap();
    is_freed(&service.locks.lock("job")).await;
}

#[tokio::test(start_paused = true)]
async fn loss_drops_the_body() {
    let limit = Duration::from_secs(60);
    let (one, two, three) = (Service::new(), Service::new(), Service::new());
    let results = [
        tokio::time::timeout(limit, one.too_long()).await,
        tokio::time::timeout(limit, two.on_a_fixed_lease()).await,
        tokio::time::timeout(limit, three.stalled()).await,
    ];
    assert_eq!(three.runs.load(Ordering::Relaxed), 1, "it has reported");
    for result in results.map(|result| result.expect("the loss ends the body")) {
        let Err(Failure::Lock(error)) = result else {
            panic!("the lock is lost");
        };
        let loss = error.loss().unwrap();
        assert!(
            matches!(
                loss,
                LossReason::MaxHold { .. } | LossReason::Expired | LossReason::Stalled { .. }
            ),
            "{loss}"
        );
    }
}

#[tokio::test]
async fn unprotected_body_continues_after_a_loss_which_is_then_the_error() {
    let service = Service::new();
    let error = service.unprotected().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert_eq!(service.runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn loss_that_only_the_release_finds_replaces_ok_and_not_an_error() {
    let service = Service::new();
    let error = service.forced_at_its_end(None).await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    let error = service.forced_at_its_end(Some("full")).await.unwrap_err();
    assert!(matches!(error, Failure::Work(error) if error == "full"));
}

#[tokio::test]
async fn every_way_out_of_the_body_releases() {
    let embedded = Embedded::new();
    let service = std::sync::Arc::new(Service::of(embedded.client()));
    for how in 0..4 {
        let of_task = std::sync::Arc::clone(&service);
        let task = tokio::spawn(async move { of_task.leaves_early(how).await });
        match (how, task.await) {
            (0 | 2, Ok(Ok(value))) => assert_eq!(value, how),
            (1, Ok(Err(Failure::Work(_)))) => {}
            (3, Err(panic)) => assert!(panic.is_panic()),
            (_, other) => panic!("{how}: {other:?}"),
        }
        is_freed(&service.locks.lock("job")).await;
    }
}

#[tokio::test]
async fn owner_enters_again() {
    let service = Service::new();
    let owner = Owner::new();
    assert_eq!(service.nested(&owner, 3).await.unwrap(), 4);
    assert!(!service.locks.fair_lock("job").is_locked().await.unwrap());
}

#[tokio::test]
async fn kinds_are_the_kinds_of_the_client() {
    let service = Service::new();
    let first = service.token().await.unwrap();
    assert!(service.token().await.unwrap() > first);
    let service = Service::new();
    assert_eq!(service.readers().await.unwrap(), 1);
    assert!(!service.reader_beside_a_writer().await.unwrap());
}

mod blocking {
    //! Functions that block their thread.

    use leasehold::blocking::Client;

    use super::{Busy, ErrorKind, Failure, locked};

    #[locked("stock", client = client, wait = "0s")]
    fn try_stock(client: &Client) -> Result<usize, Failure> {
        Ok(lock_guard.hold_count())
    }

    #[locked("stock", client = client)]
    fn nested(client: &Client, depth: usize) -> Result<usize, Failure> {
        match depth {
            0 => Ok(lock_guard.hold_count()),
            depth => nested(client, depth - 1),
        }
    }

    #[locked("stock", client = client, protect = false)]
    fn forced_at_its_end(client: &Client, fails: bool) -> Result<(), Failure> {
        client.lock("stock").force_unlock()?;
        match fails {
            true => Err(Failure::Work("full".to_owned())),
            false => Ok(()),
        }
    }

    #[locked("stock", client = client)]
    fn first_mut<'a>(client: &Client, list: &'a mut [u8]) -> Result<&'a mut u8, Failure> {
        if list.is_empty() {
            return Err(Failure::Work("empty".to_owned()));
        }
        Ok(&mut list[0])
    }

    #[test]
    fn lock_is_held_and_released() {
        let client = Client::embedded();
        assert_eq!(try_stock(&client).unwrap(), 1);
        assert!(!client.lock("stock").is_locked().unwrap());
        let guard = client.lock("stock").acquire().unwrap();
        // This thread can enter, another one can't.
        assert_eq!(try_stock(&client).unwrap(), 2);
        let other = std::thread::scope(|scope| scope.spawn(|| try_stock(&client)).join());
        let Err(Failure::Busy(busy)) = other.unwrap() else {
            panic!("the lock is held");
        };
        assert_eq!(busy, Busy::new("stock"));
        guard.release().unwrap();
    }

    #[test]
    fn thread_enters_again() {
        let client = Client::embedded();
        assert_eq!(nested(&client, 2).unwrap(), 3);
        assert!(!client.lock("stock").is_locked().unwrap());
    }

    #[test]
    fn loss_replaces_ok_and_not_an_error() {
        let client = Client::embedded();
        let Err(Failure::Lock(error)) = forced_at_its_end(&client, false) else {
            panic!("the release finds the loss");
        };
        assert_eq!(error.kind(), ErrorKind::Lost);
        let error = forced_at_its_end(&client, true).unwrap_err();
        assert!(matches!(error, Failure::Work(_)));
    }

    #[test]
    fn body_may_return_what_it_borrows() {
        let client = Client::embedded();
        let mut list = [1, 2];
        *first_mut(&client, &mut list).unwrap() = 5;
        assert_eq!(list, [5, 2]);
        first_mut(&client, &mut []).unwrap_err();
    }
}
