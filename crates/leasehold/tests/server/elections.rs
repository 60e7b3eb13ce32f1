//! Elections whose leaders are killed, stopped or cut off, and observers that are cut off.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::settings::Peers;
use leasehold::testing::history::monotonic_ns;
use leasehold::{Acknowledgement, Client, Election, ErrorKind, Leader, LossReason, Term, Terms};
use leasehold_testkit::{Proxy, RedisServer};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::child;
use super::scene::builder;
use crate::support::child::Child;
use crate::support::{HOUR, eventually};

/// A lease that a busy machine renews in time.
const LEASE: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(100);
/// The name of the children's election.
pub(crate) const NAME: &str = "x";

/// Returns the candidate of a child, whose pauses are short.
pub(crate) fn candidate(client: &Client, payload: &str, lease: Duration) -> Election {
    let election = client.election(NAME).payload(payload).lease(lease);
    election.poll_interval(POLL).restart_delay(POLL)
}

async fn observer(server: &RedisServer) -> (Client, Terms) {
    let client = builder().connect(&server.url()).await.unwrap();
    let terms = client.election(NAME).poll_interval(POLL).observe();
    (client, terms)
}

/// Returns the next state in which there is a leader.
async fn next_leader(terms: &mut Terms) -> Leader {
    let leader = async {
        loop {
            if let Some(leader) = terms.next().await.expect("it is open").unwrap() {
                return leader;
            }
        }
    };
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, leader)
        .await
        .expect("one leads")
}

/// Waits until the child says that it leads the term that was seen.
async fn says_so(child: &Child, leader: &Leader) {
    let line = format!("leads {}", leader.token.expect("it has a token"));
    eventually(&line, async || child.count(&line) == 1).await;
}

#[tokio::test]
async fn killed_leader_is_replaced_and_each_term_was_led() {
    let server = RedisServer::start().unwrap();
    let (_client, mut terms) = observer(&server).await;
    let mut children: Vec<_> = (0..3)
        .map(|number| child::lead(&server.url(), LEASE, number))
        .collect();
    let mut last = 0;
    while !children.is_empty() {
        let leader = next_leader(&mut terms).await;
        let token = leader.token.unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        let number: u32 = leader.payload.as_deref().unwrap().parse().unwrap();
        let at = children.iter().position(|(its, _)| *its == number);
        let at = at.expect("a killed process leads no new term");
        says_so(&children[at].1, &leader).await;
        let (_, mut killed) = children.swap_remove(at);
        killed.kill();
    }
    assert_eq!(terms.next().await.unwrap().unwrap(), None);
    eventually("only the counter is left", async || {
        server.keys() == ["redisson_lock_token:{x}"]
    })
    .await;
}

#[tokio::test]
async fn stopped_leader_learns_of_its_loss_before_it_works_on() {
    let server = RedisServer::start().unwrap();
    let (client, mut terms) = observer(&server).await;
    let (_, leader) = child::lead(&server.url(), LEASE, 1);
    let first = next_leader(&mut terms).await;
    says_so(&leader, &first).await;
    eventually("it works", async || leader.count("works") > 0).await;
    leader.pause();
    let stopped = monotonic_ns();
    let term = candidate(&client, "2", LEASE).stand().await.unwrap();
    assert!(term.token() > first.token.unwrap());
    leader.resume();
    eventually("its work is dropped", async || {
        leader.said("dropped").is_some()
    })
    .await;
    let worked: u64 = leader.said("dropped").unwrap().parse().unwrap();
    assert!(worked <= stopped, "it worked after it had gone on");
    let now = next_leader(&mut terms).await;
    assert_eq!(now.token, Some(term.token()));
    assert_eq!(leader.count("leads"), 1, "it waits for its next term");
    term.resign().await.unwrap();
    let again = next_leader(&mut terms).await;
    assert_eq!(again.payload.as_deref(), Some("1"));
    says_so(&leader, &again).await;
}

/// Notes when its work begins and ends.
struct Work {
    notes: Arc<Mutex<Vec<(&'static str, u64)>>>,
}

impl Work {
    fn begin(notes: &Arc<Mutex<Vec<(&'static str, u64)>>>) -> Self {
        notes.lock().unwrap().push(("begin", monotonic_ns()));
        Self {
            notes: Arc::clone(notes),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.notes.lock().unwrap().push(("end", monotonic_ns()));
    }
}

type Notes = Arc<Mutex<Vec<(&'static str, u64)>>>;

/// Leads in a thread until `stop` is sent. Returns the notes of its work.
fn leads(election: Election) -> (Notes, oneshot::Sender<()>, JoinHandle<()>) {
    let notes = Notes::default();
    let (stop, stopped) = oneshot::channel::<()>();
    let (runtime, notes_of_work) = (Handle::current(), Arc::clone(&notes));
    let task = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            let work = move |_: &Term| {
                let work = Work::begin(&notes_of_work);
                async move {
                    let _work = work;
                    std::future::pending::<()>().await;
                }
            };
            election.lead_until(stopped, work).await.unwrap();
        });
    });
    (notes, stop, task)
}

#[tokio::test]
async fn leader_that_is_cut_off_stops_before_the_next_term_and_stands_again() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let ours = builder().connect(&proxy.url()).await.unwrap();
    let (theirs, mut terms) = observer(&server).await;
    let (notes, stop, task) = leads(candidate(&ours, "1", LEASE));
    let first = next_leader(&mut terms).await;
    eventually("it works", async || notes.lock().unwrap().len() == 1).await;
    proxy.refuse(true);
    proxy.cut();
    let term = candidate(&theirs, "2", LEASE).stand().await.unwrap();
    let led_from = monotonic_ns();
    assert!(term.token() > first.token.unwrap());
    let (what, ended) = notes.lock().unwrap()[1];
    assert_eq!(what, "end");
    assert!(ended < led_from, "its work was dropped before");
    proxy.refuse(false);
    assert_eq!(next_leader(&mut terms).await.token, Some(term.token()));
    term.resign().await.unwrap();
    let again = next_leader(&mut terms).await;
    assert_eq!(again.payload.as_deref(), Some("1"));
    eventually("it works again", async || notes.lock().unwrap().len() == 3).await;
    stop.send(()).unwrap();
    task.await.unwrap();
    assert_eq!(theirs.election(NAME).leader().await.unwrap(), None);
}

#[tokio::test]
async fn observer_that_is_cut_off_is_told_and_goes_on() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let ours = builder().connect(&proxy.url()).await.unwrap();
    let theirs = builder().connect(&server.url()).await.unwrap();
    let election = ours.election(NAME).poll_interval(POLL);
    let mut terms = election.outage_timeout(POLL * 3).observe();
    assert_eq!(terms.next().await.unwrap().unwrap(), None);
    proxy.refuse(true);
    proxy.cut();
    let error = terms.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let missed = candidate(&theirs, "1", LEASE).stand().await.unwrap();
    missed.resign().await.unwrap();
    let term = candidate(&theirs, "2", LEASE).stand().await.unwrap();
    proxy.refuse(false);
    let leader = loop {
        match terms.next().await.unwrap() {
            Ok(leader) => break leader.expect("the state has changed"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    assert_eq!(leader.token, Some(term.token()));
    term.resign().await.unwrap();
}

#[tokio::test]
async fn lost_message_costs_one_poll() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to(server.port());
    let ours = builder().connect(&proxy.url()).await.unwrap();
    let theirs = builder().connect(&server.url()).await.unwrap();
    let mut terms = ours.election(NAME).poll_interval(POLL).observe();
    assert_eq!(terms.next().await.unwrap().unwrap(), None);
    eventually("it listens", async || server.channels().len() == 2).await;
    proxy.swallow_messages(true);
    let term = candidate(&theirs, "1", LEASE).stand().await.unwrap();
    assert_eq!(next_leader(&mut terms).await.token, Some(term.token()));
    term.resign().await.unwrap();
    assert_eq!(terms.next().await.unwrap().unwrap(), None);
}

/// No poll is due while the test runs.
#[tokio::test]
async fn message_reports_each_change() {
    let server = RedisServer::start().unwrap();
    let ours = builder().connect(&server.url()).await.unwrap();
    let theirs = builder().connect(&server.url()).await.unwrap();
    let mut terms = ours.election(NAME).poll_interval(HOUR).observe();
    assert_eq!(terms.next().await.unwrap().unwrap(), None);
    eventually("it listens", async || server.channels().len() == 2).await;
    for _ in 0..3 {
        let election = theirs.election(NAME).lease(HOUR);
        let term = election.stand().await.unwrap();
        let seen = terms.next().await.unwrap().unwrap().unwrap();
        assert_eq!(seen.token, Some(term.token()));
        term.resign().await.unwrap();
        assert_eq!(terms.next().await.unwrap().unwrap(), None);
    }
    // A forced release publishes no message of the election, but one of the lock.
    let term = theirs.election(NAME).lease(HOUR).stand().await.unwrap();
    assert!(terms.next().await.unwrap().unwrap().is_some());
    let id = term.holder_id().to_owned();
    assert!(ours.force_release(NAME, &id).await.unwrap());
    assert_eq!(terms.next().await.unwrap().unwrap(), None);
    drop(term);
}

#[tokio::test]
async fn term_that_no_replica_confirms_is_given_back() {
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let election = client.election(NAME).lease(HOUR);
    let election = election.outage_timeout(Duration::from_secs(1));
    let confirmed = Acknowledgement::replicas(1).within(Duration::from_millis(50));
    let error = election.acknowledged_by(confirmed).stand().await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(client.election(NAME).leader().await.unwrap(), None);
    eventually("only the counter is left", async || {
        server.keys() == ["redisson_lock_token:{x}"]
    })
    .await;
}

#[tokio::test]
async fn failover_guard_holds_back_terms() {
    let server = RedisServer::start().unwrap();
    let builder = builder().peers(Peers::RustOnly).lease(LEASE);
    let client = builder.failover_guard(HOUR).connect(&server.url()).await;
    let client = client.unwrap();
    // As with a lock, the failover guard counts as another holder.
    assert!(client.election(NAME).try_stand().await.unwrap().is_none());
    assert_eq!(client.election(NAME).leader().await.unwrap(), None);
    assert!(!server.keys().iter().any(|key| key.ends_with(":leader")));
}

#[tokio::test]
async fn counter_expires_without_redisson() {
    let server = RedisServer::start().unwrap();
    for (peers, expires) in [(Peers::All, false), (Peers::RustOnly, true)] {
        let client = builder().peers(peers).connect(&server.url()).await;
        let client = client.unwrap();
        let term = client.election(NAME).try_stand().await.unwrap();
        drop(term.expect("there is no leader"));
        let left = server.command(&["PTTL", "redisson_lock_token:{x}"]);
        assert_eq!(left.unwrap().as_int().unwrap() > 0, expires);
        client.close().await;
    }
}

#[tokio::test]
async fn leader_entry_is_no_name_and_other_kinds_are_no_election() {
    let server = RedisServer::start().unwrap();
    let client = builder().connect(&server.url()).await.unwrap();
    let term = client.election(NAME).stand().await.unwrap();
    let mut names = client.list("*");
    let listed = names.next().await.unwrap().unwrap();
    assert_eq!(listed.name, NAME);
    assert!(names.next().await.is_none(), "the entry is no name");
    let semaphore = client.semaphore(NAME).try_set_permits(1).await;
    assert_eq!(semaphore.unwrap_err().kind(), ErrorKind::WrongKind);
    term.resign().await.unwrap();

    let reader = client.rw_lock(NAME).read().await.unwrap();
    let election = client.election(NAME);
    let error = election.try_stand().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    let error = election.leader().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    let error = election.observe().next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKind, "{error}");
    assert!(!server.keys().iter().any(|key| key.ends_with(":leader")));
    reader.release().await.unwrap();
}

#[tokio::test]
async fn leader_whose_data_is_deleted_learns_it_and_others_stand() {
    let server = RedisServer::start().unwrap();
    let (client, mut terms) = observer(&server).await;
    let first = candidate(&client, "1", LEASE).stand().await.unwrap();
    let token = next_leader(&mut terms).await.token;
    assert_eq!(token, Some(first.token()));
    server.command(&["FLUSHALL"]).unwrap();
    let second = candidate(&client, "2", LEASE).stand().await.unwrap();
    assert!(second.token() > first.token(), "the clock continues");
    let seen = next_leader(&mut terms).await;
    assert_eq!(seen.payload.as_deref(), Some("2"));
    assert!(matches!(
        first.lost().await,
        LossReason::Deleted | LossReason::Taken { .. }
    ));
    drop(first);
    assert!(second.is_held());
    second.resign().await.unwrap();
}

/// The counter of tokens is ahead of the clock at first, and then the server loses its data.
#[tokio::test]
async fn observer_sees_leaders_again_after_tokens_have_fallen() {
    let server = RedisServer::start().unwrap();
    let (_client, mut terms) = observer(&server).await;
    let client = builder().connect(&server.url()).await.unwrap();
    let counter = format!("redisson_lock_token:{{{NAME}}}");
    let ahead = "9007199254740000";
    server.command(&["SET", &counter, ahead]).unwrap();
    let term = candidate(&client, "before", LEASE).stand().await.unwrap();
    assert_eq!(next_leader(&mut terms).await.token, Some(term.token()));
    server.command(&["FLUSHALL"]).unwrap();
    drop(term);
    let term = candidate(&client, "after", LEASE).stand().await.unwrap();
    assert!(term.token() < ahead.parse().unwrap());
    let leader = next_leader(&mut terms).await;
    assert_eq!(
        (leader.token, leader.payload.as_deref()),
        (Some(term.token()), Some("after"))
    );
    assert!(term.is_held());
    term.resign().await.unwrap();
    // From now on, tokens begin again.
    let next = candidate(&client, "next", LEASE).stand().await.unwrap();
    assert_eq!(next_leader(&mut terms).await.token, Some(next.token()));
}

/// A leader whose lease is not renewed belongs to an earlier term.
#[tokio::test]
async fn observer_is_shown_no_leader_of_an_earlier_term() {
    let server = RedisServer::start().unwrap();
    let (_client, mut terms) = observer(&server).await;
    let client = builder().connect(&server.url()).await.unwrap();
    let term = candidate(&client, "present", LEASE).stand().await.unwrap();
    assert_eq!(next_leader(&mut terms).await.token, Some(term.token()));
    term.resign().await.unwrap();
    // Make the server look like a promoted replica that has missed this term and the end of the
    // previous one.
    let (former, lease) = ("cccccccc-0000-4000-8000-000000000000:1", "1500");
    server.command(&["HSET", NAME, former, "1"]).unwrap();
    server.command(&["PEXPIRE", NAME, lease]).unwrap();
    let entry = format!("leasehold:{{{NAME}}}:leader");
    let fields = [
        "HSET", &entry, "id", former, "token", "7", "payload", "former", "since_ms", "1",
    ];
    server.command(&fields).unwrap();
    let shown = client
        .election(NAME)
        .leader()
        .await
        .unwrap()
        .expect("the server shows it");
    assert_eq!(shown.token, Some(7));
    let candidate = candidate(&client, "next", LEASE);
    // The terms are read while the server shows the former leader.
    let (next, seen) = tokio::join!(candidate.stand(), next_leader(&mut terms));
    assert_eq!(seen.token, Some(next.unwrap().token()));
}
