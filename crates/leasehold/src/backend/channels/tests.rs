use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The message of an opened latch, as every node receives it.
const ZERO: Message<'_> = Message {
    channel: "a",
    payload: b"0",
    called: None,
    transport: Transport::Global,
};

fn names(taken: &[Arc<str>]) -> Vec<&str> {
    taken.iter().map(|name| &**name).collect()
}

/// A fork copies the random generator of the thread, as the seed does here.
#[test]
fn clients_of_a_parent_and_its_child_have_numbers_of_their_own() {
    let number = || {
        fastrand::seed(1);
        Channels::new(false).number()
    };
    let (parents, childs) = (number(), number());
    assert_ne!(parents, childs);
    for number in [parents, childs] {
        assert!((100_000_000_000_000..1 << 53).contains(&number), "{number}");
    }
}

#[test]
fn only_what_is_new_has_to_be_subscribed() {
    let channels = Channels::new(false);
    let _first = (channels.listen("b"), channels.listen("a"));
    assert_eq!(names(&channels.section(0).take_fresh()), ["a", "b"]);
    let _second = (channels.listen("b"), channels.listen("c"));
    assert_eq!(names(&channels.section(0).take_fresh()), ["c"]);
    assert!(channels.section(0).take_fresh().is_empty());
}

#[test]
fn channel_with_a_new_listener_is_kept() {
    let channels = Channels::new(false);
    drop((channels.listen("a"), channels.listen("b")));
    let _again = channels.listen("b");
    assert_eq!(names(&channels.section(0).remove_idle()), ["a"]);
    assert_eq!(channels.len(), 1);
    assert!(channels.section(0).remove_idle().is_empty());
}

#[test]
fn channel_idle_again_is_removed() {
    let channels = Channels::new(false);
    drop(channels.listen("a"));
    let again = channels.listen("a");
    assert!(channels.section(0).remove_idle().is_empty());
    drop(again);
    assert_eq!(names(&channels.section(0).remove_idle()), ["a"]);
    assert!(channels.section(0).is_empty());
}

#[test]
fn removed_channel_is_resubscribed_once() {
    let channels = Channels::new(false);
    drop(channels.listen("a"));
    assert_eq!(names(&channels.section(0).remove_idle()), ["a"]);
    let _again = channels.listen("a");
    // The channel is noted twice: before it was forgotten, and when it was wanted again.
    assert_eq!(names(&channels.section(0).take_fresh()), ["a"]);
    drop(channels.listen("b"));
    assert_eq!(names(&channels.section(0).remove_idle()), ["b"]);
    // A subscription to `b` would have no listener, and nothing would end it.
    assert!(channels.section(0).take_fresh().is_empty());
}

#[test]
fn zeros_count_from_the_listeners_own_confirmation() {
    let channels = Channels::new(false);
    let zero = || channels.told(ZERO);
    let confirm = || {
        channels.section(0).take_fresh();
        channels.section(0).subscribed("a", false);
    };
    let first = channels.listen_from_now("a");
    zero();
    confirm();
    zero();
    // The first listener has not looked at its channel since then.
    let second = channels.listen_from_now("a");
    confirm();
    assert_eq!((first.heard_zero(), second.heard_zero()), (true, false));
    zero();
    assert_eq!((first.heard_zero(), second.heard_zero()), (true, true));
}

#[test]
fn confirmation_after_reconnect_covers_earlier_listeners() {
    let channels = Channels::new(false);
    let first = channels.listen_from_now("a");
    channels.section(0).take_fresh();
    channels.section(0).all_down();
    let second = channels.listen_from_now("a");
    channels.told(ZERO);
    channels.section(0).take_fresh();
    channels.section(0).subscribed("a", false);
    assert_eq!((first.heard_zero(), second.heard_zero()), (false, false));
    channels.told(ZERO);
    assert_eq!((first.heard_zero(), second.heard_zero()), (true, true));
}

#[test]
fn lost_connection_resubscribes_every_channel() {
    let channels = Channels::new(false);
    let _listeners = (channels.listen("a"), channels.listen("b"));
    channels.section(0).take_fresh();
    let _new = channels.listen("c");
    channels.section(0).all_down();
    assert_eq!(names(&channels.section(0).take_fresh()), ["a", "b", "c"]);
}

/// Makes channels on two nodes, and the number of the node that has all of them.
fn of_two_nodes() -> (Arc<Channels>, Arc<AtomicUsize>) {
    let owner = Arc::new(AtomicUsize::new(0));
    let of_channel = Arc::clone(&owner);
    let place = Place::by(move |_| Some(of_channel.load(Ordering::SeqCst)));
    (Channels::placed(place, true), owner)
}

#[test]
fn channel_follows_its_node() {
    let (channels, owner) = of_two_nodes();
    let (first, second) = (channels.section(0), channels.section(1));
    let listener = channels.listen("a");
    assert_eq!(names(&first.take_fresh()), ["a"]);
    first.subscribed("a", false);
    let mark = listener.mark();
    owner.store(1, Ordering::SeqCst);
    channels.place_again();
    assert!(!listener.mark().live && listener.mark().count() != mark.count());
    assert_eq!(names(&second.take_fresh()), ["a"]);
    // A late answer, from a connection that no longer brings the channel's messages.
    first.subscribed("a", false);
    assert!(!listener.mark().live);
    second.subscribed("a", false);
    assert!(listener.mark().live);
    assert_eq!(names(&first.remove_idle()), ["a"], "its subscription ends");
    assert!(first.is_empty() && !second.is_empty());
}

#[test]
fn channel_that_a_node_gave_up_is_placed_again() {
    let (channels, _) = of_two_nodes();
    let section = channels.section(0);
    let listener = channels.listen("a");
    section.take_fresh();
    section.subscribed("a", false);
    section.lost("a");
    assert!(!listener.mark().live);
    assert!(section.take_fresh().is_empty(), "nobody knows whose it is");
    channels.place_again();
    assert_eq!(names(&section.take_fresh()), ["a"]);
    section.subscribed("a", false);
    assert!(section.remove_idle().is_empty() && listener.mark().live);
}

#[test]
fn idle_channel_that_moves_is_forgotten_at_both_nodes() {
    let (channels, owner) = of_two_nodes();
    let (first, second) = (channels.section(0), channels.section(1));
    drop(channels.listen("a"));
    owner.store(1, Ordering::SeqCst);
    channels.place_again();
    assert_eq!(names(&second.remove_idle()), ["a"]);
    assert_eq!(channels.len(), 0);
    assert_eq!(names(&first.remove_idle()), ["a", "a"]);
    assert!(first.is_empty() && second.is_empty());
}

#[test]
fn zero_of_one_transport_is_passed_on_once() {
    let (channels, _) = of_two_nodes();
    let sharded = Message::new("a", b"0", Transport::Sharded);
    let listen = || {
        let listener = channels.listen_from_now("a");
        channels.section(0).take_fresh();
        channels.section(0).subscribed("a", false);
        listener
    };
    let passes_on = |listener: &Listener| {
        let start = listener.start().expect("it counts from now");
        channels.passes_on("a", start)
    };
    for (first, second) in [(ZERO, sharded), (sharded, ZERO)] {
        let (one, other) = (listen(), listen());
        channels.told(first);
        assert_eq!((passes_on(&one), passes_on(&other)), (true, false));
        // The message that the waiter has passed on.
        channels.told(second);
        assert!(!passes_on(&other));
        let later = listen();
        channels.told(first);
        channels.told(second);
        assert!(!passes_on(&later), "all have heard it");
    }
    // A request may find the latch open while the message is lost or on its way.
    assert!(passes_on(&listen()));
    channels.section(0).hears_one_transport();
    let listener = listen();
    channels.told(ZERO);
    assert!(!passes_on(&listener), "it is the only one");
}
