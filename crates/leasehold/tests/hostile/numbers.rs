//! Numbers that no script can have meant, in place of each number of each reply.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use leasehold::inspect::Ttl;
use leasehold::{Client, Owner};
use leasehold_testkit::FakeServer;
use leasehold_testkit::fake::{Action, Request, bulk, list};

use super::calls::int;
use super::process::{MEASURING, assert_no_panics, watch_panics};

const NUMBERS: [i64; 10] = [
    i64::MIN,
    i64::MIN + 1,
    -(1 << 53) - 1,
    -(1 << 53),
    -3,
    0,
    1 << 53,
    (1 << 53) + 1,
    i64::MAX - 1,
    i64::MAX,
];

/// The shape of a reply. Each shape belongs to some step.
type Shape = fn(i64) -> Vec<u8>;
const SHAPES: [(&str, Shape); 9] = [
    ("n", int),
    ("1 n", |n| list(&[int(1), int(n)])),
    ("n 1", |n| list(&[int(n), int(1)])),
    ("n n", |n| list(&[int(n), int(n)])),
    ("n n n", |n| list(&[int(n), int(n), int(n)])),
    ("n 3 1", |n| list(&[int(n), int(3), int(1)])),
    ("0 n 1 text", |n| {
        list(&[int(0), int(n), int(1), bulk(b"x")])
    }),
    ("n n 1 text", |n| {
        list(&[int(n), int(n), int(1), bulk(b"x")])
    }),
    ("n id count", |n| {
        list(&[int(n), bulk(b"x:1"), bulk(n.to_string().as_bytes())])
    }),
];

/// Returns the steps of a call. No argument looks like the name of a step.
fn steps(request: &Request) -> Option<(i64, Vec<String>)> {
    if !matches!(&*request.command(), "EVALSHA" | "EVAL") {
        return None;
    }
    let keys: usize = request.text(2).parse().unwrap();
    let number = request.text(3 + keys).parse().unwrap();
    let arguments = (5 + keys..request.parts.len()).map(|part| request.text(part));
    let is_step = |text: &String| {
        let of = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let parts = text.split_once('.');
        parts.is_some_and(|(kind, what)| kind.chars().all(of) && what.chars().all(of))
    };
    Some((number, arguments.filter(is_step).collect()))
}

type Call = fn(Client) -> BoxFuture<'static, Option<i128>>;

/// Makes calls from expressions. Each returns the number that the client reported, if any.
macro_rules! calls {
    ($($client:ident => $call:expr;)+) => {
        [$((|$client: Client| Box::pin(async move { $call }) as BoxFuture<'static, Option<i128>>) as Call),+]
    };
}

/// The limit of each wait.
const WAIT: Duration = Duration::from_millis(30);

fn every_call() -> Vec<Call> {
    calls! {
        client => { drop(client.lock("x").try_acquire_for(WAIT).await); None };
        client => { drop(client.lock("x").force_unlock().await); None };
        client => match client.lock("x").remaining_ttl().await {
            Ok(Ttl::Left(left)) => Some(left.as_millis().try_into().unwrap()),
            _ => None,
        };
        client => { drop(client.lock("x").inspect().await); None };
        client => { drop(client.fair_lock("x").try_acquire_for(WAIT).await); None };
        client => {
            let guard = client.fenced_lock("x").try_acquire_for(WAIT).await.ok()??;
            Some(guard.token().into())
        };
        client => { drop(client.group_lock("x", ["a"]).try_acquire_for(WAIT).await); None };
        client => { drop(client.group_lock("x", ["a"]).inspect().await); None };
        client => { drop(client.rw_lock("x").read_lock().try_acquire_for(WAIT).await); None };
        client => { drop(client.rw_lock("x").write_lock().try_acquire_for(WAIT).await); None };
        client => { drop(client.rw_lock("x").read_lock().inspect().await); None };
        client => {
            let lock = client.lock("x").lease(Duration::from_secs(5)).owned_by(&Owner::new());
            let guard = lock.try_acquire_for(WAIT).await.ok()??;
            drop(guard.extend(Duration::from_secs(9)).await);
            let token = guard.fencing_token().await.ok()?;
            Some(token.into())
        };
        client => {
            let got = client.semaphore("x").try_acquire_many_for(3, WAIT).await.ok()??;
            Some(got.permits().into())
        };
        client => { drop(client.semaphore("x").release(2).await); None };
        client => Some(client.semaphore("x").drain().await.ok()?.into());
        client => Some(client.semaphore("x").available_permits().await.ok()?.into());
        client => { drop(client.semaphore("x").try_set_permits(2).await); None };
        client => { drop(client.semaphore("x").delete().await); None };
        client => { drop(client.expirable_semaphore("x").try_acquire_many_for(3, WAIT).await); None };
        client => Some(client.expirable_semaphore("x").permits().await.ok()?.into());
        client => Some(client.expirable_semaphore("x").capacity().await.ok()??.into());
        client => Some(client.expirable_semaphore("x").acquired_permits().await.ok()?.into());
        client => Some(client.expirable_semaphore("x").available_permits().await.ok()?.into());
        client => { drop(client.expirable_semaphore("x").set_permits(3).await); None };
        client => {
            let id = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
            drop(client.expirable_semaphore("x").remaining_ttl(id).await);
            drop(client.expirable_semaphore("x").release(id).await);
            None
        };
        client => Some(client.count_down_latch("x").count_down().await.ok()?.into());
        client => Some(client.count_down_latch("x").count().await.ok()?.into());
        client => { drop(client.count_down_latch("x").wait_for(WAIT).await); None };
        client => { drop(client.count_down_latch("x").try_set_count(2).await); None };
    }
    .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_number_in_a_reply_overflows() {
    let _alone = MEASURING.lock().await;
    watch_panics();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    for number in NUMBERS {
        for (shape, reply) in SHAPES {
            let steps_seen = Arc::clone(&seen);
            let server = FakeServer::with(move |request| {
                let (call, steps) = steps(request)?;
                let replies = steps.iter().map(|_| reply(number));
                let replies = [int(call)].into_iter().chain(replies).collect::<Vec<_>>();
                steps_seen.lock().unwrap().extend(steps);
                Some(Action::Send(list(&replies)))
            });
            let doings = every_call().into_iter().map(async |call| {
                let builder = Client::builder().reply_timeout(WAIT);
                let client = builder.connect(&server.url()).await.unwrap();
                call(client).await
            });
            let told = tokio::time::timeout(Duration::from_secs(60), join_all(doings)).await;
            let told = told.unwrap_or_else(|_| panic!("a call hangs on {number} in `{shape}`"));
            // The highest possible number is the sum of two numbers that a script can return.
            let impossible = |told: &i128| told.unsigned_abs() > 1 << 54;
            let wrong: Vec<_> = told.into_iter().flatten().filter(impossible).collect();
            assert!(wrong.is_empty(), "{number} in `{shape}` became {wrong:?}");
        }
    }
    let seen = seen.lock().unwrap();
    println!("{} steps: {seen:?}", seen.len());
    assert!(seen.len() > 30, "not every step was asked: {seen:?}");
    assert_no_panics();
}
