//! The order of a line's waiters, and which of them is the head. Nothing here wakes a waiter: the
//! methods return the waiters to wake.
//!
//! A waiter that is not polled soon after it was woken is *stalled*, and is passed over: it is
//! removed from the order, but keeps its number. The next poll puts it back in its place.

use std::collections::{BTreeMap, BTreeSet};

/// A place in the line: first come, first served.
pub(super) type Number = u64;

/// The aim of a waiter in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineRole {
    /// To become the head of the line, which asks the server.
    Plain,
    /// To become the head, once no reader is before it. Later readers wait for this writer.
    Writer,
    /// To ask the server together with other readers. One of them, the leading reader, waits for
    /// the server.
    Reader,
    /// To ask the server, and to keep a place in a line there. The first waiter of the process
    /// listens for messages.
    Queued,
}

#[derive(Default)]
pub(super) struct Order {
    plain: BTreeSet<Number>,
    writers: BTreeSet<Number>,
    readers: BTreeSet<Number>,
    /// The readers that have waited long enough: writers no longer keep them back.
    patient_enough: BTreeSet<Number>,
    /// The waiter that asks the server on behalf of the line, until it leaves or is passed over.
    // This is stored, and not computed from the sets: a waiter that returns to an earlier place
    // must not displace a head whose request is in flight.
    head: Option<Number>,
    leading_reader: Option<Number>,
    /// The first writer at the last `reassign`. The readers before it have entered.
    writer_gate: Option<Number>,
    /// The waiters that were woken and have not been polled since then, and for each, whether a
    /// stall check has already found it in this state.
    woken: BTreeMap<Number, bool>,
}

impl Order {
    fn set_of(&mut self, role: LineRole) -> &mut BTreeSet<Number> {
        match role {
            // A line never has waiters of both roles.
            LineRole::Plain | LineRole::Queued => &mut self.plain,
            LineRole::Writer => &mut self.writers,
            LineRole::Reader => &mut self.readers,
        }
    }

    /// Returns whether a waiter is in the order: it was polled, and has not been passed over since
    /// then.
    pub(super) fn contains(&self, number: Number) -> bool {
        [&self.plain, &self.writers, &self.readers]
            .iter()
            .any(|set| set.contains(&number))
    }

    /// Notes that a waiter is polled. Adds it to the order if it is new, or was passed over.
    /// Returns the waiters to wake.
    pub(super) fn polled(&mut self, number: Number, role: LineRole) -> Vec<Number> {
        self.woken.remove(&number);
        if !self.set_of(role).insert(number) {
            return Vec::new();
        }
        let mut to_wake = self.reassign();
        // This waiter needs no wake-up: it is being polled, and checks the order itself.
        to_wake.retain(|waiter| *waiter != number);
        to_wake
    }

    pub(super) fn leave(&mut self, number: Number) -> Vec<Number> {
        self.remove(number);
        // The reader's entry is removed here and not in `remove`: a reader that was passed over
        // need not wait for the writers before it when it is polled again.
        self.patient_enough.remove(&number);
        self.reassign()
    }

    fn remove(&mut self, number: Number) {
        for set in [&mut self.plain, &mut self.writers, &mut self.readers] {
            set.remove(&number);
        }
        self.woken.remove(&number);
        for head in [&mut self.head, &mut self.leading_reader] {
            head.take_if(|head| *head == number);
        }
    }

    /// Chooses a head and a leading reader if they are missing, and admits readers that a writer
    /// kept back until now. Returns the waiters to wake.
    fn reassign(&mut self) -> Vec<Number> {
        let mut to_wake = Vec::new();
        let (writer, reader) = (self.writers.first(), self.readers.first());
        if self.head.is_none() {
            // A writer waits for the readers before it. A waiter with the role `Plain` does not
            // wait for readers, and does not keep readers back.
            let writer = writer.filter(|writer| reader.is_none_or(|reader| reader > *writer));
            let head = self.plain.first().into_iter().chain(writer).min();
            self.head = head.copied();
            to_wake.extend(self.head);
        }
        if self.leading_reader.is_none() {
            // A reader that has waited long enough may ask the server, even if a writer still keeps
            // back readers before it.
            let patient_enough = || {
                self.patient_enough
                    .iter()
                    .find(|one| self.readers.contains(one))
            };
            let reader = reader.filter(|reader| self.admits(**reader));
            self.leading_reader = reader.or_else(patient_enough).copied();
            to_wake.extend(self.leading_reader);
        }
        let writer_gate = std::mem::replace(&mut self.writer_gate, writer.copied());
        // Readers before the previous gate are left out: they entered earlier and are already
        // asking the server.
        if let Some(from) = writer_gate.filter(|_| writer_gate != self.writer_gate) {
            let entered = self.readers.range(from..);
            to_wake.extend(entered.take_while(|reader| self.admits(**reader)));
        }
        to_wake.sort_unstable();
        to_wake.dedup();
        to_wake
    }

    pub(super) fn is_head(&self, number: Number) -> bool {
        self.head == Some(number) || self.leading_reader == Some(number)
    }

    /// Returns whether no writer keeps this reader back.
    pub(super) fn admits(&self, reader: Number) -> bool {
        let no_writer = self.writers.first().is_none_or(|writer| *writer > reader);
        no_writer || self.patient_enough.contains(&reader)
    }

    /// Lets a reader that has waited long enough pass the writers before it. Otherwise this reader
    /// could wait forever if another process writes all the time. Returns the waiters to wake.
    pub(super) fn pass_writers(&mut self, reader: Number) -> Vec<Number> {
        self.patient_enough.insert(reader);
        let mut to_wake = self.reassign();
        to_wake.retain(|waiter| *waiter != reader);
        to_wake
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn any_writer(&self) -> bool {
        !self.writers.is_empty()
    }

    /// Notes that a waiter is woken.
    pub(super) fn woken(&mut self, number: Number) {
        // A waiter that has left or was passed over does not delay other waiters: a note about it
        // would only keep the stall checks running. A second wake-up does not change the note of
        // the first one. Otherwise a waiter that is often woken but never polled would not be
        // passed over.
        if self.contains(number) {
            self.woken.entry(number).or_insert(false);
        }
    }

    /// Returns the waiters at the head of the line that want the name for themselves, in order.
    /// Returns none while there is a reader that has waited long enough to pass writers.
    pub(super) fn exclusive(&self) -> impl Iterator<Item = &Number> {
        let patient_enough = self
            .patient_enough
            .iter()
            .any(|one| self.readers.contains(one));
        let end = match self.readers.first() {
            _ if patient_enough => Number::MIN,
            Some(reader) => *reader,
            None => Number::MAX,
        };
        let both = self.plain.union(&self.writers);
        both.take_while(move |number| **number < end)
    }

    /// Returns the waiter that asks the server on behalf of the line.
    pub(super) fn head(&self) -> Option<Number> {
        self.head
    }

    /// Returns whether a waiter was woken and has not been polled since then.
    pub(super) fn any_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Returns the number of waiters in the order.
    pub(super) fn len(&self) -> usize {
        self.plain.len() + self.writers.len() + self.readers.len()
    }

    /// Returns whether the order has several waiters, so that a stalled one delays another.
    pub(super) fn has_several(&self) -> bool {
        self.len() > 1
    }

    /// Passes over the waiters that the previous stall check had already found woken and not
    /// polled.
    pub(super) fn pass_over_stalled(&mut self) -> Stalls {
        let seen = self.woken.iter().filter(|(_, seen)| **seen);
        let stalled: Vec<_> = seen.map(|(number, _)| *number).collect();
        // Check for a stalled head before the waiters are removed: after that, none of them is the
        // head any more.
        let head_stalled = stalled.iter().any(|number| self.is_head(*number));
        for number in &stalled {
            self.remove(*number);
        }
        for seen in self.woken.values_mut() {
            *seen = true;
        }
        Stalls {
            to_wake: self.reassign(),
            stalled,
            head_stalled,
        }
    }
}

/// The result of a stall check.
pub(super) struct Stalls {
    pub(super) to_wake: Vec<Number>,
    /// The waiters that were passed over.
    pub(super) stalled: Vec<Number>,
    /// Whether the head or the leading reader was stalled. If so, other waiters might not be polled
    /// either. All waiters must be woken now, so that the next checks find all stalled ones at the
    /// same time, and not one after the other.
    pub(super) head_stalled: bool,
}

#[cfg(test)]
mod tests {
    use super::LineRole::{Plain, Reader, Writer};
    use super::*;

    /// Creates a line of these waiters, in order.
    fn line(roles: &[LineRole]) -> Order {
        let mut order = Order::default();
        for (number, role) in (0..).zip(roles) {
            let to_wake = order.polled(number, *role);
            assert!(
                to_wake.is_empty(),
                "nobody waits for who comes behind: {to_wake:?}"
            );
        }
        order
    }

    fn heads(order: &Order) -> Vec<Number> {
        (0..10).filter(|number| order.is_head(*number)).collect()
    }

    /// Returns the readers that may ask the server.
    fn admitted(order: &Order) -> Vec<Number> {
        let readers = order.readers.iter().copied();
        readers.filter(|reader| order.admits(*reader)).collect()
    }

    fn passed_over(order: &mut Order, number: Number) -> Vec<Number> {
        order.woken(number);
        assert!(
            order.pass_over_stalled().to_wake.is_empty(),
            "it has time until the next look"
        );
        let stalls = order.pass_over_stalled();
        assert!(stalls.head_stalled);
        stalls.to_wake
    }

    #[test]
    fn overdue_reader_asks_alongside_the_writer() {
        let mut order = line(&[Writer, Reader, Writer, Reader]);
        assert_eq!(heads(&order), [0]);
        assert!(order.pass_writers(3).is_empty());
        assert_eq!(heads(&order), [0, 3]);
        assert_eq!(admitted(&order), [3]);
        assert!(order.pass_writers(1).is_empty(), "it has a scout");
        assert_eq!(admitted(&order), [1, 3]);
        assert_eq!(order.leave(3), [1]);
        order.leave(0);
        assert_eq!(heads(&order), [1], "the next writer waits for the reader");
        assert_eq!(order.leave(1), [2]);
    }

    #[test]
    fn skipped_overdue_reader_returns_overdue() {
        let mut order = line(&[Writer, Reader]);
        order.pass_writers(1);
        assert!(passed_over(&mut order, 1).is_empty());
        assert_eq!(heads(&order), [0]);
        order.polled(1, Reader);
        assert_eq!(heads(&order), [0, 1]);
    }

    #[test]
    fn turn_passes_in_arrival_order() {
        let mut order = line(&[Plain, Plain, Plain, Plain]);
        assert_eq!(heads(&order), [0]);
        assert!(order.leave(2).is_empty(), "it had no turn");
        assert_eq!(order.leave(0), [1]);
        assert_eq!(heads(&order), [1]);
        assert_eq!(order.leave(1), [3]);
        assert!(order.leave(3).is_empty());
        assert!(order.is_empty());
    }

    #[test]
    fn skipped_waiter_keeps_its_place() {
        let mut order = line(&[Plain, Plain, Plain]);
        assert_eq!(passed_over(&mut order, 0), [1]);
        assert_eq!(heads(&order), [1]);
        // The waiter that is back does not displace the head, but is the next one.
        assert!(order.polled(0, Plain).is_empty());
        assert_eq!(heads(&order), [1]);
        assert_eq!(order.leave(1), [0]);
        assert_eq!(order.leave(0), [2]);
    }

    #[test]
    fn who_comes_in_time_is_not_passed_over() {
        let mut order = line(&[Plain, Plain]);
        for _ in 0..5 {
            order.woken(0);
            assert!(!order.pass_over_stalled().head_stalled);
            assert!(order.polled(0, Plain).is_empty());
        }
        // The waiter has not been woken, so it may sleep for as long as it likes.
        for _ in 0..5 {
            assert!(!order.any_woken());
            assert!(!order.pass_over_stalled().head_stalled);
        }
        assert_eq!(heads(&order), [0]);
    }

    #[test]
    fn unclaimed_turn_goes_to_the_first_arrival() {
        let mut order = line(&[Plain, Plain, Plain]);
        for number in 0..3 {
            order.woken(number);
        }
        order.pass_over_stalled();
        assert!(
            order.pass_over_stalled().to_wake.is_empty(),
            "all are passed over"
        );
        assert!(heads(&order).is_empty() && order.is_empty());
        assert!(order.polled(1, Plain).is_empty());
        assert_eq!(heads(&order), [1]);
        assert!(order.polled(0, Plain).is_empty());
        assert_eq!(heads(&order), [1]);
    }

    #[test]
    fn nobody_is_called_who_has_left() {
        let mut order = line(&[Plain, Plain]);
        order.leave(0);
        order.woken(0);
        assert!(!order.any_woken());
        order.woken(1);
        order.leave(1);
        assert!(!order.any_woken());
    }

    #[test]
    fn one_reader_asks_for_all_entered_readers() {
        let mut order = line(&[Reader, Reader, Reader]);
        assert_eq!(admitted(&order), [0, 1, 2]);
        assert_eq!(heads(&order), [0]);
        assert_eq!(order.leave(0), [1]);
        assert_eq!(passed_over(&mut order, 1), [2]);
        assert!(order.polled(1, Reader).is_empty());
        assert_eq!(admitted(&order), [1, 2]);
        assert_eq!(heads(&order), [2]);
    }

    #[test]
    fn writer_waits_for_earlier_readers_only() {
        let mut order = line(&[Reader, Reader, Writer, Reader, Writer, Reader]);
        assert_eq!(admitted(&order), [0, 1]);
        assert_eq!(heads(&order), [0]);
        assert_eq!(order.leave(0), [1]);
        assert_eq!(order.leave(1), [2]);
        assert_eq!(order.leave(2), [3]);
        assert_eq!(order.leave(3), [4]);
        assert_eq!(order.leave(4), [5]);
    }

    #[test]
    fn leaving_writer_admits_all_readers_behind_it() {
        let mut order = line(&[Writer, Reader, Reader, Reader]);
        assert!(admitted(&order).is_empty());
        assert_eq!(order.leave(0), [1, 2, 3]);
    }

    #[test]
    fn returning_writer_blocks_only_later_readers() {
        let mut order = line(&[Writer, Reader, Reader]);
        assert_eq!(passed_over(&mut order, 0), [1, 2]);
        assert_eq!(admitted(&order), [1, 2]);
        assert!(order.polled(0, Writer).is_empty());
        assert_eq!(heads(&order), [0, 1]);
        assert!(order.polled(3, Reader).is_empty());
        assert!(!order.admits(3));
    }

    #[test]
    fn unresponsive_reader_does_not_block_the_writer() {
        let mut order = line(&[Reader, Reader, Writer]);
        assert_eq!(order.leave(1), Vec::<Number>::new());
        assert_eq!(passed_over(&mut order, 0), [2]);
        // The leading reader is back again.
        assert!(order.polled(0, Reader).is_empty());
        assert_eq!(heads(&order), [0, 2]);
    }

    #[test]
    fn plain_waiter_does_not_wait_for_readers() {
        let mut order = line(&[Reader, Writer, Plain, Plain]);
        assert_eq!(heads(&order), [0, 2]);
        assert_eq!(order.leave(2), [3]);
        assert_eq!(order.leave(0), Vec::<Number>::new());
        assert_eq!(order.leave(3), [1]);
    }
}
