//! The checker: one sweep over the events of a history, for locks and for permits.
//!
//! A name has a number of places, and each stay takes some of them. Permits are places. A lock has
//! a place for each of its holds, of which a reader takes one and a writer all.

/// A point in a history: a time, and an order among the events of that time.
pub(super) type Point = (u64, u64);

/// Places that are taken, from the return of an acquire to the call of the release or to the
/// holder's deadline.
pub(super) struct Stay<H> {
    /// Who takes them. Stays of one holder have room beside each other.
    pub(super) holder: H,
    pub(super) places: u64,
    pub(super) asked: Point,
    pub(super) from: Point,
    pub(super) until: Point,
}

/// What the sweep has seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The most places that were taken at once.
    pub(super) most: u64,
    /// How many stays had no room at some moment between their ask and their beginning.
    pub(super) waited: usize,
    /// The stays that began without room, each with one that was in its way, by their numbers.
    pub(super) without_room: Vec<(usize, usize)>,
}

/// What happens at one point happens in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    // First, so that a hand-over at one point is no overlap. An ask comes before the beginnings,
    // because its own may be one of them.
    Ends,
    Asks,
    Begins,
}

/// Judges the stays under one name that has `capacity` places.
pub(super) fn sweep<H: PartialEq>(stays: &[Stay<H>], capacity: u64) -> Seen {
    let mut events = Vec::with_capacity(3 * stays.len());
    for (number, stay) in stays.iter().enumerate() {
        // A stay that was over before it began has taken nothing.
        if stay.from < stay.until {
            // An ask that was recorded behind its own beginning would never leave `unhindered`, and
            // could count as a wait when somebody else comes.
            events.push((stay.asked.min(stay.from), Event::Asks, number));
            events.push((stay.from, Event::Begins, number));
            events.push((stay.until, Event::Ends, number));
        }
    }
    events.sort_unstable();
    let mut now = Now {
        stays,
        capacity,
        inside: Vec::new(),
    };
    let mut seen = Seen::default();
    // Those who have asked, and have had room ever since.
    let mut unhindered = Vec::new();
    for (_, event, number) in events {
        match event {
            Event::Ends => now.inside.retain(|inside| *inside != number),
            Event::Asks if now.has_room(number) => unhindered.push(number),
            Event::Asks => seen.waited += 1,
            Event::Begins => {
                if !now.has_room(number) {
                    // Nobody is in the way of a stay that wants more places than there are. `most`
                    // shows that one.
                    let first = now.in_the_way(number);
                    seen.without_room.extend(first.map(|first| (first, number)));
                }
                // It counts as inside although it had no room: the next one may overlap with it,
                // too.
                now.inside.push(number);
                seen.most = seen.most.max(now.taken());
                let before = unhindered.len();
                // Also of `number` itself, if it began although there was no room.
                unhindered.retain(|asker| now.has_room(*asker));
                seen.waited += before - unhindered.len();
                unhindered.retain(|asker| *asker != number);
            }
        }
    }
    seen
}

/// One moment of a history.
struct Now<'a, H> {
    stays: &'a [Stay<H>],
    capacity: u64,
    /// The stays that have begun and have not ended.
    inside: Vec<usize>,
}

impl<H: PartialEq> Now<'_, H> {
    fn taken(&self) -> u64 {
        self.inside
            .iter()
            .map(|inside| self.stays[*inside].places)
            .sum()
    }

    /// The stays that others have now.
    fn others(&self, number: usize) -> impl Iterator<Item = usize> {
        let holder = &self.stays[number].holder;
        let inside = self.inside.iter().copied();
        inside.filter(move |inside| self.stays[*inside].holder != *holder)
    }

    fn has_room(&self, number: usize) -> bool {
        let others = self.others(number);
        let taken: u64 = others.map(|other| self.stays[other].places).sum();
        taken + self.stays[number].places <= self.capacity
    }

    /// Of the others who take the most places, the one who stays longest.
    fn in_the_way(&self, number: usize) -> Option<usize> {
        let size = |other: &usize| (self.stays[*other].places, self.stays[*other].until);
        self.others(number).max_by_key(size)
    }
}
