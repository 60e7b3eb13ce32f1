use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The message of an opened latch, as every node receives it.
const ZERO: Message<'_> = Message {
    channel: "a",
    payload: b"0",
    notified: None,
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
    assert_eq!(
        names(&channels.node_channels(0).take_to_subscribe()),
        ["a", "b"]
    );
    let _second = (channels.listen("b"), channels.listen("c"));
    assert_eq!(names(&channels.node_channels(0).take_to_subscribe()), ["c"]);
    assert!(channels.node_channels(0).take_to_subscribe().is_empty());
}

#[test]
fn channel_with_a_new_listener_is_kept() {
    let channels = Channels::new(false);
    drop((channels.listen("a"), channels.listen("b")));
    let _again = channels.listen("b");
    assert_eq!(names(&channels.node_channels(0).remove_idle()), ["a"]);
    assert_eq!(channels.len(), 1);
    assert!(channels.node_channels(0).remove_idle().is_empty());
}

#[test]
fn channel_idle_again_is_removed() {
    let channels = Channels::new(false);
    drop(channels.listen("a"));
    let again = channels.listen("a");
    assert!(channels.node_channels(0).remove_idle().is_empty());
    drop(again);
    assert_eq!(names(&channels.node_channels(0).remove_idle()), ["a"]);
    assert!(channels.node_channels(0).is_empty());
}

#[test]
fn removed_channel_is_resubscribed_once() {
    let channels = Channels::new(false);
    drop(channels.listen("a"));
    assert_eq!(names(&channels.node_channels(0).remove_idle()), ["a"]);
    let _again = channels.listen("a");
    // The channel was noted twice: before it was removed, and when it had a listener again.
    assert_eq!(names(&channels.node_channels(0).take_to_subscribe()), ["a"]);
    drop(channels.listen("b"));
    assert_eq!(names(&channels.node_channels(0).remove_idle()), ["b"]);
    // A subscription to `b` would have no listener, and nothing would end it.
    assert!(channels.node_channels(0).take_to_subscribe().is_empty());
}

#[test]
fn zeros_count_from_the_listeners_own_confirmation() {
    let channels = Channels::new(false);
    let zero = || channels.on_message(ZERO);
    let confirm = || {
        channels.node_channels(0).take_to_subscribe();
        channels.node_channels(0).subscribed("a", false);
    };
    let first = channels.listen_from_now("a");
    zero();
    confirm();
    zero();
    // The first listener has not read its signal since the zero arrived.
    let second = channels.listen_from_now("a");
    confirm();
    assert_eq!((first.zero_arrived(), second.zero_arrived()), (true, false));
    zero();
    assert_eq!((first.zero_arrived(), second.zero_arrived()), (true, true));
}

#[test]
fn confirmation_after_reconnect_covers_earlier_listeners() {
    let channels = Channels::new(false);
    let first = channels.listen_from_now("a");
    channels.node_channels(0).take_to_subscribe();
    channels.node_channels(0).all_down();
    let second = channels.listen_from_now("a");
    channels.on_message(ZERO);
    channels.node_channels(0).take_to_subscribe();
    channels.node_channels(0).subscribed("a", false);
    assert_eq!(
        (first.zero_arrived(), second.zero_arrived()),
        (false, false)
    );
    channels.on_message(ZERO);
    assert_eq!((first.zero_arrived(), second.zero_arrived()), (true, true));
}

#[test]
fn lost_connection_resubscribes_every_channel() {
    let channels = Channels::new(false);
    let _listeners = (channels.listen("a"), channels.listen("b"));
    channels.node_channels(0).take_to_subscribe();
    let _new = channels.listen("c");
    channels.node_channels(0).all_down();
    assert_eq!(
        names(&channels.node_channels(0).take_to_subscribe()),
        ["a", "b", "c"]
    );
}

/// Makes the channels of two nodes. All channels are on the node with the returned number.
fn of_two_nodes() -> (Arc<Channels>, Arc<AtomicUsize>) {
    let owner = Arc::new(AtomicUsize::new(0));
    let of_channel = Arc::clone(&owner);
    let place = NodeResolver::new(move |_| Some(of_channel.load(Ordering::SeqCst)));
    (Channels::with_resolver(place, true), owner)
}

#[test]
fn channel_follows_its_node() {
    let (channels, owner) = of_two_nodes();
    let (first, second) = (channels.node_channels(0), channels.node_channels(1));
    let listener = channels.listen("a");
    assert_eq!(names(&first.take_to_subscribe()), ["a"]);
    first.subscribed("a", false);
    let mark = listener.signal();
    owner.store(1, Ordering::SeqCst);
    channels.reassign_nodes();
    assert!(!listener.signal().live && listener.signal().count() != mark.count());
    assert_eq!(names(&second.take_to_subscribe()), ["a"]);
    // A late answer arrives on the connection that no longer delivers the channel's messages.
    first.subscribed("a", false);
    assert!(!listener.signal().live);
    second.subscribed("a", false);
    assert!(listener.signal().live);
    assert_eq!(names(&first.remove_idle()), ["a"], "its subscription ends");
    assert!(first.is_empty() && !second.is_empty());
}

#[test]
fn channel_that_a_node_gave_up_is_placed_again() {
    let (channels, _) = of_two_nodes();
    let node_channels = channels.node_channels(0);
    let listener = channels.listen("a");
    node_channels.take_to_subscribe();
    node_channels.subscribed("a", false);
    node_channels.lost("a");
    assert!(!listener.signal().live);
    assert!(
        node_channels.take_to_subscribe().is_empty(),
        "nobody knows whose it is"
    );
    channels.reassign_nodes();
    assert_eq!(names(&node_channels.take_to_subscribe()), ["a"]);
    node_channels.subscribed("a", false);
    assert!(node_channels.remove_idle().is_empty() && listener.signal().live);
}

#[test]
fn idle_channel_that_moves_is_forgotten_at_both_nodes() {
    let (channels, owner) = of_two_nodes();
    let (first, second) = (channels.node_channels(0), channels.node_channels(1));
    drop(channels.listen("a"));
    owner.store(1, Ordering::SeqCst);
    channels.reassign_nodes();
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
        channels.node_channels(0).take_to_subscribe();
        channels.node_channels(0).subscribed("a", false);
        listener
    };
    let should_republish = |listener: &Listener| {
        let baseline = listener.baseline().expect("it counts from now");
        channels.should_republish("a", baseline)
    };
    for (first, second) in [(ZERO, sharded), (sharded, ZERO)] {
        let (one, other) = (listen(), listen());
        channels.on_message(first);
        assert_eq!(
            (should_republish(&one), should_republish(&other)),
            (true, false)
        );
        // The message that the waiter has republished.
        channels.on_message(second);
        assert!(!should_republish(&other));
        let later = listen();
        channels.on_message(first);
        channels.on_message(second);
        assert!(!should_republish(&later), "all have heard it");
    }
    // A request may find the latch open while the message is lost or on its way.
    assert!(should_republish(&listen()));
    channels.node_channels(0).use_single_transport();
    let listener = listen();
    channels.on_message(ZERO);
    assert!(!should_republish(&listener), "it is the only one");
}
