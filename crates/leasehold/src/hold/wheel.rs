//! A table of due times for very many entries, called things. The cost of inserting, removing or
//! moving a thing does not depend on how many things there are. Things that are due in the same 67
//! ms are in one list, without an order. Each thing knows its index in the list.

use std::collections::BTreeMap;

use crate::clock::Moment;

/// The width of a list, in bits of a time in nanoseconds: 2^26 ns are 67 ms.
const LIST_BITS: u32 = 26;

/// A thing that knows its index in a list.
pub(super) trait Indexed {
    fn set_index(&self, index: usize);
}

/// Things, sorted by the time at which they are due.
pub(super) struct Wheel<T> {
    lists: BTreeMap<u64, Vec<(Moment, T)>>,
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Self {
            lists: BTreeMap::new(),
        }
    }
}

fn list_of(at: Moment) -> u64 {
    at.as_nanos() >> LIST_BITS
}

impl<T: Indexed> Wheel<T> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.lists.values().flatten().map(|(_, thing)| thing)
    }

    pub(super) fn insert(&mut self, at: Moment, thing: T) {
        let list = self.lists.entry(list_of(at)).or_default();
        thing.set_index(list.len());
        list.push((at, thing));
    }

    /// Removes the thing that is due at `at` and has this index.
    pub(super) fn remove(&mut self, at: Moment, index: usize) -> Option<T> {
        let number = list_of(at);
        let list = self.lists.get_mut(&number)?;
        let thing = take(list, index)?;
        self.remove_if_empty(number);
        Some(thing)
    }

    /// Removes a thing for which `wanted` is true from the list that is due first. Does not check
    /// the other lists, even if this list has no such thing.
    pub(super) fn take_next(&mut self, wanted: impl Fn(Moment, &T) -> bool) -> Option<T> {
        let (number, list) = self.lists.iter_mut().next()?;
        let index = list.iter().rposition(|(at, thing)| wanted(*at, thing))?;
        let (number, thing) = (*number, take(list, index)?);
        self.remove_if_empty(number);
        Some(thing)
    }

    /// Returns the time at which the next thing is due.
    pub(super) fn next(&self) -> Option<Moment> {
        let (_, list) = self.lists.iter().next()?;
        list.iter().map(|(at, _)| *at).min()
    }

    fn remove_if_empty(&mut self, number: u64) {
        if self.lists.get(&number).is_some_and(Vec::is_empty) {
            self.lists.remove(&number);
        }
    }
}

/// Removes a thing from a list. The last thing of the list moves to its index.
fn take<T: Indexed>(list: &mut Vec<(Moment, T)>, index: usize) -> Option<T> {
    if index >= list.len() {
        return None;
    }
    let (_, thing) = list.swap_remove(index);
    if let Some((_, moved)) = list.get(index) {
        moved.set_index(index);
    }
    Some(thing)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[derive(Debug, Default)]
    struct Thing {
        number: u64,
        index: Cell<usize>,
    }

    impl Indexed for Rc<Thing> {
        fn set_index(&self, index: usize) {
            self.index.set(index);
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    fn thing(number: u64) -> Rc<Thing> {
        Rc::new(Thing {
            number,
            ..Thing::default()
        })
    }

    #[test]
    fn what_is_due_first_is_taken_first() {
        let mut wheel = Wheel::default();
        for number in [500, 20, 3000, 1] {
            wheel.insert(at(number), thing(number));
        }
        assert_eq!((wheel.iter().count(), wheel.next()), (4, Some(at(1))));
        let due = |now: u64| move |when: Moment, _: &Rc<Thing>| when <= at(now);
        let mut taken = Vec::new();
        while let Some(thing) = wheel.take_next(due(600)) {
            taken.push(thing.number);
        }
        taken.sort_unstable();
        assert_eq!(taken, [1, 20, 500]);
        assert_eq!((wheel.iter().count(), wheel.next()), (1, Some(at(3000))));
    }

    #[test]
    fn each_is_taken_out_from_where_it_has_moved() {
        let mut wheel = Wheel::default();
        let things: Vec<_> = (0..300).map(thing).collect();
        for thing in &things {
            wheel.insert(at(thing.number), Rc::clone(thing));
        }
        // The order is unrelated to the due times, so each removal moves a different thing.
        for step in 0..300 {
            let thing = &things[step * 7 % 300];
            let taken = wheel.remove(at(thing.number), thing.index.get());
            assert_eq!(taken.map(|taken| taken.number), Some(thing.number));
        }
        assert_eq!((wheel.iter().count(), wheel.next()), (0, None));
        assert!(wheel.remove(at(1), 0).is_none());
    }
}
