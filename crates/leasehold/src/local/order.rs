//! The order of a line's waiters, and which of them has the turn. Nothing here wakes a waiter: the
//! methods return the waiters to wake.
//!
//! A waiter is *called* when it is woken, and *comes* when it is polled. A waiter that was called
//! and does not come is passed over: it is out of the order, but keeps its number, which brings it
//! back to its place when it comes.

use std::collections::{BTreeMap, BTreeSet};

/// A place in the line: first come, first served.
pub(super) type Number = u64;

/// The aim of a waiter in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// To be the one that asks.
    Asks,
    /// To be the one that asks, once no reader is before it. Later readers wait behind it.
    Writes,
    /// To ask beside other readers, one of which waits for the server: the scout.
    Reads,
    /// To ask, and keep a place in a line on the server. The first waiter of the process listens.
    Queues,
}

#[derive(Default)]
pub(super) struct Order {
    askers: BTreeSet<Number>,
    writers: BTreeSet<Number>,
    readers: BTreeSet<Number>,
    /// Readers that no longer wait behind any writer.
    overdue: BTreeSet<Number>,
    /// The waiter that has the turn, until it leaves or is passed over.
    // Stored, and not read from the sets: a waiter that returns to an earlier place must not take
    // the turn from a waiter whose request is on its way.
    asker: Option<Number>,
    scout: Option<Number>,
    /// The first writer when the turns were last settled: readers before it have entered.
    gate: Option<Number>,
    /// The waiters that were called and have not come yet, and whether a look has found them
    /// called.
    called: BTreeMap<Number, bool>,
}

impl Order {
    fn side(&mut self, side: Side) -> &mut BTreeSet<Number> {
        match side {
            // One line never has both.
            Side::Asks | Side::Queues => &mut self.askers,
            Side::Writes => &mut self.writers,
            Side::Reads => &mut self.readers,
        }
    }

    /// Returns whether a waiter is in the order: it has come, and has not been passed over since.
    pub(super) fn stands(&self, number: Number) -> bool {
        [&self.askers, &self.writers, &self.readers]
            .iter()
            .any(|side| side.contains(&number))
    }

    /// Adds a waiter that comes for the first time, or because it was called. Returns the waiters
    /// to wake.
    pub(super) fn come(&mut self, number: Number, side: Side) -> Vec<Number> {
        self.called.remove(&number);
        if !self.side(side).insert(number) {
            return Vec::new();
        }
        let mut woken = self.settle();
        // This waiter is being polled, and looks by itself.
        woken.retain(|woken| *woken != number);
        woken
    }

    pub(super) fn leave(&mut self, number: Number) -> Vec<Number> {
        self.remove(number);
        // Only here: a reader that was passed over is still overdue when it comes back.
        self.overdue.remove(&number);
        self.settle()
    }

    fn remove(&mut self, number: Number) {
        for side in [&mut self.askers, &mut self.writers, &mut self.readers] {
            side.remove(&number);
        }
        self.called.remove(&number);
        for turn in [&mut self.asker, &mut self.scout] {
            turn.take_if(|whose| *whose == number);
        }
    }

    /// Gives away the turns that are free. Returns the waiters to wake for that.
    fn settle(&mut self) -> Vec<Number> {
        let mut woken = Vec::new();
        let (writer, reader) = (self.writers.first(), self.readers.first());
        if self.asker.is_none() {
            // A writer waits for the readers before it. A waiter of the side `Asks` waits for no
            // reader, and keeps no reader back.
            let writer = writer.filter(|writer| reader.is_none_or(|reader| reader > *writer));
            let asker = self.askers.first().into_iter().chain(writer).min();
            self.asker = asker.copied();
            woken.extend(self.asker);
        }
        if self.scout.is_none() {
            // An overdue reader has entered wherever it is, while a writer may keep back the first
            // of all readers.
            let overdue = || self.overdue.iter().find(|one| self.readers.contains(one));
            let reader = reader.filter(|reader| self.entered(**reader));
            self.scout = reader.or_else(overdue).copied();
            woken.extend(self.scout);
        }
        let gate = std::mem::replace(&mut self.gate, writer.copied());
        // Only from the old gate on: the readers before it entered earlier and already ask.
        if let Some(from) = gate.filter(|_| gate != self.gate) {
            let entered = self.readers.range(from..);
            woken.extend(entered.take_while(|reader| self.entered(**reader)));
        }
        woken.sort_unstable();
        woken.dedup();
        woken
    }

    pub(super) fn has_turn(&self, number: Number) -> bool {
        self.asker == Some(number) || self.scout == Some(number)
    }

    /// Returns whether no writer keeps this reader back.
    pub(super) fn entered(&self, reader: Number) -> bool {
        let no_writer = self.writers.first().is_none_or(|writer| *writer > reader);
        no_writer || self.overdue.contains(&reader)
    }

    /// Lets a reader enter that has waited for long enough behind writers: the first of them may
    /// itself wait for long, beside another process that writes all the time. Returns the waiters
    /// to wake.
    pub(super) fn goes_before_writers(&mut self, reader: Number) -> Vec<Number> {
        self.overdue.insert(reader);
        let mut woken = self.settle();
        woken.retain(|woken| *woken != reader);
        woken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn any_writer(&self) -> bool {
        !self.writers.is_empty()
    }

    /// Notes that a waiter is woken.
    pub(super) fn call(&mut self, number: Number) {
        // A waiter that has left, or was passed over, keeps no other waiting: a note of it would
        // only keep the looks running. A second call keeps the first note. Otherwise a waiter that
        // is called often and never polled would never be passed over.
        if self.stands(number) {
            self.called.entry(number).or_insert(false);
        }
    }

    /// Returns the waiters at the head of the line that want the name for themselves, in order.
    /// Returns none while a reader is overdue.
    pub(super) fn exclusive(&self) -> impl Iterator<Item = &Number> {
        let overdue = self.overdue.iter().any(|one| self.readers.contains(one));
        let end = match self.readers.first() {
            _ if overdue => Number::MIN,
            Some(reader) => *reader,
            None => Number::MAX,
        };
        let both = self.askers.union(&self.writers);
        both.take_while(move |number| **number < end)
    }

    /// Returns the waiter that asks for the line.
    pub(super) fn asker(&self) -> Option<Number> {
        self.asker
    }

    /// Returns whether a waiter was called and has not come yet.
    pub(super) fn anyone_called(&self) -> bool {
        !self.called.is_empty()
    }

    /// Returns the number of waiters in the order.
    pub(super) fn len(&self) -> usize {
        self.askers.len() + self.writers.len() + self.readers.len()
    }

    /// Returns whether another waiter may be waiting for the one that was called.
    pub(super) fn has_several(&self) -> bool {
        self.len() > 1
    }

    /// Passes over the waiters that the last look has already found called.
    pub(super) fn look(&mut self) -> Look {
        let seen = self.called.iter().filter(|(_, seen)| **seen);
        let late: Vec<_> = seen.map(|(number, _)| *number).collect();
        // Checked before they are removed, which takes their turns.
        let turn_was_lost = late.iter().any(|number| self.has_turn(*number));
        for number in &late {
            self.remove(*number);
        }
        for seen in self.called.values_mut() {
            *seen = true;
        }
        Look {
            woken: self.settle(),
            late,
            turn_was_lost,
        }
    }
}

/// The result of a look.
pub(super) struct Look {
    pub(super) woken: Vec<Number>,
    /// The waiters that were passed over.
    pub(super) late: Vec<Number>,
    /// Whether a waiter has not taken its turn. More waiters may be like it: all must be called
    /// now, so that they are found together and not one after the other.
    pub(super) turn_was_lost: bool,
}

#[cfg(test)]
mod tests {
    use super::Side::{Asks, Reads, Writes};
    use super::*;

    /// Creates a line of these waiters, in order.
    fn line(sides: &[Side]) -> Order {
        let mut order = Order::default();
        for (number, side) in (0..).zip(sides) {
            let woken = order.come(number, *side);
            assert!(
                woken.is_empty(),
                "nobody waits for who comes behind: {woken:?}"
            );
        }
        order
    }

    fn turns(order: &Order) -> Vec<Number> {
        (0..10).filter(|number| order.has_turn(*number)).collect()
    }

    /// Returns the readers that may ask.
    fn entered(order: &Order) -> Vec<Number> {
        let readers = order.readers.iter().copied();
        readers.filter(|reader| order.entered(*reader)).collect()
    }

    fn passed_over(order: &mut Order, number: Number) -> Vec<Number> {
        order.call(number);
        assert!(
            order.look().woken.is_empty(),
            "it has time until the next look"
        );
        let look = order.look();
        assert!(look.turn_was_lost);
        look.woken
    }

    #[test]
    fn overdue_reader_asks_alongside_the_writer() {
        let mut order = line(&[Writes, Reads, Writes, Reads]);
        assert_eq!(turns(&order), [0]);
        assert!(order.goes_before_writers(3).is_empty());
        assert_eq!(turns(&order), [0, 3]);
        assert_eq!(entered(&order), [3]);
        assert!(order.goes_before_writers(1).is_empty(), "it has a scout");
        assert_eq!(entered(&order), [1, 3]);
        assert_eq!(order.leave(3), [1]);
        order.leave(0);
        assert_eq!(turns(&order), [1], "the next writer waits for the reader");
        assert_eq!(order.leave(1), [2]);
    }

    #[test]
    fn skipped_overdue_reader_returns_overdue() {
        let mut order = line(&[Writes, Reads]);
        order.goes_before_writers(1);
        assert!(passed_over(&mut order, 1).is_empty());
        assert_eq!(turns(&order), [0]);
        order.come(1, Reads);
        assert_eq!(turns(&order), [0, 1]);
    }

    #[test]
    fn turn_passes_in_arrival_order() {
        let mut order = line(&[Asks, Asks, Asks, Asks]);
        assert_eq!(turns(&order), [0]);
        assert!(order.leave(2).is_empty(), "it had no turn");
        assert_eq!(order.leave(0), [1]);
        assert_eq!(turns(&order), [1]);
        assert_eq!(order.leave(1), [3]);
        assert!(order.leave(3).is_empty());
        assert!(order.is_empty());
    }

    #[test]
    fn skipped_waiter_keeps_its_place() {
        let mut order = line(&[Asks, Asks, Asks]);
        assert_eq!(passed_over(&mut order, 0), [1]);
        assert_eq!(turns(&order), [1]);
        // The waiter that is back takes no other waiter's turn, and is the next.
        assert!(order.come(0, Asks).is_empty());
        assert_eq!(turns(&order), [1]);
        assert_eq!(order.leave(1), [0]);
        assert_eq!(order.leave(0), [2]);
    }

    #[test]
    fn who_comes_in_time_is_not_passed_over() {
        let mut order = line(&[Asks, Asks]);
        for _ in 0..5 {
            order.call(0);
            assert!(!order.look().turn_was_lost);
            assert!(order.come(0, Asks).is_empty());
        }
        // The waiter has not been called, so it may sleep for as long as it likes.
        for _ in 0..5 {
            assert!(!order.anyone_called());
            assert!(!order.look().turn_was_lost);
        }
        assert_eq!(turns(&order), [0]);
    }

    #[test]
    fn unclaimed_turn_goes_to_the_first_arrival() {
        let mut order = line(&[Asks, Asks, Asks]);
        for number in 0..3 {
            order.call(number);
        }
        order.look();
        assert!(order.look().woken.is_empty(), "all are passed over");
        assert!(turns(&order).is_empty() && order.is_empty());
        assert!(order.come(1, Asks).is_empty());
        assert_eq!(turns(&order), [1]);
        assert!(order.come(0, Asks).is_empty());
        assert_eq!(turns(&order), [1]);
    }

    #[test]
    fn nobody_is_called_who_has_left() {
        let mut order = line(&[Asks, Asks]);
        order.leave(0);
        order.call(0);
        assert!(!order.anyone_called());
        order.call(1);
        order.leave(1);
        assert!(!order.anyone_called());
    }

    #[test]
    fn one_reader_asks_for_all_entered_readers() {
        let mut order = line(&[Reads, Reads, Reads]);
        assert_eq!(entered(&order), [0, 1, 2]);
        assert_eq!(turns(&order), [0]);
        assert_eq!(order.leave(0), [1]);
        assert_eq!(passed_over(&mut order, 1), [2]);
        assert!(order.come(1, Reads).is_empty());
        assert_eq!(entered(&order), [1, 2]);
        assert_eq!(turns(&order), [2]);
    }

    #[test]
    fn writer_waits_for_earlier_readers_only() {
        let mut order = line(&[Reads, Reads, Writes, Reads, Writes, Reads]);
        assert_eq!(entered(&order), [0, 1]);
        assert_eq!(turns(&order), [0]);
        assert_eq!(order.leave(0), [1]);
        assert_eq!(order.leave(1), [2]);
        assert_eq!(order.leave(2), [3]);
        assert_eq!(order.leave(3), [4]);
        assert_eq!(order.leave(4), [5]);
    }

    #[test]
    fn leaving_writer_admits_all_readers_behind_it() {
        let mut order = line(&[Writes, Reads, Reads, Reads]);
        assert!(entered(&order).is_empty());
        assert_eq!(order.leave(0), [1, 2, 3]);
    }

    #[test]
    fn returning_writer_blocks_only_later_readers() {
        let mut order = line(&[Writes, Reads, Reads]);
        assert_eq!(passed_over(&mut order, 0), [1, 2]);
        assert_eq!(entered(&order), [1, 2]);
        assert!(order.come(0, Writes).is_empty());
        assert_eq!(turns(&order), [0, 1]);
        assert!(order.come(3, Reads).is_empty());
        assert!(!order.entered(3));
    }

    #[test]
    fn unresponsive_reader_does_not_block_the_writer() {
        let mut order = line(&[Reads, Reads, Writes]);
        assert_eq!(order.leave(1), Vec::<Number>::new());
        assert_eq!(passed_over(&mut order, 0), [2]);
        // The scout is back again.
        assert!(order.come(0, Reads).is_empty());
        assert_eq!(turns(&order), [0, 2]);
    }

    #[test]
    fn plain_waiter_does_not_wait_for_readers() {
        let mut order = line(&[Reads, Writes, Asks, Asks]);
        assert_eq!(turns(&order), [0, 2]);
        assert_eq!(order.leave(2), [3]);
        assert_eq!(order.leave(0), Vec::<Number>::new());
        assert_eq!(order.leave(3), [1]);
    }
}
