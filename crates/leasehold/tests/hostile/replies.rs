//! Replies that are not valid, one at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::FakeServer;
use leasehold_testkit::fake::{Action, bulk};

use super::calls::{self, Call, grant, int};
use super::process::{assert_no_panics, watch_panics};
use crate::support::HOUR;

type Spoil = fn(&Call) -> Vec<u8>;

/// Bytes that no client can take for a reply.
const NO_REPLIES: &[(&str, Spoil)] = &[
    ("a list that is too long", |_| b"*1000000000\r\n".to_vec()),
    ("a text that is too long", |_| b"$2147483647\r\nx".to_vec()),
    ("a length below zero", |_| b"*2\r\n$-7\r\n".to_vec()),
    ("a length that overflows", |_| {
        b"*99999999999999999999\r\n".to_vec()
    }),
    ("lists in lists", |_| b"*1\r\n".repeat(10_000)),
    ("a line without end", |_| {
        [&b"+"[..], &[b'x'; 2 << 20]].concat()
    }),
    ("a line of line ends", |_| {
        [&b"+"[..], &[b'\r'; 2 << 20]].concat()
    }),
    ("another protocol", |_| {
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()
    }),
    ("bytes", |_| (0..=255).collect()),
    ("a number that is none", |_| b":1x\r\n".to_vec()),
    ("a number", |_| b":1\r\n".to_vec()),
    ("a nil", |_| b"$-1\r\n".to_vec()),
    ("a nil list", |_| b"*-1\r\n".to_vec()),
    ("a map", |_| b"%1\r\n:0\r\n$-1\r\n".to_vec()),
    ("a push, then a good reply", |call| {
        [&b">3\r\n+subscribe\r\n+x\r\n:1\r\n"[..], &grant(call)].concat()
    }),
    ("a list that is too short", |call| {
        [b"*1\r\n".to_vec(), int(call.number)].concat()
    }),
    ("the reply to another call", |call| {
        grant(&Call {
            number: call.number + 1,
            ..call.clone()
        })
    }),
    ("the reply of a script that knows no calls", |_| {
        b"*1\r\n$-1\r\n".to_vec()
    }),
    ("the text of another call", |call| {
        bulk((call.number + 1).to_string().as_bytes())
    }),
    ("a text with a sign before the call", |call| {
        bulk(format!("+{}", call.number).as_bytes())
    }),
    ("a text ended by something else", |call| {
        [&b"*2\r\n"[..], &int(call.number), b"$1\r\nxyz"].concat()
    }),
];

/// Starts a server that answers the first call with `spoil`, and grants all later calls.
fn spoiling_the_first(spoil: Spoil) -> FakeServer {
    let calls = AtomicUsize::new(0);
    FakeServer::with(move |request| {
        let call = calls::read(request)?;
        Some(Action::Send(match calls.fetch_add(1, Ordering::SeqCst) {
            0 => spoil(&call),
            _ => grant(&call),
        }))
    })
}

#[tokio::test]
async fn malformed_reply_ends_the_connection() {
    watch_panics();
    for (what, spoil) in NO_REPLIES {
        let server = spoiling_the_first(*spoil);
        // With this limit, a call would wait for ever if it waited for a reply that can't arrive.
        let builder = Client::builder().reply_timeout(HOUR);
        let client = builder.connect(&server.url()).await.unwrap();
        let lock = client.lock("x");
        let error = lock.try_acquire().await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{what}: {error}");
        let guard = lock.acquire().await.expect(what);
        guard.release().await.expect(what);
        assert_eq!(server.connections(), 2, "{what}: another connection");
    }
    assert_no_panics();
}

#[tokio::test]
async fn replies_in_the_wrong_order_grant_nothing() {
    // The server grants the first of two calls, and refuses the second because its lock is held.
    let first = Mutex::new(None);
    let server = FakeServer::with(move |request| {
        let call = calls::read(request)?;
        let mut first = first.lock().unwrap();
        match first.take() {
            None if call.operations[0].step == "lock.acquire" => {
                *first = Some(grant(&call));
                Some(Action::Send(Vec::new()))
            }
            None => Some(Action::Send(grant(&call))),
            Some(granted) => {
                let busy = [&b"*2\r\n"[..], &int(call.number), &int(1000)].concat();
                Some(Action::Send([busy, granted].concat()))
            }
        }
    });
    let client = Client::connect(&server.url()).await.unwrap();
    // Once its connection is in use, each of the two is sent as a call of its own.
    client.lock("zero").force_unlock().await.unwrap();
    let (one, two) = (client.lock("one"), client.lock("two"));
    let (one, two) = tokio::join!(one.try_acquire(), two.try_acquire());
    for result in [one, two] {
        let error = result.map(drop).expect_err("nobody knows");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        assert!(!error.to_string().contains("no reply"), "{error}");
    }
}

#[tokio::test]
async fn reply_before_its_call_grants_nothing() {
    let server = FakeServer::with(|request| {
        let call = calls::read(request)?;
        if call.operations[0].step != "lock.acquire" {
            return Some(Action::Send(grant(&call)));
        }
        // The server is slow, so the next call has been sent and not read yet.
        std::thread::sleep(Duration::from_millis(5));
        let next = grant(&Call {
            number: call.number + 1,
            ..call
        });
        Some(Action::Send([b"+OK\r\n".to_vec(), next].concat()))
    });
    for _ in 0..10 {
        let client = Client::connect(&server.url()).await.unwrap();
        // Once its connection is in use, each of the two is sent as a call of its own.
        client.lock("zero").force_unlock().await.unwrap();
        let (one, two) = (client.lock("one"), client.lock("two"));
        let (one, two) = tokio::join!(one.try_acquire(), two.try_acquire());
        assert!(one.is_err() && two.is_err(), "{one:?} {two:?}");
    }
}

#[tokio::test]
async fn reply_may_arrive_byte_by_byte() {
    let server = FakeServer::with(|request| {
        let call = calls::read(request)?;
        for byte in grant(&call) {
            request.connection.send(&[byte]).unwrap();
        }
        Some(Action::Send(Vec::new()))
    });
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("x").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Starts a server that describes itself with `info`, if there is any.
fn of_version(info: Option<&'static str>) -> FakeServer {
    FakeServer::with(move |request| match &*request.command() {
        "INFO" => Some(Action::Send(match info {
            Some(info) => leasehold_testkit::fake::bulk(info.as_bytes()),
            None => b"-NOPERM no permissions to run 'info'\r\n".to_vec(),
        })),
        _ => Some(Action::Send(grant(&calls::read(request)?))),
    })
}

#[tokio::test]
async fn outdated_server_is_refused_with_advice() {
    let server = of_version(Some("# Server\r\nredis_version:4.0.14\r\n"));
    let error = Client::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for part in [&server.url()[..], "4.0.14", "5.0", "upgrade"] {
        assert!(error.to_string().contains(part), "{part} in: {error}");
    }
}

#[tokio::test]
async fn unknown_server_version_is_accepted() {
    for info in [None, Some(""), Some("redis_version:x.y"), Some("\u{fffd}")] {
        let server = of_version(info);
        let client = Client::connect(&server.url()).await.unwrap();
        let guard = client.lock("x").acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn servers_hang_up_reason_is_quoted() {
    let why = b"-ERR max number of clients reached\r\n";
    let server = FakeServer::with(|_| Some(Action::SendAndClose(why.to_vec())));
    let error = Client::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let said = "max number of clients";
    assert!(error.to_string().contains(said), "{error}");
}

#[tokio::test]
async fn reconnects_to_a_closing_server_back_off() {
    let server = FakeServer::with(|request| {
        calls::read(request).map(|_| Action::SendAndClose(b"oops".to_vec()))
    });
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.lock("x").outage_timeout(Duration::from_secs(2));
    let started = tokio::time::Instant::now();
    let error = lock.acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    // The delay is 10 ms, doubled up to a second, minus a random half of each.
    let most = 10 + 3 * started.elapsed().as_secs() as usize;
    assert!(server.connections() > 3, "it tries again");
    assert!(
        server.connections() <= most,
        "{} > {most}",
        server.connections()
    );
}

/// The last reply is to a request that did not run, but the request before it may have run.
#[tokio::test]
async fn later_refusal_keeps_the_outcome_unknown() {
    let calls = AtomicUsize::new(0);
    let server = FakeServer::with(move |request| {
        calls::read(request)?;
        Some(match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Action::SendAndClose(Vec::new()),
            _ => Action::Send(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()),
        })
    });
    let client = Client::connect(&server.url()).await.unwrap();
    let error = client.count_down_latch("x").count_down().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    for part in ["LOADING", "nothing undoes it", "`x`", &server.url()[8..]] {
        assert!(error.to_string().contains(part), "{part} in: {error}");
    }
}
