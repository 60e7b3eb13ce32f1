//! The forms of functions that can have the attribute `#[locked]`. Most of these tests show that the
//! expansion compiles.
#![allow(clippy::unwrap_used, reason = "a test")]
// The code that the attribute makes warns of nothing.
#![deny(unused, warnings)]

use std::error::Error as StdError;
use std::fmt::Display;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::{Client, blocking, locked};

type Outcome<T> = Result<T, Box<dyn StdError + Send + Sync>>;

fn is_send<T: Send>(future: T) -> T {
    future
}

#[locked("{}:{what}", std::any::type_name::<T>(), client = client)]
async fn generic<T, const N: usize>(client: &Client, what: T) -> Outcome<[T; N]>
where
    T: Display + Copy + Send,
{
    Ok([what; N])
}

#[locked("list:{}", list.to_string(), client = &client, wait = "1s",)]
async fn with_impl_trait(
    client: Client,
    list: impl Display,
    then: impl AsyncFnOnce(String) -> u32,
) -> Outcome<u32> {
    Ok(then(lock_guard.name().to_owned()).await)
}

#[locked("numbers", client = client)]
async fn returns_impl_trait(
    client: &Arc<Client>,
    up_to: u32,
) -> Result<impl Iterator<Item = Box<dyn Fn(u32) -> u32>> + use<>, leasehold::Error> {
    Ok((0..up_to).map(|one| -> Box<dyn Fn(u32) -> u32> { Box::new(move |two| one + two) }))
}

#[locked("borrowed", client = client)]
async fn borrows<'a>(client: &Client, mut from: &'a [u8], to: &mut Vec<u8>) -> Outcome<&'a [u8]> {
    while let [first, rest @ ..] = from {
        if *first == 0 {
            return Ok(rest);
        }
        to.push(*first);
        from = rest;
    }
    Err("no zero")?
}

#[locked("coerced", client = client)]
async fn coerces(client: &Client) -> Result<Box<dyn Display>, Box<dyn StdError>> {
    let number = "7".parse::<u8>()?;
    Ok(Box::new(number))
}

mod renamed {
    pub(crate) use leasehold as locks;
}

#[locked("renamed", client = client, crate = crate::renamed::locks, wait = "0s")]
async fn through_another_path(client: &Client) -> Outcome<()> {
    Ok(())
}

struct Store {
    locks: Client,
    sum: u32,
}

impl Store {
    #[locked("store", client = self.locks)]
    async fn add(&mut self, more: u32) -> Outcome<&mut u32> {
        self.sum += more;
        Ok(&mut self.sum)
    }

    #[locked("store", client = self.locks)]
    pub(crate) async fn into_sum(self) -> Outcome<u32> {
        Ok(self.sum)
    }

    #[locked("store", client = self.locks)]
    async fn of_arc(self: Arc<Self>) -> Outcome<u32> {
        Ok(self.sum)
    }
}

/// A trait whose default method is locked.
trait Task {
    fn client(&self) -> Client;

    #[locked("task", client = self.client())]
    async fn run(&self) -> Outcome<String> {
        Ok(lock_guard.name().to_owned())
    }
}

impl Task for Store {
    fn client(&self) -> Client {
        self.locks.clone()
    }
}

#[async_trait]
trait Service {
    async fn pay(&self, id: u64) -> Outcome<u64>;

    #[locked("default", client = self.client(), wait = "0s", busy = Ok(String::new()))]
    async fn by_default(&self) -> Outcome<String>
    where
        Self: Sync,
    {
        Ok(lock_guard.name().to_owned())
    }

    fn client(&self) -> Client;
}

#[async_trait]
impl Service for Store {
    #[locked("invoice:{id}", client = self.locks, wait = "1s")]
    async fn pay(&self, id: u64) -> Outcome<u64> {
        if id == 0 {
            Err("no invoice")?;
        }
        assert!(self.locks.lock(format!("invoice:{id}")).is_locked().await?);
        Ok(id + u64::from(self.sum))
    }

    fn client(&self) -> Client {
        self.locks.clone()
    }
}

static LOCKS: LazyLock<blocking::Client> = LazyLock::new(blocking::Client::embedded);

#[locked("global:{number:03}", client = LOCKS, kind = "fair")]
fn blocks<T: Into<u64>>(number: u8, more: T) -> Outcome<u64> {
    Ok(u64::from(number) + more.into())
}

/// An order whose argument has the name of a key.
struct Order {
    id: u8,
}

#[locked("order:{}", protect.id, client = LOCKS, wait = { Duration::ZERO }, busy = { Ok(false) })]
fn named_like_a_key(protect: Order) -> Outcome<bool> {
    let _ = protect.id;
    Ok(true)
}

#[locked("order:{protect}", client = { client }, lease = { Duration::from_secs(60) }, wait = Duration::ZERO, busy = Ok(false), protect)]
async fn asks_once(client: &Client, protect: u8) -> Outcome<bool> {
    Ok(protect > 0)
}

#[locked("unit", client = LOCKS)]
fn diverges() -> Outcome<()> {
    return Err("never".into());
}

#[tokio::test]
async fn functions_of_every_form_run_under_their_lock() {
    let client = Arc::new(Client::embedded());
    assert_eq!(is_send(generic::<_, 2>(&client, 5)).await.unwrap(), [5, 5]);
    let name = with_impl_trait(Client::clone(&client), "a", async |name| {
        assert_eq!(name, "list:a");
        1
    });
    assert_eq!(name.await.unwrap(), 1);
    let sums = returns_impl_trait(&client, 3).await.unwrap();
    assert_eq!(sums.map(|add| add(1)).sum::<u32>(), 6);
    let (text, mut taken) = (vec![3, 4, 0, 5], Vec::new());
    assert_eq!(borrows(&client, &text, &mut taken).await.unwrap(), [5]);
    assert_eq!(taken, [3, 4]);
    borrows(&client, &[1], &mut taken).await.unwrap_err();
    assert_eq!(coerces(&client).await.unwrap().to_string(), "7");
    through_another_path(&client).await.unwrap();
}

#[tokio::test]
async fn methods_of_every_receiver_run_under_their_lock() {
    let store = |sum| Store {
        locks: Client::embedded(),
        sum,
    };
    let mut one = store(1);
    *one.add(2).await.unwrap() += 1;
    assert_eq!(one.run().await.unwrap(), "task");
    assert_eq!(one.into_sum().await.unwrap(), 4);
    assert_eq!(Arc::new(store(9)).of_arc().await.unwrap(), 9);
}

#[tokio::test]
async fn methods_below_async_trait_run_under_their_lock() {
    let store = Store {
        locks: Client::embedded(),
        sum: 1,
    };
    let service: &dyn Service = &store;
    assert_eq!(is_send(service.pay(7)).await.unwrap(), 8);
    service.pay(0).await.unwrap_err();
    assert!(!store.locks.lock("invoice:7").is_locked().await.unwrap());
    assert_eq!(store.by_default().await.unwrap(), "default");
    let held = store.locks.lock("default").acquire().await.unwrap();
    assert_eq!(store.by_default().await.unwrap(), "");
    held.release().await.unwrap();
}

#[test]
fn blocking_functions_run_under_their_lock() {
    assert_eq!(blocks(7, 1_u32).unwrap(), 8);
    diverges().unwrap_err();
    let held = LOCKS.lock("order:1").acquire().unwrap();
    let other = std::thread::spawn(|| named_like_a_key(Order { id: 1 }).unwrap());
    assert!(!other.join().unwrap());
    held.release().unwrap();
    assert!(named_like_a_key(Order { id: 1 }).unwrap());
}

#[tokio::test(start_paused = true)]
async fn wait_of_zero_asks_once() {
    let client = Client::embedded();
    let held = client.lock("order:1").acquire().await.unwrap();
    let began = tokio::time::Instant::now();
    assert!(!asks_once(&client, 1).await.unwrap());
    assert!(began.elapsed().is_zero());
    held.release().await.unwrap();
    assert!(asks_once(&client, 1).await.unwrap());
}
