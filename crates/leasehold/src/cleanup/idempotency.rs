//! Idempotency keys. A request that can't be repeated without harm leaves its reply on the
//! server under such a key, its marker, so that it counts once.
//!
//! A marker ends by itself, but until then it takes memory, and a busy semaphore would fill the
//! server. So each request removes the marker of an earlier one, whose answer came long enough
//! ago that no copy of it can still be on its way. The marker of a request that was sent again
//! stays until its end: a network that held back the first copy for long may bring it yet.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::clock::Moment;
use crate::key::Key;
use crate::room::Room;
use crate::sync::{Mutex, MutexGuard};

/// How long a marker outlives its answer.
const KEPT: Duration = Duration::from_secs(5);
/// How many are kept for one name, however fresh they are.
const MOST: usize = 512;
/// Names whose markers are known. Those of the others end by themselves.
const MOST_NAMES: usize = 2048;
/// How long a marker stays on the server.
pub(crate) const MARKER_LIFE: Duration = Duration::from_secs(60);

/// How long after it first left a request may be sent again: it still finds its marker then, and
/// has the time that a connection and a reply may take.
pub(crate) fn repeatable_for(reply_timeout: Duration) -> Duration {
    MARKER_LIFE
        .saturating_sub(Duration::from_secs(10))
        .saturating_sub(reply_timeout)
}

/// The markers of one request: its own, and one that is no longer needed.
#[derive(Clone, Debug)]
pub(crate) struct Marked {
    pub(crate) marker: String,
    pub(crate) done: String,
}

impl Marked {
    /// The keys of a step that begins with the name and these.
    pub(crate) fn keys(&self, key: &Key) -> Vec<Vec<u8>> {
        let [marker, done] = self.both();
        vec![key.as_str().into(), marker, done]
    }

    pub(crate) fn both(&self) -> [Vec<u8>; 2] {
        [&self.marker, &self.done].map(|key| key.as_bytes().to_vec())
    }
}

/// The markers whose requests were answered, by name.
#[derive(Default)]
pub(crate) struct IdempotencyKeys {
    answered: Mutex<Answered>,
}

type Answered = HashMap<Key, VecDeque<(Moment, String)>>;

impl IdempotencyKeys {
    fn table(&self) -> MutexGuard<'_, Answered> {
        self.answered.lock()
    }

    /// The markers of a new request, whose `id` no other has.
    pub(crate) fn mark(&self, key: &Key, id: &str, now: Moment) -> Marked {
        let mut table = self.table();
        let old = table.get_mut(key).and_then(|markers| {
            let (since, _) = markers.front()?;
            // Beyond `MOST` it goes although it is fresh: a busy name must fill neither the
            // server's memory nor ours.
            let over = now.saturating_sub(*since) >= KEPT || markers.len() > MOST;
            over.then(|| markers.pop_front()).flatten()
        });
        drop(table);
        Marked {
            marker: key.idempotency_key(id),
            // A step always removes one: where none is old enough, a key that never exists.
            done: old.map_or_else(|| key.idempotency_key("-"), |(_, marker)| marker),
        }
    }

    /// The request with this marker was sent once, and answered.
    pub(crate) fn answered(&self, key: &Key, marked: Marked, now: Moment) {
        let mut table = self.table();
        // Bounded, however many names are used: a marker that is forgotten here ends by itself.
        if table.len() >= MOST_NAMES && !table.contains_key(key) {
            make_room(&mut table, now);
        }
        let markers = table.entry(key.clone()).or_default();
        markers.push_back((now, marked.marker));
    }
}

/// Forgets the names that are no longer used, and others as well, until half of the table is
/// left.
fn make_room(table: &mut Answered, now: Moment) {
    // Half, so that the next name does not make this necessary again.
    let mut room = MOST_NAMES / 2;
    table.retain(|_, markers| {
        let is_used = markers
            .back()
            .is_some_and(|(since, _)| now.saturating_sub(*since) < 2 * KEPT);
        let stays = is_used && room > 0;
        room -= usize::from(stays);
        stays
    });
    table.give_back();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    #[test]
    fn a_marker_is_taken_along_when_no_copy_of_its_request_can_come() {
        let (markers, key) = (IdempotencyKeys::default(), Key::parse("x").expect("a name"));
        let first = markers.mark(&key, "1", at(0));
        let marker = first.marker.clone();
        markers.answered(&key, first, at(0));
        assert_ne!(markers.mark(&key, "2", at(4)).done, marker);
        assert_eq!(markers.mark(&key, "3", at(6)).done, marker);
        assert_ne!(markers.mark(&key, "4", at(7)).done, marker, "once");
    }

    #[test]
    fn names_that_are_used_no_more_are_forgotten() {
        let markers = IdempotencyKeys::default();
        for n in 0..5000 {
            let key = Key::parse(&n.to_string()).expect("a name");
            let marked = markers.mark(&key, "1", at(0));
            markers.answered(&key, marked, at(0));
        }
        assert!(markers.table().len() <= MOST_NAMES);
    }

    #[test]
    fn no_more_than_so_many_stay_however_fast_they_come() {
        let (markers, key) = (IdempotencyKeys::default(), Key::parse("x").expect("a name"));
        for n in 0..5000 {
            let marked = markers.mark(&key, &n.to_string(), at(0));
            markers.answered(&key, marked, at(0));
        }
        assert!(markers.table()[&key].len() <= MOST + 1);
    }
}
