//! The wait loop on a paused clock: under a flood of wake-ups, and with a lock that never becomes
//! free.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;

use super::*;
use crate::backend::Backend;
use crate::backend::memory::Embedded;
use crate::clock::Clock;
use crate::config::Peers;
use crate::hold::SafetyMargin;

/// An asker that counts the requests for a lock that is always held. The remaining lease is what
/// `remaining` returns.
struct Counter<F> {
    asks: AtomicUsize,
    clock: Clock,
    remaining: F,
}

impl<F: Fn(Moment) -> Option<Duration> + Sync> Ask for Counter<F> {
    type Grant = ();

    async fn ask(&self) -> Result<Answer<()>, Failure> {
        self.asks.fetch_add(1, Ordering::SeqCst);
        let ttl = (self.remaining)(self.clock.now());
        Ok(Answer::Busy { ttl })
    }
}

/// Creates a separate client, on a clock that moves only when every task sleeps.
fn context() -> std::sync::Arc<Context> {
    tokio::time::pause();
    let memory = Embedded::new().memory();
    let clock = memory.clock();
    let margin = SafetyMargin { drift: 0.01 };
    let lease = Duration::from_secs(30);
    let backend = Backend::Memory(memory);
    Context::new(
        backend,
        clock,
        margin,
        crate::context::Naming {
            peers: Peers::All,
            prefix: String::new(),
            failover_guard: None,
            observer: crate::observe::Observer::default(),
            label: String::new(),
        },
        (lease, crate::Acknowledgement::master()),
        &Handle::current(),
    )
}

/// Creates the wait of one waiter for `x`, which listens to these channels.
fn wait_for<'a>(
    context: &'a Context,
    key: &'a Key,
    channels: &'a [(&'a Arc<Channels>, &'a str)],
    settings: &'a Settings,
    deadline: Deadline,
) -> Wait<'a> {
    Wait {
        context,
        key,
        line_key: key,
        channels,
        settings,
        deadline,
        line: LineMode::HeadAsks,
        place: None,
        was_held: false,
        span: None,
    }
}

/// Counts the requests and the wake-ups within five seconds in which a wake-up arrives every
/// millisecond or two.
async fn asks_in_a_flood(remaining: impl Fn(Moment) -> Option<Duration> + Sync) -> (usize, usize) {
    let context = context();
    let clock = context.clock;
    let mut settings = context.settings();
    settings.poll_interval = Some(Duration::from_secs(3600));
    let key = Key::parse("x").expect("a name");
    let channels = [(context.backend.channels(), "channel")];
    let wait = wait_for(
        &context,
        &key,
        &channels,
        &settings,
        Deadline::At(clock.now() + Duration::from_secs(5)),
    );
    let counter = Counter {
        asks: AtomicUsize::new(0),
        clock,
        remaining,
    };
    let mut wake_ups = 0;
    let flood = async {
        loop {
            wake_ups += 1;
            context.backend.channels().wake("channel");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        granted = wait.until_granted(&counter) => assert!(matches!(granted, Ok(None))),
        () = flood => {}
    }
    (counter.asks.into_inner(), wake_ups)
}

#[tokio::test]
async fn futile_wake_ups_are_throttled() {
    let end = Moment::from_millis(60_000);
    let (asks, wake_ups) = asks_in_a_flood(|now| Some(end.saturating_sub(now))).await;
    assert!((50..=80).contains(&asks), "{asks} for {wake_ups}");
}

#[tokio::test]
async fn wake_ups_finding_new_holds_are_followed() {
    let (asks, wake_ups) = asks_in_a_flood(|_| Some(Duration::from_secs(30))).await;
    assert!(wake_ups > 2000 && asks >= wake_ups, "{asks} for {wake_ups}");
}

#[tokio::test]
async fn unlimited_wait_ends_at_lock_without_expiry() {
    let context = context();
    let clock = context.clock;
    let settings = context.settings();
    let key = Key::parse("x").expect("a name");
    let channels = [(context.backend.channels(), "channel")];
    let wait = wait_for(&context, &key, &channels, &settings, Deadline::Never);
    let counter = Counter {
        asks: AtomicUsize::new(0),
        clock,
        remaining: |_| None,
    };
    let start = clock.now();
    let limit = TOLERATED_WITHOUT_EXPIRY * 2;
    let error = tokio::time::timeout(limit, wait.until_granted(&counter))
        .await
        .expect("it ends")
        .expect_err("nobody will ever have it");
    assert_eq!(error.kind(), ErrorKind::WrongKind);
    // A holder should have time to give its key an expiry again.
    assert!(clock.now().saturating_sub(start) >= TOLERATED_WITHOUT_EXPIRY);
}

/// An asker that lets other processes ask first, until `until`.
struct YieldingAsker {
    asks: AtomicUsize,
    until: Moment,
}

impl Ask for YieldingAsker {
    type Grant = ();

    async fn ask(&self) -> Result<Answer<()>, Failure> {
        self.asks.fetch_add(1, Ordering::SeqCst);
        let ttl = Some(Duration::from_secs(30));
        Ok(Answer::Busy { ttl })
    }

    fn not_before(&self) -> Option<NotBefore> {
        Some(NotBefore::Others(self.until))
    }
}

/// While no server has answered, the head asks the server although other processes should ask
/// first: the waiter behind it may have no time for that.
#[tokio::test]
async fn no_server_has_answered_a_line_that_lets_others_ask_first() {
    let context = context();
    let (clock, settings) = (context.clock, context.settings());
    let key = Key::parse("x").expect("a name");
    let channels = [(context.backend.channels(), "channel")];
    let wait = wait_for(&context, &key, &channels, &settings, Deadline::Never);
    let asker = YieldingAsker {
        asks: AtomicUsize::new(0),
        until: clock.now() + Duration::from_millis(20),
    };
    let mut waits = pin!(wait.until_granted(&asker));
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(asker.asks.load(Ordering::SeqCst), 0, "it is alone");
    let _behind = context.locals.of(&key).line_up(LineMode::HeadAsks);
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(asker.asks.load(Ordering::SeqCst), 1);
}

/// Counts the requests within `seconds` for a lock that is held for a long time.
async fn asks_within(
    seconds: u64,
    poll_interval: Option<Duration>,
    channels: &Arc<Channels>,
) -> usize {
    let context = context();
    let (clock, mut settings) = (context.clock, context.settings());
    settings.poll_interval = poll_interval;
    let key = Key::parse("x").expect("a name");
    let channels = [(channels, "channel")];
    let wait = wait_for(
        &context,
        &key,
        &channels,
        &settings,
        Deadline::At(clock.now() + Duration::from_secs(seconds)),
    );
    let counter = Counter {
        asks: AtomicUsize::new(0),
        clock,
        remaining: |_| Some(Duration::from_secs(3600)),
    };
    let granted = wait.until_granted(&counter).await;
    assert!(matches!(granted, Ok(None)));
    counter.asks.into_inner()
}

#[tokio::test]
async fn a_waiter_that_listens_asks_less_and_less_often() {
    let live = Channels::new(true);
    // There are two requests at first, because the waiter begins to listen after the first answer.
    // Further requests follow after 1, 2 and 4 s, and then every 5 s.
    assert_eq!(asks_within(60, None, &live).await, 15);
}

#[tokio::test]
async fn a_waiter_that_does_not_listen_asks_each_second() {
    let not_live = Channels::new(false);
    assert_eq!(asks_within(60, None, &not_live).await, 60);
}

#[tokio::test]
async fn a_poll_interval_that_was_set_stays() {
    let live = Channels::new(true);
    let set = Some(Duration::from_secs(2));
    assert_eq!(asks_within(60, set, &live).await, 31);
}

#[tokio::test]
async fn a_message_makes_the_waiter_ask_often_again() {
    let live = Channels::new(true);
    let wakes = async {
        tokio::time::sleep(Duration::from_millis(20_500)).await;
        live.wake_all();
        std::future::pending().await
    };
    let asks = tokio::select! {
        asks = asks_within(25, None, &live) => asks,
        () = wakes => 0,
    };
    // There are requests at 0, 0, 1, 3, 7, 12, 17 and 20.5 s, and then one and three seconds after
    // the last of these.
    assert_eq!(asks, 10);
}

/// An asker that is always refused, and shows a change in one answer.
struct RefusedAsker {
    asks: AtomicUsize,
    changes_at: usize,
}

impl Ask for RefusedAsker {
    type Grant = ();

    async fn ask(&self) -> Result<Answer<()>, Failure> {
        let asks = self.asks.fetch_add(1, Ordering::SeqCst);
        Ok(Answer::Later {
            within: None,
            fingerprint: (i64::from(asks >= self.changes_at), Vec::new()),
        })
    }
}

/// Counts the requests within a minute in which one answer shows a change.
async fn asks_beside_a_change(changes_at: usize) -> usize {
    let context = context();
    let (clock, settings) = (context.clock, context.settings());
    let key = Key::parse("x").expect("a name");
    let channels = [(context.backend.channels(), "channel")];
    let wait = wait_for(
        &context,
        &key,
        &channels,
        &settings,
        Deadline::At(clock.now() + Duration::from_secs(60)),
    );
    let asker = RefusedAsker {
        asks: AtomicUsize::new(0),
        changes_at,
    };
    assert!(matches!(wait.until_granted(&asker).await, Ok(None)));
    asker.asks.into_inner()
}

#[tokio::test]
async fn refusals_that_are_alike_make_the_waiter_ask_less_often() {
    assert_eq!(asks_beside_a_change(usize::MAX).await, 15);
}

#[tokio::test]
async fn a_change_that_no_message_told_makes_the_waiter_ask_often_again() {
    assert_eq!(asks_beside_a_change(10).await, 17);
}
