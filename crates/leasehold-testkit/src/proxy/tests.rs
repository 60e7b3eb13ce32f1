use std::{
    io::{Read, Write},
    time::Duration,
};

use super::*;
use crate::{RedisServer, Reply, eventually};

/// A server, and a proxy in front of it.
struct Setup {
    proxy: Proxy,
    server: RedisServer,
}

fn setup() -> Setup {
    let server = RedisServer::start().expect("redis-server is installed");
    let proxy = Proxy::to(server.port());
    Setup { proxy, server }
}

impl Setup {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.proxy.port())).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a limit can be set");
        stream
    }

    fn value(&self, key: &str) -> Reply {
        self.server.command(&["GET", key]).expect("the server runs")
    }

    fn is_set(&self, key: &str) -> bool {
        self.value(key) != Reply::Nil
    }
}

fn send(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("the proxy reads");
}

/// Reads until some data has arrived or the connection has ended.
fn receive(mut stream: &TcpStream) -> String {
    let mut buffer = [0; 1024];
    let length = stream.read(&mut buffer).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn traffic_goes_through() {
    let setup = setup();
    let client = setup.connect();
    send(&client, "SET x 1\r\n");
    assert_eq!(receive(&client), "+OK\r\n");
    assert_eq!(setup.proxy.connections(), 1);
    assert_eq!(setup.proxy.open_connections(), 1);
    drop(client);
    eventually("link closed", LIMIT, || setup.proxy.open_connections() == 0);
    assert_eq!(setup.proxy.faults_fired(), 0);
}

#[test]
fn cut_closes_present_connections_only() {
    let setup = setup();
    let client = setup.connect();
    send(&client, "PING\r\n");
    receive(&client);
    setup.proxy.cut();
    assert_eq!(receive(&client), "");
    let next = setup.connect();
    send(&next, "PING\r\n");
    assert_eq!(receive(&next), "+PONG\r\n");
}

#[test]
fn refused_connections_are_closed_and_counted() {
    let setup = setup();
    setup.proxy.refuse(true);
    assert_eq!(receive(&setup.connect()), "");
    assert_eq!(setup.proxy.connections(), 1);
    setup.proxy.refuse(false);
    let client = setup.connect();
    send(&client, "PING\r\n");
    assert_eq!(receive(&client), "+PONG\r\n");
}

#[test]
fn swallowed_reply_belongs_to_a_command_that_ran() {
    let setup = setup();
    let client = setup.connect();
    setup.proxy.swallow_replies(true);
    send(&client, "SET x 1\r\n");
    eventually("x is set", LIMIT, || setup.is_set("x"));
    eventually("reply lost", LIMIT, || setup.proxy.swallowed() == 1);
    setup.proxy.swallow_replies(false);
    let next = setup.connect();
    send(&next, "GET x\r\n");
    assert_eq!(receive(&next), "$1\r\n1\r\n");
    // The first client would take any reply for the lost one.
    send(&client, "DEL x\r\n");
    eventually("x is gone", LIMIT, || !setup.is_set("x"));
    setup.proxy.cut();
    assert_eq!(receive(&client), "");
}

#[test]
fn held_traffic_goes_through_afterwards() {
    let setup = setup();
    let client = setup.connect();
    setup.proxy.hold(true);
    send(&client, "SET x 1\r\n");
    thread::sleep(Duration::from_millis(50));
    assert_eq!(setup.value("x"), Reply::Nil);
    setup.proxy.hold(false);
    assert_eq!(receive(&client), "+OK\r\n");
}

#[test]
fn held_connection_can_be_cut() {
    let setup = setup();
    let client = setup.connect();
    setup.proxy.hold(true);
    send(&client, "SET x 1\r\n");
    eventually("linked", LIMIT, || setup.proxy.open_connections() == 1);
    setup.proxy.cut();
    assert_eq!(receive(&client), "");
    assert_eq!(setup.value("x"), Reply::Nil);
}

#[test]
fn cut_after_drops_reply_of_executed_command() {
    let setup = setup();
    let client = setup.connect();
    let fault = setup.proxy.cut_after_next(b"SET x");
    send(&client, "SET y 1\r\n");
    assert_eq!(receive(&client), "+OK\r\n");
    assert!(!fault.fired());

    // The request arrives in two chunks, in a pipeline whose first reply must not be lost.
    send(&client, "GET y\r\nSE");
    assert_eq!(receive(&client), "$1\r\n1\r\n");
    send(&client, "T x 1\r\nSET z 1\r\n");
    assert_eq!(receive(&client), "");
    eventually("fault fired", LIMIT, || fault.fired());
    assert_eq!(setup.proxy.faults_fired(), 1);
    assert!(setup.is_set("x"));
}

#[test]
fn cut_after_delivers_earlier_pipelined_replies() {
    let setup = setup();
    let client = setup.connect();
    let fault = setup.proxy.cut_after_next(b"SET x");
    send(&client, "SET y 1\r\nSET x 1\r\nSET z 1\r\n");
    let mut seen = receive(&client);
    seen.push_str(&receive(&client));
    assert_eq!(seen, "+OK\r\n");
    eventually("fault fired", LIMIT, || fault.fired());
    assert!(setup.is_set("x"));
}

#[test]
fn cut_before_loses_the_command() {
    let setup = setup();
    let client = setup.connect();
    let fault = setup.proxy.cut_before_next(b"SET x");
    send(&client, "SET x 1\r\n");
    assert_eq!(receive(&client), "");
    eventually("fault fired", LIMIT, || fault.fired());
    assert_eq!(setup.proxy.faults_fired(), 1);
    assert_eq!(setup.value("x"), Reply::Nil);

    let next = setup.connect();
    send(&next, "SET x 1\r\n");
    assert_eq!(receive(&next), "+OK\r\n");
}

#[test]
fn partially_sent_request_does_not_run() {
    let setup = setup();
    let client = setup.connect();
    let fault = setup.proxy.strike_after(1, b"SET x", Strike::CutInRequest);
    send(&client, "SET x 1\r\n");
    assert_eq!(receive(&client), "+OK\r\n");
    send(&client, "SET x 2\r\n");
    assert_eq!(receive(&client), "");
    eventually("fault fired", LIMIT, || fault.fired());
    assert_eq!(fault.request(), b"SET x 2\r\n");
    assert_eq!(setup.value("x"), Reply::Text("1".to_owned()));
}

#[test]
fn connection_is_cut_within_or_after_reply() {
    for (strike, seen) in [
        (Strike::CutInReply, "+O"),
        (Strike::CutBehindReply, "+OK\r\n"),
    ] {
        let setup = setup();
        let client = setup.connect();
        let fault = setup.proxy.strike_next(b"SET x", strike);
        send(&client, "SET x 1\r\nGET x\r\n");
        assert_eq!(receive(&client), seen);
        assert_eq!(receive(&client), "", "{strike:?}");
        eventually("fault fired", LIMIT, || fault.fired());
        assert!(setup.is_set("x"));
    }
}

#[test]
fn lost_request_or_reply_drops_later_ones() {
    for (strike, runs) in [(Strike::LoseRequest, false), (Strike::LoseReply, true)] {
        let setup = setup();
        let client = setup.connect();
        let fault = setup.proxy.strike_next(b"SET x", strike);
        send(&client, "SET y 1\r\nSET x 1\r\nSET z 1\r\n");
        assert_eq!(receive(&client), "+OK\r\n");
        eventually("fault fired", LIMIT, || fault.fired());
        eventually("what reached the server has run", LIMIT, || {
            (setup.is_set("x"), setup.is_set("z")) == (runs, runs)
        });
        // The connection stays open until one side closes it.
        client.shutdown(std::net::Shutdown::Write).expect("open");
        assert_eq!(receive(&client), "", "{strike:?}");
        assert_eq!((setup.is_set("x"), setup.is_set("z")), (runs, runs));
    }
}

#[test]
fn duplicated_request_runs_twice_with_one_reply() {
    let setup = setup();
    let client = setup.connect();
    let fault = setup.proxy.strike_next(b"INCR x", Strike::Double);
    send(&client, "INCR x\r\n");
    assert_eq!(receive(&client), ":1\r\n");
    send(&client, "INCR x\r\n");
    assert_eq!(receive(&client), ":3\r\n");
    assert!(fault.fired());
}

#[test]
fn held_request_or_reply_continues_when_released() {
    for (strike, runs) in [(Strike::HoldRequest, false), (Strike::HoldReply, true)] {
        let setup = setup();
        let (client, other) = (setup.connect(), setup.connect());
        let fault = setup.proxy.strike_next(b"SET x", strike);
        send(&client, "SET x 1\r\nGET x\r\n");
        eventually("fault fired", LIMIT, || fault.fired());
        // Only the affected connection waits.
        send(&other, "PING\r\n");
        assert_eq!(receive(&other), "+PONG\r\n");
        assert_eq!(setup.is_set("x"), runs, "{strike:?}");
        setup.proxy.let_go(&fault);
        let mut seen = receive(&client);
        while seen.len() < "+OK\r\n$1\r\n1\r\n".len() {
            seen.push_str(&receive(&client));
        }
        assert_eq!(seen, "+OK\r\n$1\r\n1\r\n");
    }
}

#[test]
fn one_direction_can_be_held() {
    let setup = setup();
    let client = setup.connect();
    setup.proxy.hold_replies(true);
    send(&client, "SET x 1\r\n");
    eventually("x is set", LIMIT, || setup.is_set("x"));
    setup.proxy.hold_replies(false);
    assert_eq!(receive(&client), "+OK\r\n");
    setup.proxy.hold_requests(true);
    send(&client, "SET y 1\r\n");
    setup.proxy.hold_requests(false);
    assert_eq!(receive(&client), "+OK\r\n");
}

#[test]
fn pubsub_traffic_fails_separately_from_calls() {
    let setup = setup();
    let (caller, listener) = (setup.connect(), setup.connect());
    // The confirmation of a subscription is an ordinary reply.
    let fault = setup.proxy.strike_next(b"SUBSCRIBE", Strike::HoldReply);
    send(&listener, "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n");
    eventually("subscribed", LIMIT, || fault.fired());
    assert_eq!(setup.server.channels(), ["c"]);
    setup.proxy.let_go(&fault);
    assert!(receive(&listener).contains("subscribe"));

    setup.proxy.swallow_messages(true);
    send(&caller, "PUBLISH c lost\r\n");
    assert_eq!(receive(&caller), ":1\r\n");
    eventually("swallowed", LIMIT, || setup.proxy.swallowed() == 1);
    setup.proxy.swallow_messages(false);
    send(&caller, "PUBLISH c heard\r\n");
    assert!(receive(&listener).contains("heard"));

    assert_eq!(setup.proxy.cut_messages(), 1);
    assert_eq!(receive(&listener), "");
    assert_eq!(receive(&caller), ":1\r\n");
    assert_eq!(setup.proxy.cut_calls(), 1);
    assert_eq!(receive(&caller), "");
}

#[test]
fn a_fault_that_is_disarmed_does_not_strike() {
    let setup = setup();
    let client = setup.connect();
    let fault = setup.proxy.cut_before_next(b"SET x");
    setup.proxy.disarm();
    send(&client, "SET x 1\r\n");
    assert_eq!(receive(&client), "+OK\r\n");
    assert!(!fault.fired());
}

#[test]
fn proxy_outlives_its_server() {
    let setup = setup();
    let client = setup.connect();
    send(&client, "PING\r\n");
    receive(&client);
    setup.server.kill().expect("the process is ours");
    assert_eq!(receive(&client), "");
    assert_eq!(receive(&setup.connect()), "");
    setup.server.restart().expect("redis-server is installed");
    let next = setup.connect();
    send(&next, "PING\r\n");
    assert_eq!(receive(&next), "+PONG\r\n");
}
